"""The index of a shard: where each record begins and how long it is, as text.

One line a record, `offset size`, both in bytes and with the record's framing. NVIDIA DALI and the `tfrecord`
package for PyTorch take this form as it is.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import FormatError
from tfpipe.format.tfrecord import FRAME_BYTES

MAX_LINE_BYTES = 40
"""Two numbers of int64, a space and a line break."""

MAX_RECORDS = 2**22
"""Of one shard, for an index to be read: 150 MB for a moment, 64 MB as numbers."""

_PIECE_BYTES = 1 << 20  # of text, parsed at once
_INT64_MAX = 2**63 - 1
_MEND = "Run the same `tfpipe shard` or `tfpipe index` command again to write it anew."


def encode_index(sizes: Sequence[int]) -> bytes:
    """The index of a shard whose records take `sizes` bytes each, framing included, in the file's order."""
    offsets = accumulate(sizes, initial=0)
    return "".join([f"{offset} {size}\n" for offset, size in zip(offsets, sizes, strict=False)]).encode()


def max_index_bytes(shard_bytes: int, records: int) -> int:
    """The largest that the index of such a shard can be: a larger file need not be read.

    Raises:
      FormatError: The shard has more records than an index is read for.
    """
    if records > MAX_RECORDS:
        raise FormatError(
            f"A shard must have at most {MAX_RECORDS:,} records for its index to be read, got {records:,}. Write them "
            "into more shards."
        )
    return records * min(2 * len(str(shard_bytes)) + 2, MAX_LINE_BYTES)


def decode_index(data: bytes, shard_bytes: int, records: int) -> NDArray[np.int64]:
    """Reads an index and checks it against what the manifest says of the shard.

    Args:
      data: The index.
      shard_bytes: Size of the shard.
      records: Number of its records.

    Returns:
      int64 of shape [records, 2]: offset and size of every record, in bytes. Each record begins where the one
      before ends, the first at 0, and the last ends at `shard_bytes`.

    Raises:
      FormatError: The index is not of this form, or belongs to another file.
    """
    table = _table(data, records)
    offsets, sizes = table[:, 0], table[:, 1]
    # Bounds first: then no sum below can leave int64.
    bad = (sizes < FRAME_BYTES) | (sizes > shard_bytes) | (offsets < 0) | (offsets > shard_bytes)
    if bad.any():
        row = int(bad.argmax())
        raise FormatError(f"Line {row + 1} of the index cannot be: offset {offsets[row]}, size {sizes[row]}. {_MEND}")
    ends = offsets + sizes
    gaps = offsets != np.concatenate(([0], ends[:-1]))[:records]
    if gaps.any():
        row = int(gaps.argmax())
        begin = int(ends[row - 1]) if row else 0
        raise FormatError(f"Line {row + 1} of the index must begin at byte {begin}, got {offsets[row]}. {_MEND}")
    end = int(ends[-1]) if records else 0
    if end != shard_bytes:
        raise FormatError(f"The index ends at byte {end} of a shard of {shard_bytes} bytes. {_MEND}")
    return table


def _table(data: bytes, records: int) -> NDArray[np.int64]:
    """The numbers, unchecked; every test comes before what it bounds."""
    lines = data.count(b"\n")
    if lines != records or data[-1:] not in (b"\n", b""):
        raise FormatError(f"The index must have {records} whole lines, got {lines} in {len(data)} bytes. {_MEND}")
    table, begin, row = np.empty((records, 2), np.int64), 0, 0
    while begin < len(data):
        # Whole lines; a line that is longer than a piece is one for itself.
        end = data.rfind(b"\n", begin, begin + _PIECE_BYTES) + 1 or data.find(b"\n", begin) + 1
        numbers = _numbers(data[begin:end])
        table[row : row + len(numbers)] = numbers
        begin, row = end, row + len(numbers)
    return table


def _numbers(lines: bytes) -> NDArray[np.int64]:
    """Whole lines of the table, unchecked."""
    count = lines.count(b"\n")
    if lines.translate(None, b"0123456789 \n") or lines.count(b" ") != count:
        raise FormatError(f"Every line of the index must be two whole numbers with one space between. {_MEND}")
    numbers = np.fromstring(lines, np.int64, sep=" ")  # five times as fast as `int`, and stops at the largest
    if (numbers == _INT64_MAX).any():
        try:
            numbers = np.array(list(map(int, lines.split())), np.int64)
        except (ValueError, OverflowError):
            raise FormatError(f"The index holds a number beyond int64. {_MEND}") from None
    if numbers.size != 2 * count:
        raise FormatError(f"Every line of the index must be two whole numbers with one space between. {_MEND}")
    return numbers.reshape(count, 2)
