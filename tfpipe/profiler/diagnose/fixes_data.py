"""Proposals that write the data anew, so that less is read: without unread features, not compressed. Pure.

What reading costs was measured with a few of the records: see `TriedChange`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from tfpipe.profiler.types import DatasetFacts, Effort, Fix, Profile, ServiceDemand

_MUCH_UNREAD = 0.1
"""The share of the bytes read from which on features that nobody reads are worth new shards."""


def propose(profile: Profile) -> Iterator[Fix]:
    """Yields the changes of the files that could leave less to read, in no order."""
    dataset, costs, demand = profile.dataset, profile.option_costs, profile.demand
    read_us = costs.get("read")
    if read_us is None or profile.config.cache != "none":
        return
    if dataset.unread_share >= _MUCH_UNREAD and "read_without_unread" in costs:
        lighter = demand.read_less(1 - dataset.unread_share)
        lighter = lighter.scale({"read": min(costs["read_without_unread"] / read_us, 1.0)})
        options = " ".join(f"--drop-feature {shlex.quote(name)}" for name in dataset.unread_features)
        reason = f"{dataset.unread_share:.0%} of the bytes read are features that nobody reads."
        yield write_anew(dataset, reason, lighter, options)
    if "read_unpacked" in costs:
        lighter = demand.scale({"read": min(costs["read_unpacked"] / read_us, 1.0)})
        reason = f"Nothing has to be unpacked: the files are {dataset.compression} compressed."
        yield write_anew(dataset, reason, lighter)


def write_anew(dataset: DatasetFacts, reason: str, demand: ServiceDemand, options: str = "") -> Fix:
    """Returns the fix that writes the records of a dataset anew."""
    instruction = describe_rewrite(dataset, options)
    return Fix(Effort.NEW_SHARDS, reason, demand, instruction=instruction, action="write_data")


def describe_rewrite(dataset: DatasetFacts, options: str = "") -> str:
    """Returns the command that writes the records of a dataset anew; files without a manifest are described first."""
    # The new folders stand beside the data, without the view or the pattern in their names.
    base = re.split(r"@[^/]*$|[*?\[]", dataset.address)[0].rstrip("-_./") or "data"
    index, described = "", dataset.address
    if not dataset.described:
        described = f"{base}-index"
        index = f"{describe_index(dataset)} --output {shlex.quote(described)}, then "
    return f"{index}tfpipe reshard {shlex.quote(described)} {shlex.quote(f'{base}-new')} {options}".rstrip()


def describe_index(dataset: DatasetFacts) -> str:
    """Returns the command that describes files without a manifest."""
    return f"tfpipe index {shlex.quote(dataset.address)}"
