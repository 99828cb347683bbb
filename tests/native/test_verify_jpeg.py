"""The check of a JPEG refuses the same files whether or not the native library is there."""

from __future__ import annotations

import random

import pytest

from tests.native.conftest import Draw
from tfpipe.images import jpeg

MAX_PIXELS = 2**24


@pytest.fixture(scope="module")
def seeds(draw_jpeg: Draw) -> list[bytes]:
    kinds = [{}, {"subsampling": 0}, {"subsampling": 1}, {"mode": "L"}, {"mode": "CMYK"}, {"optimize": True}]
    kinds += [{"restart_marker_blocks": 2}, {"progressive": True}]
    return [draw_jpeg(30 + k, 40 + 3 * k, **options) for k, options in enumerate(kinds)]


def find_fault(data: bytes) -> str:
    """Returns the error that the check raises; Pillow has a dozen types of them."""
    try:
        jpeg.verify_jpeg(jpeg.read_header(data, MAX_PIXELS))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


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


def test_the_same_files_are_refused_with_and_without(seeds: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    files = [*seeds, *(seed[:-2] for seed in seeds), *(seed + b"\xff\xd9rest" for seed in seeds)]
    files += [damage(rng.choice(seeds), rng) for _ in range(2000)]
    with_library = [find_fault(data) for data in files]
    monkeypatch.setattr("tfpipe.native.library.is_available", lambda: False)
    assert [find_fault(data) for data in files] == with_library
    assert with_library[: len(seeds)] == [""] * len(seeds)
    assert 200 < sum(map(bool, with_library)) < 1800


def test_what_the_native_library_accepts_is_not_decoded(seeds: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.JpegImagePlugin.JpegImageFile.load", None)
    for data in seeds[:-1]:
        assert find_fault(data) == ""
