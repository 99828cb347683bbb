"""Proposals that leave the processor less to do: other options, caches, smaller images, more machines. Pure.

The savings of changes from `parse` to `batch` were measured with a few of the records: see `OptionCosts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tfpipe.profiler.diagnose.bottleneck import compute_required_rate
from tfpipe.profiler.diagnose.fixes_data import describe_rewrite
from tfpipe.profiler.types import (
    OPTION_COST_STAGES,
    Effort,
    HostUse,
    OptionValue,
    Profile,
    ProposedFix,
    ServiceDemand,
)
from tfpipe.system.units import format_mebibytes, human_bytes

_ON_DEVICE: Mapping[str, OptionValue] = {"augment": "device", "image_dtype": "uint8"}
_BEFORE_CACHE = ("read",)
"""The stages that a cache of decoded images leaves nothing to do."""
_LEFT_WITH_NATIVE_LIBRARY = 0.2
"""The share of the time of making batches that is left when the native library takes the place of NumPy and Pillow. It
cannot be tried before it is installed, so this is an estimate, and the fix says so."""
_CACHE_SHARE = 0.8
"""The share of the free memory that a proposed cache may take; a pipeline accepts up to `MAX_CACHE_SHARE`."""
_MIN_CACHED_SHARE = 0.1
"""The share of the records below which a cache of what fits is not worth its memory."""


def propose(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields the changes that could leave the processor less to do, in no order.

    Args:
        profile: The measured figures.
        demand: The profile's demand.
    """
    yield from _change_options(profile, demand)
    yield from _add_cache(profile, demand)
    yield from _install_native_library(profile, demand)
    yield from _store_smaller(profile, demand)
    yield from _store_seekable(profile, demand)
    yield from _add_machines(profile, demand)


