"""Proposals where stages wait for each other or for something else: overlap, threads, reads at once, batches. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tfpipe.engine.config.tf_data_options import TfDataOptions
from tfpipe.profiler.diagnose.fixes_data import describe_index, describe_rewrite
from tfpipe.profiler.diagnose.service import SATURATED
from tfpipe.profiler.types import (
    LARGE_BATCH,
    MOST_THREADS,
    OPTION_COST_STAGES,
    Bottleneck,
    Effort,
    Fix,
    OptionValue,
    Profile,
)
from tfpipe.system.options import list_changes

_MAPPED_STAGES = ("parse", "decode", "augment")
_FILE_BUFFER_BYTES = 2**21
"""The bytes that the textbook pipeline reads at once of a file."""
_BATCHES_READ = 2
"""The batches that the engine reads at once, at least."""
SPARE = 1.25
"""The factor for threads that wait: some are always between two waits."""
_BATCH_SHARE = 0.1
"""The share of the processor time for work once per batch, above which a larger batch is worth it."""
_BATCHES_PER_EPOCH = 4
"""The batches that a larger batch leaves in an epoch at least."""


def propose(profile: Profile, bottleneck: Bottleneck) -> Iterator[Fix]:
    """Yields the changes that could make stages wait less, in no order."""
    yield from _overlap(profile)
    if not profile.dataset.by_engine:
        yield from _change_textbook(profile)
        yield from _use_engine(profile, bottleneck)
        if bottleneck.stage == "read" and "read" in profile.demand.threads and profile.config.training:
            yield from _read_more_files(profile)
    yield from _enlarge_batch(profile)


def _overlap(profile: Profile) -> Iterator[Fix]:
    """Yields the change that lets batches be made while the accelerator works."""
    config, step = profile.config, profile.step
    if config.prefetch_batches == 0 and not config.tf_data.inject_prefetch:
        # The trainer's wait is the part of making a batch that nothing hides.
        wait_s = step.input_wait_fraction.median * step.wall_s / step.steps
        yield Fix(
            Effort.OPTION,
            "The next batch is made while the accelerator works, instead of after.",
            profile.demand,
            {"prefetch_batches": None},
            max_images_per_second=step.images_per_step / wait_s if wait_s > 0 else float("inf"),
            efficiency=1.0,
        )


def _change_textbook(profile: Profile) -> Iterator[Fix]:
    """Yields the options of the textbook pipeline that let more threads work, or its elements overtake each other.

    The order is relaxed in an evaluation where no stage and no core is busy. In training that pipeline keeps no order
    unless it is told to.
    """
    config, host, demand = profile.config.tf_data, profile.host, profile.demand
    if config.autotune is False:
        reason = "tf.data finds the number of threads and the size of buffers itself."
        tuned = replace(demand, threads={name: max(count, demand.cores) for name, count in demand.threads.items()})
        yield Fix(Effort.OPTION, reason, tuned, {"tf_data.autotune": True}, efficiency=1.0)
    cores, calls = host.cores, config.num_parallel_calls
    if calls and calls < cores:
        all_cores = {name: cores for name in _MAPPED_STAGES if name in demand.threads}
        wider = replace(demand, threads={**demand.threads, **all_cores})
        yield Fix(Effort.OPTION, f"All {cores} cores decode, not {calls}.", wider, {"tf_data.num_parallel_calls": None})
    if profile.config.training or config.deterministic is not None or profile.config.prefetch_batches == 0:
        return
    busy = max((profile.images_per_second / demand.get_stage_limit(name) for name in demand.threads), default=1.0)
    if busy < 0.5 and host.cpu_fraction + host.other_cpu_fraction < SATURATED / 2:
        reason = "No stage is busy, yet each waits for the slowest of its elements: without an order it need not."
        yield Fix(Effort.VISIBLE_OPTION, reason, demand, {"tf_data.deterministic": False}, efficiency=1.0)


def _read_more_files(profile: Profile) -> Iterator[Fix]:
    """Yields the changes that let more files wait for the storage at the same time, in training."""
    demand, cycle = profile.demand, profile.dataset.cycle_length
    calls, threads = profile.config.tf_data.read_parallel_calls, demand.threads["read"]
    service_s = demand.cpu_s.get("read", 0.0) + demand.wait_s.get("read", 0.0)
    rate = min(profile.step.required_rate, demand.cpu_limit)
    reads = min(next_power_of_two(SPARE * rate * service_s), MOST_THREADS)
    if calls is not None and calls < cycle:
        reason = f"{cycle} files are read at once, not {calls}."
        yield Fix(Effort.OPTION, reason, demand.widen("read", cycle), {"tf_data.read_parallel_calls": None})
    if reads > threads:
        reason = f"{reads} files are read at once, which wait for the storage together, not {threads:,.0f}."
        changes: dict[str, OptionValue] = {"tf_data.read_parallel_calls": reads}
        if reads > cycle:
            changes["tf_data.cycle_length"] = reads
        yield Fix(Effort.OPTION, reason, demand.widen("read", reads), changes)


def _use_engine(profile: Profile, bottleneck: Bottleneck) -> Iterator[Fix]:
    """Yields the engine in place of the textbook pipeline, unless stages of the user's own stand in front of `batch`.

    What it saves from `read` to `batch` was measured. In an evaluation it also waits once for each batch, where the
    textbook pipeline reads file after file and waits for each 2 MiB.
    """
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
        instruction = describe_index(dataset)
    changes: dict[str, OptionValue] = {}
    if config.order == "throughput":
        changes = {"order": "exact" if dataset.own_stages else "auto"}
        changes |= {f"tf_data.{name}": value for name, value in list_changes(config.tf_data, TfDataOptions()).items()}
    if not instruction and not changes:
        return  # only TensorFlow has a client for these files
    engine = demand.scale(dict.fromkeys(("read", *OPTION_COST_STAGES), 1.0 if share is None else share))
    reason = f"The engine makes the same batches in {share or 1:.0%} of the processor time, in an order that is exact."
    for stage in (name for name in OPTION_COST_STAGES if name in demand.threads):
        engine = engine.widen(stage, demand.cores)
    if reads_late:
        batch_bytes = profile.step.images_per_step * dataset.record_bytes
        engine = engine.scale({}, {"read": min(_FILE_BUFFER_BYTES / batch_bytes, 1.0)}).widen("read", _BATCHES_READ)
        reason = f"An evaluation reads file after file here; the engine reads whole batches, {_BATCHES_READ} at once."
    if instruction:
        yield Fix(Effort.NEW_SHARDS, reason, engine, changes, instruction, "write_data")
    else:
        yield Fix(Effort.VISIBLE_OPTION, reason, engine, changes)


def _enlarge_batch(profile: Profile) -> Iterator[Fix]:
    """Yields a larger batch if taking a batch costs much, however few images are in it."""
    size, demand = profile.config.batch_size, profile.demand
    total_s, take_s = sum(demand.cpu_s.values()), demand.take_batch_s
    share = take_s / total_s if total_s else 0.0
    if share < _BATCH_SHARE:
        return
    # Large enough that the share falls to a tenth of what is worth a fix, but an epoch keeps a few batches.
    wanted = next_power_of_two(size * 10 * share / _BATCH_SHARE)
    records = profile.dataset.records or profile.dataset.counted_records
    most = wanted if records is None else records // _BATCHES_PER_EPOCH
    larger = min(wanted, 1 << max(most.bit_length() - 1, 0))
    if larger < 2 * size:
        return
    reason = f"{share:.0%} of the work is done once for each batch, however few images are in it."
    saved_s = take_s * (1 - size / larger)
    cpu_s = {**demand.cpu_s, "other": demand.cpu_s["other"] - saved_s}
    lighter = replace(demand, cpu_s=cpu_s, take_batch_s=take_s - saved_s, handover_s=demand.handover_s - saved_s)
    if now_us := profile.option_costs.get("batch"):  # an image costs a + b / N in a batch of N, by those of two sizes
        of_batch_us = max(now_us - profile.option_costs["large_batch"], 0.0) / (1 / size - 1 / LARGE_BATCH)
        left = 1 - of_batch_us * (1 / size - 1 / larger) / now_us
        lighter = replace(demand.scale(dict.fromkeys(demand.cpu_s, left)), take_batch_s=take_s * left)
        lighter = replace(lighter, handover_s=demand.handover_s * left)
    # Cores that rest wait for threads which hand over one batch after another; large batches leave that out.
    efficiency = 1.0 if profile.images_per_second < SATURATED * demand.limit else None
    yield Fix(Effort.VISIBLE_OPTION, reason, lighter, {"batch_size": larger}, efficiency=efficiency)


def next_power_of_two(number: float) -> int:
    """Returns the smallest power of two that is not below a number."""
    return int(2 ** math.ceil(math.log2(max(number, 1))))
