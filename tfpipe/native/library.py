"""The native library: where it lies, whether it is there, and why not.

```
library.is_available()              # False where tfpipe was installed without it
library.explain_missing()           # "no C compiler was found when tfpipe was installed"
library.check("`seekable`")         # raises MissingDependencyError, with that reason
```
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from pathlib import Path

from tfpipe.errors import MissingDependencyError

_INTERFACE = 8

MESSAGE_BYTES = 256
"""The size of the buffer for a message that functions of the library take, in bytes."""

NO_MEMORY, UNSUPPORTED = 4, 5
"""The results of the library's functions where there is no memory, and for a kind of JPEG that they do not take."""


def _find_build() -> Path:
    """Returns the folder of what the build has made: this one, or that of the tfpipe that is installed.

    Python that was started in a checkout takes its modules from there, also where tfpipe is installed beside them.
    """
    here = Path(__file__).parent
    if not any((here / name).exists() for name in (_NAME, _REASON_NAME)):
        from importlib import metadata  # which an installed tfpipe does not need

        with contextlib.suppress(metadata.PackageNotFoundError):
            installed = Path(str(metadata.distribution("tfpipe").locate_file("tfpipe/native")))
            return installed if installed.is_dir() else here
    return here


_NAME, _REASON_NAME = "libtfpipe_native.so", "not_built.txt"
_BUILD = _find_build()
_PATH, _REASON_PATH = _BUILD / _NAME, _BUILD / _REASON_NAME


@functools.cache
def load() -> ctypes.CDLL:
    """Loads the library.

    Raises:
        OSError: It is missing, cannot be opened, or is of other sources.
    """
    library = ctypes.CDLL(str(_PATH))
    if library.tfpipe_interface() != _INTERFACE:
        raise OSError("it was built from other sources than this release's")
    library.tfpipe_helped_ns.restype = ctypes.c_int64
    return library


@functools.cache
def explain_missing() -> str | None:
    """Returns the reason why the library cannot be used, as a clause; None if it can."""
    if not _PATH.exists():
        return _read_reason()
    try:
        load()
    except (OSError, AttributeError) as error:
        return str(error).rstrip(".")
    return None


def is_available() -> bool:
    """Returns whether the library is there and can be loaded."""
    return explain_missing() is None


def read_helped_s() -> float:
    """Returns the processor time of the library's threads that worked for this thread so far, in seconds."""
    return load().tfpipe_helped_ns() / 1e9 if is_available() else 0.0


def check(user: str) -> None:
    """Checks that the library can be used.

    Args:
        user: The subject of the sentence: what needs the library.
    """
    reason = explain_missing()
    if reason is not None:
        raise MissingDependencyError(
            f"{user} needs tfpipe's native library, and {reason}. Install tfpipe again where a C compiler is.",
            page="install#the-native-library",
        )


def _read_reason() -> str:
    """Returns the reason that the build has left behind."""
    try:
        return _REASON_PATH.read_text(encoding="utf-8").strip()
    except OSError:
        return "it was not built when tfpipe was installed"
