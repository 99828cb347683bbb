"""Options: dataclass fields that know which values they take.

The checks of values, the command line with its help, and the tests of the documentation all read them from the field.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, TypeGuard

from tfpipe.errors import ConfigError
from tfpipe.system.units import A_SIZE, parse_bytes

Affects = Literal["speed", "cache", "order", "images"]

_KEY = "option"
_ADDRESS = re.compile(r"(?:\[[^/,\s\[\]]+\]|[^:/,\s\[\]]+):([0-9]{1,5})")


class Kind:
    """The type of an option: the values that it accepts. This base class accepts all values."""

    @property
    def allowed(self) -> str:
        """The sentence that documents the values, as in "At least 1."; empty if the type says it all."""
        return ""

    def refuse(self, value: Any) -> str | None:
        """Returns what an invalid value must be instead, as in "be at least 1"; None for a valid value."""
        return None

    def check(self, name: str, value: object) -> None:
        """Raises a ConfigError with the option's name if the value is invalid."""
        if (must := self.refuse(value)) is not None:
            raise ConfigError(f"`{name}` must {must}, got {value!r}.")


class Flag(Kind):
    """A switch: true or false."""

    def refuse(self, value: Any) -> str | None:
        """Refuses all but true and false."""
        return None if isinstance(value, bool) else "be true or false"


@dataclass(frozen=True)
class Count(Kind):
    """A whole number; `True` does not count as one."""

    lowest: int
    highest: int | None = None
    zero: str | None = None  # the meaning of 0, for messages, as in "all cores"; None: a plain number
    words: tuple[str, ...] = ()  # allowed in place of a number

    @property
    def allowed(self) -> str:
        """The limits, as a sentence for the documentation."""
        words = ", ".join(f'"{word}"' for word in self.words)
        return f"{words}, or {self._limits}." if words else f"{self._limits.capitalize()}."

    def refuse(self, value: Any) -> str | None:
        """Refuses a value that is neither a whole number within the limits nor one of `words`."""
        is_whole, highest = _is_whole(value), float("inf") if self.highest is None else self.highest
        if value in self.words or (is_whole and self.lowest <= value <= highest):
            return None
        if self.words:
            return f"be {self.allowed.removesuffix('.')}"
        limits = self._limits if self.zero is None else f"at least 1, or 0 for {self.zero}"
        return f"be {limits if is_whole else 'a whole number'}"

    @property
    def _limits(self) -> str:
        return f"at least {self.lowest}" if self.highest is None else f"from {self.lowest} to {self.highest}"


@dataclass(frozen=True)
class Seed(Kind):
    """A whole number of 64 bits."""

    signed: bool = False  # whether 2**63 and more is refused

    @property
    def allowed(self) -> str:
        """The limits, as a sentence for the documentation."""
        return f"From -2**63 to 2**{63 if self.signed else 64} - 1."

    def refuse(self, value: Any) -> str | None:
        """Refuses a value that is not a whole number of 64 bits."""
        fits = _is_whole(value) and -(2**63) <= value < 2 ** (63 if self.signed else 64)
        return None if fits else "be a whole number that fits into 64 bits"


@dataclass(frozen=True)
class Number(Kind):
    """A finite number."""

    above: float | None = None  # the number must exceed it
    at_least: float | None = None
    below: float | None = None  # the number must not reach it
    word: str | None = None  # allowed in place of a number

    @property
    def allowed(self) -> str:
        """The limits, as a sentence for the documentation."""
        return f"{self._limits[0].upper()}{self._limits[1:]}."

    def refuse(self, value: Any) -> str | None:
        """Refuses a value that is neither a number within the limits nor `word`."""
        fits = is_number(value) and (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
        )
        return None if fits or (self.word is not None and value == self.word) else f"be {self._limits}"

    @property
    def _limits(self) -> str:
        limits = {"above": self.above, "at least": self.at_least, "below": self.below}
        text = " and ".join(f"{words} {limit:,.12g}" for words, limit in limits.items() if limit is not None)
        return text if self.word is None else f'{text}, or "{self.word}"'


class CountOrShare(Kind):
    """A number of things, or a share of them: a whole number is a count, a float is a share."""

    allowed = "A whole number, or a share from 0.0 to 1.0."

    def refuse(self, value: Any) -> str | None:
        """Refuses a value that is not a number of at least 0, and a share above 1."""
        fits = isinstance(value, int | float) and value >= 0 and (isinstance(value, int) or value <= 1)
        return None if fits else "be a count or a share between 0 and 1"


