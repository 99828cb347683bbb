"""JPEGs by the native library: crops, restart markers, and the faults that an audit found."""

import io
import itertools
import random
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray
from PIL import Image

from tests.native.conftest import Draw
from tests.native.jpeg_writer import Options, draw_jpeg, draw_waves, make_dc_overflow
from tests.refusals import refusal
from tfpipe.images import seekable
from tfpipe.native.jpeg import BadJpeg, UnsupportedJpeg, check, decode, make_seekable, reduce_box

KINDS = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "4:4:0": {"subsampling": "4:4:0"},
    "4:1:1": {"subsampling": "4:1:1"},
    "1 x 4": {"subsampling": "1 x 4"},
    "gray": {"mode": "L"},
    "progressive": {"subsampling": 2, "progressive": True},
    "CMYK": {"mode": "CMYK"},
}
Box = tuple[int, int, int, int]


def decode_box(data: bytes, box: Box, ratio: int = 1) -> NDArray[np.uint8]:
    result = np.empty((*reduce_box(box, ratio), 3), np.uint8)
    decode(data, box, result, ratio=ratio)
    return result


def cut(whole: NDArray[np.uint8], box: Box, ratio: int) -> NDArray[np.uint8]:
    (top, left), (height, width) = ((side + ratio // 2) // ratio for side in box[:2]), reduce_box(box, ratio)
    return whole[top : top + height, left : left + width]


def check_crops(data: bytes, size: tuple[int, int], rng: random.Random, count: int) -> None:
    """Compares some crops, at each ratio, with slices of the whole image."""
    for ratio in (1, 2, 4, 8):
        if 0 in reduce_box((0, 0, *size), ratio):
            continue
        whole = decode_box(data, (0, 0, *size), ratio)
        for _ in range(count):
            height, width = (rng.randint(min(ratio, *size), side) for side in size)
            box = (rng.randint(0, size[0] - height), rng.randint(0, size[1] - width), height, width)
            if 0 not in reduce_box(box, ratio):
                crop = decode_box(data, box, ratio)
                np.testing.assert_array_equal(crop, cut(whole, box, ratio), f"{size} {box} {ratio}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_crop_is_a_slice_of_the_whole_image(rng: random.Random, draw_jpeg: Draw, kind: str) -> None:
    """Also that of an image of one MCU, or of little more."""
    small = itertools.product((1, 2, 7, 8, 9, 15, 16, 17), repeat=2)
    for size, crops in [((213, 301), 8), ((97, 64), 8), *((size, 1) for size in small)]:
        original = draw_jpeg(*size, **KINDS[kind])
        for data in [original] if kind == "CMYK" else [original, make_seekable(original)]:
            check_crops(data, size, rng, crops)


@pytest.mark.parametrize("box", [(-1, 0, 4, 4), (21, 0, 4, 4), (0, 29, 4, 4), (0, 2**31 - 1, 4, 4)], ids=str)
def test_a_box_that_leaves_the_image(draw_jpeg: Draw, box: Box) -> None:
    data = draw_jpeg(24, 32)
    with pytest.raises(BadJpeg, match=r"^the crop box leaves the image of 32 x 24$"):
        decode(data, box, np.empty((4, 4, 3), np.uint8))


def decode_pixel(data: bytes, max_pixels: int) -> None:
    decode(data, (0, 0, 1, 1), np.empty((1, 1, 3), np.uint8), max_pixels=max_pixels)


def test_bytes_that_are_no_image(draw_jpeg: Draw) -> None:
    result, good = np.empty((64, 64, 3), np.uint8), draw_jpeg(64, 64)
    for data, reason in (
        (b"", "it is not a JPEG"),
        (b"no image at all", "it is not a JPEG"),
        (b"\xff\xd8\xff\xd9", "it has no image data"),
        (good[:100], "it ends among its headers"),
        (good[:-300], "its image data is damaged"),
        (good[:-300] + b"\xff\xd9" + good[-298:], "its image data is damaged"),
    ):
        for function in (check, make_seekable, lambda data: decode(data, (0, 0, 64, 64), result)):
            assert refusal(BadJpeg, function, data) == reason
    decode(good[:-200], (0, 0, 8, 8), result[:8, :8].copy())  # what the crop needs is there
    for function in (check, decode_pixel):
        assert refusal(BadJpeg, function, good, max_pixels=4095) == "64 x 64 pixels are more than the 4095 allowed"


def test_arrays_that_do_not_fit(draw_jpeg: Draw) -> None:
    data = draw_jpeg(24, 32)
    read_only = np.empty((4, 4, 3), np.uint8)
    read_only.flags.writeable = False
    for wrong in (np.empty((4, 4), np.uint8), np.empty((4, 4, 3), np.float32), np.empty((4, 8, 3), np.uint8)[:, ::2]):
        with pytest.raises(ValueError, match=r"^The array must be writable, uint8 \[height, width, 3\] in C order"):
            decode(data, (0, 0, 8, 8), wrong)
    assert "writable" in refusal(ValueError, decode, data, (0, 0, 8, 8), read_only)
    with pytest.raises(ValueError, match=r"^The array must have the size of the crop, got 4 x 4 for \(0, 0, 8, 8\)\.$"):
        decode(data, (0, 0, 8, 8), np.empty((4, 4, 3), np.uint8))


@pytest.mark.parametrize("kind", ["4:4:4", "4:2:2", "4:2:0", "gray"])
def test_narrow_crops_from_intervals_of_one_mcu(draw_jpeg: Draw, kind: str) -> None:
    """What is cut out for them may be as narrow as two samples of color, which libjpeg blends with nothing."""
    height, width = 61, 35
    data = draw_jpeg(height, width, restart_marker_blocks=1, **KINDS[kind])
    for ratio in (1, 2, 4):
        whole = decode_box(data, (0, 0, height, width), ratio)
        for x, box_width in itertools.product(range(0, width, ratio), (ratio, 2 * ratio, 4 * ratio)):
            for y in (0, 24, 60 - ratio):
                box = (y, x, ratio, min(box_width, width - x))
                if 0 not in reduce_box(box, ratio):
                    expected = cut(whole, box, ratio)
                    np.testing.assert_array_equal(decode_box(data, box, ratio), expected, f"{box} {ratio}")


def test_an_image_that_lacks_scans_is_left_to_others(draw_jpeg: Draw) -> None:
    """libjpeg guesses what the scans behind the first one held, and the library does not."""
    data = draw_jpeg(90, 120, progressive=True)
    second_scan = data.index(b"\xff\xda", data.index(b"\xff\xda") + 2)
    lacking = data[: data.rindex(b"\xff\xc4", 0, second_scan)] + b"\xff\xd9"
    with pytest.raises(UnsupportedJpeg, match=r"^scans are missing, and decoders guess what they held$"):
        decode_box(lacking, (0, 0, 90, 120))


def read_pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize(
    "options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"mode": "L"}, {"mode": "CMYK"}], ids=str
)
def test_symbols_and_coefficients_give_the_same_bytes(draw_jpeg: Draw, options: dict[str, object]) -> None:
    """A progressive JPEG is rewritten by its coefficients, one of a single scan by its symbols alone."""
    for size in ((1, 1), (8, 9), (17, 130), (97, 64)):
        for quality in (20, 100):  # with long runs of zeros, and with long codes
            progressive = draw_jpeg(*size, quality=quality, progressive=True, **options)
            for scan in ({}, {"optimize": True}, {"restart_marker_blocks": 3}):
                single = draw_jpeg(*size, quality=quality, **options, **scan)
                assert make_seekable(single) == make_seekable(progressive), (size, quality, scan)


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 95, "subsampling": 0},
        {"quality": 98, "subsampling": 2},
        {"quality": 30},
        {"mode": "L", "quality": 98},
        {"mode": "CMYK"},
        {"keep_rgb": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(300, 203), (17, 33), (1, 1)], ids=str)
def test_codes_are_as_short_as_those_of_libjpeg(draw_jpeg: Draw, size: tuple[int, int], options: dict[str, object]):
    seekable = make_seekable(draw_jpeg(*size, **options))
    _, marker, rest = seekable.partition(b"\xff\xdd\x00\x04")  # before the MCUs between two restart markers
    interval = int.from_bytes(rest[:2], "big") if marker else 0
    optimized = draw_jpeg(*size, optimize=True, restart_marker_blocks=interval, **options)
    np.testing.assert_array_equal(read_pixels(seekable), read_pixels(optimized))
    assert len(seekable) <= len(optimized) * 1.0005 + 4
    check(seekable)


@pytest.mark.parametrize(
    "options",
    [{}, {"subsampling": 0}, {"mode": "L"}, {"mode": "CMYK"}, {"restart_marker_blocks": 3}, {"progressive": True}],
    ids=str,
)
def test_each_end_of_the_data_is_checked(draw_jpeg: Draw, options: dict[str, object]) -> None:
    data = draw_jpeg(50, 70, **options)
    check(data)
    check(data + b"rest")  # nothing behind the end of the image matters
    check(data[:-2] + b"\xff\xff\xd9")  # a fill byte
    for bad in (data[:-2], data[:-40] + data[-2:], data[:-2] + b"\x12" * 30 + data[-2:]):
        with pytest.raises(BadJpeg):
            check(bad)


def decode_by_tensorflow(data: bytes, ratio: int = 1) -> NDArray[np.uint8]:
    return np.asarray(tf.io.decode_jpeg(data, channels=3, ratio=ratio))


COLOR = ((2, 2), (1, 1), (1, 1))


@pytest.mark.parametrize("marker", [0x01, 0xD0, 0xD3, 0xD7], ids=hex)  # TEM and restart markers
def test_a_frame_behind_a_marker_without_a_length_is_not_overlooked(marker: int) -> None:
    data = draw_jpeg(3, family="baseline", components=1, odd=False, most=8).data
    frame = data.index(b"\xff\xc0")
    end = frame + 2 + int.from_bytes(data[frame + 2 : frame + 4], "big")
    small = data[frame:end]
    large = small[:5] + (4000).to_bytes(2, "big") + (3000).to_bytes(2, "big") + small[9:]
    # Whoever takes the marker for a segment skips the large frame, and finds the small one, which hides in another.
    hidden = large + data[2:frame] + b"\xff\xe9" + (2 + len(small)).to_bytes(2, "big")
    bad = b"\xff\xd8\xff" + bytes((marker,)) + (2 + len(hidden)).to_bytes(2, "big") + hidden + small + data[end:]
    assert tf.io.extract_jpeg_shape(bad).numpy().tolist() == [4000, 3000, 1]
    for function in (check, make_seekable, decode_pixel):
        with pytest.raises(BadJpeg):
            function(bad, max_pixels=1 << 20)


@pytest.mark.parametrize("progressive", [False, True], ids=["sequential", "progressive"])
@pytest.mark.parametrize(
    "filler",
    [b"\0", b"\0\0\0", b"\xff\0", b"\xff\x01", b"\xff\xd0", b"\xff\xd7\xff\xd2", b"\xff\xff\xff", b"rest"],
    ids=bytes.hex,
)
def test_bytes_between_segments_are_skipped(filler: bytes, progressive: bool) -> None:
    data = draw_waves(40, 50, COLOR, Options(), progressive)
    expected = decode_by_tensorflow(data)
    at = 2 if filler[0] == 0xFF else 4 + int.from_bytes(data[4:6], "big")  # TensorFlow looks at the first three bytes
    while True:
        padded = data[:at] + filler + data[at:]
        np.testing.assert_array_equal(decode_by_tensorflow(padded), expected)
        np.testing.assert_array_equal(decode_box(padded, (0, 0, 40, 50)), expected, str(at))
        if data[at + 1] == 0xDA:
            break
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")


_MAKE_CALLS = """
import io, sys, numpy as np
from PIL import Image
from tfpipe.native import batches, jpeg
buffer = io.BytesIO()
Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)).save(buffer, "JPEG")
data = buffer.getvalue()
def image(*shape, dtype=np.uint8):
    return np.zeros((*shape, 3), dtype)
def batch(images, **options):
    places = np.array([[np.frombuffer(data, np.uint8).ctypes.data, len(data)]])
    return batches.decode(places, np.array([[0, 0, 64, 64]], np.int32), np.zeros(1, np.uint8), images, **options)
for call in sys.stdin.read().splitlines():
    print(call, end=" ", flush=True)
    try:
        eval(call)
    except ValueError as error:
        print(type(error).__name__, error)
    else:
        print("is taken")
"""
CALLS = (
    "jpeg.decode(data, (0, 0, 64, 64), image(64, 64), ratio=0)",
    "jpeg.decode(data, (0, 0, 64, 64), image(21, 21), ratio=3)",
    "jpeg.decode(data, (0, 0, 64, 64), image(64, 64), ratio=-1)",
    "jpeg.decode(data, (0, 0, 64, 64), image(4, 4), ratio=16)",
    "jpeg.decode(data, (0, 0, 0, 0), image(0, 0))",
    "jpeg.decode(data, (0, 0, 64, 64), image(0, 5))",
    "jpeg.decode(data, (2**32, 0, 8, 8), image(8, 8))",
    "jpeg.decode(data, (0, -(2**32), 8, 8), image(8, 8))",
    "jpeg.decode(data, (0, 0, 8, 2**32 + 8), image(8, 8))",
    "jpeg.decode(data, (0, 0, 8), image(8, 8))",
    "jpeg.decode(data, (0, 0, 8, 8, 1), image(8, 8))",
    "batch(image(1, 8, 8), dtype='float64')",
    "batch(image(1, 8, 8), offset=(0.0, 1.0))",
    "batch(image(1, 0, 8))",
    "batch(image(1, 8, 0))",
    "batch(image(1, 0, 0), max_ratio=8)",
    "batch(image(1, 8, 8), max_ratio=0)",
    "batch(image(1, 8, 8), max_ratio=3)",
    "batch(image(1, 8, 8), max_ratio=16)",
)


def test_arguments_that_do_not_fit_are_a_value_error() -> None:
    """A process makes all calls, and says which one before it, for one may be its end."""
    command = [sys.executable, "-c", _MAKE_CALLS]
    done = subprocess.run(command, input="\n".join(CALLS), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for call, line in zip(CALLS, done.stdout.splitlines(), strict=True):
        assert line.startswith(f"{call} ValueError "), line


def test_a_box_of_numpys_numbers_is_taken() -> None:
    data = draw_waves(40, 50, COLOR, Options())
    result = decode_box(data, tuple(np.array([3, 4, 8, 9])))
    np.testing.assert_array_equal(result, decode_by_tensorflow(data)[3:11, 4:13])


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("size", [(24, 64), (328, 512), (776, 2000), (1192, 512)], ids=str)
def test_a_flat_image_is_seekable(mode: str, size: tuple[int, int]) -> None:
    buffer = io.BytesIO()
    Image.new(mode, size, 128 if mode == "L" else (10, 200, 90)).save(buffer, "JPEG")
    made = make_seekable(buffer.getvalue())
    np.testing.assert_array_equal(decode_by_tensorflow(made), decode_by_tensorflow(buffer.getvalue()))
    assert len(made) < len(buffer.getvalue())  # one color needs few codes
    assert seekable.is_seekable(made)
    assert seekable.has_chosen_interval(made)


@pytest.mark.parametrize("bits", [11, 15])
def test_dc_sums_wrap_as_tensorflows_do(bits: int) -> None:
    data, height, width = make_dc_overflow(bits)
    np.testing.assert_array_equal(decode_box(data, (0, 0, height, width), 8), decode_by_tensorflow(data, ratio=8))


@pytest.mark.parametrize("factors", [((1, 1),) * 4, ((2, 2), (1, 1), (1, 1), (2, 2))], ids=["full", "half"])
@pytest.mark.parametrize("adobe", [None, 0, 2])
@pytest.mark.parametrize("jfif", [False, True], ids=["no JFIF", "JFIF"])
def test_a_seekable_cmyk_image_has_the_same_colors(factors: tuple[tuple[int, int], ...], adobe: int | None, jfif: bool):
    data = draw_waves(40, 50, factors, Options(adobe=adobe, jfif=jfif))
    made, expected = make_seekable(data), decode_by_tensorflow(data)
    np.testing.assert_array_equal(decode_box(data, (0, 0, 40, 50)), expected)
    np.testing.assert_array_equal(decode_by_tensorflow(made), expected)
    np.testing.assert_array_equal(decode_box(made, (0, 0, 40, 50)), expected)
    assert (b"Adobe" in made) == (adobe is not None)


@pytest.mark.parametrize("end", [b"", b"\xff", b"\xff\xff", b"\xff\xff\0\xd9"], ids=bytes.hex)
def test_an_image_without_an_end_is_refused_as_by_tensorflow(end: bytes) -> None:
    data = draw_waves(64, 64, COLOR, Options())[:-2] + end
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode_by_tensorflow(data)
    for function in (check, make_seekable, lambda data: decode_box(data, (0, 0, 64, 64))):
        with pytest.raises(BadJpeg):
            function(data)
