"""Runs one fault and prints one JSON object.

The fault's pipeline is profiled. Then it runs in turns with the pipeline after the first fix. The machine's own speed
moves by a fifth within a minute, so the gain is that of turns of two halted processes, and the measured rate is the
profiled one times the gain. SHOW=1 prints the report too.

python -m tests.profiler.faults.run_fault NAME FOLDER
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tests.profiler.faults.cases import FAULTS, Fault
from tests.profiler.faults.data import index_files, make_files, make_shards
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import tfrecord_files
from tfpipe.format.manifest import Manifest
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.measure.host_usage import HostTime
from tfpipe.profiler.measure.pipelines import Functions
from tfpipe.profiler.measure.profile import ProfileConfig, profile_pipeline
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.profiler.report.text_json import to_text
from tfpipe.profiler.types import Fix, Profile
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.system import host_limits
from tfpipe.system.options import replace_options
from tfpipe.tuning.paired_benchmark import Turn, get_paired_ratio, take_turns
from tfpipe.tuning.pipeline_process import PipelineProcess
from tfpipe.tuning.trials import PipelineJob

SECONDS, MAX_WARM_UP_S, BATCH = 3.0, 3.0, 64
CALM_S = 15.0
"""The longest wait for a quiet machine before each run, in seconds."""
STARTS, ROUNDS, TURN_S = 3, 3, 1.0
"""AUTOTUNE does not choose the same in each start, and can take a quarter of a minute to change its mind."""
QUIET, TRIES = 0.05, 3
"""The disturbance below which a measurement counts, and the number of tries; see `_get_disturbance`."""


def diagnose_fault(name: str, folder: Path, follow: bool = True) -> dict[str, Any]:
    """Returns what the profiler says of a fault, and the gain of its first fix.

    Args:
        name: The fault's name.
        folder: The folder that keeps images and shards.
        follow: Whether to apply the first fix and measure again.
    """
    fault = FAULTS[name]
    config = replace_options(PipelineConfig(batch_size=BATCH), fault.config)
    if fault.memory_limit is not None:
        limit = fault.memory_limit
        host_limits.memory_limit_bytes = lambda *_: limit  # the profiler asks there, as in a container
    report = make_report(profile_fault(fault, folder, config))
    if os.environ.get("SHOW"):
        print(to_text(report), file=sys.stderr)
    first = report.fixes[0] if report.fixes else None
    result: dict[str, Any] = {
        "fault": name,
        "stage": report.bottleneck.stage,
        "proof": report.bottleneck.reason,
        "fix": None if first is None else first.instruction or dict(first.changes),
        "right_stage": report.bottleneck.stage == fault.stage,
        "right_fix": is_right(fault, first) and has_also(fault, report.fixes),
        "before": report.profile.images_per_second,
    }
    # How cheap a stage gets that the user writes anew is a guess, so nothing is measured after it.
    if first is not None and follow and not first.instruction.startswith("Make the stage"):
        turns, first_batch_s = compare_with_fix(fault, folder, config, first)
        gain = get_paired_ratio(turns["after"], turns["before"])
        result["turns"] = {name: [turn.images_per_second for turn in done] for name, done in turns.items()}
        result["gain"] = [gain.ratio, gain.low, gain.high]
        result["gain_by_cpu"] = _compute_cpu_us(turns["before"]) / _compute_cpu_us(turns["after"])
        result["predicted"] = first.predicted_images_per_second
        result["measured"] = result["before"] * gain.ratio
        result["ratio"] = result["measured"] / result["predicted"]
        result["first_batch_s"] = first_batch_s
    return result


def profile_fault(fault: Fault, folder: Path, config: PipelineConfig) -> Profile:
    """Profiles the fault's pipeline until the machine was quiet, and returns the least disturbed profile."""
    job = make_job(fault, folder, config)
    run_config = ProfileConfig(SECONDS, MAX_WARM_UP_S)
    profiles = []
    for _ in range(TRIES):
        _wait_for_calm()
        functions = Functions(fault.transform, fault.batch_transform)
        profiles.append(
            profile_pipeline(job.data, job.split, config, job.accelerator, run_config, None, job.customize, functions)
        )
        if _get_disturbance(profiles[-1]) < QUIET:
            break
    return min(profiles, key=_get_disturbance)


