"""How far a job is, seen from outside: workers leave a line in a folder of this machine, a poller adds them up.

This works for every local way of running the graph (threads, process pools, Beam's own worker processes), where
Beam's metrics come only at the end.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from types import TracebackType

from beam_jobs.shards.work_dir import PlanHeader, PlannedShard, WorkDir
from beam_jobs.storage import filesystem
from tfpipe.system.progress import Progress

_WRITE_EVERY_S = 0.2

LIST_EVERY_S = 5.0
"""Between two listings of an object store."""


class ProgressFile:
    """One worker's line about one shard: images, bytes and bad images so far."""

    def __init__(self, work: WorkDir, slot: PlannedShard) -> None:
        self._path = None if work.progress is None else os.path.join(work.progress, slot.file)
        self._images = slot.images
        self._done = self._bytes = self._bad = 0
        self._next = 0.0

    def __enter__(self) -> "ProgressFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self._done = self._images  # a kept shard is done without a step
            self._write()

    def step(self, num_bytes: int, bad: int) -> None:
        """Counts one image; writes now and then, since a write costs as much as a small image."""
        self._done += 1
        self._bytes += num_bytes
        self._bad = bad
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _WRITE_EVERY_S
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        # Progress is a courtesy: a disk too full for this line ends the job at the shard itself, with its name.
        with contextlib.suppress(OSError), open(self._path, "wb", buffering=0) as file:
            file.write(b"%d %d %d\n" % (self._done, self._bytes, self._bad))


def read_progress(work: WorkDir, header: PlanHeader) -> Progress:
    """Adds up what the workers wrote."""
    folder = work.progress or ""
    images = num_bytes = bad = shards = 0
    planned = {slot.file: slot.images for slot in header.shards}
    for name in filesystem.names(folder):
        with contextlib.suppress(OSError, ValueError):  # being written at this moment: counted the next time
            one = [int(part) for part in filesystem.read_bytes(os.path.join(folder, name)).split()]
            done, size, rejected = one
            images, num_bytes, bad = images + done, num_bytes + size, bad + rejected
            shards += done == planned.get(name)
    return Progress(images, sum(planned.values()), bytes=num_bytes, bad=bad, shards=shards, num_shards=len(planned))


def read_finished(work: WorkDir, header: PlanHeader) -> Progress | None:
    """By finished shards alone, where workers share no disk with this process; knows no bytes and no bad images."""
    planned = {slot.file: slot.images for slot in header.shards}
    try:
        done = [planned[file] for file in work.list_written() if file in planned]
    except OSError:  # an object store that does not answer at the moment: the job goes on whether or not one can look
        return None
    return Progress(sum(done), sum(planned.values()), shards=len(done), num_shards=len(planned))


@contextlib.contextmanager
def progress_folder(work: WorkDir) -> Iterator[str]:
    """A new folder on this machine: in the working folder where that is here too, so that a crash leaves nothing."""
    if filesystem.is_remote(work.output):
        with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
            yield folder
        return
    filesystem.remove_tree(work.path("progress"))  # of a run that was killed
    os.makedirs(work.path("progress"))
    yield work.path("progress")
