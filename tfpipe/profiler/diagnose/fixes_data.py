"""Proposals that write the data anew, so that less is read: without unread features, not compressed. Pure.

What reading costs was measured with a few of the records: see `OptionCosts`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from tfpipe.profiler.types import DatasetFacts, Effort, Profile, ProposedFix, ServiceDemand

_MUCH_UNREAD = 0.1
"""The share of the bytes read from which on features that nobody reads are worth new shards."""


def propose(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields the changes of the files that could leave less to read, in no order.

    Args:
        profile: The measured figures.
        demand: The profile's demand.
    """
    yield from _drop_unread_features(profile, demand)
    yield from _unpack_files(profile, demand)


def describe_rewrite(dataset: DatasetFacts, options: str = "") -> str:
    """Returns the command that writes the records of a dataset anew; files without a manifest are described first."""
    if dataset.described:
        return f"tfpipe reshard INPUT OUTPUT {options}".rstrip()
    return f"tfpipe index FILES --output INDEX, then tfpipe reshard INDEX OUTPUT {options}".rstrip()


def _drop_unread_features(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields new shards without the features that are not read."""
    dataset, costs = profile.dataset, profile.option_costs
    left, cached = 1 - dataset.unread_share, profile.config.cache != "none"
    if dataset.unread_share < _MUCH_UNREAD or cached or costs.read is None or costs.read_without_unread is None:
        return
    lighter = _scale_reading(demand, costs.read_without_unread / costs.read)
    wait_s = {**demand.wait_s, "read": demand.wait_s.get("read", 0.0) * left}
    storage_limit = None if demand.storage_limit is None else demand.storage_limit / left
    lighter = replace(lighter, wait_s=wait_s, storage_limit=storage_limit)
    options = " ".join(f"--drop-feature {shlex.quote(name)}" for name in dataset.unread_features)
    reason = f"{dataset.unread_share:.0%} of the bytes read are features that nobody reads."
    yield ProposedFix(
        Effort.NEW_SHARDS, reason, lighter, instruction=describe_rewrite(dataset, options), action="write_data"
    )


def _unpack_files(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields a dataset in place of compressed files."""
    dataset, costs = profile.dataset, profile.option_costs
    if costs.read is None or costs.read_unpacked is None or profile.config.cache != "none":
        return
    lighter = _scale_reading(demand, costs.read_unpacked / costs.read)
    reason = f"Nothing has to be unpacked: the files are {dataset.compression} compressed."
    yield ProposedFix(Effort.NEW_SHARDS, reason, lighter, instruction=describe_rewrite(dataset), action="write_data")


def _scale_reading(demand: ServiceDemand, left: float) -> ServiceDemand:
    """Returns the demand with the share of the processor time of reading that was left when it was tried."""
    cpu_s = {name: seconds * (min(left, 1.0) if name == "read" else 1.0) for name, seconds in demand.cpu_s.items()}
    return replace(demand, cpu_s=cpu_s)
