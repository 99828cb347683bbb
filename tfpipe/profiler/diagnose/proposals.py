"""Proposes changes of options, data, machines and the user's stages, each with the demand after the change. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tfpipe.engine.ahead import count_decoded
from tfpipe.engine.config.pipeline_config import TfDataOptions
from tfpipe.profiler.model import SATURATED, Demand
from tfpipe.profiler.types import (
    LARGE_BATCH,
    MOST_THREADS,
    OPTION_COST_STAGES,
    Bottleneck,
    DatasetInfo,
    Effort,
    Fix,
    OptionValue,
    PipelineProfile,
    StageTiming,
    TriedChange,
)
from tfpipe.system.options import list_changes
from tfpipe.system.units import format_mebibytes, human_bytes

_MUCH_UNREAD = 0.1  # the share of the bytes read from which on features that nobody reads are worth new shards
_MAPPED_STAGES = ("parse", "decode", "augment")
_FILE_BUFFER_BYTES = 2**21  # the bytes of a file that the textbook pipeline reads in one request
_BATCHES_READ = 2  # the batches that the engine reads at once, at least
SPARE = 1.25  # the factor for the number of waiting threads, since some are always between two waits
_BATCH_SHARE = 0.1  # the share of the processor time for work once per batch, above which a larger batch is worth it
_BATCHES_PER_EPOCH = 4  # the batches that a larger batch leaves in an epoch at least
_BYTES: Mapping[str, OptionValue] = {"image_dtype": "uint8"}
_CACHE_SHARE = 0.8  # of the free memory that a proposed cache may take; a pipeline accepts up to `MAX_CACHE_SHARE`
_MIN_CACHED_SHARE = 0.1  # the share of the records that must fit into memory for a cache of only some records
_FUNCTIONS = ("transform", "batch_transform")  # the names of the functions that the engine calls
_CLEARLY_FEWER = 0.9  # the share of the images that a filter passes on, above which its position hardly matters
_CHEAPER = 0.1  # the assumed share of a stage's time after the user rewrites it; the instruction names this guess
_GROWS = 2.0  # a stage with more bytes out per byte in should do its work on the accelerator
_COSTLY = 0.3  # a stage with a larger share of an image's processor time is worth doing elsewhere


def propose(profile: PipelineProfile, bottleneck: Bottleneck) -> Iterator[Fix]:
    """Yields all changes that could raise the rate; among fixes that rank the same, this order stays."""
    demand, cores, config, step = profile.demand, profile.host.cores, profile.config, profile.step
    if config.prefetch_batches == 0 and not config.tf_data.inject_prefetch:
        # The trainer's wait is the part of making a batch that does not overlap with the step.
        wait_s = step.input_wait_fraction.median * step.wall_s / step.steps
        most = step.images_per_step / wait_s if wait_s > 0 else float("inf")
        reason = "The next batch is made while the accelerator works, instead of after."
        fix = Fix(Effort.OPTION, reason, demand, {"prefetch_batches": None})
        yield replace(fix, max_images_per_second=most, efficiency=1.0)
    calls = config.tf_data.num_parallel_calls
    if not profile.dataset.by_engine:
        if calls and calls < cores:
            threads = {**demand.threads, **{name: cores for name in _MAPPED_STAGES if name in demand.threads}}
            wider, changes = replace(demand, threads=threads), {"tf_data.num_parallel_calls": None}
            yield Fix(Effort.OPTION, f"All {cores} cores decode, not {calls}.", wider, changes)
        yield from _use_engine(profile, bottleneck)
        if bottleneck.stage == "read" and "read" in demand.threads and config.training:
            yield from _read_more_files(profile)
    yield from _enlarge_batch(profile)
    yield from _filter_first(profile)
    yield from _narrow(profile)
    yield from _mend_bottleneck(profile, bottleneck)
    for stage in profile.stages:
        if stage.name in profile.dataset.own_stages and stage.name not in profile.dataset.late_caches:
            yield from _do_elsewhere(profile, stage)
    yield from _change_options(profile)
    yield from _add_cache(profile)
    yield from _store_otherwise(profile)


def write_anew(dataset: DatasetInfo, reason: str, demand: Demand, options: str = "") -> Fix:
    """Returns the fix that writes the records of a dataset anew."""
    return Fix(Effort.NEW_SHARDS, reason, demand, instruction=describe_rewrite(dataset, options), action="write_data")


def describe_rewrite(dataset: DatasetInfo, options: str = "") -> str:
    """Returns the command that writes the records of a dataset anew; files without a manifest are described first."""
    # The new folders go next to the data, without the view or the pattern in their names.
    base = re.split(r"@[^/]*$|[*?\[]", dataset.address)[0].rstrip("-_./") or "data"
    index, described = "", dataset.address
    if not dataset.described:
        described = f"{base}-index"
        index = f"tfpipe index {shlex.quote(dataset.address)} --output {shlex.quote(described)}, then "
    return f"{index}tfpipe reshard {shlex.quote(described)} {shlex.quote(f'{base}-new')} {options}".rstrip()


def _read_more_files(profile: PipelineProfile) -> Iterator[Fix]:
    """Yields the changes that let more files wait for the storage at the same time, in training."""
    demand, cycle = profile.demand, profile.dataset.cycle_length
    threads, service_s = demand.threads["read"], sum(demand.get_service_s("read"))
    rate = min(profile.step.required_rate, demand.cpu_limit)
    reads = min(next_power_of_two(SPARE * rate * service_s), MOST_THREADS)
    if reads > threads:
        reason = f"{reads} files are read at once, which wait for the storage together, not {threads:,.0f}."
        changes: dict[str, OptionValue] = {"tf_data.read_parallel_calls": reads}
        if reads > cycle:
            changes["tf_data.cycle_length"] = reads
        yield Fix(Effort.OPTION, reason, demand.widen("read", reads), changes)


def _use_engine(profile: PipelineProfile, bottleneck: Bottleneck) -> Iterator[Fix]:
    """Yields the change from the textbook pipeline to the engine, unless user stages come before `batch`."""
    dataset, config, costs, demand = profile.dataset, profile.config, profile.option_costs, profile.demand
    reads_late, share = bottleneck.stage == "read" and "read" in demand.threads, costs.get("engine_share")
    names = [stage.name for stage in profile.stages]
    behind = names[names.index("batch") :] if "batch" in names else []
    is_known = not config.training if reads_late else share is not None
    if not is_known or not set(dataset.own_stages) <= set(behind):
        return
    instruction = ""
    if dataset.compression:
        instruction = describe_rewrite(dataset)
    elif not dataset.described:
        instruction = f"tfpipe index {shlex.quote(dataset.address)}"
    changes: dict[str, OptionValue] = {}
    if config.order == "throughput":
        changes = {"order": "exact" if dataset.own_stages else "auto"}
        changes |= {f"tf_data.{name}": value for name, value in list_changes(config.tf_data, TfDataOptions()).items()}
    if not instruction and not changes:
        return  # only TensorFlow has a client for these files
    engine = demand if share is None else demand.scale({**dict.fromkeys(OPTION_COST_STAGES, share), "read": 0.0})
    left = sum(engine.cpu_s.values()) / sum(demand.cpu_s.values())
    reason = f"The engine makes the same batches in {left:.0%} of the processor time, in an order that is exact."
    for stage in (name for name in OPTION_COST_STAGES if name in demand.threads):
        engine = engine.widen(stage, demand.cores)
    if reads_late:
        batch_bytes = profile.step.images_per_step * dataset.record_bytes
        engine = engine.scale({}, {"read": min(_FILE_BUFFER_BYTES / batch_bytes, 1.0)}).widen("read", _BATCHES_READ)
        reason = f"An evaluation reads file after file here; the engine reads whole batches, {_BATCHES_READ} at once."
    effort = Effort.NEW_SHARDS if instruction else Effort.VISIBLE_OPTION
    yield Fix(effort, reason, engine, changes, instruction, "write_data" if instruction else "set_option")


def _enlarge_batch(profile: PipelineProfile) -> Iterator[Fix]:
    """Yields a larger batch if taking a batch costs much, however few images are in it."""
    size, demand = profile.config.batch_size, profile.demand
    total_s, take_s = sum(demand.cpu_s.values()), demand.take_batch_s
    share = take_s / total_s if total_s else 0.0
    if share < _BATCH_SHARE:
        return
    # Large enough that the share falls to a tenth of what is worth a fix, but an epoch keeps a few batches.
    wanted = next_power_of_two(size * 10 * share / _BATCH_SHARE)
    records = profile.dataset.records
    most = wanted if records is None else records // _BATCHES_PER_EPOCH
    larger = min(wanted, 1 << max(most.bit_length() - 1, 0))
    if larger < 2 * size:
        return
    reason = f"{share:.0%} of the work is done once for each batch, however few images are in it."
    saved_s = take_s * (1 - size / larger)
    cpu_s = {**demand.cpu_s, "other": demand.cpu_s["other"] - saved_s}
    lighter = replace(demand, cpu_s=cpu_s, take_batch_s=take_s - saved_s, handover_s=demand.handover_s - saved_s)
    if now_us := profile.option_costs.get("batch"):  # an image costs a + b / N in a batch of N: a, b from two sizes
        of_batch_us = max(now_us - profile.option_costs["large_batch"], 0.0) / (1 / size - 1 / LARGE_BATCH)
        left = 1 - of_batch_us * (1 / size - 1 / larger) / now_us
        lighter = replace(demand.scale(dict.fromkeys(demand.cpu_s, left)), take_batch_s=take_s * left)
        lighter = replace(lighter, handover_s=demand.handover_s * left)
    # Idle cores wait for threads that hand over one batch after another; with large batches they hardly do.
    efficiency = 1.0 if profile.images_per_second < SATURATED * demand.limit else None
    yield Fix(Effort.VISIBLE_OPTION, reason, lighter, {"batch_size": larger}, efficiency=efficiency)


def next_power_of_two(number: float) -> int:
    """Returns the smallest power of two that is not below a number."""
    return int(2 ** math.ceil(math.log2(max(number, 1))))


def _change_options(profile: PipelineProfile) -> Iterator[Fix]:
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


def _add_cache(profile: PipelineProfile) -> Iterator[Fix]:
    config, dataset, demand = profile.config, profile.dataset, profile.demand
    records = dataset.records
    if config.cache != "none" or not records:
        return
    kept_s = profile.option_costs.get("kept", 0.0) / 1e6  # tf.data copies nothing
    cached = demand.without_reading({**demand.cpu_s, "read": kept_s})
    yield from _keep(profile, cached, "bytes", records * (dataset.unpacked_record_bytes or dataset.record_bytes))
    height, width = dataset.decoded_size
    decoded_bytes = records * height * width * 3
    if config.max_bad_records:
        return
    cost_us = profile.option_costs.get("cached")
    if dataset.late_caches:
        if cost_us is not None and decoded_bytes <= compute_cache_room(profile):
            name = dataset.late_caches[0]  # in its place comes a cache before `augment`
            skipped = dict.fromkeys(("read", *OPTION_COST_STAGES, name), 0.0)
            left_s = profile.records_per_image * cost_us / 1e6
            cached = demand.without_reading({**demand.cpu_s, **skipped, "augment": left_s})
            instruction = f"Take the cache out of the stage {name}, and set cache = 'decoded'."
            reason = "Kept before they are augmented, images are a byte a value, and every crop is a new one: "
            reason += f"{human_bytes(decoded_bytes)} of memory."
            yield Fix(Effort.VISIBLE_OPTION, reason, cached, {"cache": "decoded"}, instruction, "rewrite_stage", name)
    elif decoded := scale_cpu(profile, "cached"):
        cached = demand.without_reading({**decoded.cpu_s, "read": 0.0})
        yield from _keep(profile, cached, "decoded", decoded_bytes)


def _keep(profile: PipelineProfile, cached: Demand, kind: str, num_bytes: float) -> Iterator[Fix]:
    """Yields a cache of all records, or of as many as fit."""
    free_bytes, demand = compute_cache_room(profile), profile.demand
    what = "read" if kind == "bytes" else "decoded"
    if num_bytes <= free_bytes:
        reason = f"From the second epoch on nothing is {what}: {human_bytes(num_bytes)} of memory."
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


def _store_otherwise(profile: PipelineProfile) -> Iterator[Fix]:
    """Yields new shards: with images as small as the model allows, restart markers in JPEGs, or fewer features."""
    dataset, short_side = profile.dataset, profile.dataset.short_side
    size = dataset.stored_size or dataset.mean_size
    if short_side and size and (smaller := scale_cpu(profile, "smaller")):
        left = min(profile.option_costs.get("smaller_bytes", 1.0), 1.0)
        height, width = size
        average = "" if dataset.stored_size else " on average"
        sees = max(profile.config.size)
        reason = f"Images of {width:,.0f} x {height:,.0f}{average} are stored for a model that sees {sees}."
        options = f"--square {short_side}" if dataset.stored_size else f"--resize-short {short_side}"
        options = f"--encoding raw {options}" if "RAW" in dataset.formats else options
        yield write_anew(dataset, reason, smaller.scale({"read": left}).read_less(left), options)
    if seekable := scale_cpu(profile, "seekable"):
        reason = "With restart markers in a JPEG no more is decoded than the crop needs."
        yield write_anew(dataset, reason, seekable, "--seekable")
    if profile.config.cache == "none" and dataset.unread_share >= _MUCH_UNREAD:
        options = " ".join(f"--drop-feature {shlex.quote(name)}" for name in dataset.unread_features)
        left = 1 - dataset.unread_share
        reason = f"{dataset.unread_share:.0%} of the bytes read are features that nobody reads."
        yield write_anew(dataset, reason, profile.demand.read_less(left).scale({"read": left}), options)


def scale_cpu(profile: PipelineProfile, change: TriedChange) -> Demand | None:
    """Returns the demand with the measured cost of a change from `parse` to `batch`; None if it was not measured."""
    now_us, demand, cost_us = profile.option_costs.get("now"), profile.demand, profile.option_costs.get(change)
    if not now_us or cost_us is None or not any(demand.cpu_s.get(stage) for stage in ("parse", "decode")):
        return None
    return demand.scale(dict.fromkeys(OPTION_COST_STAGES, cost_us / now_us))


def compute_cache_room(profile: PipelineProfile) -> float:
    """Returns the bytes that a proposed cache may take."""
    return _CACHE_SHARE * (profile.host.memory_limit_bytes - profile.host.peak_memory_bytes)


def _filter_first(profile: PipelineProfile) -> Iterator[Fix]:
    """Yields, for each of the user's filters after `decode`, the same filter before it."""
    names, demand = [stage.name for stage in profile.stages], profile.demand
    if "decode" not in names:
        return
    end = names.index("batch") if "batch" in names else len(names)
    for index, stage in enumerate(profile.stages[:end]):
        skipped, share = names[names.index("decode") : index], stage.elements_out_per_in
        if not skipped or stage.name not in profile.dataset.filters or share > _CLEARLY_FEWER:
            continue
        reason = f"{stage.name} drops {1 - share:.0%} of the images: {1 / share:.1f} are decoded for each that stays."
        names_before = names[:index]
        handed = _count_handovers(names_before, share, skipped) / _count_handovers(names_before, share, [])
        left = dict.fromkeys(skipped, share)
        lighter = demand.scale(left, left).scale_other(demand)
        other_s = lighter.cpu_s["other"] - (1 - handed) * demand.handover_s
        lighter = replace(lighter, cpu_s={**lighter.cpu_s, "other": max(other_s, 0.0)})
        instruction = f"Filter before `decode`, on the label or the image's header, and not in the stage {stage.name}."
        yield Fix(Effort.WASTE, reason, lighter, instruction=instruction, action="move_stage", stage=stage.name)


