"""Options: dataclass fields that know which values they take.

The check of a value, the command line with its help, and the tests of documentation read the facts from the field.
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
    """The values that an option takes. This one takes all."""

    @property
    def allowed(self) -> str:
        """The sentence that documents the values, as in "At least 1."; empty if the type says it all."""
        return ""

    def refuse(self, value: Any) -> str | None:
        """Returns what a wrong value must be, as in "be at least 1"; None for one that the option can have."""
        return None

    def check(self, name: str, value: object) -> None:
        """Raises a ConfigError that names the option unless it can have this value."""
        if (must := self.refuse(value)) is not None:
            raise ConfigError(f"`{name}` must {must}, got {value!r}.")


class Flag(Kind):
    """A switch: true or false."""

    def refuse(self, value: Any) -> str | None:
        """Refuses all but true and false."""
        return None if isinstance(value, bool) else "be true or false"


@dataclass(frozen=True)
class Count(Kind):
    """A whole number; `True` is not one."""

    lowest: int
    highest: int | None = None
    zero: str | None = None  # the meaning of 0, for messages, as in "all cores"; None: a plain number
    words: tuple[str, ...] = ()  # that may stand in place of a number

    @property
    def allowed(self) -> str:
        """The limits."""
        words = ", ".join(f'"{word}"' for word in self.words)
        return f"{words}, or {self._limits}." if words else f"{self._limits.capitalize()}."

    def refuse(self, value: Any) -> str | None:
        """Refuses what is no whole number within the limits, and no word."""
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
        """The limits."""
        return f"From -2**63 to 2**{63 if self.signed else 64} - 1."

    def refuse(self, value: Any) -> str | None:
        """Refuses what is no whole number that fits."""
        fits = _is_whole(value) and -(2**63) <= value < 2 ** (63 if self.signed else 64)
        return None if fits else "be a whole number that fits into 64 bits"


@dataclass(frozen=True)
class Number(Kind):
    """A finite number."""

    above: float | None = None  # the number must exceed it
    at_least: float | None = None
    below: float | None = None  # the number must not reach it
    word: str | None = None  # may stand in place of a number

    @property
    def allowed(self) -> str:
        """The limits."""
        return f"{self._limits[0].upper()}{self._limits[1:]}."

    def refuse(self, value: Any) -> str | None:
        """Refuses what is no number within the limits, and not the word."""
        holds = is_number(value) and (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
        )
        return None if holds or (self.word is not None and value == self.word) else f"be {self._limits}"

    @property
    def _limits(self) -> str:
        limits = {"above": self.above, "at least": self.at_least, "below": self.below}
        text = " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)
        return text if self.word is None else f'{text}, or "{self.word}"'


class CountOrShare(Kind):
    """A number of things, or a share of them: a whole number is a count, a float is a share."""

    allowed = "A whole number, or a share from 0.0 to 1.0."

    def refuse(self, value: Any) -> str | None:
        """Refuses what is below 0, and a share above 1."""
        fits = isinstance(value, int | float) and value >= 0 and (isinstance(value, int) or value <= 1)
        return None if fits else "be a count or a share between 0 and 1"


class Shares(Kind):
    """The share of each of several splits, by its name."""

    allowed = "Shares above 0 that add up to 1."

    def check(self, name: str, value: Any) -> None:
        """Checks each share, and the sum."""
        for part, share in value.items():
            if not 0 < share <= 1:
                raise ConfigError(f"The share of split {part!r} must be above 0 and at most 1, got {share}.")
        if value and not math.isclose(sum(value.values()), 1, abs_tol=1e-6):
            raise ConfigError(f"The shares of `{name}` must add up to 1, got {sum(value.values()):g}.")


class Share(Kind):
    """A share of a whole, above 0 and at most 1."""

    allowed = "In (0, 1]."

    def refuse(self, value: Any) -> str | None:
        """Refuses what is not above 0 and at most 1."""
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
        """Refuses all but the words."""
        return None if value in self.words else f"be {', '.join(self.words[:-1])} or {self.words[-1]}"


@dataclass(frozen=True)
class Size(Kind):
    """The size of an image: the side of a square in pixels, or height and width."""

    highest: int  # of the longest side

    @property
    def allowed(self) -> str:
        """The limits."""
        return f"A side from 1 to {self.highest}, or (height, width)."

    def refuse(self, value: Any) -> str | None:
        """Refuses a side that is no whole number within the limits."""
        sides = value if isinstance(value, tuple) and len(value) == 2 else (value,)
        fits = all(_is_whole(side) and 1 <= side <= self.highest for side in sides)
        return None if fits else f"be a side from 1 to {self.highest} pixels, or (height, width)"


class Amount(Kind):
    """A whole number, or text such as 128MiB. The option says what a number without a unit counts."""

    allowed = "At least 1, as a number or a size such as 128MiB."

    def refuse(self, value: Any) -> str | None:
        """Refuses what is no size above 0."""
        with contextlib.suppress(ConfigError):
            if parse_bytes(value) >= 1:
                return None
        return f"be at least 1, a whole number or {A_SIZE}"


class Text(Kind):
    """A text that is not empty, such as a path or a name."""

    def refuse(self, value: Any) -> str | None:
        """Refuses what no file can hold as a text."""
        return None if _is_text(value) else "be text in Unicode and not empty"


class Unchecked(Kind):
    """A text, or several, that whoever opens the file or reads the column checks; it need not be UTF-8."""


class Names(Kind):
    """A tuple of different names, which may be empty."""

    _must, _each = "be a list of names, none of them empty", "each"

    def refuse(self, value: Any) -> str | None:
        """Refuses what is no list of such texts, or has one twice."""
        if not isinstance(value, tuple) or not all(map(self._fits, value)):
            return self._must
        return f"name {self._each} only once" if len(set(value)) < len(value) else None

    def _fits(self, value: object) -> bool:
        return _is_text(value)


class SizesByName(dict[str, Any]):
    """The sizes of axes by the names of features: a number for one axis, a tuple for several. Nobody may change it."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


