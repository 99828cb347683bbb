"""The images that will be read: each as a small tuple, and as one line of the plan file.

Millions of these are made for one plan, so they are bare tuples that share equal parts.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from tfpipe.errors import FormatError

Box = tuple[float, float, float, float]
Value = str | int | float | Sequence[str] | Sequence[int] | Sequence[float]


class ImageLocation(NamedTuple):
    """The place of an image's bytes.

    Attributes:
        file: The file that holds the bytes, relative to the input's root or absolute. If it is empty, the image's
            own path is meant.
        offset: The position in `file` at which the bytes begin; in a Parquet file the row in its row group, from 0; -1
            if the file is the image and nothing else.
        packed: The number of deflated bytes in a zip archive; 0 for a member that is stored as it is, -1 outside of
            zip archives.
        crc: The CRC-32 that a zip archive promises; -1 if there is none.
        row_group: The row group of a Parquet file that holds the image, from 0; -1 outside of Parquet files.
    """

    file: str = ""
    offset: int = -1
    packed: int = -1
    crc: int = -1
    row_group: int = -1


WHOLE_FILE = ImageLocation()
"""The location of an image outside of archives. Most images share this one tuple."""


class FileRef(NamedTuple):
    """A file of a record beside `ImageRef.path`: the mask of its image, or one of its several images.

    Attributes:
        path: The path, as `ImageRef.path` is that of a single image. For a mask in a Parquet file the name of its
            column.
        size: The number of bytes once they are unpacked; 0 if it is unknown.
        file: The file that holds the bytes, as in `ImageLocation`, like the fields after it.
        offset: The position at which they begin.
        packed: The number of deflated bytes.
        crc: The CRC-32 that a zip archive promises.
        row_group: The row group of a Parquet file.
        drawn: The shapes of a mask that a worker draws, as `beam_jobs.inputs.annotations.segmentation` packs them;
            empty for a file.
    """

    path: str
    size: int = 0
    file: str = ""
    offset: int = -1
    packed: int = -1
    crc: int = -1
    row_group: int = -1
    drawn: str = ""

    @property
    def as_image(self) -> "PlannedImage":
        """The file in the form in which an image is read."""
        return PlannedImage(self.path, self.size, location=ImageLocation(*self[2:7]))


SINGLE, UNKNOWN_NUMBER, NO_IMAGE = -1, -2, -3
"""The values of `ImageRef.num_images`: a single image, a list whose length nobody knows yet, and tensors instead."""


class ImageRef(NamedTuple):
    """One image in the input, or a list of images, with the facts that are known before its bytes are read.

    Attributes:
        path: The name in the dataset, with `/` between folders. Sorting, splitting and shuffling use it.
        size: The number of bytes once they are unpacked; 0 if it is unknown. In a Parquet file it is the mean of the
            row group.
        location: The place of the bytes.
        split: The split that the input names; empty if the plan decides.
        label: The name of the class; None for an unlabeled image.
        group: The group, whose images all come into one split; empty if there is none.
        boxes: `(xmin, ymin, xmax, ymax)` of each box, as fractions of width and height.
        box_labels: One class number for each box, or none at all.
        extra: The values of the table's further columns, in the order of `Listing.extra`.
        mask: The fields of a `FileRef`; empty if the image has no mask.
        images: The first fields of a `FileRef` for each of several images; empty for a single one, and for a list in a
            row of a Parquet file. `size` is that of all of them, and `location` the place of the first one.
        frame: The width and the height in pixels of the image that the boxes and the mask are for, as `prepare_image`
            takes them.
        num_images: The number of several images; `SINGLE` for a single one, or `UNKNOWN_NUMBER`, or `NO_IMAGE`.
    """

    path: str
    size: int = 0
    location: ImageLocation = WHOLE_FILE
    split: str = ""
    label: str | None = None
    group: str = ""
    boxes: tuple[Box, ...] = ()
    box_labels: tuple[int, ...] = ()
    extra: tuple[Value, ...] = ()
    mask: Sequence[str | int] = ()
    images: Sequence[Sequence[str | int]] = ()
    frame: Sequence[float] = ()
    num_images: int = SINGLE


class PlannedImage(NamedTuple):
    """One image as a worker needs it: a line of the plan.

    Attributes:
        path: The name in the dataset.
        size: The number of bytes once they are unpacked, as for `ImageRef`.
        label: The number of the class; -1 for an unlabeled image.
        location: The place of the bytes.
        boxes: `(xmin, ymin, xmax, ymax)` of each box, as fractions of width and height.
        box_labels: One class number for each box, or none at all.
        extra: The values of the table's further columns.
        mask: The fields of a `FileRef`; empty if the image has no mask.
        images: The first fields of a `FileRef` for each of several images, as for `ImageRef`.
        frame: The size of the image that the boxes and the mask are for, as for `ImageRef`.
    """

    path: str
    size: int
    label: int = -1
    location: ImageLocation = WHOLE_FILE
    boxes: Sequence[Box] = ()
    box_labels: Sequence[int] = ()
    extra: Sequence[Value] = ()
    mask: Sequence[str | int] = ()
    images: Sequence[Sequence[str | int]] = ()
    frame: Sequence[float] = ()

    @property
    def mask_ref(self) -> FileRef | None:
        """The mask; None if the image has none."""
        return FileRef(*cast(Any, self.mask)) if self.mask else None


def list_files(image: PlannedImage | ImageRef) -> list[PlannedImage]:
    """Returns an image in the form in which it is read, or each of several that are files of their own."""
    if not image.images:
        return [PlannedImage(image.path, image.size, location=image.location)]
    return [FileRef(*cast(Any, fields)).as_image for fields in image.images]


_AFTER_LABEL = tuple(PlannedImage._field_defaults.values())[1:]
_LINE_DEFAULTS = ("", 0, -1, *WHOLE_FILE[:4], (), (), (), WHOLE_FILE.row_group, (), (), ())
_REQUIRED = 2  # path and size
_encode = json.JSONEncoder(separators=(",", ":")).encode


def encode_line(image: PlannedImage) -> bytes:
    """Returns one line of JSON: a list of the fields, those of the location among them, without trailing defaults.

    A file in a class folder takes about 60 bytes.
    """
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
        path, size, *others = json.loads(line)
        fields: list[Any] = [*others, *_LINE_DEFAULTS[_REQUIRED + len(others) :]]
        location: list[Any] = [*fields[1:5], fields[8]]
        return PlannedImage(path, size, fields[0], ImageLocation(*location), *fields[5:8], *fields[9:])
    except (ValueError, TypeError) as error:
        raise FormatError(f"A line of the plan cannot be read ({error}); run again with --overwrite.") from error
