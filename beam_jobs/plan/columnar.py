"""Columns that hold a value for each of many million images in little memory: no Python object per value."""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Indices = NDArray[np.int64]


class TextColumn:
    """Texts end to end in one buffer: their bytes in UTF-8, and 8 more for each."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = array("q")

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        return self.encoded(index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def encoded(self, index: int) -> bytes:
        """One as bytes; what was no UTF-8 in a file's name is as it was."""
        return bytes(self._bytes[self._ends[index - 1] if index else 0 : self._ends[index]])

    def append(self, text: str) -> None:
        """Adds one."""
        self.append_encoded(text.encode("utf-8", "surrogateescape"))

    def append_encoded(self, text: bytes) -> None:
        """Adds one that is bytes already."""
        self._bytes += text
        self._ends.append(len(self._bytes))

    def append_empty(self, count: int) -> None:
        """Adds so many empty ones."""
        self._ends.extend(array("q", [len(self._bytes)]) * count)

    def extend(self, other: "TextColumn") -> None:
        """Adds all of another column."""
        begin = len(self._bytes)
        self._bytes += other._bytes
        self._ends.frombytes((np.array(other._ends, np.int64) + begin).tobytes())

    def take(self, indices: _Indices) -> "TextColumn":
        """Those at `indices`, in their order."""
        taken = TextColumn()
        for text in map(self.encoded, indices.tolist()):
            taken.append_encoded(text)
        return taken

    def at(self, indices: _Indices) -> Iterator[str]:
        """Those at `indices`, in their order."""
        texts, ends = self._bytes, self._ends
        for i in indices.tolist():
            yield texts[ends[i - 1] if i else 0 : ends[i]].decode("utf-8", "surrogateescape")

    def lengths(self) -> _Indices:
        """Bytes of each."""
        ends = np.array(self._ends, np.int64)
        return ends - np.append(np.zeros(1, np.int64), ends[:-1])

    def hashes(self, key: bytes) -> NDArray[np.uint64]:
        """A keyed BLAKE2b hash of each, 8 bytes read as a little-endian number: about a microsecond each."""
        digests, begin = bytearray(), 0
        with memoryview(self._bytes) as texts:
            for end in self._ends:
                digests += blake2b(texts[begin:end], digest_size=8, key=key).digest()
                begin = end
        return np.frombuffer(digests, "<u8").astype(np.uint64, copy=False)


class NumberColumn:
    """Whole numbers: 8 bytes each, or none while all of them are the default."""

    def __init__(self, default: int) -> None:
        self._default, self._count = default, 0
        self._numbers: array[int] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return self._default if self._numbers is None else self._numbers[index]

    def append(self, number: int) -> None:
        """Adds one."""
        if self._numbers is None and number != self._default:
            self._numbers = array("q", [self._default]) * self._count
        if self._numbers is not None:
            self._numbers.append(number)
        self._count += 1

    def extend(self, other: "NumberColumn") -> None:
        """Adds all of another column."""
        if self._numbers is None and other._numbers is not None:
            self._numbers = array("q", [self._default]) * self._count
        if self._numbers is not None:
            self._numbers.frombytes(other.values().tobytes())
        self._count += other._count

    def take(self, indices: _Indices) -> "NumberColumn":
        """Those at `indices`, in their order."""
        if self._numbers is None:
            taken = NumberColumn(self._default)
            taken._count = len(indices)
            return taken
        return NumberColumn.of(self.values()[indices], self._default)

    def at(self, indices: _Indices) -> list[int]:
        """Those at `indices`, in their order."""
        if self._numbers is None:
            return [self._default] * len(indices)
        found: list[int] = np.frombuffer(self._numbers, np.int64)[indices].tolist()
        return found

    def is_default(self) -> bool:
        """Whether no number but the default ever came."""
        return self._numbers is None

    def values(self) -> _Indices:
        """All of them, as a copy."""
        if self._numbers is None:
            return np.full(self._count, self._default, np.int64)
        return np.array(self._numbers, np.int64)

    @classmethod
    def of(cls, values: _Indices, default: int) -> "NumberColumn":
        """A column of these numbers."""
        column = cls(default)
        column._numbers, column._count = array("q", values.astype(np.int64).tobytes()), len(values)
        return column


class CodedColumn:
    """Texts, or None, of which few are different: 4 bytes for each, and every different one once."""

    def __init__(self) -> None:
        self._codes = array("i")
        self._known: dict[str | None, int] = {}
        self.texts: list[str | None] = []
        """The different ones; a code is a position here."""

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, index: int) -> Any:
        return self.texts[self._codes[index]]

    def append(self, text: str | None) -> None:
        """Adds one."""
        self._codes.append(self._code(text))

    def _code(self, text: str | None) -> int:
        code = self._known.get(text)
        if code is None:
            code = self._known[text] = len(self.texts)
            self.texts.append(text)
        return code

    def extend(self, other: "CodedColumn") -> None:
        """Adds all of another column."""
        self._append_codes(other, [self._code(text) for text in other.texts])

    def take(self, indices: _Indices) -> "CodedColumn":
        """Those at `indices`, in their order; texts that none of them has are kept."""
        taken = CodedColumn()
        taken._known, taken.texts = dict(self._known), list(self.texts)
        taken._codes = array("i", self.codes()[indices].tobytes())
        return taken

    def at(self, indices: _Indices) -> list[str | None]:
        """Those at `indices`, in their order."""
        return [self.texts[code] for code in np.frombuffer(self._codes, np.int32)[indices].tolist()]

    def renamed(self, texts: Sequence[str | None]) -> "CodedColumn":
        """The same with other texts in place of `self.texts`; equal ones become one."""
        renamed = CodedColumn()
        renamed._append_codes(self, [renamed._code(text) for text in texts])
        return renamed

    def _append_codes(self, other: "CodedColumn", codes: list[int]) -> None:
        if other.texts:
            self._codes.frombytes(np.array(codes, np.int32)[other.codes()].tobytes())

    def codes(self) -> NDArray[np.int32]:
        """The code of each, as a copy."""
        return np.array(self._codes, np.int32)

    def counts(self) -> dict[str | None, int]:
        """How often each text occurs; texts that do not are not there."""
        counts = np.bincount(self.codes(), minlength=len(self.texts)).tolist()
        return {text: count for text, count in zip(self.texts, counts, strict=True) if count}

    @classmethod
    def constant(cls, text: str | None, count: int) -> "CodedColumn":
        """The same text so many times."""
        return cls.of(np.zeros(count, np.int32), [text])

    @classmethod
    def of(cls, codes: NDArray[Any], texts: Sequence[str | None]) -> "CodedColumn":
        """A column of these codes, positions in `texts`, which are different."""
        column = cls()
        column.texts, column._known = list(texts), {text: code for code, text in enumerate(texts)}
        column._codes = array("i", codes.astype(np.int32).tobytes())
        return column
