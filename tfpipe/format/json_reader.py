"""Reads JSON that comes from outside, and names the path of every mistake: `splits.train.shards[3].records`."""

import json
import math
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeVar

from tfpipe.errors import FormatError
from tfpipe.system.budget import DOCUMENT, OverBudget

Value = TypeVar("Value")
Word = TypeVar("Word", bound=str)

MAX_COUNT = 2**63 - 1
MAX_PARTS = DOCUMENT.items
"""The most lists, objects and commas in one document."""

MAX_TEXT = 10_000
"""The most characters of one string or key."""

_MAX_PATH = 200  # the most characters of a path that a message shows
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")


class Node:
    """A JSON value and its path. Each method raises `FormatError` if the value does not have the kind it reads.

    The path is put together for a message only: a manifest may have a million values.
    """

    __slots__ = ("_at", "value", "where")

    def __init__(self, value: object, at: "str | tuple[Node, str | int]" = "", where: str = "") -> None:
        self.value, self.where = value, where  # `where` is the name of the document
        self._at = at  # its path, or the value that holds it and its key there

    @property
    def path(self) -> str:
        """The path, such as `splits.train.shards[3]`; empty for the whole document."""
        keys, node = list[str | int](), self
        while not isinstance(at := node._at, str):
            node, key = at
            keys.append(key)
        path = at
        for key in reversed(keys):
            if isinstance(key, int):
                path += f"[{key}]"
            else:
                name = key if _PLAIN_KEY.fullmatch(key) else f"[{_show(key)}]"
                path = f"{path}.{name}" if path else name
        return path

    def error(self, must: str) -> FormatError:
        """Returns an error whose sentence is "<place> must be <must>, got <value>."."""
        path = _shorten(self.path) or "the document"
        return FormatError(f"{self._prefix()}{path} must be {must}, got {_show(self.value)}.")

    def refuse(self, reason: object) -> FormatError:
        """Returns an error for a value that another check refused. `reason` is a whole sentence."""
        return FormatError(f"{self._prefix()}{_shorten(self.path)}: {reason}")

    def field(self, key: str) -> "Node":
        """Returns the value of a key that must exist."""
        fields = self.value
        if not isinstance(fields, dict):
            raise self.error("an object")
        if key not in fields:
            raise FormatError(f"{self._prefix()}{_shorten(Node(None, (self, key)).path)} is missing.")
        return Node(fields[key], (self, key), self.where)

    def get(self, key: str) -> "Node | None":
        """Returns the value of a key that need not exist; None without it."""
        return dict(self.items()).get(key)

    def get_or(self, key: str, default: object) -> "Node":
        """Returns the value of a key, or a default without it."""
        found = self.get(key)
        return Node(default, (self, key), self.where) if found is None else found

    def items(self) -> Iterator[tuple[str, "Node"]]:
        """Yields every key with its value."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        for key, value in self.value.items():
            if len(key) > MAX_TEXT:
                raise self.error(f"an object whose keys have at most {MAX_TEXT:,} characters")
            yield key, Node(value, (self, key), self.where)

    def values(self) -> list[object]:
        """Returns the values of a list without nodes of their own."""
        if not isinstance(self.value, list):
            raise self.error("a list")
        return self.value

    def element(self, i: int) -> "Node":
        """Returns a value of a list."""
        return Node(self.values()[i], (self, i), self.where)

    def elements(self) -> list["Node"]:
        """Returns the values of a list."""
        return [Node(value, (self, i), self.where) for i, value in enumerate(self.values())]

    def text(self) -> str:
        """Returns a string that is short enough to be shown and to be a name."""
        if not isinstance(self.value, str):
            raise self.error("text")
        if len(self.value) > MAX_TEXT:
            raise self.error(f"text of at most {MAX_TEXT:,} characters")
        return self.value

    def count(self, minimum: int = 0, maximum: int = MAX_COUNT) -> int:
        """Returns a whole number within bounds. `true` does not count as a number."""
        value = self.value
        if type(value) is not int or not minimum <= value <= maximum:
            above = f" and at most {maximum}" if maximum < MAX_COUNT or minimum < 0 else ""
            raise self.error(f"a whole number of at least {minimum}{above}")
        return value

    def number(self) -> float:
        """Returns a finite number of at least 0."""
        value = self.value
        if type(value) is int and 0 <= value <= MAX_COUNT:
            return float(value)
        if type(value) is not float or not math.isfinite(value) or value < 0:
            raise self.error("a number of at least 0")
        return value

    def scalar(self) -> str | int | float | bool | None:
        """Returns text, a finite number, true, false or null."""
        value = self.value
        if type(value) is int and abs(value) <= MAX_COUNT:
            return value
        if type(value) is float and math.isfinite(value):
            return value
        if value is None or isinstance(value, str | bool):
            return value
        raise self.error("text, a number, true, false or null")

    def counts(self) -> dict[str, int]:
        """Returns an object whose values are whole numbers of at least 0."""
        return self.mapping(Node.count)

    def choice(self, words: Sequence[Word]) -> Word:
        """Returns one of some words."""
        for word in words:
            if word == self.value:
                return word
        raise self.error(f"one of {', '.join(map(repr if '' in words else str, words))}")

    def mapping(self, read: "Callable[[Node], Value]", key: str = "") -> dict[str, Value]:
        """Reads each value of an object: this one, or that under a key, which need not exist."""
        node = self.get(key) if key else self
        return {} if node is None else {name: read(value) for name, value in node.items()}

    def tuple(self, read: "Callable[[Node], Value]") -> tuple[Value, ...]:
        """Reads each value of a list."""
        return tuple(map(read, self.elements()))

    def _prefix(self) -> str:
        return f"{self.where}: " if self.where else ""


def parse_json(text: str, where: str) -> Node:
    """Parses one JSON document.

    Refused are `NaN` and `Infinity`, a key twice in one object (readers would differ on which value counts), numbers
    with thousands of digits, deep nesting, and more than a million parts.
    """
    try:
        DOCUMENT.check_json(text)
    except OverBudget:
        raise FormatError(f"{where} must have at most {MAX_PARTS:,} lists, objects and commas.") from None

    def refuse(constant: str) -> NoReturn:
        raise FormatError(f"{where}: {constant} is not a number that JSON allows.")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise FormatError(f"{where} must name a key once in an object, got {_show(twice)} twice.")
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


def _shorten(path: str) -> str:
    """Cuts the middle out of a long path. One in deeply nested JSON would fill pages."""
    return path if len(path) <= _MAX_PATH else f"{path[: _MAX_PATH // 2]}…{path[-_MAX_PATH // 2 :]}"


def _show(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # thousands of digits
        return f"a {type(value).__name__} too long to show"