def _count_handovers(names: Sequence[str], share: float, skipped: Sequence[str]) -> float:
    """Counts the hand-overs per image that a filter passes on; `skipped` stages get only such images."""
    records = names[names.index("read") :] if "read" in names else names
    return 1 + sum(1.0 if name in skipped else 1 / share for name in records)


def _do_elsewhere(profile: PipelineProfile, stage: StageTiming) -> Iterator[Fix]:
    """Yields fixes for a costly stage: its work on the accelerator, a cache after it, and cheaper code."""
    name, declared, demand = stage.name, profile.dataset.declared.get(stage.name, {}), profile.demand
    cost_s, all_s = demand.cpu_s[name], sum(demand.cpu_s.values())
    # A stage that waits or runs on one core has other fixes.
    if name in demand.lock_bound or stage.parallelism == 1 or demand.wait_s.get(name, 0.0) > cost_s:
        return
    if cost_s < _COSTLY * all_s:
        return
    share, cost_us, cheap_us = cost_s / all_s, cost_s * 1e6, _CHEAPER * cost_s * 1e6
    takes = f"{name} takes {share:.0%} of the processor time, {cost_us:,.0f} µs for each image"
    if declared.get("per_image") is not False:
        threads = {other: count for other, count in demand.threads.items() if other != name}
        without = replace(demand.scale({name: 0.0}), threads=threads)
        left_us = (demand.cores / profile.step.required_rate - (all_s - cost_s)) * 1e6  # µs that leave no idle time
        cheaper = f", or make it cheaper: at most {left_us:,.0f} µs" if left_us > 0 else ""
        instruction = f"Do the work of {_name(name)} on the accelerator, for the whole batch{cheaper}."
        yield Fix(
            Effort.VISIBLE_OPTION, f"{takes}.", without, instruction=instruction, action="move_to_device", stage=name
        )
    if declared.get("random") is False and profile.config.training:
        yield from _cache_behind(profile, stage, takes)
    change = f"for {cheap_us:,.0f} µs for each image in place of {cost_us:,.0f}"
    instruction = f"Make {_name(name)} cheaper, which is work for you: the prediction is {change}."
    lighter, reason = demand.scale({name: _CHEAPER}), f"{name} takes {share:.0%} of the processor time."
    yield Fix(Effort.REWRITE, reason, lighter, instruction=instruction, action="rewrite_stage", stage=name)


