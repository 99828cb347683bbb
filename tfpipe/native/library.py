"""The native library: where it lies, and how it is loaded."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from pathlib import Path

from tfpipe.errors import MissingDependencyError

_INTERFACE = 14

MESSAGE_BYTES = 256
"""The size of the buffer for a message that functions of the library take, in bytes."""

NO_MEMORY, UNSUPPORTED = 4, 5
"""The results of the library's functions where there is no memory, and for a kind of JPEG that they do not take."""

_NAME = "libtfpipe_native.so"


def _find() -> Path:
    """Returns the path of the library: in this folder, or in that of the tfpipe that is installed beside a checkout."""
    here = Path(__file__).with_name(_NAME)
    if not here.exists():
        from importlib import metadata  # which an installed tfpipe does not need

        with contextlib.suppress(metadata.PackageNotFoundError):
            installed = Path(str(metadata.distribution("tfpipe").locate_file(f"tfpipe/native/{_NAME}")))
            return installed if installed.exists() else here
    return here


_PATH = _find()


@functools.cache
def load() -> ctypes.CDLL:
    """Loads the library."""
    if not _PATH.exists():
        raise MissingDependencyError(
            "tfpipe's native library is not there: install the checkout with `pip install -e .`."
        )
    try:
        library = ctypes.CDLL(str(_PATH))
        interface = library.tfpipe_interface()
        library.tfpipe_helped_ns.restype = ctypes.c_int64
    except (OSError, AttributeError) as error:
        raise MissingDependencyError(
            f"tfpipe's native library cannot be loaded: {str(error).rstrip('.')}. Install tfpipe again."
        ) from error
    if interface != _INTERFACE:
        raise MissingDependencyError(
            "tfpipe's native library was built from other sources than this release's: install tfpipe again."
        )
    return library


def read_helped_s() -> float:
    """Returns the processor time of the library's threads that worked for this thread so far, in seconds."""
    helped_ns: int = load().tfpipe_helped_ns()
    return helped_ns / 1e9
