"""The progress of a job, and the observer that receives it.

A job calls the observer's methods without asking whether anybody watches: they do nothing until they are overridden.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event, Thread

POLL_EVERY_S = 0.5
"""The seconds between two reports of progress, by default; reading a progress costs next to nothing."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job: sums since it began."""

    done: int
    total: int | None = None  # None while it is unknown
    unit: str = "images"  # of `done` and `total`, such as "images", "bytes" or "s"
    bytes: int = 0  # that were read; 0 if the job does not count them
    records: int = 0  # that were read, if `unit` is not records
    bad: int = 0  # images or records that cannot be used
    shards: int = 0  # that are finished
    num_shards: int = 0  # 0 for a job without shards


class Observer:
    """An observer of a job. This one ignores every call; a subclass overrides the methods that it needs."""

    def phase(self, text: str) -> None:
        """Receives the work that the job now begins, such as "Trying cache = 'bytes'"."""

    def progress(self, progress: Progress) -> None:
        """Receives the progress of the job. It may be called from another thread, about twice a second."""

    def note(self, text: str) -> None:
        """Receives a sentence that the user should keep."""


@contextlib.contextmanager
def poll_progress(
    read: Callable[[], Progress | None], observer: Observer, every_s: float = POLL_EVERY_S
) -> Iterator[None]:
    """Reports the block's progress to an observer from a thread, and once more at the block's end.

    `read` returns None while the progress is unknown, and is not called for an observer that ignores progress.
    """
    if type(observer).progress is Observer.progress:
        yield
        return
    stop = Event()

    def look() -> None:
        progress = read()
        if progress is not None:
            observer.progress(progress)

    def poll() -> None:
        while not stop.wait(every_s):
            look()

    thread = Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        look()
