"""Finds image files of a loader, and measures how fast Pillow decodes them in a smaller size.

draft_s = measure_draft_s(find_files(profile, loader.dataset), profile.batch.image_size)
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfpipe.images import jpeg
from tfpipe.images.errors import BadImage
from tfpipe.profiler.loader.probe import IMAGE_ENDINGS
from tfpipe.profiler.loader.types import LoaderProfile

_LISTS = ("samples", "imgs", "files", "paths", "filenames", "image_paths", "images")
_DEPTH = 4
_DRAFTS, _MAX_PIXELS = 24, 1 << 28


def find_files(profile: LoaderProfile, dataset: Any) -> list[str]:
    """Returns image files of the loader: those that its processes opened, or those in a list of its dataset."""
    files = {file: None for use in (*profile.workers, profile.main) for file in use.files}
    for _ in range(_DEPTH if len(files) < _DRAFTS else 0):
        for name in _LISTS:
            entries = getattr(dataset, name, None)
            for entry in entries[:_DRAFTS] if isinstance(entries, (list, tuple)) else ():
                first = entry[0] if isinstance(entry, (list, tuple)) and entry else entry
                if isinstance(first, (str, Path)) and str(first).lower().endswith(IMAGE_ENDINGS):
                    files[str(Path(first).absolute())] = None
        dataset = getattr(dataset, "dataset", None)
    return [file for file in files if Path(file).is_file()]


def measure_draft_s(files: Sequence[str], size: tuple[int, int] | None) -> float | None:
    """Measures how long Pillow reads, decodes and converts a JPEG in the smallest size that libjpeg has above `size`.

    The whole image is not decoded here, since that is measured in the workers. There it takes up to twice as long or
    half as long, by how their memory was taken before; and workers that are forked from this process take over its way.

    Args:
        files: Files with images.
        size: The height and width that are needed.

    Returns:
        The processor time of an image, in seconds; None if the size is not known, or the first JPEG is not larger.
    """
    if size is None:
        return None
    times = list[float]()
    for file in files[:_DRAFTS]:
        with contextlib.suppress(BadImage, OSError):
            started = time.thread_time()
            header = jpeg.read_header(Path(file).read_bytes(), _MAX_PIXELS)
            image, scale = jpeg.decode_jpeg(header, size[::-1])
            if scale == 1 and not times:
                return None
            image.convert("RGB")
            times.append(time.thread_time() - started)
    return statistics.fmean(times) if times else None