def _cache_behind(profile: PipelineProfile, stage: StageTiming, takes: str) -> Iterator[Fix]:
    """Yields a cache after a stage whose output is the same in each epoch, if the output fits into memory."""
    names = [each.name for each in profile.stages]
    before, after = names[: names.index(stage.name) + 1], names[names.index(stage.name) + 1 :]
    records, demand = profile.dataset.records, profile.demand
    random = {name for name, declared in profile.dataset.declared.items() if declared.get("random")}
    draws = next((name for name in after if name == "augment" or name in random), None)
    if records is None or random.intersection(before):
        return
    if "augment" in before and profile.config.augment != "none":
        return  # it draws crops
    num_bytes = records * stage.bytes_out_per_image
    if num_bytes > compute_cache_room(profile):
        return
    reason = f"{takes}, and gives the same in each epoch: {human_bytes(num_bytes)} of memory."
    cached = demand.without_reading(demand.scale(dict.fromkeys(before, 0.0)).cpu_s)
    instruction = f"Put a stage that caches right behind {stage.name}."
    following = draws or (after[0] if after else stage.name)
    yield Fix(Effort.VISIBLE_OPTION, reason, cached, {}, instruction, "cache_before_stage", following)


def _mend_bottleneck(profile: PipelineProfile, bottleneck: Bottleneck) -> Iterator[Fix]:
    name, demand = bottleneck.stage, profile.demand
    stage = next((stage for stage in profile.stages if stage.name == name), None)
    if stage is None or name not in profile.dataset.own_stages:
        return
    if name in demand.lock_bound:
        yield _leave_lock(profile, stage)
        return
    compute_s, wait_s = demand.get_service_s(name)
    if wait_s > demand.cpu_s.get(name, 0.0) and stage.parallelism != 1:
        rate = min(profile.step.required_rate, demand.cpu_limit)
        threads = min(next_power_of_two(SPARE * rate * (wait_s + compute_s)), MOST_THREADS)
        reason = f"{threads} of its calls wait side by side, not {demand.threads[name]:,.0f}: threads, not cores."
        fix = Fix(Effort.VISIBLE_OPTION, reason, demand.widen(name, threads))
        if threads > demand.threads[name] and not profile.dataset.by_engine:
            yield replace(fix, changes={"tf_data.private_threadpool_size": threads})
        elif threads > demand.threads[name] and name == "transform":
            each = -(-threads // count_decoded(threads))  # of the batches that are decoded at once
            yield replace(fix, instruction=f"Give your reader `num_threads={each}`.")
    elif stage.parallelism == 1 and name not in profile.dataset.late_caches:
        instruction = f"Give the map of the stage {name} `num_parallel_calls=tf.data.AUTOTUNE`."
        wider, reason = demand.widen(name, demand.cores), "It runs on one core; there are more."
        yield Fix(Effort.VISIBLE_OPTION, reason, wider, instruction=instruction, action="rewrite_stage", stage=name)


def _name(name: str) -> str:
    """Returns the words for a stage of the user, or for a function of the user that the engine calls."""
    return f"the function `{name}`" if name in _FUNCTIONS else f"the stage {name}"


def _leave_lock(profile: PipelineProfile, stage: StageTiming) -> Fix:
    """Returns the fix for a stage whose lock lets one call run at a time, where more threads do not help."""
    name, what, demand = stage.name, _name(stage.name), profile.demand
    threads = {**demand.threads, name: max(stage.parallelism, 1)}
    freed = replace(demand, threads=threads, lock_bound=demand.lock_bound - {name})
    instruction = f"Take the lock out of {what}, or hold it for a shorter time"
    if stage.waits:
        reason, instruction = "Without it, calls wait side by side.", f"{instruction}: threads do not help."
    elif not stage.holds_python_lock:
        reason, instruction = "All cores can compute at once without the lock.", f"{instruction}."
        freed = freed.scale({}, {name: 0.0})
    else:
        reason, instruction = "A Python function holds Python's lock.", f"Write {what} with TensorFlow's operations"
        if name in _FUNCTIONS:
            instruction = f"Let {what} call operations that let go of Python's lock"
        instruction += ", do its work on the accelerator, or run it in several processes."
        freed = freed.scale({name: 0.0}, {name: 0.0})
    return Fix(Effort.VISIBLE_OPTION, reason, freed, instruction=instruction, action="rewrite_stage", stage=name)


def _narrow(profile: PipelineProfile) -> Iterator[Fix]:
    """Yields, for each user stage that makes images larger, the advice to do that on the accelerator."""
    names = [each.name for each in profile.stages]
    for index, stage in enumerate(profile.stages):
        grows = stage.bytes_out_per_image / stage.bytes_in_per_image if stage.bytes_in_per_image else 0
        if stage.name not in profile.dataset.own_stages or grows < _GROWS or stage.name in profile.dataset.late_caches:
            continue
        lighter = profile.demand.scale({**dict.fromkeys(names[index + 1 :], 1 / grows), stage.name: 0.0})
        size = human_bytes(stage.bytes_out_per_image)
        reason = f"{stage.name} makes {grows:.0f} bytes of each, {size} for an image, which all stages behind it copy."
        what = f"Leave the values as small as they are in front of {stage.name}, and widen them on the accelerator."
        yield Fix(Effort.WASTE, reason, lighter, instruction=what, action="move_to_device", stage=stage.name)
