"""ImageRef: one image that will be read, as a small tuple and as one line of the plan file.

A million of these are held while a plan is made, so they are bare tuples whose texts are shared where possible.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from tfpipe.errors import FormatError

Box = tuple[float, float, float, float]
Value = str | int | float | Sequence[str] | Sequence[int] | Sequence[float]


class ImageRef(NamedTuple):
    """Where one image lies and what is known of it before its bytes are read.

    Attributes:
        path: Its name in the dataset, `/` between folders; what sorting, splitting and shuffling go by.
        size: Its bytes once unpacked; 0 where unknown.
        location: The file that holds it, relative to the input's root or absolute; empty: `path` itself.
        offset: Where its bytes begin in `location`; -1: `location` is the image and nothing else.
        packed: Its deflated bytes in a zip archive, 0 for a member that is stored there; -1: not in a zip archive.
        crc: CRC-32 that a zip archive promises; -1: none.
        split: The split that the input names; empty: for the plan to decide.
        label: Name of its class; None: none.
        group: Images of one group come into one split; empty: each on its own.
        boxes: `(xmin, ymin, xmax, ymax)` as fractions of width and height.
        box_labels: One class number per box, or none at all.
        extra: Values of the manifest's further columns, in the order of `Listing.extra`.
    """

    path: str
    size: int = 0
    location: str = ""
    offset: int = -1
    packed: int = -1
    crc: int = -1
    split: str = ""
    label: str | None = None
    group: str = ""
    boxes: tuple[Box, ...] = ()
    box_labels: tuple[int, ...] = ()
    extra: tuple[Value, ...] = ()


class PlannedImage(NamedTuple):
    """What a worker needs to know of one image: a line of the plan, in the order of these fields."""

    path: str
    size: int
    label: int = -1
    location: str = ""
    offset: int = -1
    packed: int = -1
    crc: int = -1
    boxes: Sequence[Box] = ()
    box_labels: Sequence[int] = ()
    extra: Sequence[Value] = ()


_DEFAULTS = tuple(PlannedImage._field_defaults.values())
_REQUIRED = len(PlannedImage._fields) - len(_DEFAULTS)
_encode = json.JSONEncoder(separators=(",", ":")).encode


def encode_line(image: PlannedImage) -> bytes:
    """One line of JSON, trailing defaults left out: about 60 bytes for a file in a class folder."""
    # Nearly always all from the place on is default, which one comparison says.
    end = len(image) if image[_REQUIRED + 1 :] != _DEFAULTS[1:] else _REQUIRED + 1
    while end > _REQUIRED and image[end - 1] == _DEFAULTS[end - 1 - _REQUIRED]:
        end -= 1
    return _encode(image[:end]).encode("ascii") + b"\n"


def decode_line(line: bytes) -> PlannedImage:
    """The inverse of `encode_line`; raises `FormatError` for a line it did not write."""
    try:
        return PlannedImage(*json.loads(line))
    except (ValueError, TypeError) as error:
        raise FormatError(f"A line of the plan cannot be read ({error}); run again with --overwrite.") from error
