"""The files that are compared: written from drawn coefficients, by Pillow, photographs, and all of them changed."""

import io
import random
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image

from tests.conftest import ROOT
from tests.fuzz.jpeg import mutate
from tests.native.jpeg_writer import draw_jpeg

_NOT_SOUND = ("square-cut-in-half", "square-no-end-marker", "circle-png-inside")  # of sample_data/


class File(NamedTuple):
    """A file, how it came about, and whether a decoder must take it."""

    data: bytes
    family: str
    description: str
    sound: bool


def draw_file(seed: int) -> File:
    rng = random.Random(seed)
    kind = rng.random()
    if kind < 0.5:
        drawn = draw_jpeg(rng.getrandbits(48), wild=rng.random() < 0.15)
        file = File(drawn.data, drawn.family, drawn.description, drawn.sound)
    elif kind < 0.8:
        file = _draw_by_pillow(rng)
    else:
        name, data = rng.choice(_read_samples())
        file = File(data, "sample", name, not name.startswith(_NOT_SOUND))
    if rng.random() < 0.45:
        data, said = mutate.change(file.data, rng)
        file = File(data, f"changed {file.family}", f"{said} of {file.description}", False)
    return file


@cache
def _read_samples() -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in sorted((ROOT / "sample_data").glob("*/*.jpg"))]


def _draw_by_pillow(rng: random.Random) -> File:
    mode = rng.choice(("RGB", "RGB", "RGB", "L", "CMYK"))
    height, width = rng.randint(1, 120), rng.randint(1, 120)
    numbers = np.random.default_rng(rng.getrandbits(48))
    channels = len(Image.new(mode, (1, 1)).getbands())
    small = numbers.integers(0, 256, (max(1, height // rng.choice((1, 6))), max(1, width // 6), channels), np.uint8)
    image = Image.fromarray(small if channels > 1 else small[..., 0], mode).resize((width, height), rng.choice((0, 2)))
    options: dict[str, object] = {"quality": rng.choice((1, 20, 75, 90, 95, 100)), "progressive": rng.random() < 0.4}
    options["optimize"] = rng.random() < 0.4
    if mode == "RGB":
        options |= {"subsampling": rng.randrange(3), "keep_rgb": rng.random() < 0.15}
    if rng.random() < 0.4:
        options[rng.choice(("restart_marker_blocks", "restart_marker_rows"))] = rng.randint(1, 6)
    if rng.random() < 0.2:
        options |= {"comment": b"a comment", "icc_profile": rng.randbytes(40), "exif": b"Exif\0\0" + rng.randbytes(30)}
    buffer = io.BytesIO()
    try:
        image.save(buffer, "JPEG", **options)
    except OSError:  # no encoder for these options together
        return _draw_by_pillow(rng)
    return File(buffer.getvalue(), "pillow", f"{mode} {height} x {width} {options}", True)
