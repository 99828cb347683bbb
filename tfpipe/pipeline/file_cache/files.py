"""How the files of a cache come about: whole or not at all, several at once, with a word now and then."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from tfpipe.errors import DataError

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk, or this user's share of it
_LOG_S = 5.0
_CALL_S = 0.2

Result = TypeVar("Result")


class Stopped(Exception):
    """Another thread failed; this one gives up."""


class Progress:
    """Counts finished images for all threads, tells the caller and the log, and stops the threads together."""

    def __init__(self, what: str, total: int, callback: Callable[[int, int], None] | None) -> None:
        self._what, self._total, self._callback = what, total, callback
        self._lock = threading.Lock()
        self._done = self._kept = 0.0
        self._stopped = False
        self._begin = self._logged = self._called = time.monotonic()

    def add(self, images: float, kept: bool = False) -> None:
        """Counts images; parts of one too, where a file is copied in chunks.

        Args:
            images: How many more are finished.
            kept: They were finished before: they count, but not for the rate.

        Raises:
            Stopped: Another thread failed.
        """
        with self._lock:
            if self._stopped:
                raise Stopped
            self._done += images
            self._kept += images if kept else 0
            now = time.monotonic()
            if now - self._called >= _CALL_S:
                self._called = now
                self._call(min(int(self._done), self._total))
            if now - self._logged >= _LOG_S:
                self._logged = now
                self._log(now)

    def stop(self) -> None:
        """Ends the other threads, each at its next `add`."""
        with self._lock:
            self._stopped = True

    def finish(self) -> None:
        """All is done."""
        self._call(self._total)
        took = time.monotonic() - self._begin
        made = self._total - self._kept
        logger.info("Filled %s: %d images in %.1f s (%.0f/s).", self._what, made, took, made / max(took, 1e-9))

    def _call(self, done: int) -> None:
        if self._callback is not None:
            self._callback(done, self._total)

    def _log(self, now: float) -> None:
        rate = (self._done - self._kept) / (now - self._begin)
        left = f"{(self._total - self._done) / rate:.0f} s left" if rate else "no estimate yet"
        logger.info("Filling %s: %d of %d images, %.0f/s, %s.", self._what, self._done, self._total, rate, left)


def in_threads(work: Sequence[Callable[[], Result]], threads: int, progress: Progress) -> list[Result]:
    """Runs all of `work`, some at once; the first error stops the rest and is raised."""
    with ThreadPoolExecutor(min(threads, max(len(work), 1))) as pool:
        futures = [pool.submit(one) for one in work]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            progress.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def sync_folder(path: str) -> None:
    """Puts a folder's names on disk, after those of its files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_size(path: str) -> int:
    """Bytes of a file, or -1 where there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def sha256_of(path: str) -> str:
    """The SHA-256 of a file, as lower-case hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def explain_os_errors(folder: str) -> Iterator[None]:
    """Turns a full disk, a missing permission and the like into a `DataError` of one sentence or two."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "Give another `cache_dir`."
        if error.errno in _FULL:
            advice = "Free some space and run again: finished shards are kept. Or remove the folder."
        raise DataError(f"The cache in {folder} cannot be written: {reason}. {advice}") from error
