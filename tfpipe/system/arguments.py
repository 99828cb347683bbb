"""Checks of the arguments of Python functions, with the same error messages as for options."""

from __future__ import annotations

import os
import pickle
from numbers import Integral

from tfpipe.errors import ConfigError
from tfpipe.system.options import Count
from tfpipe.system.units import shorten


def check_count(name: str, value: object, lowest: int = 0) -> int:
    """Checks that an argument is a whole number, of Python or NumPy, of at least `lowest`; returns it as an int."""
    whole = int(value) if type(value) is not bool and isinstance(value, Integral) else value
    Count(lowest).check(name, whole)
    return int(value)  # type: ignore[call-overload, no-any-return]


def check_function(name: str, value: object) -> None:
    """Checks that an argument is None or can be called."""
    if value is not None and not callable(value):
        raise ConfigError(f"`{name}` must be a function, got {shorten(value)}.")


def check_at_top(what: str, function: object) -> None:
    """Checks that worker processes can import a function, which the error message calls `what`."""
    try:
        pickle.dumps(function)
    except Exception as error:
        raise ConfigError(
            f"{what} must stand at the top of a module, where worker processes find it, got "
            f"{getattr(function, '__qualname__', function)!s:.80}. Move it there, or use workers=0."
        ) from error


def check_path(name: str, value: object) -> None:
    """Checks that an argument is a path."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"`{name}` must be a path, got {shorten(value)}.")


def check_has(name: str, value: object, attribute: str, what: str) -> None:
    """Checks that an argument has an attribute that identifies an object of another library, described by `what`."""
    if not hasattr(value, attribute):
        raise ConfigError(f"`{name}` must be {what}, got {shorten(value)}.")
