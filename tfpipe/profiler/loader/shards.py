"""Writes a sample of a loader's own images as a tfpipe dataset, and reads the same crops by the engine.

result = measure_as_shards(profile, files, seconds=2.0)      # "3.1 times, measured on 500 images"
"""

from __future__ import annotations

import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import TfpipeError
from tfpipe.images import jpeg
from tfpipe.images.errors import BadImage
from tfpipe.profiler.loader.probe import IMAGE_ENDINGS
from tfpipe.profiler.loader.types import LoaderProfile, ShardsResult
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.writer.fields import Image
from tfpipe.writer.write import write

_MAX_IMAGES, _MAX_BYTES, _MIN_IMAGES = 500, 200_000_000, 8
_LISTS = ("samples", "imgs", "files", "paths", "filenames", "image_paths", "images")
_DEPTH = 4
_DRAFTS, _MAX_PIXELS = 24, 1 << 28


def find_files(profile: LoaderProfile, dataset: Any) -> list[str]:
    """Returns image files of the loader: those that its processes opened, or those in a list of its dataset."""
    files = {file: None for use in (*profile.workers, profile.main) for file in use.files}
    for _ in range(_DEPTH if len(files) < _MAX_IMAGES else 0):
        for name in _LISTS:
            entries = getattr(dataset, name, None)
            for entry in entries[: 10 * _MAX_IMAGES] if isinstance(entries, (list, tuple)) else ():
                first = entry[0] if isinstance(entry, (list, tuple)) and entry else entry
                if isinstance(first, (str, Path)) and str(first).lower().endswith(IMAGE_ENDINGS):
                    files[str(Path(first).absolute())] = None
        dataset = getattr(dataset, "dataset", None)
    return [file for file in files if Path(file).is_file()]


def measure_as_shards(profile: LoaderProfile, files: Sequence[str], seconds: float) -> ShardsResult:
    """Writes up to 500 images as shards in a temporary folder, and reads random crops of the loader's size.

    Args:
        profile: The profile of the loader.
        files: Its image files.
        seconds: The time to read, at least.
    """
    size = profile.batch.image_size
    if size is None:
        return ShardsResult(why_not="its batches hold no images of one size.")
    if len(files) < _MIN_IMAGES:
        return ShardsResult(why_not="its images are not files that this profile has seen.")
    with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
        try:
            records = list(_read(files))
            output = Path(folder, "dataset")
            write(records, output, {"image": Image()}, num_shards=4)
            batch = min(profile.batch.images, len(records))
            config = PipelineConfig(batch_size=batch, image_size=size)
            rate = _read_rate(NumpyBatches(str(output), "train", config), batch, seconds)
        except (TfpipeError, OSError) as error:
            return ShardsResult(why_not=f"a sample of its files cannot be written: {error}")
    return ShardsResult(len(records), rate)


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


def _read(files: Sequence[str]) -> Iterator[dict[str, Any]]:
    left = _MAX_BYTES
    for file in random.Random(0).sample(list(files), min(len(files), _MAX_IMAGES)):
        data = Path(file).read_bytes()
        left -= len(data)
        if left < 0:
            return
        yield {"image": data}


def _read_rate(batches: NumpyBatches, batch: int, seconds: float) -> float:
    """Returns the images per second of the engine, after a first batch."""
    count, started = 0, 0.0
    while not count or time.perf_counter() - started < seconds:
        for _ in batches:
            if not started:
                started = time.perf_counter()
                continue
            count += batch
            if time.perf_counter() - started >= seconds:
                break
    return count / (time.perf_counter() - started)