def _change_options(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields the options that make an image cheaper from `parse` to `batch`."""
    config, costs = profile.config, profile.option_costs
    if cpu_s := scale_cpu(profile, demand, costs.uint8):
        width = "four" if config.image_dtype == "float32" else "two"
        reason = f"A byte for each value instead of {width}: the device normalizes."
        lighter = replace(demand, cpu_s=cpu_s)
        yield ProposedFix(Effort.VISIBLE_OPTION, reason, lighter, {"image_dtype": "uint8"})
    if cpu_s := scale_cpu(profile, demand, costs.device):
        lighter = replace(demand, cpu_s=cpu_s)
        yield ProposedFix(Effort.VISIBLE_OPTION, "The device crops, flips and normalizes.", lighter, _ON_DEVICE)
    if cpu_s := scale_cpu(profile, demand, costs.dct_scaling):
        reason = "If a crop is twice as large as needed, libjpeg decodes half of each side."
        yield ProposedFix(Effort.OPTION, reason, replace(demand, cpu_s=cpu_s), {"augment_options.dct_scaling": True})
    if cpu_s := scale_cpu(profile, demand, costs.native):
        reason = "The native library, which is there, decodes, crops and resizes in one call."
        yield ProposedFix(Effort.OPTION, reason, replace(demand, cpu_s=cpu_s), {"decoder": "auto"})


def _add_cache(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields the caches that fit into memory: of the records, and of the decoded images."""
    config, dataset, host = profile.config, profile.dataset, profile.host
    records = dataset.records or dataset.counted_records
    if config.cache != "none" or not records:
        return
    free_bytes = compute_cache_room(host)
    record_bytes = records * (dataset.unpacked_record_bytes or dataset.record_bytes)
    cached = without_storage(demand, {**demand.cpu_s, "read": 0.0})
    if record_bytes <= free_bytes:
        reason = f"From the second epoch on nothing is read: {human_bytes(record_bytes)} of memory."
        yield ProposedFix(Effort.VISIBLE_OPTION, reason, cached, {"cache": "bytes"})
    else:
        yield from _cache_part(profile, demand, cached, {"cache": "bytes"}, free_bytes / record_bytes)
    height, width = dataset.decoded_size
    decoded_bytes = records * height * width * 3
    if config.max_bad_records:
        return
    if decoded_bytes > free_bytes:
        if not dataset.late_caches and (cpu_s := scale_cpu(profile, demand, profile.option_costs.cached)):
            cached = without_storage(demand, cpu_s | dict.fromkeys(_BEFORE_CACHE, 0.0))
            yield from _cache_part(profile, demand, cached, {"cache": "decoded"}, free_bytes / decoded_bytes)
        return
    reason = f"From the second epoch on nothing is decoded: {human_bytes(decoded_bytes)} of memory."
    if dataset.late_caches:
        yield from _move_cache(profile, demand, dataset.late_caches[0], reason)
    elif cpu_s := scale_cpu(profile, demand, profile.option_costs.cached):
        cpu_s |= dict.fromkeys(_BEFORE_CACHE, 0.0)
        cached = without_storage(demand, cpu_s)
        yield ProposedFix(Effort.VISIBLE_OPTION, reason, cached, {"cache": "decoded"})


def _cache_part(
    profile: Profile, demand: ServiceDemand, cached: ServiceDemand, changes: Mapping[str, OptionValue], share: float
) -> Iterator[ProposedFix]:
    """Yields a cache of as many records as fit.

    Args:
        profile: The measured figures.
        demand: The profile's demand, which is that of the records that are not kept.
        cached: The demand with a cache of all records.
        changes: The kind of the cache.
        share: The share of the records that fit.
    """
    if share < _MIN_CACHED_SHARE or not profile.dataset.by_engine:  # tf.data caches all or nothing
        return
    cpu_s = {name: (1 - share) * now_s + share * cached.cpu_s[name] for name, now_s in demand.cpu_s.items()}
    mixed = replace(
        demand,
        cpu_s=cpu_s,
        wait_s={
            name: (1 - share) * now_s + share * cached.wait_s.get(name, 0.0) for name, now_s in demand.wait_s.items()
        },
        storage_limit=None if demand.storage_limit is None else demand.storage_limit / (1 - share),
    )
    free_bytes = compute_cache_room(profile.host)
    what = "read" if changes["cache"] == "bytes" else "decoded"
    reason = f"{share:.0%} of the records fit into {human_bytes(free_bytes)} of memory: they are {what} only once."
    size: Mapping[str, OptionValue] = {"cache_bytes": format_mebibytes(free_bytes)}
    yield ProposedFix(Effort.VISIBLE_OPTION, reason, mixed, {**changes, **size})


def _move_cache(profile: Profile, demand: ServiceDemand, name: str, reason: str) -> Iterator[ProposedFix]:
    """Yields a cache before `augment` in place of the one behind it, with augmentation here or on the device."""
    reason = f"Kept before they are augmented, images are a byte a value, and every crop is a new one. {reason}"
    host_changes: dict[str, OptionValue] = {"cache": "decoded"}
    costs = profile.option_costs
    for cost_us, changes in ((costs.cached, host_changes), (costs.cached_device, {**host_changes, **_ON_DEVICE})):
        if cost_us is None:
            continue
        skipped = dict.fromkeys((*_BEFORE_CACHE, *OPTION_COST_STAGES, name), 0.0)
        cached = without_storage(
            demand, {**demand.cpu_s, **skipped, "augment": profile.records_per_image * cost_us / 1e6}
        )
        settings = ", ".join(f"{option} = {value!r}" for option, value in changes.items())
        instruction = f"Take the cache out of the stage {name}, and set {settings}."
        yield ProposedFix(Effort.VISIBLE_OPTION, reason, cached, changes, instruction, "rewrite_stage", name)


def _store_smaller(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields new shards with images as small as the model allows."""
    dataset, short_side = profile.dataset, profile.dataset.short_side
    cpu_s, size = scale_cpu(profile, demand, profile.option_costs.smaller), dataset.stored_size or dataset.mean_size
    if not short_side or not size or not cpu_s:
        return
    read_left = min(profile.option_costs.smaller_bytes or 1.0, 1.0)
    cpu_s["read"] = cpu_s.get("read", 0.0) * read_left
    wait_s = {**demand.wait_s, "read": demand.wait_s.get("read", 0.0) * read_left}
    storage_limit = None if demand.storage_limit is None else demand.storage_limit / read_left
    smaller = replace(demand, cpu_s=cpu_s, wait_s=wait_s, storage_limit=storage_limit)
    height, width = size
    average = "" if dataset.stored_size else " on average"
    reason = f"Images of {width:,.0f} x {height:,.0f}{average} are stored for a model that sees {short_side * 7 // 8}."
    options = f"--square {short_side}" if dataset.stored_size else f"--resize-short {short_side}"
    options = f"--encoding raw {options}" if "RAW" in dataset.formats else options
    instruction = describe_rewrite(dataset, options) if dataset.foreign else f"tfpipe shard INPUT OUTPUT {options}"
    yield ProposedFix(Effort.NEW_SHARDS, reason, smaller, instruction=instruction, action="write_data")


def _install_native_library(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields the native decoder, if it is not installed."""
    now_us = profile.option_costs.now
    if now_us is None or not profile.dataset.lacks_native_library:
        return
    if cpu_s := scale_cpu(profile, demand, _LEFT_WITH_NATIVE_LIBRARY * now_us):
        reason = "The native library decodes, crops and resizes in one call; the gain is an estimate."
        instruction = "Install tfpipe again where a C compiler is, so that it has its native library."
        lighter = replace(demand, cpu_s=cpu_s)
        yield ProposedFix(Effort.NEW_SHARDS, reason, lighter, instruction=instruction, action="install_package")


def _store_seekable(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields new shards whose JPEGs have restart markers."""
    if cpu_s := scale_cpu(profile, demand, profile.option_costs.seekable):
        reason = "With restart markers in a JPEG no more is decoded than the crop needs."
        instruction = describe_rewrite(profile.dataset, "--seekable")
        lighter = replace(demand, cpu_s=cpu_s)
        yield ProposedFix(Effort.NEW_SHARDS, reason, lighter, instruction=instruction, action="write_data")


def _add_machines(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields more hosts like this one, each of which makes whole images. The network's limit is not known here."""
    number = math.ceil(compute_required_rate(profile.step) / profile.images_per_second)
    if number < 2 or not can_be_served(profile):
        return
    instruction = (
        f"Run `tfpipe serve` on {number} machines like this one, and set `service.workers` to their addresses."
    )
    threads = {name: count * number for name, count in demand.threads.items()}
    wider = replace(demand, cores=demand.cores * number, threads=threads)
    reason = f"{number} machines give {number} times what this one does, unless the network is the limit."
    yield ProposedFix(Effort.MORE_MACHINES, reason, wider, instruction=instruction, action="add_machines")


def can_be_served(profile: Profile) -> bool:
    """Returns whether workers could make the batches: those of the engine, without a cache or stages of the user's."""
    dataset = profile.dataset
    return dataset.by_engine and not dataset.own_stages and profile.config.cache == "none"


def scale_cpu(profile: Profile, demand: ServiceDemand, cost_us: float | None) -> dict[str, float]:
    """Returns the processor time by stage with a change, in the proportion that was measured for the change.

    Args:
        profile: The measured figures.
        demand: The profile's demand.
        cost_us: The cost with the change, a value of `OptionCosts`.

    Returns:
        The time by stage; empty if the change was not tried, or if images are not decoded in every epoch.
    """
    now_us = profile.option_costs.now
    if not now_us or cost_us is None or not any(demand.cpu_s.get(stage) for stage in ("parse", "decode")):
        return {}
    ratio = cost_us / now_us
    return {stage: seconds * (ratio if stage in OPTION_COST_STAGES else 1.0) for stage, seconds in demand.cpu_s.items()}


def compute_cache_room(host: HostUse) -> float:
    """Returns the bytes that a proposed cache may take."""
    return _CACHE_SHARE * (host.memory_limit_bytes - host.peak_memory_bytes)


def without_storage(demand: ServiceDemand, cpu_s: Mapping[str, float]) -> ServiceDemand:
    """Returns a demand that does not read. A stage without processor time is not a limit, and waits for nothing."""
    threads = {name: count for name, count in demand.threads.items() if cpu_s.get(name)}
    wait_s = {name: seconds for name, seconds in demand.wait_s.items() if name != "read" and cpu_s.get(name)}
    return replace(demand, cpu_s=cpu_s, wait_s=wait_s, storage_limit=None, threads=threads)
