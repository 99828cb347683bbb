"""Proposals where stages wait for each other or for something else: overlap, threads, reads at once, batches. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tfpipe.profiler.diagnose.bottleneck import SATURATED, Model, reads_whole_files, required_images_per_second
from tfpipe.profiler.diagnose.fixes_cpu import MADE
from tfpipe.profiler.diagnose.proposal import REACHED, Proposal
from tfpipe.profiler.types import Bottleneck, Profile

_MAPPED = ("parse", "decode", "augment")
_MAX_THREADS = 64
_SPARE = 1.25
"""Threads that wait are asked for with this factor: some are always between two waits."""
_BATCH_SHARE = 0.1
"""Of the processor time, from which on what is done once for each batch is worth a larger batch."""
INTRA_OP = 0.95
"""Of the processor time that is left when an operation keeps to one thread (2 cores, 256 px JPEG)."""


def propose(profile: Profile, model: Model, bottleneck: Bottleneck) -> Iterator[Proposal]:
    """All that is worth a try here, in no order."""
    yield from _overlap(profile, model)
    yield from _threads(profile, model)
    yield from _own_stages(profile, model, bottleneck)
    yield from _reading(profile, model, bottleneck)
    yield from _larger_batch(profile, model)


def _overlap(profile: Profile, model: Model) -> Iterator[Proposal]:
    config, step = profile.config, profile.step
    if config.get("prefetch_batches") == 0 and config.get("inject_prefetch") is not True:
        # The trainer's wait is the part of making a batch that nothing hides.
        wait_s = step.input_wait_fraction.median * step.wall_s / step.steps
        most = step.images_per_step / wait_s if wait_s > 0 else float("inf")
        reason = "The next batch is made while the accelerator works, instead of after."
        yield Proposal(0, reason, model, {"prefetch_batches": None}, most=most, efficiency=REACHED)
    if config.get("autotune") is False:
        reason = "tf.data finds the number of threads and the size of buffers itself."
        freed = replace(model, threads={name: max(count, model.cores) for name, count in model.threads.items()})
        yield Proposal(0, reason, freed, {"autotune": True}, efficiency=REACHED)


def _threads(profile: Profile, model: Model) -> Iterator[Proposal]:
    config, cores = profile.config, profile.host.cores
    calls = config.get("num_parallel_calls")
    if calls and calls < cores:
        mapped = {name: cores for name in (*_MAPPED, "batch") if name in model.threads}
        reason = f"All {cores} cores decode, not {calls}."
        wider = replace(model, threads={**model.threads, **mapped})
        yield Proposal(0, reason, wider, {"num_parallel_calls": None})
    if config.get("max_intra_op_parallelism") == 0:
        reason = "Images are many: an operation that shares one among threads hands over more than it gains."
        less = {name: seconds * (INTRA_OP if name in _MAPPED else 1.0) for name, seconds in model.cpu_s.items()}
        yield Proposal(0, reason, replace(model, cpu_s=less), {"max_intra_op_parallelism": 1})
    busiest = max((profile.images_per_second / model.stage_limit(name) for name in model.threads), default=1.0)
    free = config.get("deterministic") is None and config.get("order") == "auto" and config.get("prefetch_batches") != 0
    if free and busiest < 0.5 and _rests(profile):
        reason = "No stage is busy, yet each waits for the slowest of its elements: without an order it need not."
        yield Proposal(1, reason, model, {"deterministic": False}, efficiency=REACHED)


def _rests(profile: Profile) -> bool:
    return profile.host.cpu_fraction + profile.host.other_cpu_fraction < SATURATED / 2


def _own_stages(profile: Profile, model: Model, bottleneck: Bottleneck) -> Iterator[Proposal]:
    """What helps a stage that the user has put in."""
    name = bottleneck.stage
    stage = next((stage for stage in profile.stages if stage.name == name), None)
    if stage is None or name not in profile.dataset.get("own_stages", ()):
        return
    if name in model.locked:
        reason = "They use all cores; a Python function holds Python's lock."
        action = f"Write the stage {name} with TensorFlow's operations instead of a Python function."
        cpu_s = {**_unhindered(profile, model), name: 0.0}
        native = replace(model, cpu_s=cpu_s, threads=_with(model, name, model.cores))
        yield Proposal(1, reason, native, action=action)
        return
    waiting = model.wait_s.get(name, 0.0)
    if waiting > model.cpu_s[name]:
        rate = min(required_images_per_second(profile.step), model.cpu_limit)
        threads = _power_of_two(_SPARE * rate * (waiting + model.cpu_s[name]))
        if threads > model.threads[name]:
            reason = f"{threads} of its calls wait side by side, not {model.threads[name]:,.0f}: threads, not cores."
            wider = replace(model, threads=_with(model, name, threads))
            yield Proposal(1, reason, wider, {"private_threadpool_size": threads})
    elif stage.max_parallelism == 1 and name not in profile.dataset.get("late_caches", ()):
        action = f"Give the map of the stage {name} `num_parallel_calls=tf.data.AUTOTUNE`."
        wider = replace(model, threads=_with(model, name, model.cores))
        yield Proposal(1, "It runs on one core; there are more.", wider, action=action)


def _unhindered(profile: Profile, model: Model) -> dict[str, float]:
    """Processor time by stage where no Python function runs: threads that fight for Python's lock slow all others.

    From `parse` to `batch` that was tried without stages of the user's own (`what_if.py`): 1.1 ms, where 1.1 to 2.5 ms
    were counted beside such a function (2 cores, 500 x 375 JPEG).
    """
    made = sum(model.cpu_s.get(stage, 0.0) for stage in MADE)
    ratio = min((profile.what_if.get("now") or math.inf) / 1e6 / made, 1.0) if made else 1.0
    return {stage: seconds * (ratio if stage in MADE else 1.0) for stage, seconds in model.cpu_s.items()}


def _reading(profile: Profile, model: Model, bottleneck: Bottleneck) -> Iterator[Proposal]:
    config, files = profile.config, profile.dataset.get("files", 1)
    service = model.cpu_s.get("read", 0.0) + model.wait_s.get("read", 0.0)
    if bottleneck.stage != "read" or "read" not in model.threads:
        return
    whole = reads_whole_files(profile)
    now, threads = config.get("cycle_length") or 1, model.threads["read"]
    cycle = _power_of_two(_SPARE * min(required_images_per_second(profile.step), model.cpu_limit) * service)
    most, given = min(cycle, files) if whole else cycle, config.get("read_parallel_calls")
    if given is not None and given < now:
        reason = f"{now} files are read at once, not {given}."
        wider = replace(model, threads=_with(model, "read", min(now, files) if whole else now))
        yield Proposal(0, reason, wider, {"read_parallel_calls": None})
    if most > threads and cycle > now:
        reason = f"{most} reads at once wait for the storage together, not {threads:,.0f}."
        # Runs are read ahead by themselves. Of whole files AUTOTUNE reads one or two at once: they take no processor.
        calls = None if profile.dataset.get("exact") else most
        changes = {"cycle_length": cycle, "read_parallel_calls": calls}
        yield Proposal(0, reason, replace(model, threads=_with(model, "read", most)), changes)
    if whole and files < cycle:
        shards = max(cycle, 16)
        reason = f"{files} file{'s' if files > 1 else ''} cannot be read more than {files} at a time."
        wider = replace(model, threads=_with(model, "read", min(shards, now)))
        action = f"tfpipe shard INPUT OUTPUT --num-shards {shards}, and set read_parallel_calls = {min(shards, now)}."
        yield Proposal(2, reason, wider, {"read_parallel_calls": min(shards, now)}, action=action)


def _larger_batch(profile: Profile, model: Model) -> Iterator[Proposal]:
    """What the trainer's thread does for each batch; the rest of `batch` copies images."""
    config, total = profile.config, sum(model.cpu_s.values())
    name = "global_batch_size" if config.get("global_batch_size") else "per_replica_batch_size"
    size, share = config.get(name), model.taking_s / total if total else 0.0
    if not size or share < _BATCH_SHARE:
        return
    # Until it is a tenth of what is worth mentioning; no epoch has less than a few batches.
    larger = size * _power_of_two(10 * share / _BATCH_SHARE)
    most = (profile.dataset.get("records") or larger * 4) // 4
    if (larger := min(larger, max(most, size))) == size:
        return
    lighter = {**model.cpu_s, "batch": model.cpu_s["batch"] - model.taking_s * (1 - size / larger)}
    reason = f"{share:.0%} of the work is done once for each batch, however few images are in it."
    model = replace(model, cpu_s=lighter, taking_s=model.taking_s * size / larger)
    yield Proposal(1, reason, model, {name: larger})


def _with(model: Model, name: str, threads: float) -> dict[str, float]:
    return {**model.threads, name: max(threads, model.threads.get(name, 1))}


def _power_of_two(number: float) -> int:
    """The next one, of 64 at most."""
    return int(min(2 ** math.ceil(math.log2(max(number, 1))), _MAX_THREADS))
