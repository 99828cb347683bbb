"""The lists beside the shards, in the steps at the end of a job: pieces of lines first, then the parts of the dataset.

```
OUTPUT/.tfpipe/end/
  cuts                      `Cuts`: which piece has the lines of which shards
  lines/3                   the lines of a piece
  pieces                    the `Pieces` of each list, once they are written
```

A part of a list begins at a number of bytes (`cut_list`), so it is known once the pieces have their sizes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from beam_jobs.plan.scratch import Scratch
from beam_jobs.plan.split_and_shard import cut_parts
from beam_jobs.plan.step import Step, do_nothing
from beam_jobs.shards.line_lists import encode_quarantine, remove_parts
from beam_jobs.shards.search_steps import (
    Found,
    OpenJob,
    count_buckets,
    encode_piece,
    find_paths,
    load_rows,
    load_sizes,
    search_bucket,
)
from tfpipe.format import file_names
from tfpipe.format.digest_groups import GroupCounts
from tfpipe.format.manifest import Duplicates
from tfpipe.storage import file_io

_LISTS = (file_names.QUARANTINE, file_names.DUPLICATES)
_READ_BYTES = 4 << 20


@dataclass(frozen=True)
class Cuts:
    """The shards of each piece of the lists. A line about duplicates belongs to the shard of the first of them.

    Attributes:
        bad: The shards of each piece of the list of bad images.
        duplicates: The shards of each piece of the list of duplicates.
        counts: The counts of the duplicates.
    """

    bad: tuple[range, ...] = ()
    duplicates: tuple[range, ...] = ()
    counts: GroupCounts = field(default_factory=GroupCounts)


@dataclass(frozen=True)
class Piece:
    """A piece of a list that a task has written.

    Attributes:
        number: The number of the task.
        bytes: The size.
        last_line: The size of the last line, which says where it begins.
    """

    number: int
    bytes: int
    last_line: int


@dataclass(frozen=True)
class Pieces:
    """The pieces of a list.

    Attributes:
        name: The name of the list.
        pieces: The pieces that have lines, in their order.
        part_bytes: The bytes of the list in which the lines of a part begin.
    """

    name: str
    pieces: tuple[Piece, ...]
    part_bytes: int

    @property
    def num_parts(self) -> int:
        """The number of parts of the finished list."""
        if not self.pieces:
            return 0
        last_begin = sum(piece.bytes for piece in self.pieces) - self.pieces[-1].last_line
        return last_begin // self.part_bytes + 1


def list_end_steps() -> list[Step[OpenJob]]:
    """Returns the steps at the end of a job whose shards are written, in their order."""
    return [
        Step("Search duplicates", count_buckets, search_bucket, save_cuts),
        Step("Find paths", count_buckets, _find_paths, do_nothing),
        Step("Write lines", _count_pieces, write_piece, save_pieces),
        Step("Write lists", _count_parts, write_part, do_nothing),
    ]


def finish_lists(job: OpenJob) -> Duplicates:
    """Removes the parts that longer lists of another run left, and returns the counts of the duplicates."""
    for pieces in _load_pieces(job):
        remove_parts(job.work, pieces.name, pieces.num_parts)
    return _load_cuts(job).counts.describe(job.header.dropped)


def _load_cuts(job: OpenJob) -> Cuts:
    cuts: Cuts = job.scratch.load("cuts")
    return cuts


def _load_pieces(job: OpenJob) -> list[Pieces]:
    pieces: list[Pieces] = job.scratch.load("pieces")
    return pieces


def save_cuts(job: OpenJob, found: Found | None) -> None:
    """Saves which shards' lines each piece of the lists has. Of a complete dataset no list is written."""
    sizes, cuts = load_sizes(job), Cuts()
    if found is not None and not sizes.is_complete:
        cuts = Cuts(tuple(cut_parts(sizes.bad.tolist())), tuple(cut_parts(found.members.tolist())), found.counts)
    job.scratch.save("cuts", cuts)


def _find_paths(job: OpenJob, task: int) -> None:
    find_paths(job, task, np.array([piece.stop for piece in _load_cuts(job).duplicates], np.int64))


def _count_pieces(job: OpenJob) -> int:
    cuts = _load_cuts(job)
    return len(cuts.bad) + len(cuts.duplicates)


def write_piece(job: OpenJob, number: int) -> tuple[Piece, ...]:
    """Writes a piece of a list, first those of the bad images and then those of the duplicates."""
    cuts = _load_cuts(job)
    if number < len(cuts.bad):
        rows = load_rows(job)
        lines = encode_quarantine(job.work, (rows[shard] for shard in cuts.bad[number]))
    else:
        lines = encode_piece(job, number - len(cuts.bad), len(cuts.duplicates))
    num_bytes = last_line = 0
    with job.scratch.create(_name_piece(number)) as out:
        for line in lines:
            out.write(line)
            num_bytes, last_line = num_bytes + len(line), len(line)
    return (Piece(number, num_bytes, last_line),) if num_bytes else ()


def save_pieces(job: OpenJob, pieces: tuple[Piece, ...] | None) -> None:
    """Saves which pieces each list has."""
    num_bad = len(_load_cuts(job).bad)
    ordered = sorted(pieces or (), key=lambda piece: piece.number)
    bad = tuple(piece for piece in ordered if piece.number < num_bad)
    lists = zip(_LISTS, (bad, tuple(ordered[len(bad) :])), strict=True)
    job.scratch.save("pieces", [Pieces(name, of_list, file_names.LIST_PART_BYTES) for name, of_list in lists])


def _count_parts(job: OpenJob) -> int:
    return sum(pieces.num_parts for pieces in _load_pieces(job))


def write_part(job: OpenJob, number: int) -> None:
    """Writes a part of a list, first those of the bad images and then those of the duplicates."""
    bad, duplicates = _load_pieces(job)
    pieces, part = (bad, number) if number < bad.num_parts else (duplicates, number - bad.num_parts)
    name = file_names.list_part_name(pieces.name, part)
    with file_io.create(job.work.target(name), job.work.temporary(name), makes_folders=True) as out:
        for data in _read_part(job, pieces, part * pieces.part_bytes):
            out.write(data)


def _read_part(job: OpenJob, pieces: Pieces, begin: int) -> Iterator[bytes]:
    """Yields the lines of the part of a list that begins at or after a place."""
    after = begin + pieces.part_bytes
    starts = accumulate((piece.bytes for piece in pieces.pieces), initial=0)
    for piece, (start, stop) in zip(pieces.pieces, pairwise(starts), strict=True):
        if start >= after or stop <= begin:
            continue
        name = _name_piece(piece.number)
        first, last = (_find_line(job.scratch, name, max(0, at - start), piece.bytes) for at in (begin, after))
        for at in range(first, last, _READ_BYTES):
            yield job.scratch.read(name, at, min(_READ_BYTES, last - at))


def _find_line(scratch: Scratch, name: str, at: int, size: int) -> int:
    """Returns where the first line at or after a place begins in a file of whole lines; its size if there is none."""
    if at == 0:
        return 0
    for begin in range(at - 1, size, _READ_BYTES):
        found = scratch.read(name, begin, min(_READ_BYTES, size - begin)).find(b"\n")
        if found >= 0:
            return begin + found + 1
    return size


def _name_piece(number: int) -> str:
    return f"lines/{number}"
