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
    lighter = _save_reading(demand, profile.records_per_image * (costs.read - costs.read_without_unread))
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
    lighter = _save_reading(demand, profile.records_per_image * (costs.read - costs.read_unpacked))
    reason = f"Nothing has to be unpacked: the files are {dataset.compression} compressed."
    yield ProposedFix(Effort.NEW_SHARDS, reason, lighter, instruction=describe_rewrite(dataset), action="write_data")


def _save_reading(demand: ServiceDemand, saved_us: float) -> ServiceDemand:
    """Returns the demand with cheaper reading: in `read`, and where threads that read ahead are counted, in "other"."""
    saved_s = max(saved_us, 0.0) / 1e6
    from_read_s = min(saved_s, demand.cpu_s.get("read", 0.0))
    from_other_s = min(saved_s - from_read_s, demand.cpu_s.get("other", 0.0))
    cpu_s = {**demand.cpu_s, "other": demand.cpu_s.get("other", 0.0) - from_other_s}
    if "read" in cpu_s:
        cpu_s["read"] -= from_read_s
    return replace(demand, cpu_s=cpu_s)
