"""Proposals where stages wait for each other or for something else: overlap, threads, reads at once, batches. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tfpipe.engine.config.tf_data_options import TfDataOptions
from tfpipe.profiler.diagnose.bottleneck import compute_required_rate
from tfpipe.profiler.diagnose.fixes_data import describe_rewrite
from tfpipe.profiler.diagnose.service import SATURATED
from tfpipe.profiler.types import (
    Bottleneck,
    Effort,
    FixAction,
    OptionValue,
    Profile,
    ProposedFix,
    ServiceDemand,
)
from tfpipe.system.options import list_changes

_MAPPED_STAGES = ("parse", "decode", "augment")
MOST_THREADS = 64
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


def propose(profile: Profile, demand: ServiceDemand, bottleneck: Bottleneck) -> Iterator[ProposedFix]:
    """Yields the changes that could make stages wait less, in no order.

    Args:
        profile: The measured figures.
        demand: The profile's demand.
        bottleneck: The profile's bottleneck.
    """
    yield from _overlap(profile, demand)
    yield from _use_more_threads(profile, demand)
    yield from _relax_order(profile, demand)
    if bottleneck.stage == "read" and "read" in demand.threads and not profile.dataset.by_engine:
        yield from (_read_more_files if profile.config.training else _read_by_engine)(profile, demand)
    yield from _enlarge_batch(profile, demand)


def _overlap(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields the changes that let batches be made while the accelerator works, and by as many threads as help."""
    config, step = profile.config, profile.step
    if config.prefetch_batches == 0 and not config.tf_data.inject_prefetch:
        # The trainer's wait is the part of making a batch that nothing hides.
        wait_s = step.input_wait_fraction.median * step.wall_s / step.steps
        yield ProposedFix(
            Effort.OPTION,
            "The next batch is made while the accelerator works, instead of after.",
            demand,
            {"prefetch_batches": None},
            max_images_per_second=step.images_per_step / wait_s if wait_s > 0 else float("inf"),
            efficiency=1.0,
        )
    if config.tf_data.autotune is False and not profile.dataset.by_engine:
        reason = "tf.data finds the number of threads and the size of buffers itself."
        tuned = replace(demand, threads={name: max(count, demand.cores) for name, count in demand.threads.items()})
        yield ProposedFix(Effort.OPTION, reason, tuned, {"tf_data.autotune": True}, efficiency=1.0)


def _use_more_threads(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields the changes that spread images over all cores, one image to a thread."""
    cores, calls = profile.host.cores, profile.config.tf_data.num_parallel_calls
    if calls and calls < cores and not profile.dataset.by_engine:
        all_cores = {name: cores for name in _MAPPED_STAGES if name in demand.threads}
        wider = replace(demand, threads={**demand.threads, **all_cores})
        changes: dict[str, OptionValue] = {"tf_data.num_parallel_calls": None}
        yield ProposedFix(Effort.OPTION, f"All {cores} cores decode, not {calls}.", wider, changes)


def _relax_order(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields the change that lets records of an evaluation overtake each other, if no stage and no core is busy.

    In training the textbook pipeline keeps no order unless it is told to, and the order of the engine costs nothing.
    """
    config, host = profile.config, profile.host
    if config.training or config.tf_data.deterministic is not None or profile.dataset.by_engine:
        return
    busy = max((profile.images_per_second / demand.get_stage_limit(name) for name in demand.threads), default=1.0)
    cores_rest = host.cpu_fraction + host.other_cpu_fraction < SATURATED / 2
    if config.prefetch_batches != 0 and busy < 0.5 and cores_rest:
        reason = "No stage is busy, yet each waits for the slowest of its elements: without an order it need not."
        changes = {"tf_data.deterministic": False}
        yield ProposedFix(Effort.VISIBLE_OPTION, reason, demand, changes, efficiency=1.0)


def _read_more_files(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields the changes that let more files wait for the storage at the same time, in training."""
    calls, threads = profile.config.tf_data.read_parallel_calls, demand.threads["read"]
    cycle = profile.dataset.cycle_length
    service_s = demand.cpu_s.get("read", 0.0) + demand.wait_s.get("read", 0.0)
    rate = min(compute_required_rate(profile.step), demand.cpu_limit)
    reads = min(next_power_of_two(SPARE * rate * service_s), MOST_THREADS)
    if calls is not None and calls < cycle:
        reason = f"{cycle} files are read at once, not {calls}."
        wider = replace(demand, threads=raise_threads(demand, "read", cycle))
        yield ProposedFix(Effort.OPTION, reason, wider, {"tf_data.read_parallel_calls": None})
    if reads > threads:
        reason = f"{reads} files are read at once, which wait for the storage together, not {threads:,.0f}."
        wider = replace(demand, threads=raise_threads(demand, "read", reads))
        changes: dict[str, OptionValue] = {"tf_data.read_parallel_calls": reads}
        if reads > cycle:
            changes["tf_data.cycle_length"] = reads
        yield ProposedFix(Effort.OPTION, reason, wider, changes)


def _read_by_engine(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields the engine for an evaluation that the textbook pipeline reads file after file.

    The engine waits once for each batch, where the textbook pipeline waits for each 2 MiB.
    """
    dataset, config = profile.dataset, profile.config
    if dataset.own_stages:
        return
    instruction = ""
    if dataset.compression:
        instruction = describe_rewrite(dataset)
    elif not dataset.described:
        instruction = "tfpipe index FILES"
    changes: dict[str, OptionValue] = {}
    if config.order == "throughput":
        changes = {"order": "auto"}
        changes |= {f"tf_data.{name}": value for name, value in list_changes(config.tf_data, TfDataOptions()).items()}
    if not instruction and not changes:
        return  # only TensorFlow has a client for these files
    batch_bytes = profile.step.images_per_step * dataset.record_bytes
    wait_s = demand.wait_s.get("read", 0.0) * min(_FILE_BUFFER_BYTES / batch_bytes, 1.0)
    engine = replace(
        demand,
        wait_s={**demand.wait_s, "read": wait_s},
        threads=raise_threads(demand, "read", _BATCHES_READ),
    )
    reason = f"An evaluation reads file after file here; the engine reads whole batches, {_BATCHES_READ} at once."
    effort = Effort.NEW_SHARDS if instruction else Effort.VISIBLE_OPTION
    action: FixAction = "write_data" if instruction else "set_option"
    yield ProposedFix(effort, reason, engine, changes, instruction, action)


def _enlarge_batch(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields a larger batch if taking a batch costs much, however few images are in it."""
    size, total_s, take_s = profile.config.batch_size, sum(demand.cpu_s.values()), demand.take_batch_s
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
    yield ProposedFix(Effort.VISIBLE_OPTION, reason, lighter, {"batch_size": larger})


def raise_threads(demand: ServiceDemand, name: str, threads: float) -> dict[str, float]:
    """Returns the threads by stage, with at least this number for one stage."""
    return {**demand.threads, name: max(threads, demand.threads.get(name, 1))}


def next_power_of_two(number: float) -> int:
    """Returns the smallest power of two that is not below a number."""
    return int(2 ** math.ceil(math.log2(max(number, 1))))
