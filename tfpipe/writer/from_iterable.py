"""Writes the records of an iterable, which this process runs; threads compute the checksums and write."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tfpipe.errors import DataError
from tfpipe.format.example import encode_example
from tfpipe.format.file_names import shard_name
from tfpipe.format.tfrecord import record_footer
from tfpipe.writer.job import FLUSH_S, ShardFile, WriteJob, check_new, name_records, naming
from tfpipe.writer.written_shard import WrittenShard

_BATCH_BYTES, _BATCH_RECORDS = 1 << 20, 256  # what a thread writes at once: a task costs about 40 us
_BATCHES_AHEAD = 2  # of each thread
_ANEW = "remove the folder whose name ends with .tfpipe-write to begin anew."


def write_from_iterable(job: WriteJob, split: str, num_shards: int, records: Iterable[Any]) -> list[WrittenShard]:
    """Writes all records of a split; passes over those that an earlier run wrote."""
    names = [shard_name(split, number, num_shards) for number in range(num_shards)]
    with contextlib.ExitStack() as stack:
        files = []
        for name in names:
            files.append(ShardFile(job.folder.shard_path(name), job))
            stack.callback(files[-1].close)
        pens = stack.enter_context(_Pens(files, job.workers))
        chooser = _ByPlace(split, files) if job.key is None else _ByKey(split, files, job.key)
        for place, record in name_records(repr(split), lambda: records):
            with naming(place):
                checked = job.form.check(record)
                number = chooser.choose(checked)
                if number is not None:
                    pens.write(number, files[number].add(checked))
        pens.finish()
        chooser.check_end()
        return [file.finish(name) for name, file in zip(names, files, strict=True)]


class _ByPlace:
    """A choice of shards by the place of a record: the i-th goes to shard i modulo their number."""

    def __init__(self, split: str, files: list[ShardFile]) -> None:
        self._split, self._files, self._count = split, files, 0

    def choose(self, checked: Any) -> int | None:
        """Returns the shard of the next record; None if an earlier run wrote it."""
        row, number = divmod(self._count, len(self._files))
        self._count += 1
        footers = self._files[number].footers
        if row >= len(footers):
            return number
        if footers[row] != record_footer(encode_example(checked)):
            raise DataError(
                f"Record {self._count - 1} of {self._split!r} must be the one that an earlier run wrote there, and it "
                f"differs. Give records a `key`, or {_ANEW}"
            )
        return None

    def check_end(self) -> None:
        """Refuses an iterable that ended before the records of the earlier run did."""
        before = sum(len(file.footers) for file in self._files)
        if self._count < before:
            raise DataError(
                f"The records of {self._split!r} must be at least the {before:,} that an earlier run wrote, got "
                f"{self._count:,}. {_ANEW.capitalize()}"
            )


class _ByKey:
    """A choice of shards by the key of a record: what is not there yet goes to the shard with the fewest records."""

    def __init__(self, split: str, files: list[ShardFile], key: str) -> None:
        self._key, self._split = key, split
        self._before = {digest for file in files for digest in file.keys}
        self._seen: set[bytes] = set()
        self._counts = [len(file) for file in files]

    def choose(self, checked: Any) -> int | None:
        """Returns the shard of the next record; None if an earlier run wrote it."""
        digest = check_new(self._seen, checked[self._key], self._key)
        if digest in self._before:
            return None
        number = self._counts.index(min(self._counts))
        self._counts[number] += 1
        return number

    def check_end(self) -> None:
        """Refuses an iterable that lacks records of the earlier run."""
        missing = len(self._before - self._seen)
        if missing:
            raise DataError(
                f"The records of {self._split!r} must have all that an earlier run wrote, and lack {missing:,}. "
                f"{_ANEW.capitalize()}"
            )


class _Pens:
    """The threads that write. Each has files of its own, so that records keep their order."""

    def __init__(self, files: list[ShardFile], workers: int) -> None:
        self._files = files
        self._threads = [ThreadPoolExecutor(1) for _ in range(min(workers, len(files)))]
        self._waiting: list[list[bytes]] = [[] for _ in files]
        self._bytes = [0] * len(files)
        self._started_at = [time.monotonic()] * len(files)
        self._started: deque[Future[None]] = deque()

    def __enter__(self) -> _Pens:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)

    def write(self, number: int, payload: bytes) -> None:
        """Writes a record to the file of this number, soon or when more have come."""
        if not self._threads:
            self._files[number].write([payload])
            return
        self._waiting[number].append(payload)
        self._bytes[number] += len(payload)
        is_full = self._bytes[number] >= _BATCH_BYTES or len(self._waiting[number]) >= _BATCH_RECORDS
        if is_full or time.monotonic() - self._started_at[number] >= FLUSH_S:
            self._start(number)

    def finish(self) -> None:
        """Writes what waits, and returns when all is written."""
        for number, payloads in enumerate(self._waiting):
            if payloads:
                self._start(number)
        while self._started:
            self._started.popleft().result()

    def _start(self, number: int) -> None:
        payloads, self._waiting[number], self._bytes[number] = self._waiting[number], [], 0
        self._started_at[number] = time.monotonic()
        thread = self._threads[number % len(self._threads)]
        self._started.append(thread.submit(self._files[number].write, payloads))
        while len(self._started) > _BATCHES_AHEAD * len(self._threads):
            self._started.popleft().result()
