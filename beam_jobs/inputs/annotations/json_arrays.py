"""Reads the objects in the arrays of one large JSON object, one by one, so that it is never in memory whole."""

import io
import json
from collections.abc import Iterator, Set
from typing import Any, NamedTuple

from tfpipe.errors import DataError
from tfpipe.storage import file_io

_READ_CHARS = 1 << 20
_MAX_CHARS = 16 << 20
_SPACE = " \t\r\n"
_AFTER_VALUE = frozenset(_SPACE + ",:]}")


class Element(NamedTuple):
    """An object in an array."""

    name: str  # of the array
    number: int  # in the array, from 1
    values: dict[str, Any]


def iterate_objects(path: str, names: Set[str]) -> Iterator[Element]:
    """Yields the objects in some arrays, in the order of the file. An object has at most 16 MiB."""
    with file_io.explain_os_errors(f"read {path}"), file_io.open_read(path) as file:
        try:
            with io.TextIOWrapper(file, "utf-8-sig") as text:
                yield from _iterate(_Reader(text), path, names)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} is not a valid JSON object in UTF-8 ({error}).") from error


def _iterate(reader: "_Reader", path: str, names: Set[str]) -> Iterator[Element]:
    for _ in reader.take_all("{", "}"):
        name = reader.read_value()
        reader.take(":")
        if reader.peek() != "[":
            reader.read_value()
            continue
        for number, _ in enumerate(reader.take_all("[", "]"), start=1):
            values = reader.read_value()
            if name not in names:
                continue
            if not isinstance(values, dict):
                raise DataError(f"{path}: {name!r} must hold objects, but number {number} is {values!r:.100}.")
            yield Element(name, number, values)


class _Reader:
    """A reader of JSON that holds some of the text."""

    def __init__(self, text: io.TextIOBase) -> None:
        self._text, self._buffer, self._position, self._is_at_end = text, "", 0, False
        self._num_before = 0  # characters before the buffer
        self._decode = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """Returns the next character that is not space; empty at the end."""
        while True:
            while self._position < len(self._buffer):
                if self._buffer[self._position] not in _SPACE:
                    return self._buffer[self._position]
                self._position += 1
            if self._is_at_end:
                return ""
            self._fill()

    def take(self, sign: str) -> None:
        """Passes over a sign, which must be the next one."""
        found = self.peek()
        if found != sign:
            raise ValueError(f"{sign!r} must stand where {repr(found) if found else 'the end'} does")
        self._position += 1

    def take_all(self, begin: str, end: str) -> Iterator[None]:
        """Yields in front of each member of an object or an array, which the caller then reads."""
        self.take(begin)
        if self.peek() != end:
            yield
            while self.peek() == ",":
                self._position += 1
                yield
        self.take(end)

    def read_value(self) -> Any:
        """Returns the next value."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self._buffer, self._position)
            except json.JSONDecodeError as error:
                if self._is_at_end:
                    raise ValueError(f"{error.msg} at character {self._num_before + error.pos + 1:,}") from error
            else:
                # A number could go on: in "1." or "1e" only the 1 is a value yet.
                if self._is_at_end or self._buffer[end : end + 1] in _AFTER_VALUE:
                    self._position = end
                    return value
            if len(self._buffer) - self._position > _MAX_CHARS:
                raise ValueError("a value is longer than 16 MiB, or damaged")
            self._fill()

    def _fill(self) -> None:
        """Reads as much again as there is."""
        rest = self._buffer[self._position :]
        self._num_before += self._position
        more = self._text.read(max(_READ_CHARS, len(rest)))
        self._buffer, self._position, self._is_at_end = rest + more, 0, not more
