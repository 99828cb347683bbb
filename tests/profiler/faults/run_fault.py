"""Runs one fault and prints one JSON object.

The fault's pipeline is profiled. Then it runs in turns with the pipeline after the first fix. The machine's own speed
moves by a fifth within a minute, so the measured rate is the profiled one times the gain. SHOW=1 prints the report too.

python -m tests.profiler.faults.run_fault NAME FOLDER
"""

import json
import os
import re
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tests.profiler.faults.cases import FAULTS, Fault
from tests.profiler.faults.data import index_files, make_files, make_shards
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import tfrecord_files
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.measure.clocks import HostTime
from tfpipe.profiler.measure.profile import ProfileConfig, measure_rate, profile_pipeline
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.profiler.report.text_json import to_text
from tfpipe.profiler.trials import compare
from tfpipe.profiler.types import Fix, PipelineProfile, Spread
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.system import host_limits
from tfpipe.system.options import replace_options

SECONDS, MAX_WARM_UP_S, BATCH = 3.0, 3.0, 64
TRIAL = ProfileConfig(seconds=3.0, max_warm_up_s=5.0, max_fill_s=120.0)
CALM_S = 15.0
"""The longest wait for a quiet machine before each run, in seconds."""
QUIET, TRIES = 0.05, 3
"""The disturbance below which a measurement counts, and the number of tries; see `_get_disturbance`."""


def diagnose_fault(name: str, folder: Path, follow: bool = True) -> dict[str, Any]:
    """Returns what the profiler says of a fault, and the gain of its first fix."""
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
        "right_fix": is_right(fault, first)
        and (not fault.also or any(fix.instruction.startswith(fault.also) for fix in report.fixes)),
        "before": report.profile.images_per_second,
    }
    # How cheap a stage gets that the user writes anew is a guess, so nothing is measured after it.
    if first is not None and follow and not first.instruction.startswith("Make the stage"):
        gain = compare_with_fix(fault, folder, config, first)
        result["gains"] = asdict(gain)
        result["predicted"] = first.predicted_images_per_second
        result["measured"] = result["before"] * gain.median
        result["ratio"] = result["measured"] / result["predicted"]
    return result


def profile_fault(fault: Fault, folder: Path, config: PipelineConfig) -> PipelineProfile:
    """Profiles the fault's pipeline until the machine was quiet, and returns the least disturbed profile."""
    data, split = make_data(fault, folder)
    run_config = ProfileConfig(SECONDS, MAX_WARM_UP_S)
    profiles = []
    for _ in range(TRIES):
        _wait_for_calm()
        functions = list_functions(fault)
        accelerator = make_accelerator(fault, config)
        profiles.append(profile_pipeline(data, split, config, accelerator, run_config, None, fault.own, functions))
        if _get_disturbance(profiles[-1]) < QUIET:
            break
    return min(profiles, key=_get_disturbance)


def compare_with_fix(fault: Fault, folder: Path, config: PipelineConfig, fix: Fix) -> Spread:
    cured = replace(fault, **fault.cure) if fix.instruction else fault
    before = partial(run_trial, fault, *make_data(fault, folder), config)
    after = partial(run_trial, cured, *make_data(cured, folder), replace_options(config, fix.changes))
    return compare(lambda changes: after() if changes else before(), {}, {"fix": True})[0]


def run_trial(fault: Fault, data: Any, split: str | None, config: PipelineConfig) -> float:
    """Returns the images per second of the pipeline of a fault."""
    functions, reader = list_functions(fault), "tfpipe.profiler.measure.profile.NumpyBatches"
    with patch(reader, partial(NumpyBatches, num_threads=fault.num_threads)):
        return measure_rate(data, split, config, make_accelerator(fault, config), TRIAL, fault.own, functions)[0]


def list_functions(fault: Fault) -> dict[str, Any]:
    given = {"transform": fault.transform, "batch_transform": fault.batch_transform}
    return {name: function for name, function in given.items() if function is not None}


def make_data(fault: Fault, folder: Path) -> tuple[Any, str | None]:
    if fault.foreign and not fault.indexed:
        return tfrecord_files(make_files(fault.shards, folder)), None
    return index_files(fault.shards, folder) if fault.indexed else make_shards(fault.shards, folder), "train"


def make_accelerator(fault: Fault, config: PipelineConfig) -> Accelerator:
    return Accelerator(config.batch_size / fault.required, config.batch_size)


def is_right(fault: Fault, fix: Fix | None) -> bool:
    if fix is None or fault.fix is None:
        return fix is None and fault.fix is None
    if isinstance(fault.fix, str):
        return _name_no_files(fix.instruction).startswith(fault.fix)
    return all(name in fix.changes and value in (..., fix.changes[name]) for name, value in fault.fix.items())


def _name_no_files(instruction: str) -> str:
    words = (
        (r"tfpipe index [^\s,]+", "tfpipe index FILES"),
        (r"--output [^\s,]+", "--output INDEX"),
        (r"tfpipe reshard \S+ \S+", "tfpipe reshard DATASET OUTPUT"),
    )
    for command, general in words:
        instruction = re.sub(command, general, instruction)
    return instruction


def _get_disturbance(profile: PipelineProfile) -> float:
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
