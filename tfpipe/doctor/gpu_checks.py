"""The check of images that a GPU is to decode. Pure: plain values in, a `Check` out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tfpipe.doctor.result import Check
from tfpipe.system.units import human_count

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
