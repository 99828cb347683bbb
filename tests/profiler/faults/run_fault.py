"""Runs one fault: profiles it, lets it and the pipeline after the first fix run in turns, and prints one JSON object.

The machine's own speed moves by a fifth within a minute. So the gain is that of turns, of two halted processes, and the
rate that was measured is the profiled one times the gain.

python tests/profiler/faults/run_fault.py NAME FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from cases import FAULTS, Cure, Fault
from data import Shards, made

from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.source import tfrecord_files
from tfpipe.profiler.measure.host_usage import HostTime
from tfpipe.profiler.measure.profile import profile_pipeline
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.profiler.report.text_json import make_report, to_text
from tfpipe.profiler.types import Fix, Profile
from tfpipe.system import host_limits
from tfpipe.tuning.paired_benchmark import Turn, get_paired_ratio, take_turns
from tfpipe.tuning.trials import PipelineJob

SECONDS, MAX_WARM_UP_S, BATCH = 3.0, 3.0, 64
CALM_S = 15.0
"""How long to wait for that before each time."""
WINDOW = 64
"""Records of a stream that are read at once: with the default of 512 a slow pipeline would not read any for seconds."""
STARTS, ROUNDS, TURN_S = 3, 3, 1.0
"""AUTOTUNE does not choose the same in each start, and can take a quarter of a minute to change its mind."""
QUIET, TRIES = 0.05, 3
"""What may have been disturbed while a pipeline was measured, or it is measured again: see `_disturbance`."""


def main(name: str, folder: Path, follow: bool = True) -> dict[str, Any]:
    """What the profiler says of a fault, and what comes of it."""
    fault = FAULTS[name]
    config = PipelineConfig(**{"global_batch_size": BATCH, "window_records": WINDOW, **fault.config})
    if fault.memory_limit is not None:
        limit = fault.memory_limit
        host_limits.memory_limit_bytes = lambda *_: limit  # the profiler asks there, as in a container
    report = make_report(profiled(fault, folder, config, fault.shards, fault.own))
    if os.environ.get("SHOW"):
        print(to_text(report), file=sys.stderr)
    first = report.fixes[0] if report.fixes else None
    found: dict[str, Any] = {
        "fault": name,
        "stage": report.bottleneck.stage,
        "proof": report.bottleneck.reason,
        "fix": None if first is None else first.action or dict(first.changes),
        "right_stage": report.bottleneck.stage == fault.stage,
        "right_fix": is_right(fault, first),
        "before": report.profile.images_per_second,
    }
    if first is not None and follow:
        turns, first_batch_s = compared(fault, folder, config, first)
        gain = get_paired_ratio(turns["after"], turns["before"])
        found["turns"] = {name: [turn.images_per_second for turn in done] for name, done in turns.items()}
        found["gain"] = [gain.ratio, gain.low, gain.high]
        found["predicted"] = first.predicted_images_per_second
        found["measured"] = found["before"] * gain.ratio
        found["ratio"] = found["measured"] / found["predicted"]
        found["first_batch_s"] = first_batch_s
    return found


def profiled(fault: Fault, folder: Path, config: PipelineConfig, shards: Shards, own: Any) -> Profile:
    what = job(fault, folder, shards, own, config)
    profiles = []
    for _ in range(TRIES):
        _wait_for_calm()
        profiles.append(
            profile_pipeline(
                what.data, what.split, config, what.accelerator, SECONDS, MAX_WARM_UP_S, customize=what.customize
            )
        )
        if _disturbance(profiles[-1]) < QUIET:
            break
    return min(profiles, key=_disturbance)


def compared(
    fault: Fault, folder: Path, config: PipelineConfig, fix: Fix
) -> tuple[dict[str, list[Turn]], tuple[float, float]]:
    """Turns "before" and "after" the fix, and the seconds until the first batch without and with it."""
    before = job(fault, folder, fault.shards, fault.own, config)
    changed, shards, own = followed(fault, fix, config)
    after = job(fault, folder, shards, own, changed)
    turns: dict[str, list[Turn]] = {"before": [], "after": []}
    for _ in range(STARTS):
        with before.start_process(plain(config)) as one, after.start_process(plain(changed)) as other:
            for name, done in take_turns({"before": one, "after": other}, ROUNDS, TURN_S).items():
                turns[name] += done
            first_batch_s = one.start.first_batch_s, other.start.first_batch_s
    return turns, first_batch_s


def plain(config: PipelineConfig) -> PipelineConfig:
    """As it is profiled."""
    return replace(config, map_fusion=False)


def job(fault: Fault, folder: Path, shards: Shards, own: Any, config: PipelineConfig) -> PipelineJob:
    manifest = made(shards, folder)
    data: Any = tfrecord_files(f"{manifest.directory}/train-*") if fault.foreign else manifest
    batch = config.global_batch_size or BATCH
    return PipelineJob(data, None if fault.foreign else "train", Accelerator(batch / fault.required, batch), own)


def _disturbance(profile: Profile) -> float:
    """Share of the cores that others took, and of the time in which the whole machine stood still."""
    step = profile.step
    stood_s = step.wall_s - SECONDS - 2 * step.wall_s / step.steps  # a step can end that much later
    return profile.host.other_cpu_fraction + max(stood_s, 0.0) / step.wall_s


def _wait_for_calm() -> None:
    """Until nobody else has used the processor for a second."""
    started = time.perf_counter()
    while time.perf_counter() - started < CALM_S:
        before = HostTime.now()
        time.sleep(1)
        if HostTime.now().fractions_since(before, host_limits.usable_cpus())[1] < QUIET:
            return


def followed(fault: Fault, fix: Fix, config: PipelineConfig) -> tuple[PipelineConfig, Shards, Any]:
    """The pipeline after the fix; what it says beyond the config is done as the case has it."""
    cure = fault.cure if fix.action else Cure()
    return replace(config, **fix.changes), cure.shards or fault.shards, cure.own or fault.own


def is_right(fault: Fault, fix: Fix | None) -> bool:
    if fix is None or fault.fix is None:
        return fix is None and fault.fix is None
    if isinstance(fault.fix, str):
        return fix.action.startswith(fault.fix)
    return all(name in fix.changes and value in (..., fix.changes[name]) for name, value in fault.fix.items())


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), "--no-fix" not in sys.argv)))
