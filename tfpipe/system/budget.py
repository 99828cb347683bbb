"""Budgets for untrusted files: limits on bytes, items and nesting depth, checked before memory is allocated.

The limits lie far above what real files need; `docs/reference/limits.md` lists them.
"""

import io
import json
from dataclasses import dataclass, replace
from typing import IO, Any

_ANY = 1 << 62
_File = IO[bytes]  # a field has that name


class OverBudget(ValueError):
    """An error: a file exceeds its budget. The text is the reason, such as "it has more than 100 items"."""


@dataclass(slots=True)
class Budget:
    """The bytes, items and nesting depth that a file may still take; `take` subtracts from them."""

    bytes: int = _ANY  # of the decompressed content
    items: int = _ANY  # cells of a row, blocks of a file, or lists, objects and commas of JSON
    depth: int = _ANY  # of nested lists and objects

    def renew(self, growth: int = 0) -> "Budget":
        """Returns a copy of this budget for another file, with `growth` more bytes."""
        return replace(self, bytes=self.bytes + growth)

    def take(self, bytes: int = 0, items: int = 0) -> None:  # noqa: A002  # as the fields
        """Subtracts bytes and items from the budget; raises `OverBudget` if it has fewer."""
        if bytes > self.bytes:
            raise OverBudget("it takes too many bytes")
        if items > self.items:
            raise OverBudget("it has too many parts")
        self.bytes -= bytes
        self.items -= items

    def check_json(self, text: str) -> None:
        """Checks the number of lists, objects and commas in a JSON text: each takes up to 0.2 kB once parsed."""
        if sum(map(text.count, "[{,")) > self.items:
            raise OverBudget(f"it has more than {self.items:,} lists, objects and commas")

    def parse_json(self, text: str) -> Any:
        """Parses a JSON text within the budget's items and depth."""
        self.check_json(text)
        try:
            value = json.loads(text)
        except RecursionError:
            raise OverBudget(f"it is nested more than {self.depth:,} levels deep") from None
        if text.count("[") + text.count("{") <= self.depth:  # fewer brackets cannot nest deeper
            return value
        level = [value]
        for _ in range(self.depth):
            below = (each.values() if isinstance(each, dict) else each for each in level)
            level = [each for values in below for each in values if isinstance(each, dict | list)]
            if not level:
                return value
        raise OverBudget(f"it is nested more than {self.depth:,} levels deep")

    def limit(self, file: _File) -> io.BufferedReader:
        """Wraps a file so that the bytes it reads or skips forwards are subtracted from the budget."""
        return io.BufferedReader(_Limited(file, self), 1 << 20)


class _Limited(io.RawIOBase):
    """A file whose reads and forward seeks are subtracted from a budget."""

    def __init__(self, file: IO[bytes], budget: Budget) -> None:
        self._file, self._budget = file, budget

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = 0) -> int:
        target = offset + (self._file.tell() if whence else 0)
        self._budget.take(bytes=max(0, target - self._file.tell()))  # a compressed file is read up to there
        return self._file.seek(target)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        self._budget.take(bytes=len(data))
        buffer[: len(data)] = data
        return len(data)


DOCUMENT = Budget(items=1_000_000)
"""A manifest, or another JSON document of a dataset."""

ROW = Budget(bytes=64 << 20, items=1_000_000, depth=100)
"""A row of a table."""

COLUMNS = Budget(items=4096)
"""The columns of a table: each one that tfpipe does not use itself becomes a feature of every record."""

BLOCKS = Budget(items=10_000)
"""The segments of a JPEG, or the blocks of a GIF: a photograph has about ten, with a large profile some hundreds."""

FIELDS = Budget(items=100_000)
"""The fields of a record, unpacked values among them, or the chunks of a PNG: each takes microseconds."""

FOREIGN_RECORD = Budget(bytes=1 << 28)
"""A record that others wrote: a larger one does not hold an image."""

BESIDE = Budget(bytes=1 << 20)
"""A small text beside an image or a dataset: its boxes in VOC's XML, its caption, the run of a job."""

STRIPS = Budget(items=500_000)
"""The strips or tiles of a TIFF: 64 megapixels in the smallest tiles are 250,000."""

SCANS = Budget(items=2_500_000_000)
"""The pixels of a progressive JPEG times its scans: ten are usual, 50 of 50 megapixels take 5 s."""

UNPACKED = Budget(bytes=1 << 30)
"""The bytes that a compressed archive or table may hold, besides `GROWTH` times its size."""

DECODED = Budget(bytes=256 << 20)
"""The bytes that a Parquet table may decode to, besides `GROWTH` times its size."""

GROWTH = 200
"""How many times its size a compressed archive or table may hold. Images hardly shrink, and texts 10 to 50 times."""
