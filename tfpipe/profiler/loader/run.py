"""The whole profile of a loader: measure, diagnose, try the fixes.

report, kept = profile_loader(source, trainer, seconds=3.0, applies=True, observer=observer)
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tfpipe.profiler.loader.diagnose import find_wall
from tfpipe.profiler.loader.files import find_files, measure_draft_s
from tfpipe.profiler.loader.fixes import list_fixes
from tfpipe.profiler.loader.loaders import LoaderSource
from tfpipe.profiler.loader.measure import Batches, Trainer, drive, measure_loader
from tfpipe.profiler.loader.types import LoaderReport
from tfpipe.profiler.trials import try_changes
from tfpipe.system.progress import Observer


def profile_loader(
    source: LoaderSource, trainer: Trainer, seconds: float, applies: bool, observer: Observer
) -> tuple[LoaderReport, dict[str, Any]]:
    """Profiles a loader.

    Args:
        source: The user's function.
        trainer: The consumer of the batches.
        seconds: The length of each loop, at least.
        applies: Whether fixes that change options are tried.
        observer: An object that is told what happens at the moment.

    Returns:
        The report, and the options that were kept, which are none if fixes are not tried.

    Raises:
        ConfigError: The function or the step raises an error, or a loader cannot be made anew.
        DataError: The loader gives nothing, or raises an error.
    """
    loader = source.make()
    observer.phase("Measuring the loader")
    with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
        profile = measure_loader(loader, trainer, seconds, Path(folder))
    wall = find_wall(profile)
    files = find_files(profile, loader.dataset)
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    has_cuda = cuda is not None and cuda.is_available()
    fixes = list_fixes(profile, wall, has_cuda, measure_draft_s(files, profile.batch.image_size))
    kept: dict[str, Any] = {}
    if applies:
        run = partial(run_turn, source, trainer, seconds / 2)
        trials, kept = try_changes(run, [(fix.name, fix.changes) for fix in fixes], observer)
        fixes = tuple(
            fix if trial is None else replace(fix, measured_gain=trial.gain, kept=trial.kept)
            for fix, trial in zip(fixes, trials, strict=True)
        )
    return LoaderReport(profile, wall, fixes), kept


def run_turn(source: LoaderSource, trainer: Trainer, seconds: float, changes: Mapping[str, Any]) -> float:
    """Returns the batches per second of the loader with some options changed, after its queues ran empty."""
    batches = Batches(source.make(changes))
    try:
        step, _ = trainer.make_step(batches.warm_up())
        done = drive(batches, step, seconds)
    finally:
        batches.close()
    return done.batches / done.wall_s
