"""The whole profile of a loader: measure, diagnose, read the images as shards, try the fixes.

report, kept = profile_loader(source, trainer, LoaderRun(seconds=3.0, applies=True), observer)
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfpipe.profiler.diagnose.diagnosis import compute_idle_price_per_day
from tfpipe.profiler.loader.diagnose import find_wall
from tfpipe.profiler.loader.fixes import list_fixes
from tfpipe.profiler.loader.loaders import LoaderSource
from tfpipe.profiler.loader.measure import Trainer, measure_loader
from tfpipe.profiler.loader.shards import find_files, measure_as_shards, measure_draft_gain
from tfpipe.profiler.loader.trials import try_fixes
from tfpipe.profiler.loader.types import LoaderReport
from tfpipe.system.progress import Observer


@dataclass(frozen=True)
class LoaderRun:
    """The options of a profile.

    Attributes:
        seconds: The length of each loop, at least.
        price_per_hour: The price of the accelerator; None leaves the price of idle time out.
        applies: Whether fixes that change options are tried.
    """

    seconds: float = 3.0
    price_per_hour: float | None = None
    applies: bool = False


def profile_loader(
    source: LoaderSource, trainer: Trainer, run: LoaderRun, observer: Observer
) -> tuple[LoaderReport, dict[str, Any]]:
    """Profiles a loader.

    Args:
        source: The user's function.
        trainer: The consumer of the batches.
        run: The options.
        observer: An object that is told what happens at the moment.

    Returns:
        The report, and the options that were kept, which are none if fixes are not tried.

    Raises:
        ConfigError: The function or the step raises an error, or a loader cannot be made anew.
        DataError: The loader gives nothing, or raises an error.
    """
    observer.phase("Making the loader")
    loader = source.make()
    with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
        observer.phase("Measuring the loader")
        profile = measure_loader(loader, trainer, run.seconds, Path(folder))
    wall = find_wall(profile)
    files = find_files(profile, loader.dataset)
    fixes = list_fixes(profile, wall, _has_cuda(), measure_draft_gain(files, profile.batch.image_size))
    kept: dict[str, Any] = {}
    if run.applies:
        fixes, kept = try_fixes(source, trainer, fixes, run.seconds / 2, observer)
    observer.phase("Reading the same images as tfpipe shards")
    shards = measure_as_shards(profile, files, run.seconds / 2)
    price = None
    if run.price_per_hour is not None:
        price = compute_idle_price_per_day(run.price_per_hour, profile.idle_fraction)
    return LoaderReport(profile, wall, fixes, shards, price), kept


def _has_cuda() -> bool:
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_available())
