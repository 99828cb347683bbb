"""The index of a shard: a line `offset size` for each record, framing included, as DALI and `tfrecord` read it."""

import hashlib
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import FormatError
from tfpipe.format.manifest import ShardInfo
from tfpipe.format.tfrecord import FRAME_BYTES, record_footer, record_header

MAX_LINE_BYTES = 40
"""The longest line: two numbers of int64, a space and a line break."""

MAX_RECORDS = 2**22
"""The most records of one shard whose index is read. It takes 150 MB for a moment, and 64 MB as numbers."""

_INT64_MAX = 2**63 - 1
_MEND = "Run the same `tfpipe shard` or `tfpipe index` command again to write it anew."


class RecordWriter:
    """A writer of one file of records."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.sizes: list[int] = []
        self._digest: Any = hashlib.sha256()

    def write(self, payload: bytes) -> None:
        """Writes one record."""
        for piece in (record_header(len(payload)), payload, record_footer(payload)):
            self._digest.update(piece)
            self.file.write(piece)
        self.sizes.append(len(payload) + FRAME_BYTES)

    @property
    def index(self) -> bytes:
        """The content of the index of the file."""
        return encode_index(self.sizes)

    def describe(self, name: str) -> ShardInfo:
        """Returns the manifest's entry for the file under this name."""
        return ShardInfo(name, len(self.sizes), sum(self.sizes), self._digest.hexdigest())


def encode_index(sizes: Sequence[int]) -> bytes:
    """Returns the index of a shard whose records take `sizes` bytes, framing included, in the file's order."""
    offsets = accumulate(sizes, initial=0)
    return "".join([f"{offset} {size}\n" for offset, size in zip(offsets, sizes, strict=False)]).encode()


def max_index_bytes(shard_bytes: int, records: int) -> int:
    """Returns the largest size that the index of a shard can have. A larger file need not be read."""
    if records > MAX_RECORDS:
        raise FormatError(
            f"A shard must have at most {MAX_RECORDS:,} records for its index to be read, got {records:,}. Write them "
            "into more shards."
        )
    return records * min(2 * len(str(shard_bytes)) + 2, MAX_LINE_BYTES)


def decode_index(data: bytes, shard_bytes: int, records: int, *, is_packed: bool = False) -> NDArray[np.int64]:
    """Reads the offset and size of every record, int64 [records, 2], and checks them against the size of the shard.

    With `is_packed`, for a gzip file, a shard without records may still have bytes.
    """
    table = _table(data, records)
    offsets, sizes = table[:, 0], table[:, 1]
    # The bounds are checked first, so that no sum below can overflow int64.
    bad = (sizes < FRAME_BYTES) | (sizes > shard_bytes) | (offsets < 0) | (offsets > shard_bytes)
    if bad.any():
        row = int(bad.argmax())
        raise FormatError(
            f"Line {row + 1} of the index is not possible: offset {offsets[row]}, size {sizes[row]}. {_MEND}"
        )
    ends = offsets + sizes
    gaps = offsets != np.concatenate(([0], ends[:-1]))[:records]
    if gaps.any():
        row = int(gaps.argmax())
        begin = int(ends[row - 1]) if row else 0
        raise FormatError(f"Line {row + 1} of the index must begin at byte {begin}, got {offsets[row]}. {_MEND}")
    end = int(ends[-1]) if records else 0
    if end != shard_bytes and (records or not is_packed):
        raise FormatError(f"The index ends at byte {end} of a shard of {shard_bytes} bytes. {_MEND}")
    return table


def _table(data: bytes, records: int) -> NDArray[np.int64]:
    """Parses the numbers without checking their values. The text is checked before the numbers take memory."""
    lines = data.count(b"\n")
    if lines != records or data[-1:] not in (b"\n", b""):
        raise FormatError(f"The index must have {records} whole lines, got {lines} in {len(data)} bytes. {_MEND}")
    if data.translate(None, b"0123456789 \n") or data.count(b" ") != records:
        raise FormatError(f"Every line of the index must be two whole numbers with one space between. {_MEND}")
    numbers = np.fromstring(data, np.int64, sep=" ")  # five times as fast as `int`; larger ones become int64's maximum
    if (numbers == _INT64_MAX).any():
        large = (match[0].lstrip(b"0")[:20] for match in re.finditer(rb"[0-9]{19,}", data))
        if any(int(digits or b"0") > _INT64_MAX for digits in large):
            raise FormatError(f"The index holds a number beyond int64. {_MEND}")
    if numbers.size != 2 * records:
        raise FormatError(f"Every line of the index must be two whole numbers with one space between. {_MEND}")
    return numbers.reshape(records, 2)
