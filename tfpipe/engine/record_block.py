"""Many records in one block of memory; those that lie near each other are read together.

A damaged one is None: whoever reads it on its own is told what is wrong.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.format.tfrecord import FOOTER_BYTES, HEADER_BYTES

_MAX_GAP_BYTES = 1 << 14  # to copy them out of the page cache takes as long as some reads, a disk less than one read
_IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class RecordBlock:
    """The bytes of some records."""

    data: memoryview  # with framing and with what lay between the records
    begins: _IntArray  # of each payload in `data`, int64 [records]
    ends: _IntArray  # int64 [records]
    whole: NDArray[np.bool_]  # whether length and checksums of each record hold, bool [records]

    def choose(self, rows: _IntArray) -> "RecordBlock":
        """Returns a block of some of the records, in any order, which shares their memory."""
        return RecordBlock(self.data, self.begins[rows], self.ends[rows], self.whole[rows])

    def list_payloads(self) -> list[bytes | None]:
        """Lists the bytes of each record, with None for a damaged one."""
        data, whole = self.data, self.whole.tolist()
        places = zip(self.begins.tolist(), self.ends.tolist(), whole, strict=True)
        return [data[begin:end].tobytes() if good else None for begin, end, good in places]


ReadBlock: TypeAlias = Callable[[_IntArray, NDArray[np.uint8] | None], RecordBlock]
"""A function that reads records into memory, or into new memory."""


class Spans(NamedTuple):
    """The parts of files that are read into one block, so that records near each other are read together."""

    table: _IntArray  # file, offset, size and place in the block of each: int64 [spans, 4]
    ats: _IntArray  # the place of each record in the block, int64 [records]
    num_bytes: int


def plan_spans(files: _IntArray, begins: _IntArray, sizes: _IntArray, room: _IntArray | None = None) -> Spans:
    """Chooses which parts of files are read for some records: at most twice the bytes of the records.

    In a file `begins` ascend, and no records overlap; `sizes` include framing. With `room`, the bytes to leave free
    behind each record, every record is read on its own.
    """
    if room is not None:
        ats = np.cumsum(sizes + room) - sizes - room
        return Spans(np.stack((files, begins, sizes, ats), axis=1), ats, int((sizes + room).sum()))
    if not len(files):
        return Spans(np.empty((0, 4), np.int64), np.empty(0, np.int64), 0)
    gaps = begins[1:] - begins[:-1] - sizes[:-1]
    # Half of each neighbor is the most that may lie between two, so the gaps together are not more than the records.
    joins = (files[1:] == files[:-1]) & (gaps <= np.minimum((sizes[1:] + sizes[:-1]) // 2, _MAX_GAP_BYTES))
    firsts = np.flatnonzero(np.concatenate(([True], ~joins)))
    lasts = np.append(firsts[1:], len(begins)) - 1
    offsets = begins[firsts]
    span_sizes = begins[lasts] + sizes[lasts] - offsets
    table = np.stack((files[firsts], offsets, span_sizes, np.cumsum(span_sizes) - span_sizes), axis=1)
    return Spans(table, begins + np.repeat(table[:, 3] - offsets, lasts - firsts + 1), int(span_sizes.sum()))


def frame_block(memory: NDArray[np.uint8], ats: _IntArray, sizes: _IntArray, whole: NDArray[np.bool_]) -> RecordBlock:
    """Makes a block of records that were read into memory with their framing."""
    return RecordBlock(memory.data, ats + HEADER_BYTES, ats + sizes - FOOTER_BYTES, whole)


def append_payloads(block: RecordBlock, memory: NDArray[np.uint8], added: RecordBlock) -> RecordBlock:
    """Copies the payloads of a block into the room behind those of another: two Examples joined are one."""
    data, places = memory.data, zip(block.ends.tolist(), added.begins.tolist(), added.ends.tolist(), strict=True)
    for at, begin, end in places:
        data[at : at + end - begin] = added.data[begin:end]
    return RecordBlock(block.data, block.begins, block.ends + added.ends - added.begins, block.whole & added.whole)


def join_payloads(payloads: Sequence[bytes | None]) -> bytes | None:
    """Joins the payloads of a record and its columns; returns None if one of them is not whole."""
    return None if None in payloads else b"".join(payloads)  # type: ignore[arg-type]


def take_memory(num_bytes: int, memory: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """Returns so much of the memory, or new memory if there is not enough."""
    return np.empty(num_bytes, np.uint8) if memory is None or len(memory) < num_bytes else memory[:num_bytes]


def join_block(payloads: Sequence[bytes | None], memory: NDArray[np.uint8] | None = None) -> RecordBlock:
    """Makes a block of payloads that are in memory already, None for one that is not whole, in `memory` if they fit."""
    sizes = np.array([len(payload or b"") for payload in payloads], np.int64)
    ends = np.cumsum(sizes)
    num_bytes = int(ends[-1]) if len(ends) else 0
    memory = take_memory(num_bytes, memory)
    for payload, begin, end in zip(payloads, (ends - sizes).tolist(), ends.tolist(), strict=True):
        if payload:
            memory[begin:end] = np.frombuffer(payload, np.uint8)
    return RecordBlock(
        memory.data, ends - sizes, ends, np.array([payload is not None for payload in payloads], np.bool_)
    )


def read_missing(
    found: RecordBlock, there: NDArray[np.bool_], numbers: _IntArray, memory: NDArray[np.uint8] | None, read: ReadBlock
) -> tuple[RecordBlock, RecordBlock]:
    """Reads the records of a batch that were not found, into `memory` behind those that were.

    `there` says of each of the `numbers` whether it is one of `found`. Returns the block of all, and that of what was
    read. Nothing is copied unless memory is short: a second copy takes longer than to read.
    """
    begin, missing = len(found.data), numbers[~there]
    room = None if memory is None else memory[begin:]
    added = read(missing, room)
    if room is not None and memory is not None and np.may_share_memory(np.asarray(added.data), room):
        begins = np.concatenate((found.begins, added.begins + begin))
        ends = np.concatenate((found.ends, added.ends + begin))
        block = RecordBlock(memory.data, begins, ends, np.concatenate((found.whole, added.whole)))
    else:
        block = join_block([*found.list_payloads(), *added.list_payloads()]) if there.any() else added
    rows = np.argsort(~there, kind="stable")  # the row in the batch of each record in the block
    return block.choose(np.argsort(rows)), added
