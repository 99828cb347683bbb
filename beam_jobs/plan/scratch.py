"""The files that the tasks of a plan exchange: in a folder that every worker reaches, or in this process alone.

```
OUTPUT/.tfpipe/planning/
  input, pieces                  what is listed
  listed, counted, cut           what all tasks of the next steps need
  runs/00003-0000                listed images of one piece, sorted by their hashes, in slices by hash
  digests/, copies/, dropped/    the search for images with equal bytes
  plan/00000.jsonl               the lines of the plan
```

An element of the Beam graph is the number of a task. So no image and no path passes through Beam's own shuffle, which
keeps all elements in the launcher's memory on a local runner.
"""

import contextlib
import io
import os
import pickle
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from beam_jobs.plan.image_table import ImageTable, ImageTableBuilder
from beam_jobs.plan.large_column import explain_temporary_errors
from tfpipe.errors import DataError
from tfpipe.storage import file_io

HASH_BITS = 64
_MAX_SLICE_BITS = 12
_READS_AT_ONCE, _RUNS_AT_ONCE = 16, 256
_BUFFER_BYTES = 1 << 20
_SLICE_IMAGES = 128  # fewer would spend more bytes on the form of a slice than on its images


class Run(NamedTuple):
    """The listed images of one piece of the input, or of a part of it, sorted by their hashes.

    Attributes:
        piece: The number of the piece.
        number: The number of the run in the piece.
        slice_bits: The number of leading bits of a hash that choose the slice.
        num_images: The number of images.
    """

    piece: int
    number: int
    slice_bits: int
    num_images: int

    @property
    def name(self) -> str:
        """The name of the run's files."""
        return f"{self.piece:06d}-{self.number:04d}"


class RunPart(NamedTuple):
    """Some images of a run.

    Attributes:
        images: The images, in the order of their hashes.
        hashes: Their hashes.
        first: The position of the first of them in the run.
    """

    images: ImageTable
    hashes: NDArray[np.uint64]
    first: int


