"""Checks of what Python gives a function, with the sentences of options."""

from __future__ import annotations

import os
from numbers import Integral

from tfpipe.errors import ConfigError
from tfpipe.system.options import Count
from tfpipe.system.units import shorten


def check_count(name: str, value: object, lowest: int = 0) -> None:
    """Checks that an argument is a whole number, which NumPy's are too, and not too small."""
    whole = int(value) if type(value) is not bool and isinstance(value, Integral) else value
    Count(lowest).check(name, whole)


def check_function(name: str, value: object) -> None:
    """Checks that an argument is None or can be called."""
    if value is not None and not callable(value):
        raise ConfigError(f"`{name}` must be a function, got {shorten(value)}.")


def check_path(name: str, value: object) -> None:
    """Checks that an argument is a path."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"`{name}` must be a path, got {shorten(value)}.")


def check_has(name: str, value: object, attribute: str, what: str) -> None:
    """Checks that an argument is `what` of another library, by an attribute that only such things have."""
    if not hasattr(value, attribute):
        raise ConfigError(f"`{name}` must be {what}, got {shorten(value)}.")