class Sizes(Kind):
    """A size for each axis of some features, which may be none."""

    def refuse(self, value: Any) -> str | None:
        """Refuses names that are no text, and sizes that are no whole numbers from 1."""
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
        """Refuses objects of other classes. The class has checked the options in it."""
        return None if isinstance(value, self.type) else f"be {self.type.__name__}"


@dataclass(frozen=True)
class Option:
    """The facts about one option, which its field carries."""

    kind: Kind
    affects: Affects | None = None  # "speed" alone, the kept "cache", "order" or "images"; None: something else
    without_tensorflow: tuple[Any, ...] | None = None  # what those readers support; None: every value
    group: str = ""  # the heading in a command's help; empty: "Options"
    rare: bool = False  # whether only --help-all shows it
    flag: str | None = None  # if it is not that of the field
    metavar: str | None = None  # None: that of its type


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
    """Makes a dataclass field that carries an `Option`, whose facts have the same names.

    An option without `default` and `default_factory`, a function that makes one, must be given. `metadata` is further
    metadata of the field.
    """
    facts = Option(kind, affects, without_tensorflow, group, rare, flag, metavar)
    return field(default=default, default_factory=default_factory, metadata={**(metadata or {}), _KEY: facts})


def get_options(config: Any) -> dict[str, Option]:
    """Returns the options of a dataclass or of an object of it, by name, in the order of the fields."""
    return {item.name: item.metadata[_KEY] for item in fields(config) if _KEY in item.metadata}


@cache
def read_words(config: type[Any]) -> dict[str, str]:
    """Returns what the `Attributes:` of a class and its bases say of each field, as one line each, in their order."""
    words: dict[str, str] = {}
    for one in reversed(config.__mro__):
        _, _, section = (inspect.cleandoc(one.__doc__) if one.__doc__ else "").partition("\nAttributes:\n")
        for entry in re.split(r"\n(?=    \S)", re.split(r"\n(?=\S)", section, maxsplit=1)[0]):
            name, colon, text = entry.strip().partition(": ")
            if colon:
                words[name] = " ".join(text.split())
    return words


def get_names(config: Any, *affects: Affects) -> tuple[str, ...]:
    """Returns the names of the options, as in "tf_data.cycle_length"; with `affects` of those that affect one of it."""
    names: list[str] = []
    for name, facts in get_options(config).items():
        if isinstance(facts.kind, Nested):
            names += [f"{name}.{inner}" for inner in get_names(facts.kind.type, *affects)]
        elif not affects or facts.affects in affects:
            names.append(name)
    return tuple(names)


def get_value(config: Any, name: str) -> Any:
    """Returns the value of an option, which may be one of a nested object, as in "tf_data.cycle_length"."""
    for part in name.split("."):
        config = getattr(config, part)
    return config


def list_changes(before: Any, after: Any) -> dict[str, Any]:
    """Returns the values of another config that differ, by names as of `get_value`."""
    changes: dict[str, Any] = {}
    for name, facts in get_options(before).items():
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(facts.kind, Nested):
            changes |= {f"{name}.{inner}": value for inner, value in list_changes(old, new).items()}
        elif old != new:
            changes[name] = new
    return changes


def get_default(config: type[Any], name: str) -> Any:
    """Returns the default of an option by a name as of `get_value`; `MISSING` if it must be given."""
    first, _, inner = name.partition(".")
    (item,) = (item for item in fields(config) if item.name == first)
    if inner:
        return get_default(item.metadata[_KEY].kind.type, inner)
    return item.default if item.default_factory is MISSING else item.default_factory()


def replace_options(config: Any, changes: Mapping[str, Any]) -> Any:
    """Returns the config with other values of some options, by names as of `get_value`."""
    values: dict[str, Any] = {name: value for name, value in changes.items() if "." not in name}
    for first in dict.fromkeys(name.partition(".")[0] for name in changes if "." in name):
        inner = {name.partition(".")[2]: changes[name] for name in changes if name.startswith(f"{first}.")}
        values[first] = replace_options(values.get(first, getattr(config, first)), inner)
    return replace(config, **values)


def check_options(config: Any) -> None:
    """Checks each option of a config by itself. None is allowed if it is the default."""
    for item in fields(config):
        value = getattr(config, item.name)
        if _KEY in item.metadata and not (value is None and item.default is None):
            item.metadata[_KEY].kind.check(item.name, value)


def show_options(config: Any) -> str:
    """Returns the text of a config: the options that have no default, and those that differ from it."""
    shown = (
        f"{item.name}={getattr(config, item.name)!r}"
        for item in fields(config)
        if getattr(config, item.name) != get_default(type(config), item.name)
    )
    return f"{type(config).__name__}({', '.join(shown)})"


def is_number(value: object) -> TypeGuard[float]:
    """Tests whether a value is a finite number that a float can hold; `True` is not one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> TypeGuard[str]:
    """Tests for text that is not empty and that UTF-8 can hold: a file name may have half a surrogate pair."""
    return isinstance(value, str) and value != "" and not any("\ud800" <= c <= "\udfff" for c in value)
