"""The judge accepts nothing that a reader refuses: damaged JPEGs of many kinds."""

import random
from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf

from tests.native.jpeg_writer import draw_jpeg
from tfpipe.format.image_form import ImageForm
from tfpipe.images import jpeg
from tfpipe.images.decode import decode_pixels
from tfpipe.images.normalize import BadImage, judge, prepare_image
from tfpipe.images.verify import check_stored
from tfpipe.native import jpeg as native_jpeg

KEEP = ImageForm()
KINDS: list[dict[str, Any]] = [
    {},
    {"subsampling": 0},
    {"subsampling": 1, "optimize": True},
    {"mode": "L"},
    {"mode": "CMYK"},
    {"restart_marker_blocks": 2},
    {"progressive": True},
    {"progressive": True, "mode": "L"},
]


def damage(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(2, len(changed))
        match rng.randrange(4):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                changed[at] = 0xFF
            case 2:
                del changed[at : at + rng.randrange(1, 9)]
            case _:
                changed[at:at] = rng.randbytes(rng.randrange(1, 5))
    return bytes(changed)


def make_damaged(make: Any, count: int) -> list[bytes]:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    seeds = [make.jpeg(40 + 3 * k, 30 + k, **options) for k, options in enumerate(KINDS)]
    files = [*seeds, *(data[:-2] for data in seeds), *(data + b"\xff\xd9rest" for data in seeds)]
    files += [damage(rng.choice(seeds), rng) for _ in range(count)]
    drawn = [draw_jpeg(rng.randrange(2**32)).data for _ in range(count // 8)]
    return files + drawn + [damage(data, rng) for data in drawn]


@pytest.mark.parametrize("count", [400, pytest.param(8000, marks=pytest.mark.slow)])
def test_every_reader_reads_what_is_stored(make: Any, tf_jpeg: Any, count: int) -> None:
    refused = 0
    files = make_damaged(make, count)
    for data in files:
        try:
            stored = prepare_image(data, KEEP)
        except BadImage:
            refused += 1
            continue
        assert check_stored(stored.encoded, stored.format, KEEP) == (stored.width, stored.height, stored.channels)
        pixels = tf_jpeg(stored.encoded).copy()
        assert decode_pixels(stored.encoded, KEEP).shape == (stored.height, stored.width, 3)
        native_jpeg.decode(stored.encoded, (0, 0, stored.height, stored.width), pixels, resize=False)
    assert 0.2 * len(files) < refused < 0.9 * len(files)


@pytest.mark.parametrize("at", [2, 3, 20])
def test_a_second_beginning_is_refused(make: Any, tf_jpeg: Any, at: int) -> None:
    """Decoders stop at a second SOI, also where only its last byte was inserted."""
    data = make.jpeg(40, 30)
    damaged = data[:at] + (b"\xd8" if at == 3 else b"\xff\xd8") + data[at:]
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf_jpeg(damaged)
    with pytest.raises(BadImage, match=r"^damaged JPEG: it begins twice$"):
        prepare_image(damaged, KEEP)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_whole_image_is_not_decoded(make: Any, options: dict[str, Any], monkeypatch) -> None:
    monkeypatch.setattr("PIL.JpegImagePlugin.JpegImageFile.load", None)
    assert judge(jpeg.read_header(make.jpeg(**options), KEEP.max_pixels))


def test_an_arithmetic_file_is_left_to_pillow_and_its_segments_are_followed_to_the_end(make: Any) -> None:
    data = make.jpeg()

    def read(middle: bytes) -> jpeg.JpegHeader:
        return replace(jpeg.read_header(data[:-2] + middle + data[-2:], KEEP.max_pixels), arithmetic=True)

    assert not judge(read(b""))
    assert not judge(read(b"\xff\xfe\0\4ab"))
    with pytest.raises(BadImage) as refusal:
        judge(read(b"\xff\xfe\xff\xff"))
    assert refusal.value.reason == "damaged JPEG: a segment among its image data is cut off"
