"""The native JPEG decoder against TensorFlow's, bit by bit: many crops of drawn files, also of those made seekable.

Files are numbered from the seed on, which is printed. `TFPIPE_FUZZ_SEED=N` repeats them from N on, and
`TFPIPE_FUZZ_CASES=1` only that one. Where the process dies, `number` in the folder of the test names the last file.
"""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from tests.fuzz.jpegs import File, draw_file
from tfpipe.native import batches
from tfpipe.native import jpeg as native

QUICK_CASES, CASES = 1200, 20_000
"""The crops of all files."""
MAX_PIXELS = 1 << 20
CROPS_OF_A_FILE, MOST_IN_VAIN = 12, 2
DTYPES = {"uint8": np.uint8, "float32": np.float32, "bfloat16": np.uint16}
NORMALIZED = ((123.675, 116.28, 103.53), (0.017124753, 0.017507002, 0.017429193))
GUARD = 64

Box = tuple[int, int, int, int]
Whole = dict[tuple[bytes, int], NDArray[np.uint8] | None]
"""What TensorFlow decodes of a file at a ratio."""


@pytest.mark.parametrize("cases", [QUICK_CASES, pytest.param(CASES, marks=pytest.mark.slow)])
def test_the_native_decoder_is_tensorflows(seed: int, tmp_path: Path, cases: int) -> None:
    number, counts = seed, Counter[str]()
    while counts["crops"] < int(os.environ.get("TFPIPE_FUZZ_CASES") or cases):
        (tmp_path / "number").write_text(f"{number}\n")
        file = draw_file(number)
        try:
            compare_file(file, random.Random(number ^ 0x5EED), counts)
        except Exception as error:
            error.add_note(f"TFPIPE_FUZZ_SEED={number} draws this {file.family}: {file.description}")
            raise
        number += 1
    print(counts)
    assert counts["equal"] > counts["crops"] / 4 or counts["files"] < 100


def compare_file(file: File, rng: random.Random, counts: Counter[str]) -> None:
    counts["files"] += 1
    files, size = [file.data], read_size(file.data)
    is_small = size is not None and size[0] * size[1] <= MAX_PIXELS
    try:
        files.append(native.make_seekable(file.data, MAX_PIXELS))
    except native.BadJpeg:
        counts["not made seekable"] += 1
    else:
        assert is_small, "make_seekable takes what libjpeg refuses or what is too large"
        check_seekable(file, files[1])
    if not is_small or size is None:
        assert not file.sound, "TensorFlow refuses the headers of a sound file"
        if size is not None:
            with pytest.raises(native.BadJpeg):
                native.decode(file.data, (0, 0, 1, 1), np.empty((1, 1, 3), np.uint8), max_pixels=MAX_PIXELS)
        return
    in_vain, whole = 0, Whole()
    for _ in range(CROPS_OF_A_FILE):
        if in_vain < MOST_IN_VAIN:
            counts["crops"] += 1
            in_vain += not compare_crop(file, rng.choice(files), size, whole, rng, counts)


def read_size(data: bytes) -> tuple[int, int] | None:
    """Returns the height and width that libjpeg reads, or None if it refuses the headers."""
    try:
        height, width, _ = tf.io.extract_jpeg_shape(data).numpy().tolist()
    except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError):
        return None
    return height, width


def decode_by_tensorflow(data: bytes, ratio: int) -> NDArray[np.uint8] | None:
    try:
        return np.asarray(tf.io.decode_jpeg(data, channels=3, ratio=ratio))
    except tf.errors.InvalidArgumentError:
        return None


def check_seekable(file: File, made: bytes) -> None:
    before, after = decode_by_tensorflow(file.data, 1), decode_by_tensorflow(made, 1)
    # Where bits are missing, libjpeg smooths a progressive image, and not the sequential one made of it.
    if before is not None and (file.sound or b"\xff\xc2" not in file.data):
        assert after is not None, "TensorFlow refuses what make_seekable made"
        np.testing.assert_array_equal(after, before)
    native.check(made, MAX_PIXELS)
    assert native.make_seekable(made, MAX_PIXELS) == made


