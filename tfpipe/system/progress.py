"""The progress of a job, and the observer that receives it.

Every long job takes one observer. Its methods do nothing until a subclass overrides them, so a job calls them
without asking whether anybody watches:

    class Lines(Observer):
        def progress(self, progress):
            print(progress.done, "of", progress.total, progress.unit)

    verify(target, config, Lines())

A job with more to report extends `Observer` with further methods, which do nothing either.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event, Thread

POLL_EVERY_S = 0.5
"""The seconds between two readings of a progress that costs next to nothing to read."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job: sums since it began.

    Attributes:
        done: The number of finished units.
        total: The number of units of the whole job; None while it is unknown.
        unit: The unit of `done` and `total`, such as "images", "bytes" or "s".
        bytes: The number of bytes that were read; 0 if the job does not count them.
        records: The number of records that were read, if `unit` is not "records".
        bad: The number of images or records that cannot be used.
        shards: The number of finished shards.
        num_shards: The number of shards of the whole job; 0 for a job without shards.
    """

    done: int
    total: int | None = None
    unit: str = "images"
    bytes: int = 0
    records: int = 0
    bad: int = 0
    shards: int = 0
    num_shards: int = 0


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

    Nothing is read for an observer that ignores progress.

    Args:
        read: The function that returns the progress, or None if it is unknown at the moment.
        observer: The observer of the progress.
        every_s: The seconds between two calls of `read`.
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
