"""Checks of single options, whatever they are called: each raises a ConfigError that names the option."""

from collections.abc import Sequence
from typing import TypeGuard

from tfpipe.errors import ConfigError
from tfpipe.format.image_form import MAX_SIDE
from tfpipe.system.units import A_SIZE, parse_bytes


def check_flag(name: str, value: object) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"`{name}` must be true or false, got {value!r}.")


def check_count(name: str, value: object, lowest: int = 1) -> None:
    """A whole number; `True` is none."""
    if not _is_whole(value):
        raise ConfigError(f"`{name}` must be a whole number, got {value!r}.")
    if value < lowest:
        raise ConfigError(f"`{name}` must be at least {lowest}, got {value}.")


def check_seed(name: str, value: object) -> None:
    """A whole number of 64 bits, with or without a sign."""
    if not _is_whole(value) or not -(2**63) <= value < 2**64:
        raise ConfigError(f"`{name}` must be a whole number that fits into 64 bits, got {value!r}.")


def check_size(name: str, value: object) -> None:
    """The side of a square in pixels, or height and width."""
    sides = value if isinstance(value, tuple) and len(value) == 2 else (value,)
    if not all(_is_whole(side) and 1 <= side <= MAX_SIDE for side in sides):
        raise ConfigError(f"`{name}` must be a side from 1 to {MAX_SIDE} pixels, or (height, width), got {value!r}.")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """One of a few words."""
    if value not in choices:
        raise ConfigError(f"`{name}` must be {', '.join(choices[:-1])} or {choices[-1]}, got {value!r}.")


def check_text(name: str, value: object) -> None:
    """Text that is not empty."""
    if not _is_text(value):
        raise ConfigError(f"`{name}` must be text in Unicode and not empty, got {value!r}.")


def check_names(name: str, value: object) -> None:
    """A tuple of different names, or an empty one."""
    if not isinstance(value, tuple) or not all(map(_is_text, value)):
        raise ConfigError(f"`{name}` must be a list of names, none of them empty, got {value!r}.")
    if len(set(value)) < len(value):
        raise ConfigError(f"`{name}` must name each only once, got {value!r}.")


def check_amount(name: str, value: object) -> None:
    """A whole number, or text such as 128MiB, above 0; the caller knows what a number without unit counts."""
    if not (_is_whole(value) or isinstance(value, str)) or parse_bytes(value, name) < 1:
        raise ConfigError(f"`{name}` must be at least 1, a whole number or {A_SIZE}, got {value!r}.")


def check_address(name: str, value: object) -> None:
    """`grpc://host:port`."""
    if not _is_text(value) or not value.startswith("grpc://") or value == "grpc://":
        raise ConfigError(f"`{name}` must begin with grpc://, as in 'grpc://host:5000', got {value!r}.")


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> TypeGuard[str]:
    """Not empty, and not half a surrogate pair, as in a file name that is no UTF-8: no file could hold that."""
    return isinstance(value, str) and value != "" and not any("\ud800" <= c <= "\udfff" for c in value)
