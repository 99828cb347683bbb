"""The threads that fill a cache together. They share one count and one log, and the first error stops them all."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from tfpipe.system.progress import Observer, Progress

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
_LOG_S = 5.0
_OBSERVE_S = 0.2

Result = TypeVar("Result")


class Stopped(Exception):
    """The end of a thread because another one failed."""


class FillCounter:
    """A count of finished images over all threads.

    It tells an observer and the log, and stops the threads together.

    Args:
        name: The name of the cache in the log.
        total: The images of the whole cache.
        observer: The object to tell. It is called from several threads, one after the other.
    """

    def __init__(self, name: str, total: int, observer: Observer) -> None:
        self._name, self._total, self._observer = name, total, observer
        self._lock = threading.Lock()
        self._done = self._kept = 0.0
        self._stopped = False
        self._begin = self._logged = self._observed = time.monotonic()

    def add(self, images: float, kept: bool = False) -> None:
        """Counts images; parts of one too, if a file is copied in chunks.

        Args:
            images: The number of images that are finished now.
            kept: Whether an earlier run finished them: they count, but not for the rate.

        Raises:
            Stopped: Another thread failed.
        """
        with self._lock:
            if self._stopped:
                raise Stopped
            self._done += images
            self._kept += images if kept else 0
            now = time.monotonic()
            if now - self._observed >= _OBSERVE_S:
                self._observed = now
                self._observer.progress(Progress(min(int(self._done), self._total), self._total))
            if now - self._logged >= _LOG_S:
                self._logged = now
                self._log(now)

    def stop(self) -> None:
        """Ends the other threads, each at its next `add`."""
        with self._lock:
            self._stopped = True

    def finish(self) -> None:
        """Tells the observer and the log that the cache is filled."""
        self._observer.progress(Progress(self._total, self._total))
        seconds = time.monotonic() - self._begin
        images = self._total - self._kept
        rate = images / max(seconds, 1e-9)
        logger.info("Filled %s: %d images in %.1f s (%.0f/s).", self._name, images, seconds, rate)

    def _log(self, now: float) -> None:
        rate = (self._done - self._kept) / (now - self._begin)
        left = f"{(self._total - self._done) / rate:.0f} s left" if rate else "no estimate yet"
        logger.info("Filling %s: %d of %d images, %.0f/s, %s.", self._name, self._done, self._total, rate, left)


def run_in_threads(tasks: Sequence[Callable[[], Result]], threads: int, counter: FillCounter) -> list[Result]:
    """Runs all tasks, at most `threads` at once; the first error stops the rest and is raised."""
    with ThreadPoolExecutor(min(threads, max(len(tasks), 1))) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            counter.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        return [future.result() for future in futures]
