"""The native library, called by its C functions alone, so that any build of it can be tried."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfpipe.native.jpeg import Request, declare

ROOT = Path(__file__).resolve().parents[3]
OK, DAMAGED, BAD_BOX, TOO_LARGE, NO_MEMORY, UNSUPPORTED = range(6)
NAMES = ("OK", "DAMAGED", "BAD_BOX", "TOO_LARGE", "NO_MEMORY", "UNSUPPORTED")
DTYPES = {"uint8": np.uint8, "float32": np.float32, "bfloat16": np.uint16}
_GUARD = 64
_CANARY = 0xA5


class Crop(NamedTuple):
    """What is made of an image: the members of `tfpipe_request`."""

    box: tuple[int, int, int, int]
    ratio: int
    size: tuple[int, int]
    flip: bool
    dtype: str
    seeks: bool
    max_pixels: int
    offset: tuple[float, float, float]
    factor: tuple[float, float, float]


class Native:
    """The functions of one library."""

    def __init__(self, path: Path) -> None:
        self._library = declare(ctypes.CDLL(str(path)))
        self._message = ctypes.create_string_buffer(256)

    @property
    def message(self) -> str:
        """What the last function said that did not return OK."""
        return self._message.value.decode(errors="replace")

    def decode(self, data: bytes, crop: Crop, shape: tuple[int, int]) -> tuple[int, NDArray[np.generic]]:
        """Returns a result and the pixels. `shape` is the height and width that they must have."""
        dtype = np.dtype(DTYPES[crop.dtype])
        count = shape[0] * shape[1] * 3 * dtype.itemsize
        memory = np.full(count + 2 * _GUARD, _CANARY, np.uint8)
        request = Request(
            *crop.box,
            crop.ratio,
            *crop.size,
            crop.flip,
            list(DTYPES).index(crop.dtype),
            crop.seeks,
            crop.max_pixels,
            crop.offset,
            crop.factor,
        )
        code = self._library.tfpipe_decode(data, len(data), request, memory.ctypes.data + _GUARD, self._message)
        if not (memory[:_GUARD] == _CANARY).all() or not (memory[-_GUARD:] == _CANARY).all():
            raise AssertionError("The decoder wrote outside of the result.")
        return code, memory[_GUARD:-_GUARD].view(dtype).reshape(*shape, 3)

    def check(self, data: bytes, max_pixels: int) -> int:
        return int(self._library.tfpipe_check(data, len(data), max_pixels, self._message))

    def make_seekable(self, data: bytes, max_pixels: int) -> tuple[int, bytes]:
        made, size = ctypes.c_void_p(), ctypes.c_size_t()
        code = self._library.tfpipe_make_seekable(data, len(data), max_pixels, made, size, self._message)
        if code:
            return code, b""
        try:
            return code, ctypes.string_at(made, size.value)
        finally:
            self._library.tfpipe_free(made)


def build(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    target, sources = folder / "libtfpipe_fuzzed.so", sorted((ROOT / "tfpipe" / "native" / "csrc").glob("*.c"))
    flags = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-fPIC", "-shared", "-pthread"]
    compiler = shutil.which("cc") or "gcc"
    subprocess.run([compiler, *flags, *map(str, sources), "-o", str(target), "-lm"], check=True)
    return target
