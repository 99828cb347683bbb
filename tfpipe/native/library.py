"""Finds and loads the native library, and declares the types of its functions."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from pathlib import Path
from typing import Any

from tfpipe.errors import MissingDependencyError

_INTERFACE = 15

MESSAGE_BYTES = 256
"""The size of the buffer for a message that functions of the library take, in bytes."""

NO_MEMORY, UNSUPPORTED = 4, 5
"""The error codes of the library's functions for a lack of memory, and for an unsupported kind of JPEG."""

_NAME = "libtfpipe_native.so"
_MEMORY, _TEXT, _SIZE, _INT, _LONG, _SHARE = (
    *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t),
    *(ctypes.c_int32, ctypes.c_int64, ctypes.c_float),
)
_RESULTS = {  # types of results that are not `int`
    **{"tfpipe_helped_ns": _LONG, "tfpipe_masked_crc32c": ctypes.c_uint32},
    **dict.fromkeys(("tfpipe_decode_batch", "tfpipe_free", "tfpipe_free_examples"), None),
}
_ARGUMENTS = {
    "tfpipe_decode": (_TEXT, _SIZE, _MEMORY, _MEMORY, _TEXT),
    "tfpipe_decode_resized": (_TEXT, _SIZE, _LONG, _INT, _MEMORY, _INT, _INT, _TEXT),
    "tfpipe_find_intervals": (_TEXT, _SIZE),
    "tfpipe_check": (_TEXT, _SIZE, _LONG, _TEXT),
    "tfpipe_drop_padding": (_TEXT, _SIZE, _LONG, _MEMORY, _MEMORY, _TEXT),
    "tfpipe_make_seekable": (_TEXT, _SIZE, _LONG, _MEMORY, _MEMORY, _TEXT),
    "tfpipe_free": (_MEMORY,),
    "tfpipe_decode_batch": (*[_MEMORY] * 4, _SIZE, _MEMORY, _INT, _INT, *[_MEMORY] * 3),
    "tfpipe_draw_crops": (_MEMORY, _MEMORY, _SIZE, _MEMORY, _MEMORY, _MEMORY),
    "tfpipe_resize_antialiased": (_TEXT, _INT, _INT, _SHARE, _SHARE, _INT, _MEMORY, _INT, _INT),
    "tfpipe_masked_crc32c": (_MEMORY, _SIZE, _INT),
    "tfpipe_read_records": (*[_MEMORY, _SIZE] * 3, _MEMORY),
    "tfpipe_parse_examples": (*[_MEMORY, _SIZE] * 2, _MEMORY, _MEMORY),
    "tfpipe_free_examples": (_MEMORY,),
    "tfpipe_hash_texts": (_MEMORY, _MEMORY, _LONG, _TEXT, _SIZE, _MEMORY),
    "tfpipe_read_sizes": (_INT, _TEXT, _LONG, _MEMORY),
}


def _find() -> Path:
    """Returns the path of the library: in this folder, or, for a checkout without it, in the installed tfpipe."""
    here = Path(__file__).with_name(_NAME)
    if not here.exists():
        from importlib import metadata  # only a checkout needs this

        with contextlib.suppress(metadata.PackageNotFoundError):
            installed = Path(str(metadata.distribution("tfpipe").locate_file(f"tfpipe/native/{_NAME}")))
            return installed if installed.exists() else here
    return here


_PATH = _find()


@functools.cache
def load() -> ctypes.CDLL:
    """Loads the library once, and declares the types of its functions."""
    if not _PATH.exists():
        raise MissingDependencyError(
            "tfpipe's native library is not there: install the checkout with `pip install -e .`."
        )
    try:
        library = ctypes.CDLL(str(_PATH))
        interface = library.tfpipe_interface()
        for name, types in _ARGUMENTS.items():
            getattr(library, name).argtypes = types
        for name, kind in _RESULTS.items():
            getattr(library, name).restype = kind
    except (OSError, AttributeError) as error:
        raise MissingDependencyError(
            f"tfpipe's native library cannot be loaded: {str(error).rstrip('.')}. Install tfpipe again."
        ) from error
    if interface != _INTERFACE:
        raise MissingDependencyError(
            "tfpipe's native library was built from other sources than this release's: install tfpipe again."
        )
    return library


def get_memory(table: Any, name: str, shape: tuple[int, ...], value_bytes: int) -> Any:
    """Checks the shape of a buffer, and returns a ctypes pointer that keeps its memory alive."""
    view = memoryview(table)
    if view.shape != shape or view.itemsize != value_bytes or not view.c_contiguous or view.readonly:
        raise ValueError(
            f"`{name}` must be writable {[*shape]} of {value_bytes} bytes each in C order, got {[*(view.shape or ())]} "
            f"of {view.itemsize}."
        )
    return ctypes.byref(ctypes.c_char.from_buffer(view)) if view.nbytes else None
