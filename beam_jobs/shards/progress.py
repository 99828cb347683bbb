"""The progress of a job: the sum of the lines that workers write for each shard in a folder of this machine.

This works for every way to run a job on this machine: threads, process pools, Beam's own worker processes. Beam's
metrics come only at the end there. If workers and this process share no disk, finished shards are counted.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from types import TracebackType
from typing import IO

from beam_jobs.shards.work_dir import PlanHeader, PlannedShard, WorkDir
from tfpipe.errors import DataError
from tfpipe.storage import file_io
from tfpipe.system.progress import Progress

_WRITE_EVERY_S = 0.2

LIST_EVERY_S = 5.0
"""The seconds between two listings of an object store."""


class ProgressFile:
    """The line that one worker writes about one shard: images, bytes and bad images so far."""

    def __init__(self, work: WorkDir, shard: PlannedShard) -> None:
        self._path = None if work.progress is None else os.path.join(work.progress, shard.file)
        self._num_images = shard.images
        self._images = self._bytes = self._bad = 0
        self._next_write = 0.0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "ProgressFile":
        # Without this line the job goes on: if the disk is full, writing the shard itself fails, with its name.
        with contextlib.suppress(OSError):
            self._file = None if self._path is None else open(self._path, "wb", buffering=0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self._images = self._num_images  # `step` is not called for a kept shard
            self._write()
        if self._file is not None:
            self._file.close()

    def step(self, num_bytes: int, bad: int) -> None:
        """Counts one image. Writes the line five times a second at most."""
        self._images += 1
        self._bytes += num_bytes
        self._bad = bad
        now = time.monotonic()
        if now >= self._next_write:
            self._next_write = now + _WRITE_EVERY_S
            self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # in place: to open the file anew costs as much as to check an image
            os.pwrite(self._file.fileno(), b"%d %d %d\n" % (self._images, self._bytes, self._bad), 0)


def read_progress(work: WorkDir, header: PlanHeader) -> Progress:
    """Returns the progress of the whole job: the sum of the workers' lines."""
    folder = work.progress or ""
    images = num_bytes = bad = shards = 0
    planned_images = {shard.file: shard.images for shard in header.shards}
    for file in file_io.list_names(folder):
        with contextlib.suppress(OSError, ValueError):  # being written at this moment: counted the next time
            shard_images, shard_bytes, shard_bad = map(int, file_io.read_whole(os.path.join(folder, file)).split())
            images, num_bytes, bad = images + shard_images, num_bytes + shard_bytes, bad + shard_bad
            shards += shard_images == planned_images.get(file)
    num_images = sum(planned_images.values())
    return Progress(images, num_images, bytes=num_bytes, bad=bad, shards=shards, num_shards=len(planned_images))


def read_finished(work: WorkDir, header: PlanHeader) -> Progress | None:
    """Returns the progress by finished shards, without bytes and bad images; None if they cannot be listed."""
    planned_images = {shard.file: shard.images for shard in header.shards}
    try:
        images = [planned_images[file] for file in work.list_written() if file in planned_images]
    except (DataError, OSError):
        return None
    return Progress(sum(images), sum(planned_images.values()), shards=len(images), num_shards=len(planned_images))


@contextlib.contextmanager
def progress_folder(work: WorkDir) -> Iterator[str]:
    """Yields a new folder on this machine for the workers' lines, in the working folder if that is here too."""
    if file_io.is_url(work.output):
        with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
            yield folder
        return
    file_io.remove_tree(work.path("progress"))  # a killed run may have left it
    os.makedirs(work.path("progress"))
    yield work.path("progress")
