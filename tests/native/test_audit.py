"""Faults that an audit found in the JPEG functions, each as a test of what users call."""

import io
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray
from PIL import Image as PillowImage

from tests.native.jpeg_writer import Options, draw_jpeg, draw_waves, make_dc_overflow
from tfpipe.images import seekable
from tfpipe.native.jpeg import BadJpeg, check, decode, make_seekable

PLAIN_MARKERS = (0x01, 0xD0, 0xD3, 0xD7)
"""TEM and restart markers, which have no length."""


def decode_by_tensorflow(data: bytes, ratio: int = 1) -> NDArray[np.uint8]:
    return np.asarray(tf.io.decode_jpeg(data, channels=3, ratio=ratio))


def decode_whole(data: bytes, height: int, width: int) -> NDArray[np.uint8]:
    result = np.empty((height, width, 3), np.uint8)
    decode(data, (0, 0, height, width), result)
    return result


COLOR = ((2, 2), (1, 1), (1, 1))


# An image larger than allowed, behind a marker without a length.


@pytest.mark.parametrize("marker", PLAIN_MARKERS, ids=hex)
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
    result = np.empty((1, 1, 3), np.uint8)
    with pytest.raises(BadJpeg):
        decode(bad, (0, 0, 1, 1), result, max_pixels=1 << 20)
    with pytest.raises(BadJpeg):
        check(bad, max_pixels=1 << 20)
    with pytest.raises(BadJpeg):
        make_seekable(bad, max_pixels=1 << 20)


# Bytes between segments, which each decoder skips.


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
        np.testing.assert_array_equal(decode_whole(padded, 40, 50), expected, str(at))
        if data[at + 1] == 0xDA:
            break
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")


# Arguments that do not fit. They are tried in another process, as they may end it.

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
    result = np.empty((8, 9, 3), np.uint8)
    decode(data, tuple(np.array([3, 4, 8, 9])), result)
    np.testing.assert_array_equal(result, decode_by_tensorflow(data)[3:11, 4:13])


# An interval of a flat image has three bytes: one of data, and the marker.


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("size", [(24, 64), (328, 512), (776, 2000), (1192, 512)], ids=str)
def test_a_flat_image_is_seekable(mode: str, size: tuple[int, int]) -> None:
    buffer = io.BytesIO()
    PillowImage.new(mode, size, 128 if mode == "L" else (10, 200, 90)).save(buffer, "JPEG")
    made = make_seekable(buffer.getvalue())
    np.testing.assert_array_equal(decode_by_tensorflow(made), decode_by_tensorflow(buffer.getvalue()))
    assert len(made) < len(buffer.getvalue())  # one color needs few codes
    assert seekable.is_seekable(made)
    assert seekable.has_chosen_interval(made)


# Sums of DC differences that 32 bits cannot hold.


@pytest.mark.parametrize("bits", [11, 15])
def test_dc_sums_wrap_as_tensorflows_do(bits: int) -> None:
    data, height, width = make_dc_overflow(bits)
    expected = decode_by_tensorflow(data, ratio=8)
    result = np.empty(expected.shape, np.uint8)
    decode(data, (0, 0, height, width), result, ratio=8)
    np.testing.assert_array_equal(result, expected)


# Four components, with and without Adobe's marker, which tells whether the colors are inverted.


@pytest.mark.parametrize("factors", [((1, 1),) * 4, ((2, 2), (1, 1), (1, 1), (2, 2))], ids=["full", "half"])
@pytest.mark.parametrize("adobe", [None, 0, 2])
@pytest.mark.parametrize("jfif", [False, True], ids=["no JFIF", "JFIF"])
def test_a_seekable_cmyk_image_has_the_same_colors(factors: tuple[tuple[int, int], ...], adobe: int | None, jfif: bool):
    data = draw_waves(40, 50, factors, Options(adobe=adobe, jfif=jfif))
    made, expected = make_seekable(data), decode_by_tensorflow(data)
    np.testing.assert_array_equal(decode_whole(data, 40, 50), expected)
    np.testing.assert_array_equal(decode_by_tensorflow(made), expected)
    np.testing.assert_array_equal(decode_whole(made, 40, 50), expected)
    assert (b"Adobe" in made) == (adobe is not None)


# The end of a scan.


@pytest.mark.parametrize("end", [b"", b"\xff", b"\xff\xff", b"\xff\xff\0\xd9"], ids=bytes.hex)
def test_an_image_without_an_end_is_refused_as_by_tensorflow(end: bytes) -> None:
    data = draw_waves(64, 64, COLOR, Options())[:-2] + end
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode_by_tensorflow(data)
    for function in (check, make_seekable, lambda data: decode_whole(data, 64, 64)):
        with pytest.raises(BadJpeg):
            function(data)
