"""Compares the native decode of one file with TensorFlow's: many crops of it, and the file made seekable."""

import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tests.fuzz.jpeg.files import File, draw_file
from tests.fuzz.jpeg.native import BAD_BOX, DAMAGED, NAMES, OK, TOO_LARGE, UNSUPPORTED, Crop, Native

MAX_PIXELS = 1 << 20
CROPS = 12
"""The crops of a file."""
_MOST_IN_VAIN = 2
_NORMALIZED = ((123.675, 116.28, 103.53), (0.017124753, 0.017507002, 0.017429193))


class Mismatch(AssertionError):
    """The native library does what it must not."""

    def __init__(self, what: str, file: File, data: bytes, crop: Crop | None, details: str = "") -> None:
        super().__init__(what)
        self.what, self.file, self.data, self.crop, self.details = what, file, data, crop, details


def compare_file(native: Native, seed: int, given: Sequence[Path], counts: Counter[str]) -> None:
    file = draw_file(seed, given)
    rng = random.Random(seed ^ 0x5EED)
    counts["files"] += 1
    _Comparison(native, file, _read_size(file.data), rng, counts).run()


def _read_size(data: bytes) -> tuple[int, int] | None:
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


def reduce_box(box: tuple[int, int, int, int], ratio: int) -> tuple[int, int, int, int]:
    y, x, height, width = box
    top, bottom = ((side + ratio // 2) // ratio for side in (y, y + height))
    left, right = ((side + ratio // 2) // ratio for side in (x, x + width))
    return top, left, bottom - top, right - left


def make_expected(whole: NDArray[np.uint8], crop: Crop) -> NDArray[np.generic]:
    """Makes the result from the whole reduced image by TensorFlow's operations."""
    top, left, height, width = reduce_box(crop.box, crop.ratio)
    pixels = whole[top : top + height, left : left + width]
    if crop.size != (0, 0) and (crop.size != (height, width) or crop.dtype != "uint8"):
        floats = tf.raw_ops.ResizeBilinear(images=pixels[None], size=crop.size, half_pixel_centers=True)[0].numpy()
        if crop.dtype == "uint8":
            pixels = (floats + np.float32(0.5)).astype(np.uint8)
        else:
            pixels = (floats - np.float32(crop.offset)) * np.float32(crop.factor)
            if crop.dtype == "bfloat16":
                pixels = pixels.astype(tf.bfloat16.as_numpy_dtype).view(np.uint16)
    return pixels[:, ::-1] if crop.flip else pixels


class _Comparison:
    """The comparisons of one file."""

    def __init__(
        self, native: Native, file: File, size: tuple[int, int] | None, rng: random.Random, counts: Counter[str]
    ) -> None:
        self._native, self._file, self._rng, self._counts = native, file, rng, counts
        self._whole: dict[tuple[bytes, int], NDArray[np.uint8] | None] = {}
        self._size = size
        self._in_vain = 0  # crops that neither decodes
        self._has_size = size is not None and size[0] * size[1] <= MAX_PIXELS

    def run(self) -> None:
        file = self._file
        files = [file.data]
        code, made = self._native.make_seekable(file.data, MAX_PIXELS)
        self._counts[f"make_seekable {self._state()}: {NAMES[code]}{self._explain(code)}"] += 1
        if code == OK:
            self._compare_seekable(made)
            files.append(made)
        code = self._native.check(file.data, MAX_PIXELS)
        self._counts[f"check {self._state()}: {NAMES[code]}{self._explain(code)}"] += 1
        if not self._has_size:
            self._compare_too_large()
            return
        for _ in range(CROPS):
            if self._in_vain == _MOST_IN_VAIN:
                break
            self._compare_crop(self._rng.choice(files))

    def _explain(self, code: int) -> str:
        """Returns why a sound file is refused, without numbers."""
        return f" ({re.sub('[0-9]+', 'N', self._native.message)})" if code != OK and self._file.sound else ""

    def _state(self) -> str:
        return "sound" if self._file.sound else "changed" if self._file.family.startswith("changed") else "odd"

    def _decode_whole(self, data: bytes, ratio: int) -> NDArray[np.uint8] | None:
        key = (data, ratio)
        if key not in self._whole:
            self._whole[key] = decode_by_tensorflow(data, ratio)
        return self._whole[key]

    def _compare_seekable(self, made: bytes) -> None:
        if not self._has_size:
            raise Mismatch("make_seekable takes what libjpeg refuses or what is too large", self._file, made, None)
        before, after = self._decode_whole(self._file.data, 1), self._decode_whole(made, 1)
        if before is None and after is not None:
            self._counts["made seekable, though TensorFlow refuses it"] += 1
        elif before is not None and (after is None or not np.array_equal(before, after)):
            if not self._file.sound and b"\xff\xc2" in self._file.data:
                # Where bits are missing, libjpeg smooths a progressive image, and not the sequential one made of it.
                self._counts["make_seekable changes pixels of an incomplete file"] += 1
            else:
                raise Mismatch("make_seekable changes pixels", self._file, made, None, tell_difference(after, before))
        if self._native.check(made, MAX_PIXELS) != OK:
            raise Mismatch("check refuses what make_seekable made", self._file, made, None)
        code, again = self._native.make_seekable(made, MAX_PIXELS)
        if code != OK or again != made:
            raise Mismatch("make_seekable changes what it made", self._file, made, None)

    def _compare_too_large(self) -> None:
        crop = Crop((0, 0, 1, 1), 1, (0, 0), False, "uint8", self._rng.random() < 0.5, MAX_PIXELS, (0,) * 3, (1,) * 3)
        code, _ = self._native.decode(self._file.data, crop, (1, 1))
        if self._size is not None and code == OK:
            raise Mismatch("an image is decoded that is larger than allowed", self._file, self._file.data, crop)
        if self._file.sound:
            raise Mismatch("TensorFlow refuses the headers of a sound file", self._file, self._file.data, crop)
        told = "too large" if self._size else "TensorFlow refuses the headers"
        self._counts[f"{told}, native {NAMES[code]}"] += 1

    def _compare_crop(self, data: bytes) -> None:
        crop = self._draw_crop()
        height, width = self._size or (1, 1)
        y, x, box_height, box_width = crop.box
        _, _, *shape = reduce_box(crop.box, crop.ratio)
        is_inside = min(y, x) >= 0 and min(box_height, box_width) > 0
        is_inside = is_inside and y + box_height <= height and x + box_width <= width
        wanted = OK
        if not is_inside or min(shape) < 1:
            wanted, shape = BAD_BOX, [1, 1]
        if height * width > crop.max_pixels:
            wanted = TOO_LARGE
        code, pixels = self._native.decode(data, crop, crop.size if crop.size != (0, 0) else (shape[0], shape[1]))
        self._judge(data, crop, wanted, code, pixels, self._decode_whole(data, crop.ratio))

    def _judge(
        self,
        data: bytes,
        crop: Crop,
        wanted: int,
        code: int,
        pixels: NDArray[np.generic],
        theirs: NDArray[np.uint8] | None,
    ) -> None:
        state, counts = self._state(), self._counts
        counts["crops"] += 1
        if code == OK and wanted != OK:
            raise Mismatch(f"OK in place of {NAMES[wanted]}", self._file, data, crop)
        if code not in (OK, wanted, DAMAGED, UNSUPPORTED):
            raise Mismatch(f"{NAMES[code]} in place of {NAMES[wanted]}", self._file, data, crop)
        if wanted != OK:
            counts[f"{state}: {NAMES[wanted]} wanted, native {NAMES[code]}"] += 1
            return
        if code != OK:
            if self._file.sound and theirs is not None:
                raise Mismatch(f"a sound file is refused: {NAMES[code]}", self._file, data, crop, self._native.message)
            self._in_vain += theirs is None
            told = "decodes" if theirs is not None else "refuses too"
            counts[f"{state}: native {NAMES[code]}, TensorFlow {told}"] += 1
            return
        if theirs is None:
            counts[f"{state}: native decodes, TensorFlow refuses"] += 1
            return
        expected = make_expected(theirs, crop)
        if pixels.shape != expected.shape or pixels.tobytes() != np.ascontiguousarray(expected).tobytes():
            raise Mismatch("pixels differ", self._file, data, crop, tell_difference(pixels, expected))
        counts[f"{state}: equal"] += 1

    def _draw_crop(self) -> Crop:
        rng = self._rng
        height, width = self._size or (1, 1)
        ratio = rng.choice((1, 1, 2, 4, 8))
        box_height, box_width = _draw_side(rng, height), _draw_side(rng, width)
        y, x = _draw_begin(rng, height - box_height), _draw_begin(rng, width - box_width)
        box = (y, x, box_height, box_width)
        if min(reduce_box(box, ratio)[2:]) < 1 and rng.random() < 0.8:
            ratio = 1
        max_pixels = MAX_PIXELS
        odd = rng.random()
        if odd < 0.01:
            box = rng.choice(((-1, x, *box[2:]), (y, x, 0, box_width), (y, x, box_height, 2**31 - 1), (y, width, 1, 1)))
        elif odd < 0.02:
            max_pixels = height * width - rng.choice((0, 1))
        dtype = rng.choice(("uint8", "uint8", "float32", "bfloat16"))
        size = (0, 0)
        if dtype != "uint8" or rng.random() < 0.4:
            size = _draw_output(rng), _draw_output(rng)
            if rng.random() < 0.1:
                reduced = reduce_box(box, ratio)[2:]
                size = reduced if min(reduced) >= 1 and max(reduced) < 1000 else size
        offset, factor = _NORMALIZED
        if rng.random() < 0.3:
            offset = (rng.uniform(-9, 300), rng.uniform(-9, 300), 0.0)
            factor = (rng.uniform(-2, 2), 1.0, rng.uniform(0, 1e-3))
        return Crop(box, ratio, size, rng.random() < 0.5, dtype, rng.random() < 0.5, max_pixels, offset, factor)


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


def tell_difference(pixels: NDArray[np.generic] | None, expected: NDArray[np.generic]) -> str:
    if pixels is None or pixels.shape != expected.shape:
        return f"shape {None if pixels is None else pixels.shape} in place of {expected.shape}"
    wrong = np.argwhere(pixels != expected)
    first = tuple(wrong[0].tolist())
    return f"{len(wrong)} of {expected.size} values, first {first}: {pixels[first]} in place of {expected[first]}"
