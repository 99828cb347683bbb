"""The whole profile of a loader: measure, diagnose, read the images as shards, try the fixes.

report, kept = profile_loader(source, trainer, seconds=3.0, applies=True, observer=observer)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from tfpipe.profiler.loader.diagnose import find_wall
from tfpipe.profiler.loader.fixes import list_fixes
from tfpipe.profiler.loader.loaders import LoaderSource
from tfpipe.profiler.loader.measure import Trainer, measure_loader
from tfpipe.profiler.loader.shards import find_files, measure_as_shards, measure_draft_s
from tfpipe.profiler.loader.trials import try_fixes
from tfpipe.profiler.loader.types import LoaderReport
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
    fixes, kept = try_fixes(source, trainer, fixes, seconds / 2, observer) if applies else (fixes, {})
    observer.phase("Reading the same images as tfpipe shards")
    return LoaderReport(profile, wall, fixes, measure_as_shards(profile, files, seconds / 2)), kept
