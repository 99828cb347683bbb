"""The images that will be read: each as a small tuple, and as one line of the plan file.

Millions of these are made for one plan, so they are bare tuples that share equal values.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from tfpipe.errors import FormatError

Box = tuple[float, float, float, float]
Value = str | int | float | Sequence[str] | Sequence[int] | Sequence[float]


class ImageLocation(NamedTuple):
    """The file and the offset of an image's bytes."""

    file: str = ""  # relative to the input's root or absolute; empty: the image's own path
    offset: int = -1  # in bytes, or a row of a row group; -1: the file is the image
    packed: int = -1  # deflated bytes in a zip; 0: stored, -1: no zip
    crc: int = -1  # the CRC-32 in a zip; -1: none
    row_group: int = -1  # of a Parquet file; -1: none


WHOLE_FILE = ImageLocation()
"""The location of an image outside of archives. Most images share this one tuple."""


class FileRef(NamedTuple):
    """A file of a record other than `ImageRef.path`: the mask of its image, or one of its several images."""

    path: str  # or, for a mask in a Parquet file, the name of the column
    size: int = 0  # in bytes once unpacked; 0: unknown
    file: str = ""  # as in `ImageLocation`, like the next four
    offset: int = -1
    packed: int = -1
    crc: int = -1
    row_group: int = -1
    drawn: str = ""  # shapes of a mask that a worker draws, from `pack_shapes`

    @property
    def as_image(self) -> "PlannedImage":
        """The file as a `PlannedImage`, which the functions that read images take."""
        return PlannedImage(self.path, self.size, location=ImageLocation(*self[2:7]))


SINGLE, UNKNOWN_NUMBER, NO_IMAGE = -1, -2, -3
"""The values of `ImageRef.num_images`: a single image, a list whose length nobody knows yet, and tensors instead."""


class ImageRef(NamedTuple):
    """One image in the input, or a list of images, and what is known before its bytes are read."""

    path: str  # with / between folders; sorting, splitting and shuffling use it
    size: int = 0  # in bytes once unpacked; in a Parquet file, the mean in its row group; 0: unknown
    location: ImageLocation = WHOLE_FILE
    split: str = ""  # empty: the plan decides
    label: str | None = None
    group: str = ""  # images of one group come into one split
    boxes: tuple[Box, ...] = ()  # (xmin, ymin, xmax, ymax) as fractions
    box_labels: tuple[int, ...] = ()  # one for each box, or none at all
    extra: tuple[Value, ...] = ()  # in the order of `Listing.extra`
    mask: Sequence[str | int] = ()  # the fields of a `FileRef`, or empty
    images: Sequence[Sequence[str | int]] = ()  # fields of `FileRef`s; empty for one image and in Parquet
    frame: Sequence[float] = ()  # width and height in pixels of the image that boxes and mask are for
    num_images: int = SINGLE  # or `SINGLE`, `UNKNOWN_NUMBER` or `NO_IMAGE`


class PlannedImage(NamedTuple):
    """One image as a worker needs it: a line of the plan."""

    path: str
    size: int
    label: int = -1  # -1: unlabeled
    location: ImageLocation = WHOLE_FILE
    boxes: Sequence[Box] = ()
    box_labels: Sequence[int] = ()
    extra: Sequence[Value] = ()
    mask: Sequence[str | int] = ()
    images: Sequence[Sequence[str | int]] = ()
    frame: Sequence[float] = ()


def get_mask(image: PlannedImage | ImageRef) -> FileRef | None:
    """Returns the mask of an image; None if it has none."""
    return FileRef(*cast(Any, image.mask)) if image.mask else None


def list_files(image: PlannedImage | ImageRef) -> list[PlannedImage]:
    """Returns an image's file as a `PlannedImage`, or each file of a record with several images."""
    if not image.images:
        return [PlannedImage(image.path, image.size, location=image.location)]
    return [FileRef(*cast(Any, fields)).as_image for fields in image.images]


_AFTER_LABEL = tuple(PlannedImage._field_defaults.values())[1:]
_LINE_DEFAULTS = ("", 0, -1, *WHOLE_FILE[:4], (), (), (), WHOLE_FILE.row_group, (), (), ())
_REQUIRED = 2  # path and size
_encode, _decode = json.JSONEncoder(separators=(",", ":")).encode, json.JSONDecoder().decode


def encode_line(image: PlannedImage) -> bytes:
    """Encodes an image as one line of JSON: a flat list of its and its location's fields, without trailing defaults."""
    fields: Sequence[object] = image[:3]
    if image[3:] != _AFTER_LABEL:  # for nearly every image this one comparison is enough
        location, details = image.location, (image.boxes, image.box_labels, image.extra)
        fields = (*fields, *location[:4], *details, location.row_group, *image[7:])
    end = len(fields)
    while end > _REQUIRED and fields[end - 1] == _LINE_DEFAULTS[end - 1]:
        end -= 1
    return _encode(fields[:end]).encode("ascii") + b"\n"


def decode_line(line: bytes) -> PlannedImage:
    """Returns the image of a line that `encode_line` wrote."""
    try:
        path, size, *others = _decode(line.decode("ascii"))
        fields: list[Any] = [*others, *_LINE_DEFAULTS[_REQUIRED + len(others) :]]
        location: list[Any] = [*fields[1:5], fields[8]]
        return PlannedImage(path, size, fields[0], ImageLocation(*location), *fields[5:8], *fields[9:])
    except (ValueError, TypeError) as error:
        raise FormatError(f"A line of the plan cannot be read ({error}); run again with --overwrite.") from error
