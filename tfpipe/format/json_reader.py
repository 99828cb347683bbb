"""JSON from outside, read with the place of every mistake.

A `Node` is a JSON value that knows where it stands, so that a wrong one is refused as
`manifest.json: splits.train.shards[3].records must be a whole number of at least 0, got -1.`
"""

import json
import math
import re
import reprlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from tfpipe.errors import FormatError

MAX_COUNT = 2**63 - 1
MAX_PARTS = 1_000_000
"""Lists, objects and commas in one document: what it takes in memory is bounded by that, by 0.2 kB each."""

MAX_TEXT = 10_000
"""Characters of one string or key."""

_MAX_PLACE = 200  # characters shown
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value and its place. Each method raises `FormatError` where the value is not what it wants."""

    value: object
    place: str = ""
    """Such as `splits.train.shards[3]`; empty for the whole document."""
    where: str = ""
    """The document's name."""

    def error(self, must: str) -> FormatError:
        """`must` completes "<place> must be ..."; what came is shown in short."""
        place = _shortened(self.place) or "the document"
        return FormatError(f"{self._prefix()}{place} must be {must}, got {_shown(self.value)}.")

    def refuse(self, reason: object) -> FormatError:
        """For a value refused elsewhere: `reason` is a sentence of its own."""
        return FormatError(f"{self._prefix()}{_shortened(self.place)}: {reason}")

    def field(self, key: str) -> "Node":
        """The value of a key that must be there."""
        fields = self._fields()
        if key not in fields:
            raise FormatError(f"{self._prefix()}{_shortened(self._below(key))} is missing.")
        return Node(fields[key], self._below(key), self.where)

    def items(self) -> Iterator[tuple[str, "Node"]]:
        """Every key with its value."""
        for key, value in self._fields().items():
            if len(key) > MAX_TEXT:
                raise self.error(f"an object whose keys have at most {MAX_TEXT:,} characters")
            yield key, Node(value, self._below(key), self.where)

    def elements(self) -> list["Node"]:
        """The values of a list."""
        if not isinstance(self.value, list):
            raise self.error("a list")
        return [Node(value, f"{self.place}[{i}]", self.where) for i, value in enumerate(self.value)]

    def text(self) -> str:
        """A string, short enough to be shown and used as a name."""
        if not isinstance(self.value, str):
            raise self.error("text")
        if len(self.value) > MAX_TEXT:
            raise self.error(f"text of at most {MAX_TEXT:,} characters")
        return self.value

    def count(self, minimum: int = 0, maximum: int = MAX_COUNT) -> int:
        """A whole number within bounds; `true` is none."""
        value = self.value
        if type(value) is not int or not minimum <= value <= maximum:
            above = f" and at most {maximum}" if maximum < MAX_COUNT or minimum < 0 else ""
            raise self.error(f"a whole number of at least {minimum}{above}")
        return value

    def number(self) -> float:
        """A finite number of at least 0."""
        value = self.value
        if type(value) is int and 0 <= value <= MAX_COUNT:
            return float(value)
        if type(value) is not float or not math.isfinite(value) or value < 0:
            raise self.error("a number of at least 0")
        return value

    def scalar(self) -> str | int | float | bool | None:
        """Text, a finite number, true, false or null."""
        value = self.value
        if type(value) is int and abs(value) <= MAX_COUNT:
            return value
        if type(value) is float and math.isfinite(value):
            return value
        if value is None or isinstance(value, str | bool):
            return value
        raise self.error("text, a number, true, false or null")

    def counts(self) -> dict[str, int]:
        """An object whose values are whole numbers of at least 0."""
        return {key: node.count() for key, node in self.items()}

    def _fields(self) -> dict[str, object]:
        if not isinstance(self.value, dict):
            raise self.error("an object")
        return self.value

    def _below(self, key: object) -> str:
        name = key if isinstance(key, str) and _PLAIN_KEY.fullmatch(key) else f"[{_shown(key)}]"
        return f"{self.place}.{name}" if self.place else name

    def _prefix(self) -> str:
        return f"{self.where}: " if self.where else ""


def parse_json(text: str, where: str) -> Node:
    """Parses JSON text.

    Args:
      text: One JSON document. `NaN` and `Infinity`, which are no JSON, are refused.
      where: The document's name, for messages.

    Raises:
      FormatError: The text is no JSON, is nested too deeply, has more than a million parts, names a key twice in one
        object (readers would differ on which one holds), or holds a number of thousands of digits.
    """
    if sum(map(text.count, "[{,")) > MAX_PARTS:  # a byte of text can become 25 in memory
        raise FormatError(f"{where} must have at most {MAX_PARTS:,} lists, objects and commas.")

    def refuse(constant: str) -> NoReturn:
        raise FormatError(f"{where}: {constant} is not a number that JSON allows.")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise FormatError(f"{where} must name a key once in an object, got {_shown(twice)} twice.")
        return fields

    try:
        return Node(json.loads(text, parse_constant=refuse, object_pairs_hook=unique), "", where)
    except json.JSONDecodeError as error:
        raise FormatError(f"{where} is not JSON: {error}.") from None
    except RecursionError:
        raise FormatError(f"{where} is nested too deeply.") from None
    except FormatError:
        raise
    except ValueError:  # Python's own limit on the digits of one number
        raise FormatError(f"{where} holds a number with too many digits.") from None


def _shortened(place: str) -> str:
    """A place as deep as JSON goes fills pages otherwise."""
    return place if len(place) <= _MAX_PLACE else f"{place[: _MAX_PLACE // 2]}…{place[-_MAX_PLACE // 2 :]}"


def _shown(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # thousands of digits
        return f"a {type(value).__name__} too long to show"
