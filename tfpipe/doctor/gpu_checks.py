"""The check of images that a GPU is to decode: which kinds its decoder does not take.

It loads no TensorFlow, which a trainer in PyTorch may not have.

check_images(manifest, "train")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tfpipe.doctor.result import Check
from tfpipe.engine.source import Source, get_source
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest, SplitInfo
from tfpipe.images.errors import BadImage
from tfpipe.images.hardware_jpeg import read_hardware_header
from tfpipe.readers.data_source import data_source
from tfpipe.storage.file_io import is_url
from tfpipe.system.units import human_count

_HEADERS = 2000  # of images to look at: what one in a thousand is, is found with 86 % probability
UNREADABLE = "image with an unreadable header"
"""The kind of an image that no decoder takes."""


class ImageKinds(NamedTuple):
    """The kinds of images that a GPU's decoder does not take.

    Attributes:
        refused: The number of images of each such kind, such as "PNG".
        looked_at: The number of images whose header was read, or of all if the manifest tells their kinds.
        records: The number of images of the split.
        promised: Whether the manifest tells the kinds, so that no header was read.
    """

    refused: Mapping[str, int]
    looked_at: int
    records: int
    promised: bool = False


def check_gpu_decode(kinds: ImageKinds) -> Check:
    """Checks that a GPU's decoder takes the images: baseline JPEG, in color or gray."""
    name = "gpu decode"
    of = f"{kinds.looked_at:,} of {human_count(kinds.records, 'image')} that were looked at"
    if kinds.looked_at == kinds.records:
        of = human_count(kinds.records, "image")
    source = ", as the manifest says" if kinds.promised else ""
    count = sum(kinds.refused.values())
    if not count:
        return Check(name, "ok", f"A GPU decodes all of {of}: baseline JPEG{source}.")
    listed = ", ".join(f"{number:,} {kind}" for kind, number in sorted(kinds.refused.items()))
    finding = f"The CPU decodes {count:,} of {of}: {listed}{source}."
    return Check(name, "warning", finding, _advise(kinds.refused))


def _advise(refused: Mapping[str, int]) -> str:
    if UNREADABLE in refused:
        return "Run `tfpipe verify` to find the damaged records."
    if set(refused) == {"progressive JPEG"}:
        return "`tfpipe reshard --seekable` makes sequential JPEGs of them without loss, with the native library."
    return "`tfpipe reshard --encoding jpeg --reencode-progressive` makes baseline JPEGs of all."


def check_images(data: Manifest | Source, split: str | None) -> Check:
    """Checks whether a GPU decodes the images of a split.

    Raises:
        ConfigError: There is no such split.
        FormatError: A file is missing or damaged.
        DataError: A file cannot be read.
    """
    name, source = "gpu decode", get_source(data, split)
    if not source.has_images:
        return Check(name, "ok", "The records have no image.")
    if not isinstance(data, Manifest) or split is None:
        return Check(name, "skipped", "Files without a manifest have no index. Describe them with `tfpipe index`.")
    if source.images.formats == {"RAW"}:
        return Check(name, "ok", "The images are raw pixels, which nobody decodes.")
    if is_url(data.directory) or data.compression:
        return Check(name, "skipped", "Headers are read from files on a local disk that are not compressed.")
    return check_gpu_decode(count_image_kinds(data, data.splits[split]))


def count_image_kinds(manifest: Manifest, info: SplitInfo) -> ImageKinds:
    """Counts the images that a GPU's decoder does not take: by the manifest where it tells, else by their headers.

    Raises:
        FormatError: A file is missing or damaged.
        DataError: A file cannot be read.
    """
    records = info.records
    if _promises_baseline(manifest, info):
        others = {kind: count for kind, count in info.formats.items() if kind != "JPEG" and count}
        return ImageKinds(others, records, records, promised=True)
    chosen = np.unique(np.linspace(0, records - 1, min(records, _HEADERS)).astype(np.int64))
    max_pixels = ImageForm.recorded(manifest.image).max_pixels if manifest.foreign is None else ImageForm().max_pixels
    refused: Counter[str] = Counter()
    with data_source(manifest, info.name)[chosen] as images:
        for image in images:
            refused[_name_refusal(image.encoded, max_pixels)] += 1
    del refused[""]
    return ImageKinds(refused, len(chosen), records)


def _promises_baseline(manifest: Manifest, info: SplitInfo) -> bool:
    """Returns whether every JPEG of a split is baseline, in RGB or gray, as far as the manifest tells."""
    is_sequential = info.seekable or manifest.image.get("reencode_progressive") is True
    # Of several images a record the manifest counts images, and not records.
    return is_sequential and manifest.foreign is None and not manifest.has_several_images


def _name_refusal(data: bytes, max_pixels: int) -> str:
    try:
        return read_hardware_header(data, max_pixels).refusal
    except BadImage:
        return UNREADABLE