@dataclass(frozen=True)
class Scratch:
    """The files in a folder that every worker reaches.

    Attributes:
        base: The path or URL of the folder. It lies in the output, which is locked as long as the folder is there.
    """

    base: str

    def create(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Opens a new file for a block that writes it."""
        return file_io.create(file_io.join(self.base, name), makes_folders=True)

    def read(self, name: str, begin: int, size: int) -> bytes:
        """Returns `size` bytes of a file from `begin`; fewer only at its end."""
        return file_io.read_range(file_io.join(self.base, name), begin, size)

    def hand_over(self, name: str, path: str) -> None:
        """Makes a file the one at `path`. It can be read here no more."""
        file_io.rename(file_io.join(self.base, name), path)

    def save(self, name: str, value: Any) -> None:
        """Saves what later tasks need."""
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        file_io.write_file(file_io.join(self.base, name), data, makes_folders=True)

    def load(self, name: str) -> Any:
        """Returns what `save` saved.

        Raises:
            DataError: This process does not see the folder.
        """
        path = file_io.join(self.base, name)
        try:
            return pickle.loads(file_io.read_whole(path))
        except FileNotFoundError as error:
            raise DataError(
                f"A worker does not find {path}. All workers must reach images and output by the same names: on a disk "
                "they share, or in a bucket."
            ) from error

    def clear(self) -> None:
        """Removes all files."""
        file_io.remove_tree(self.base)

    def write_run(self, piece: int, number: int, images: ImageTable, hashes: NDArray[np.uint64]) -> Run:
        """Writes listed images. Those of one hash keep their order."""
        order = np.argsort(hashes, kind="stable")
        images, hashes = images.take(order), hashes[order]
        bits = min(_MAX_SLICE_BITS, max(0, (len(images) // _SLICE_IMAGES).bit_length() - 1))
        starts = np.searchsorted(get_leading_bits(hashes, bits), np.arange((1 << bits) + 1))
        slices = [
            hashes[first:end].tobytes() + (images.take(np.arange(first, end)).dump() if end > first else b"")
            for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        ]
        run = Run(piece, number, bits, len(images))
        ends = np.cumsum([0, *map(len, slices)])
        table = np.stack([starts, ends], axis=1).astype("<i8").tobytes()
        with self.create(f"runs/{run.name}") as out:
            out.write(table)
            out.writelines(slices)
        return run

    def read_run(self, run: Run, begin: int = 0, end: int = 1 << HASH_BITS) -> RunPart:
        """Reads the images of a run whose hashes lie in a range, and a few around them.

        Args:
            run: The run.
            begin: The first hash of the range.
            end: The hash after the last.
        """
        name, shift = f"runs/{run.name}", HASH_BITS - run.slice_bits
        first_slice, last_slice = begin >> shift, (end - 1) >> shift
        table = self.read(name, 16 * first_slice, 16 * (last_slice - first_slice + 2))
        rows = np.frombuffer(table, "<i8").reshape(-1, 2).tolist()
        offset, size = rows[0][1], rows[-1][1] - rows[0][1]
        data = self.read(name, 16 * ((1 << run.slice_bits) + 1) + offset, size) if size else b""
        builder, hashes = ImageTableBuilder(), []
        for (first, at), (after, slice_end) in pairwise(rows):
            if after > first:
                part = memoryview(data)[at - offset : slice_end - offset]
                hashes.append(np.frombuffer(part[: 8 * (after - first)], np.uint64))
                builder.extend(ImageTable.load(part[8 * (after - first) :]))
        return RunPart(builder.finish(), np.concatenate([np.zeros(0, np.uint64), *hashes]), rows[0][0])

    def read_runs(self, runs: Sequence[Run], begin: int, end: int) -> Iterator[RunPart]:
        """Yields the images of each run whose hashes lie in a range, and a few around them.

        The arguments are those of `read_run`. From a store several runs are read at once: a request takes much longer
        than what it brings.
        """
        if not file_io.is_url(self.base):
            yield from (self.read_run(run, begin, end) for run in runs)
            return
        with ThreadPoolExecutor(_READS_AT_ONCE) as threads:
            for first in range(0, len(runs), _RUNS_AT_ONCE):
                some_runs = runs[first : first + _RUNS_AT_ONCE]
                yield from threads.map(lambda run: self.read_run(run, begin, end), some_runs)

    def write_buckets(self, name: str, buckets: Sequence[Any]) -> None:
        """Writes values that different tasks will read, each its own."""
        parts = [pickle.dumps(bucket, pickle.HIGHEST_PROTOCOL) for bucket in buckets]
        with self.create(name) as out:
            out.write(np.cumsum([0, *map(len, parts)]).astype("<i8").tobytes())
            out.writelines(parts)

    def read_bucket(self, name: str, number: int, num_buckets: int) -> Any:
        """Returns one value that `write_buckets` wrote."""
        begin, end = np.frombuffer(self.read(name, 8 * number, 16), "<i8").tolist()
        return pickle.loads(self.read(name, 8 * (num_buckets + 1) + begin, end - begin))


class LocalScratch(Scratch):
    """The files of a process whose tasks nobody else does: all in one temporary file, which goes with the process."""

    def __init__(self) -> None:
        super().__init__("")
        self._values: dict[str, Any] = {}
        self._places: dict[str, tuple[int, int]] = {}
        with explain_temporary_errors(), tempfile.TemporaryFile() as file:
            self._file = os.dup(file.fileno())
        self._close = weakref.finalize(self, os.close, self._file)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a new file for a block that writes it. No other may be open."""
        with explain_temporary_errors(), os.fdopen(os.dup(self._file), "wb", _BUFFER_BYTES) as out:
            begin = out.seek(0, io.SEEK_END)
            yield out
            self._places[name] = begin, out.tell()

    def read(self, name: str, begin: int, size: int) -> bytes:
        """Returns `size` bytes of a file from `begin`; fewer only at its end."""
        start, end = self._places[name]
        return os.pread(self._file, min(size, end - start - begin), start + begin)

    def hand_over(self, name: str, path: str) -> None:
        """Copies a file to `path`."""
        begin, end = self._places[name]
        with file_io.create(path, makes_folders=True) as out:
            for at in range(begin, end, _BUFFER_BYTES):
                out.write(os.pread(self._file, min(_BUFFER_BYTES, end - at), at))

    def save(self, name: str, value: Any) -> None:
        """Keeps what later tasks need."""
        self._values[name] = value

    def load(self, name: str) -> Any:
        """Returns what `save` kept."""
        return self._values[name]

    def clear(self) -> None:
        """Closes the temporary file, which removes it."""
        self._values, self._places = {}, {}
        self._close()


def get_leading_bits(hashes: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    """Returns the number that the leading bits of each hash make."""
    if not bits:
        return np.zeros(len(hashes), np.int64)
    leading: NDArray[np.int64] = (hashes >> np.uint64(HASH_BITS - bits)).astype(np.int64)
    return leading