class Shares(Kind):
    """The shares of several splits, by the names of the splits."""

    allowed = "Shares above 0 that add up to 1."

    def check(self, name: str, value: Any) -> None:
        """Checks that each share is in (0, 1], and that all add up to 1."""
        for split, share in value.items():
            if not 0 < share <= 1:
                raise ConfigError(f"The share of split {split!r} must be above 0 and at most 1, got {share}.")
        if value and not math.isclose(sum(value.values()), 1, abs_tol=1e-6):
            raise ConfigError(f"The shares of `{name}` must add up to 1, got {sum(value.values()):g}.")


class Share(Kind):
    """A share of a whole, above 0 and at most 1."""

    allowed = "In (0, 1]."

    def refuse(self, value: Any) -> str | None:
        """Refuses a value that is not a number in (0, 1]."""
        return None if is_number(value) and 0 < value <= 1 else "be in (0, 1]"


@dataclass(frozen=True)
class Choice(Kind):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """The words, in quotes."""
        quoted = [f'"{word}"' for word in self.words]
        return f"{', '.join(quoted[:-1])} or {quoted[-1]}."

    def refuse(self, value: Any) -> str | None:
        """Refuses a value that is not one of `words`."""
        return None if value in self.words else f"be {', '.join(self.words[:-1])} or {self.words[-1]}"


@dataclass(frozen=True)
class Size(Kind):
    """The size of an image: the side of a square in pixels, or height and width."""

    highest: int  # of the longest side

    @property
    def allowed(self) -> str:
        """The limits, as a sentence for the documentation."""
        return f"A side from 1 to {self.highest}, or (height, width)."

    def refuse(self, value: Any) -> str | None:
        """Refuses a side that is not a whole number within the limits."""
        sides = value if isinstance(value, tuple) and len(value) == 2 else (value,)
        fits = all(_is_whole(side) and 1 <= side <= self.highest for side in sides)
        return None if fits else f"be a side from 1 to {self.highest} pixels, or (height, width)"


class Amount(Kind):
    """A whole number, or text such as 128MiB. The option says what a number without a unit counts."""

    allowed = "At least 1, as a number or a size such as 128MiB."

    def refuse(self, value: Any) -> str | None:
        """Refuses a value that is not a size of at least 1."""
        with contextlib.suppress(ConfigError):
            if parse_bytes(value) >= 1:
                return None
        return f"be at least 1, a whole number or {A_SIZE}"


class Text(Kind):
    """A text that is not empty, such as a path or a name."""

    def refuse(self, value: Any) -> str | None:
        """Refuses a value that is not a text, is empty, or cannot be encoded as UTF-8."""
        return None if _is_text(value) else "be text in Unicode and not empty"


class Unchecked(Kind):
    """One or several texts that are checked only when the file or column they name is read; they need not be UTF-8."""


class Names(Kind):
    """A tuple of different names, which may be empty."""

    _must, _each = "be a list of names, none of them empty", "each"

    def refuse(self, value: Any) -> str | None:
        """Refuses a value that is not a tuple of valid names, or that has one twice."""
        if not isinstance(value, tuple) or not all(map(self._fits, value)):
            return self._must
        return f"name {self._each} only once" if len(set(value)) < len(value) else None

    def _fits(self, value: object) -> bool:
        return _is_text(value)


