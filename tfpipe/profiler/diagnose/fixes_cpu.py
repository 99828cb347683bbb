"""Proposals that leave the processor less to do: other options, caches, smaller images. Pure.

The savings of changes from `parse` to `batch` were measured with a few of the records: see `OptionCosts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tfpipe.profiler.diagnose.fixes_data import write_anew
from tfpipe.profiler.types import (
    OPTION_COST_STAGES,
    Effort,
    Fix,
    HostUse,
    OptionValue,
    Profile,
    ServiceDemand,
    TriedChange,
)
from tfpipe.system.units import format_mebibytes, human_bytes

_BYTES: Mapping[str, OptionValue] = {"image_dtype": "uint8"}
_CACHE_SHARE = 0.8
"""The share of the free memory that a proposed cache may take; a pipeline accepts up to `MAX_CACHE_SHARE`."""
_MIN_CACHED_SHARE = 0.1
"""The share of the records below which a cache of what fits is not worth its memory."""


def propose(profile: Profile) -> Iterator[Fix]:
    """Yields the changes that could leave the processor less to do, in no order."""
    yield from _change_options(profile)
    yield from _add_cache(profile)
    yield from _store_otherwise(profile)


def _change_options(profile: Profile) -> Iterator[Fix]:
    """Yields the options that make an image cheaper from `parse` to `batch`."""
    width = "four" if profile.config.image_dtype == "float32" else "two"
    crop = "If a crop is twice as large as needed, libjpeg decodes half of each side."
    rows: tuple[tuple[TriedChange, Effort, str, Mapping[str, OptionValue]], ...] = (
        ("uint8", Effort.VISIBLE_OPTION, f"A byte for each value instead of {width}: the device normalizes.", _BYTES),
        ("device", Effort.VISIBLE_OPTION, "The device crops, flips and normalizes.", {"augment": "device", **_BYTES}),
        ("dct_scaling", Effort.OPTION, crop, {"augment_options.dct_scaling": True}),
    )
    for change, effort, reason, changes in rows:
        if lighter := scale_cpu(profile, change):
            yield Fix(effort, reason, lighter, changes)


def _add_cache(profile: Profile) -> Iterator[Fix]:
    """Yields the caches that fit into memory: of the records, and of the decoded images."""
    config, dataset, demand = profile.config, profile.dataset, profile.demand
    records = dataset.records or dataset.counted_records
    if config.cache != "none" or not records:
        return
    record_bytes = records * (dataset.unpacked_record_bytes or dataset.record_bytes)
    cached = demand.without_reading({**demand.cpu_s, "read": 0.0})
    yield from _keep(profile, cached, "bytes", record_bytes)
    height, width = dataset.decoded_size
    decoded_bytes = records * height * width * 3
    if config.max_bad_records:
        return
    if dataset.late_caches:
        if decoded_bytes <= compute_cache_room(profile.host):
            yield from _move_cache(profile, dataset.late_caches[0], decoded_bytes)
    elif decoded := scale_cpu(profile, "cached"):
        cached = demand.without_reading({**decoded.cpu_s, "read": 0.0})
        yield from _keep(profile, cached, "decoded", decoded_bytes)


def _keep(profile: Profile, cached: ServiceDemand, kind: str, num_bytes: float) -> Iterator[Fix]:
    """Yields a cache of all records, or of as many as fit.

    Args:
        profile: The measured figures.
        cached: The demand with a cache of all records.
        kind: The kind of the cache.
        num_bytes: The bytes of all records in it.
    """
    free_bytes, demand = compute_cache_room(profile.host), profile.demand
    what = "read" if kind == "bytes" else "decoded"
    if num_bytes <= free_bytes:
        reason = _explain_cache(what, num_bytes)
        yield Fix(Effort.VISIBLE_OPTION, reason, cached, {"cache": kind})
        return
    share = free_bytes / num_bytes
    if share < _MIN_CACHED_SHARE or not profile.dataset.by_engine:  # tf.data caches all or nothing
        return

    def mix(now: Mapping[str, float], then: Mapping[str, float]) -> dict[str, float]:
        return {name: (1 - share) * seconds + share * then.get(name, 0.0) for name, seconds in now.items()}

    mixed = replace(
        demand,
        cpu_s=mix(demand.cpu_s, cached.cpu_s),
        wait_s=mix(demand.wait_s, cached.wait_s),
        storage_limit=None if demand.storage_limit is None else demand.storage_limit / (1 - share),
    )
    reason = f"{share:.0%} of the records fit into {human_bytes(free_bytes)} of memory: they are {what} only once."
    yield Fix(Effort.VISIBLE_OPTION, reason, mixed, {"cache": kind, "cache_bytes": format_mebibytes(free_bytes)})


def _explain_cache(what: str, num_bytes: float) -> str:
    return f"From the second epoch on nothing is {what}: {human_bytes(num_bytes)} of memory."


def _move_cache(profile: Profile, name: str, num_bytes: float) -> Iterator[Fix]:
    """Yields a cache before `augment` in place of the one behind it, with augmentation here or on the device."""
    why = "Kept before they are augmented, images are a byte a value, and every crop is a new one."
    reason = f"{why} {_explain_cache('decoded', num_bytes)}"
    on_host: dict[str, OptionValue] = {"cache": "decoded"}
    costs, demand = profile.option_costs, profile.demand
    on_device = {**on_host, "augment": "device", **_BYTES}
    for cost_us, changes in ((costs.get("cached"), on_host), (costs.get("cached_device"), on_device)):
        if cost_us is None:
            continue
        skipped = dict.fromkeys(("read", *OPTION_COST_STAGES, name), 0.0)
        left_s = profile.records_per_image * cost_us / 1e6
        cached = demand.without_reading({**demand.cpu_s, **skipped, "augment": left_s})
        settings = ", ".join(f"{option} = {value!r}" for option, value in changes.items())
        instruction = f"Take the cache out of the stage {name}, and set {settings}."
        yield Fix(Effort.VISIBLE_OPTION, reason, cached, changes, instruction, "rewrite_stage", name)


def _store_otherwise(profile: Profile) -> Iterator[Fix]:
    """Yields new shards: with images as small as the model allows, or with restart markers in JPEGs."""
    dataset, short_side = profile.dataset, profile.dataset.short_side
    size = dataset.stored_size or dataset.mean_size
    if short_side and size and (smaller := scale_cpu(profile, "smaller")):
        left = min(profile.option_costs.get("smaller_bytes", 1.0), 1.0)
        height, width = size
        average = "" if dataset.stored_size else " on average"
        model = short_side * 7 // 8
        reason = f"Images of {width:,.0f} x {height:,.0f}{average} are stored for a model that sees {model}."
        options = f"--square {short_side}" if dataset.stored_size else f"--resize-short {short_side}"
        options = f"--encoding raw {options}" if "RAW" in dataset.formats else options
        yield write_anew(dataset, reason, smaller.scale({"read": left}).read_less(left), options)
    if seekable := scale_cpu(profile, "seekable"):
        reason = "With restart markers in a JPEG no more is decoded than the crop needs."
        yield write_anew(dataset, reason, seekable, "--seekable")


def can_be_served(profile: Profile) -> bool:
    """Returns whether workers could make the batches: those of the engine, without a cache or stages of the user's."""
    dataset = profile.dataset
    return dataset.by_engine and not dataset.own_stages and profile.config.cache == "none"


def scale_cpu(profile: Profile, change: TriedChange) -> ServiceDemand | None:
    """Returns the demand with a change from `parse` to `batch`, in the proportion that was measured for the change.

    Returns:
        None if the change was not tried, or if images are not decoded in every epoch.
    """
    now_us, demand, cost_us = profile.option_costs.get("now"), profile.demand, profile.option_costs.get(change)
    if not now_us or cost_us is None or not any(demand.cpu_s.get(stage) for stage in ("parse", "decode")):
        return None
    return demand.scale(dict.fromkeys(OPTION_COST_STAGES, cost_us / now_us))


def compute_cache_room(host: HostUse) -> float:
    """Returns the bytes that a proposed cache may take."""
    return _CACHE_SHARE * (host.memory_limit_bytes - host.peak_memory_bytes)
