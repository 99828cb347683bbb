"""Records with several images, for tests. Every image tells its record and its place by its colors."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import tfpipe
from tests.beam_jobs.images import save_image
from tfpipe import fields

Records = Iterator[dict[str, Any]]


def make_pixels(record: int, number: int) -> NDArray[np.uint8]:
    """Makes an image whose size and colors follow from its record and its place in it."""
    small = np.random.default_rng((record, number)).integers(0, 256, (5, 4, 3), np.uint8)
    pixels = np.repeat(np.repeat(small, 7 + record % 3 + number, axis=0), 9 + number, axis=1)
    pixels[..., 0], pixels[..., 1] = 10 * record, 60 * number
    return pixels


def make_file(record: int, number: int, kind: str = "PNG") -> bytes:
    """Makes the file of such an image: a PNG, so that pixels are exact, or a JPEG."""
    return save_image(Image.fromarray(make_pixels(record, number)), kind)


def count_images(record: int, number: int | None) -> int:
    return 2 + record % 4 if number is None else number


def make_records(records: range, number: int | None = 3, kind: str = "PNG") -> Records:
    for record in records:
        files = [make_file(record, k, kind) for k in range(count_images(record, number))]
        yield {"views": files, "class": record % 2, "caption": f"record {record}"}


LABEL_AND_TEXT: Mapping[str, Any] = {"class": fields.Label(("cat", "dog")), "caption": fields.Text()}


def write_several(
    output: Path, count: int = 18, number: int | None = 3, kind: str = "PNG", num_shards: int = 3
) -> tfpipe.Manifest:
    """Writes a dataset of such records, with a fixed number of images or 2 to 5 in each."""
    schema = {"views": fields.Images(number), **LABEL_AND_TEXT}
    tfpipe.write(make_records(range(count), number, kind), str(output), schema, num_shards=num_shards, workers=0)
    return tfpipe.load_manifest(str(output))
