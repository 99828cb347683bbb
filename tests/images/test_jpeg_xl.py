"""JPEG XL: its header, and pixels of each depth that become 8 bits."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest

from tfpipe.format.image_form import ImageForm
from tfpipe.images.image_header import ImageHeader, read_image_header
from tfpipe.images.jpeg_xl import JpegXlHeader, read_header
from tfpipe.images.normalize import BadImage, prepare_image

imagecodecs = pytest.importorskip("imagecodecs", reason="imagecodecs, of the extra `jxl`, is not installed")

# 24 x 40 pixels that lie on their side: the upright image is 40 x 24.
TURNED = bytes.fromhex(
    "ff0a098405620008040100ac004b2824c6950a0a02a066cc89314ee405820010245261f09724eaf7179ce96f036920fb1f6d8140b5c29606"
)


def encode(pixels: Any, **options: Any) -> bytes:
    data: bytes = imagecodecs.jpegxl_encode(np.ascontiguousarray(pixels), lossless=True, **options)
    return data


def decode_stored(data: bytes, tf_jpeg: Any, channels: int = 3) -> tuple[Any, tuple[str, ...]]:
    got = prepare_image(data, ImageForm(quality=100))
    return tf_jpeg(got.encoded, channels).astype(int), got.changed


def is_close(one: Any, other: Any) -> bool:
    return bool(np.abs(one - other.astype(float)).mean() < 4)


@pytest.mark.parametrize("container", [False, True])
@pytest.mark.parametrize(
    "size", [(1, 1), (8, 8), (40, 24), (256, 256), (300, 400), (300, 225), (1, 9000), (3000, 3)], ids=str
)
def test_the_header_tells_the_size(size: tuple[int, int], container: bool) -> None:
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    assert read_header(encode(pixels, usecontainer=container)) == JpegXlHeader(*size, 8)


@pytest.mark.parametrize("depth", [8, 10, 12, 16])
def test_each_depth_is_scaled(make: Any, tf_jpeg: Any, depth: int) -> None:
    pixels = make.pixels()
    dtype = np.uint8 if depth == 8 else np.uint16
    scaled = np.round(pixels * ((2**depth - 1) / 255)).astype(dtype)
    data = encode(scaled, bitspersample=depth)
    assert read_header(data).depth == depth
    stored, changed = decode_stored(data, tf_jpeg)
    assert changed == ("jxl_to_jpeg",) if depth == 8 else ("depth_16_to_8", "jxl_to_jpeg")
    assert is_close(stored, pixels)


def test_gray_alpha_floats_and_animations(make: Any, tf_jpeg: Any) -> None:
    pixels = make.pixels()
    gray, alpha = pixels[..., :1], np.zeros_like(pixels[..., :1])
    assert prepare_image(encode(gray[..., 0]), ImageForm()).channels == 1
    for samples in (np.dstack([pixels, alpha]), np.dstack([gray, alpha])):
        stored, changed = decode_stored(encode(samples), tf_jpeg)
        assert changed == ("alpha_composited", "jxl_to_jpeg")
        assert stored.min() == 255
    stored, changed = decode_stored(encode((pixels / 255).astype(np.float32)), tf_jpeg)
    assert (changed, is_close(stored, pixels)) == (("depth_32_to_8", "jxl_to_jpeg"), True)
    stored, changed = decode_stored(encode(np.stack([pixels, 255 - pixels])), tf_jpeg)
    assert (changed, is_close(stored, pixels)) == (("first_frame", "jxl_to_jpeg"), True)


def test_a_turned_image_becomes_upright(tf_jpeg: Any) -> None:
    assert read_image_header(TURNED) == ImageHeader("JXL", 40, 24)
    stored, changed = decode_stored(TURNED, tf_jpeg)
    assert (stored.shape, changed) == ((24, 40, 3), ("jxl_to_jpeg",))
    upright = np.zeros((24, 40, 3))
    upright[:, 20:, 0], upright[:12, :, 1] = 255, 200
    assert is_close(stored, upright)


def refuse(data: bytes, max_pixels: int = 10_000) -> str:
    with pytest.raises(BadImage) as caught:
        prepare_image(data, ImageForm(max_pixels=max_pixels))
    return caught.value.reason


def test_what_cannot_be_read_is_refused(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(make.pixels())
    assert refuse(data, 900) == "40 x 24 pixels, more than `max_pixels` 900 allows"
    assert refuse(data[:50]).startswith("JPEG XL that cannot be decoded: JxlDecoderProcessInput returned ")
    assert refuse(encode(make.pixels(), usecontainer=True)[:32]) == "damaged JPEG XL: its container holds no image"
    assert refuse(encode(np.full((8, 8, 3), np.nan, np.float32))) == "JPEG XL of samples whose depth is not known"
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    assert refuse(data) == "a JPEG XL image, which needs imagecodecs: pip install '.[jxl]' in a checkout of tfpipe"


def test_damaged_files_raise_only_bad_image(make: Any) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    whole = [encode(make.pixels(), usecontainer=container) for container in (False, True)]
    for _ in range(100):
        data = bytearray(rng.choice(whole))
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(2, len(data))] = rng.randrange(256)
        try:
            prepare_image(bytes(data[: rng.randrange(2, len(data) + 1)]), ImageForm(max_pixels=10_000))
        except BadImage as error:
            assert error.reason