class SizesByName(dict[str, Any]):
    """The sizes of axes by feature name: a number for one axis, a tuple for several. Never change it: it has a hash."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


class Sizes(Kind):
    """The sizes of the axes of some features, by feature name; it may be empty."""

    def refuse(self, value: Any) -> str | None:
        """Refuses names that are not texts, and sizes that are not whole numbers of at least 1."""
        for feature, sizes in value.items() if isinstance(value, dict) else [(None, None)]:
            axes = sizes if isinstance(sizes, tuple) and sizes else (sizes,)
            if not _is_text(feature) or not all(_is_whole(size) and size >= 1 for size in axes):
                return "have sizes from 1 by the names of features, such as {'tokens': 77} or {'frames': (16, 128)}"
        return None


class Addresses(Names):
    """A tuple of different addresses, which may be empty: `host:port`, where an IPv6 address stands in brackets."""

    allowed = "Like host:5050, one or several."
    _must, _each = "be a list of addresses like host:5050", "each worker"

    def _fits(self, value: object) -> bool:
        match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
        return match is not None and 1 <= int(match[1]) <= 65535


@dataclass(frozen=True)
class Nested(Kind):
    """An object of another class, which holds options."""

    type: type[Any]

    def refuse(self, value: Any) -> str | None:
        """Refuses objects of other classes. The class itself checks the options in the object."""
        return None if isinstance(value, self.type) else f"be {self.type.__name__}"


@dataclass(frozen=True)
class Option:
    """The description of an option, in the metadata of its dataclass field."""

    kind: Kind
    affects: Affects | None = None  # only "speed", the stored "cache", the "order", the "images"; None: something else
    without_tensorflow: tuple[Any, ...] | None = None  # the values that readers without TensorFlow support; None: all
    group: str = ""  # the heading in a command's help; empty: "Options"
    rare: bool = False  # whether only --help-all shows it
    flag: str | None = None  # the option on the command line; None: made from the name of the field
    metavar: str | None = None  # None: the usual one of the type


def option(
    kind: Kind,
    default: Any = MISSING,
    *,
    default_factory: Any = MISSING,
    affects: Affects | None = None,
    without_tensorflow: tuple[Any, ...] | None = None,
    group: str = "",
    rare: bool = False,
    flag: str | None = None,
    metavar: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Any:
    """Makes a dataclass field whose metadata holds an `Option` of `kind` and of the arguments `affects` to `metavar`.

    An option without `default` and `default_factory` is required. `metadata` is added to the metadata of the field.
    """
    made = Option(kind, affects, without_tensorflow, group, rare, flag, metavar)
    return field(default=default, default_factory=default_factory, metadata={**(metadata or {}), _KEY: made})


def get_options(config: Any) -> dict[str, Option]:
    """Returns the options of a dataclass or of an object of it, by name, in the order of the fields."""
    return {item.name: item.metadata[_KEY] for item in fields(config) if _KEY in item.metadata}


@cache
def read_words(config: type[Any]) -> dict[str, str]:
    """Returns the `Attributes:` entries of a class and its bases by field name, one line each, in their order."""
    words: dict[str, str] = {}
    for one in reversed(config.__mro__):
        _, _, section = (inspect.cleandoc(one.__doc__) if one.__doc__ else "").partition("\nAttributes:\n")
        for entry in re.split(r"\n(?=    \S)", re.split(r"\n(?=\S)", section, maxsplit=1)[0]):
            name, colon, text = entry.strip().partition(": ")
            if colon:
                words[name] = " ".join(text.split())
    return words


def get_names(config: Any, *affects: Affects) -> tuple[str, ...]:
    """Returns dotted option names, as in "tf_data.cycle_length"; with `affects` only those with such an effect."""
    names: list[str] = []
    for name, known in get_options(config).items():
        if isinstance(known.kind, Nested):
            names += [f"{name}.{inner}" for inner in get_names(known.kind.type, *affects)]
        elif not affects or known.affects in affects:
            names.append(name)
    return tuple(names)


def get_value(config: Any, name: str) -> Any:
    """Returns the value of an option, which may be one of a nested object, as in "tf_data.cycle_length"."""
    for each in name.split("."):
        config = getattr(config, each)
    return config


def list_changes(before: Any, after: Any) -> dict[str, Any]:
    """Returns the values of `after` that differ from those of `before`, by dotted name as for `get_value`."""
    changes: dict[str, Any] = {}
    for name, known in get_options(before).items():
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(known.kind, Nested):
            changes |= {f"{name}.{inner}": value for inner, value in list_changes(old, new).items()}
        elif old != new:
            changes[name] = new
    return changes


def get_default(config: type[Any], name: str) -> Any:
    """Returns the default of an option by its dotted name, as for `get_value`; `MISSING` for a required option."""
    first, _, inner = name.partition(".")
    (item,) = (item for item in fields(config) if item.name == first)
    if inner:
        return get_default(item.metadata[_KEY].kind.type, inner)
    return item.default if item.default_factory is MISSING else item.default_factory()


def replace_options(config: Any, changes: Mapping[str, Any]) -> Any:
    """Returns a copy of the config with other values for some options, by dotted name as for `get_value`."""
    values: dict[str, Any] = {name: value for name, value in changes.items() if "." not in name}
    for first in dict.fromkeys(name.partition(".")[0] for name in changes if "." in name):
        inner = {name.partition(".")[2]: changes[name] for name in changes if name.startswith(f"{first}.")}
        values[first] = replace_options(values.get(first, getattr(config, first)), inner)
    return replace(config, **values)


def check_options(config: Any) -> None:
    """Checks each option of a config on its own. None is allowed where it is the default."""
    for item in fields(config):
        value = getattr(config, item.name)
        if _KEY in item.metadata and not (value is None and item.default is None):
            item.metadata[_KEY].kind.check(item.name, value)


def show_options(config: Any) -> str:
    """Returns a config as text, with the required options and those that differ from their defaults."""
    shown = (
        f"{item.name}={getattr(config, item.name)!r}"
        for item in fields(config)
        if getattr(config, item.name) != get_default(type(config), item.name)
    )
    return f"{type(config).__name__}({', '.join(shown)})"


def is_number(value: object) -> TypeGuard[float]:
    """Tests whether a value is a finite number that a float can hold; `True` does not count as one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> TypeGuard[str]:
    """Tests for a text that is not empty and can be encoded as UTF-8: a file name may have half a surrogate pair."""
    return isinstance(value, str) and value != "" and not any("\ud800" <= c <= "\udfff" for c in value)