def compare_with_fix(
    fault: Fault, folder: Path, config: PipelineConfig, fix: Fix
) -> tuple[dict[str, list[Turn]], tuple[float, float]]:
    """Returns the turns "before" and "after" the fix, and the seconds until the first batch without and with it."""
    changed = replace_options(config, fix.changes)
    cured = replace(fault, **fault.cure) if fix.instruction else fault
    before, after = make_job(fault, folder, config), make_job(cured, folder, changed)
    turns: dict[str, list[Turn]] = {"before": [], "after": []}
    for _ in range(STARTS):
        without_fix, with_fix = start(before, fault, config), start(after, cured, changed)
        with without_fix, with_fix:
            for name, done in take_turns({"before": without_fix, "after": with_fix}, ROUNDS, TURN_S).items():
                turns[name] += done
            first_batch_s = without_fix.start.first_batch_s, with_fix.start.first_batch_s
    return turns, first_batch_s


def make_job(fault: Fault, folder: Path, config: PipelineConfig) -> PipelineJob:
    """Returns the data and the accelerator of a fault."""
    data: Any
    if fault.indexed:
        data = index_files(fault.shards, folder)
    else:
        data = tfrecord_files(make_files(fault.shards, folder)) if fault.foreign else make_shards(fault.shards, folder)
    split = "train" if isinstance(data, Manifest) else None
    return PipelineJob(data, split, Accelerator(config.batch_size / fault.required, config.batch_size), fault.own)


def start(job: PipelineJob, fault: Fault, config: PipelineConfig) -> PipelineProcess:
    """Starts the pipeline of a fault in a process of its own: in TensorFlow, or by the engine with Python functions."""
    if not (fault.transform or fault.batch_transform or fault.num_threads):
        return job.start_process(config)
    make = partial(make_batches, job.data, job.split, config, fault)
    return PipelineProcess(make, job.get_accelerator(config))


def make_batches(data: Manifest, split: str, config: PipelineConfig, fault: Fault) -> Iterator[Any]:
    """Makes batches without TensorFlow, without end."""
    functions = {"transform": fault.transform, "batch_transform": fault.batch_transform}
    return itertools.chain.from_iterable(
        itertools.repeat(NumpyBatches(data, split, config, num_threads=fault.num_threads, **functions))
    )


def is_right(fault: Fault, fix: Fix | None) -> bool:
    """Returns whether the first fix is the one that the case names."""
    if fix is None or fault.fix is None:
        return fix is None and fault.fix is None
    if isinstance(fault.fix, str):
        return fix.instruction.startswith(fault.fix)
    return all(name in fix.changes and value in (..., fix.changes[name]) for name, value in fault.fix.items())


def has_also(fault: Fault, fixes: Sequence[Fix]) -> bool:
    """Returns whether the other fix that the case names is there, if it names one."""
    return not fault.also or any(fix.instruction.startswith(fault.also) for fix in fixes)


def _compute_cpu_us(turns: list[Turn]) -> float:
    """Returns the processor time of an image, in microseconds, which other programs change less than a rate."""
    return 1e6 * sum(turn.cpu_s for turn in turns) / sum(turn.images for turn in turns)


def _get_disturbance(profile: Profile) -> float:
    """Returns the share of the cores that others took, plus the share of time in which the machine stood still."""
    step = profile.step
    stood_s = step.wall_s - SECONDS - 2 * step.wall_s / step.steps  # a step can end that much later
    return profile.host.other_cpu_fraction + max(stood_s, 0.0) / step.wall_s


def _wait_for_calm() -> None:
    """Waits until nobody else has used the processor for a second."""
    started = time.perf_counter()
    while time.perf_counter() - started < CALM_S:
        before = HostTime.now()
        time.sleep(1)
        if HostTime.now().compute_fractions(before, host_limits.usable_cpus())[1] < QUIET:
            return


if __name__ == "__main__":
    print(json.dumps(diagnose_fault(sys.argv[1], Path(sys.argv[2]), "--no-fix" not in sys.argv)))