def compare_crop(
    file: File, data: bytes, size: tuple[int, int], whole: Whole, rng: random.Random, counts: Counter[str]
) -> bool:
    """Compares a drawn crop, and returns False if TensorFlow cannot decode it either."""
    box, ratio, max_pixels, result, options = draw_crop(rng, *size)
    y, x, height, width = box
    reduced = native.reduce_box(box, ratio)
    is_valid = min(y, x) >= 0 and min(height, width, *reduced) > 0 and y + height <= size[0] and x + width <= size[1]
    is_valid = is_valid and size[0] * size[1] <= max_pixels
    shape = result or (reduced if is_valid else (1, 1))
    value = np.dtype(DTYPES[options.get("dtype", "uint8")])
    memory = np.full(shape[0] * shape[1] * 3 * value.itemsize + 2 * GUARD, 0xA5, np.uint8)
    pixels = memory[GUARD:-GUARD].view(value).reshape(*shape, 3)
    if (data, ratio) not in whole:
        whole[data, ratio] = decode_by_tensorflow(data, ratio)
    theirs = whole[data, ratio]
    try:
        if result is None:
            native.decode(data, box, pixels, ratio=ratio, max_pixels=max_pixels)
        else:
            decode_in_batch(data, box, pixels, max_ratio=ratio, max_pixels=max_pixels, **options)
    except ValueError as error:
        assert isinstance(error, native.BadJpeg) or not is_valid
        assert not (is_valid and file.sound and theirs is not None), f"a sound file is refused: {error}"
        counts["refused"] += 1
        return theirs is not None or not is_valid
    finally:
        assert (memory[:GUARD] == 0xA5).all()
        assert (memory[-GUARD:] == 0xA5).all()
    assert is_valid, f"{box} of {size} is decoded"
    if theirs is None:
        counts["decoded, though TensorFlow refuses it"] += 1
        return True
    top, left = ((side + ratio // 2) // ratio for side in (y, x))
    crop = theirs[top : top + reduced[0], left : left + reduced[1]]
    expected = make_expected(crop, shape, **options) if result else crop
    np.testing.assert_array_equal(pixels.view(np.uint8), np.ascontiguousarray(expected).view(np.uint8), str(box))
    counts["equal"] += 1
    return True


def decode_in_batch(data: bytes, box: Box, pixels: NDArray[Any], *, flip: bool, **options: Any) -> None:
    memory = np.frombuffer(data, np.uint8)
    inputs, boxes = np.array([(memory.ctypes.data, memory.size)]), np.array([box], np.int32)
    if batches.decode(inputs, boxes, np.array([flip]), pixels[None], **options).any():
        raise native.BadJpeg("refused in a batch")


def make_expected(
    pixels: NDArray[np.uint8], size: tuple[int, int], *, dtype: str, flip: bool, offset: Any, factor: Any
) -> NDArray[Any]:
    """Makes the result from a crop of the whole reduced image by TensorFlow's operations."""
    result: NDArray[Any] = pixels
    if size != pixels.shape[:2] or dtype != "uint8":
        result = tf.raw_ops.ResizeBilinear(images=pixels[None], size=size, half_pixel_centers=True)[0].numpy()
        if dtype == "uint8":
            result = (result + np.float32(0.5)).astype(np.uint8)
        else:
            result = (result - np.float32(offset)) * np.float32(factor)
            if dtype == "bfloat16":
                result = result.astype(tf.bfloat16.as_numpy_dtype).view(np.uint16)
    return result[:, ::-1] if flip else result


def draw_crop(
    rng: random.Random, height: int, width: int
) -> tuple[Box, int, int, tuple[int, int] | None, dict[str, Any]]:
    """Draws a box, a ratio, the limit of pixels, and the size and options of a result that is resized, or None.

    A few boxes are not valid. A result in a batch takes the largest ratio that leaves the crop no smaller.
    """
    ratio = rng.choice((1, 1, 2, 4, 8))
    rows, columns = _draw_side(rng, height), _draw_side(rng, width)
    y, x = _draw_begin(rng, height - rows), _draw_begin(rng, width - columns)
    box = y, x, rows, columns
    if min(native.reduce_box(box, ratio)) < 1 and rng.random() < 0.8:
        ratio = 1
    max_pixels, odd = MAX_PIXELS, rng.random()
    if odd < 0.01:
        box = rng.choice(((-1, x, rows, columns), (y, x, 0, columns), (y, x, rows, 2**31 - 1), (y, width, 1, 1)))
    elif odd < 0.02:
        max_pixels = height * width - rng.choice((0, 1))
    dtype = rng.choice(("uint8", "uint8", "float32", "bfloat16"))
    if dtype == "uint8" and rng.random() < 0.6:
        return box, ratio, max_pixels, None, {}
    reduced = native.reduce_box(box, ratio)
    size = _draw_output(rng), _draw_output(rng)
    if rng.random() < 0.1 and min(reduced) >= 1 and max(reduced) < 1000:
        size = reduced
    most = min(ratio, box[2] // size[0], box[3] // size[1])
    ratio = max(one for one in native.RATIOS if one == 1 or one <= most)
    offset, factor = NORMALIZED
    if rng.random() < 0.3:
        offset = (rng.uniform(-9, 300), rng.uniform(-9, 300), 0.0)
        factor = (rng.uniform(-2, 2), 1.0, rng.uniform(0, 1e-3))
    options = {"dtype": dtype, "offset": offset, "factor": factor, "flip": rng.random() < 0.5}
    return box, ratio, max_pixels, size, options


def _draw_side(rng: random.Random, side: int) -> int:
    kind = rng.random()
    if kind < 0.1:
        return 1
    return side if kind < 0.25 else rng.randint(1, min(side, 24) if kind < 0.5 else side)


def _draw_begin(rng: random.Random, most: int) -> int:
    kind = rng.random()
    return 0 if kind < 0.15 else most if kind < 0.3 else rng.randint(0, most)


def _draw_output(rng: random.Random) -> int:
    kind = rng.random()
    return 1 if kind < 0.1 else rng.randint(1, 40 if kind < 0.95 else 300)
