"""Threads that make batches, in order, before the trainer asks for them; and a loader's passes over epochs."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

from tfpipe.engine.batch import Batch, Maker
from tfpipe.engine.position import Position
from tfpipe.errors import ConfigError

_Result = TypeVar("_Result")
_Step: TypeAlias = tuple[int, int, Any]
"""The epoch, the step in it, and the numbers of its records."""

PAUSE_S = 0.001
"""The seconds that a thread waits before it makes a batch if a finished one is ready for the trainer, which needs the
GIL to go on with that batch."""

_STEPS_ANNOUNCED = 4  # further steps whose records storage is asked for, which takes no memory of this process
_DECODING = 2  # batches that are decoded at once, each by all decoding threads
_working = threading.local()
_ending = threading.Event()
# `atexit` comes too late: thread pools are joined before it, and their threads may wait for a service's workers.
threading._register_atexit(_ending.set)  # type: ignore[attr-defined]


def make_ahead(
    maker: Maker,
    positions: Iterable[tuple[int, int]],
    threads: int,
    finish: Callable[[Batch], Any] = dict,
    waiting: int | None = None,
) -> Generator[Any]:
    """Yields the batches of some positions in order, while threads make the batches of the next steps.

    One thread pool reads records; another decodes, and calls `finish` with each batch. With 0 `threads` the caller's
    thread decodes. `waiting` is the largest number of finished batches that wait, besides those that workers of a
    service were asked for; None: the maker's `steps_ahead`.
    """
    readers = ThreadPoolExecutor(maker.steps_ahead, "tfpipe-read")
    decoders = ThreadPoolExecutor(count_decoded(threads) or 1, "tfpipe-decode")
    steps = _Steps(maker, positions)

    def make(stored: Future[Any]) -> Any:
        try:
            return finish(maker.decode(stored.result(), threads))
        finally:
            del stored  # the traceback of its error refers to this frame: a cycle that keeps files open

    # The batches that are finished or in the making, besides the one that the trainer waits for.
    count = maker.steps_ahead if waiting is None else maker.steps_asked + waiting
    started = deque[Future[Any]]()
    try:
        for index in itertools.count():
            read = readers.submit(steps.read, index, bool(started) and started[0].done())
            started.append(decoders.submit(make, read) if threads else read)
            del read  # as above
            if len(started) > count:
                try:
                    batch = started.popleft().result()
                except _NoMoreSteps:
                    return
                yield batch if threads else finish(maker.decode(batch))
    finally:  # the trainer may have left early
        # Without waiting: Python may close a forgotten generator in any thread, even in one that was just started.
        for pool in (decoders, readers):
            pool.shutdown(wait=False, cancel_futures=True)
        steps.close()


def count_decoded(threads: int) -> int:
    """Returns the number of batches that are decoded at once if there are `threads` decoding threads."""
    return min(_DECODING, threads)


def is_left() -> bool:
    """Returns whether nobody needs what this thread reads: the trainer has left its loop, or the program ends."""
    steps: _Steps | None = getattr(_working, "steps", None)
    return _ending.is_set() or (steps is not None and steps.is_closed)


class _NoMoreSteps(Exception):
    """The exception by which a reading thread says that no step is left."""


class _Steps:
    """The steps of some batches, which threads list, announce to storage, and read.

    The trainer's thread does none of this, because it would have to wait for the GIL while other threads hold it.
    """

    def __init__(self, maker: Maker, positions: Iterable[tuple[int, int]]) -> None:
        self.maker, self._positions = maker, iter(positions)
        self._lock = threading.Lock()  # guards what follows
        self._listed: dict[int, _Step] = {}
        self._num_listed = self._num_announced = 0
        self.is_closed = False

    def read(self, index: int, pauses: bool) -> Any:
        """Reads the records of the batch with this index; with `pauses` after a moment, to leave others the GIL."""
        if pauses:
            time.sleep(PAUSE_S)
        with self._lock:
            # Each step announces one step further ahead than the last, so the first batch waits for its own only.
            first, end = self._num_announced, index + 1 + min(index, _STEPS_ANNOUNCED)
            self._num_announced = max(first, end)
            asked = []
            for k in range(first, end):  # each with the further steps that use up the same blocks of records
                steps = range(k, k + self.maker.block_steps)
                while self._num_listed < steps.stop and not self.is_closed:
                    position = next(self._positions, None)
                    if position is None:
                        break
                    self._listed[self._num_listed] = (*position, self.maker.plan.list_numbers(*position))
                    self._num_listed += 1
                asked.append([self._listed[n][2] for n in steps if n in self._listed])
            step = self._listed.pop(index, None)
        if step is None:
            raise _NoMoreSteps
        for numbers in filter(None, asked):
            self.maker.announce(numbers[0], numbers)
        _working.steps = self
        return self.maker.read(*step)

    def close(self) -> None:
        """Ends the listing of steps, after which reading threads find no step left."""
        with self._lock:
            self.is_closed = True
            self._listed.clear()


def list_positions(begin: Position, steps_per_epoch: int, goes_on: bool) -> Iterator[Position]:
    """Lists the positions from `begin` to the end of its epoch, or without end if `goes_on`."""
    for step in itertools.count(begin.epoch * steps_per_epoch + begin.step):
        position = Position(*divmod(step, steps_per_epoch))
        if position.epoch > begin.epoch and not goes_on:
            return
        yield position


class Passes:
    """The passes of a loader: each pass is the next whole epoch, except the first pass after a position was set.

    That first pass begins at the position and ends with its epoch. A pass of which only one batch was taken does not
    count: the next pass begins with the same batch, so that a look at one batch changes nothing. In training the
    batches of the next epoch are made meanwhile. In evaluation each pass is a whole epoch. `start`, which begins to
    make batches at a position, must not refer to this object.
    """

    def __init__(
        self, start: Callable[[Position], Generator[Any]], steps_per_epoch: int, position: Position, goes_on: bool
    ) -> None:
        self._start, self._steps, self._goes_on = start, steps_per_epoch, goes_on
        self._batches: Generator[Any] | None = None  # the running generator, whose next batch is at `_next`
        self._position = self._next = self._begin = position
        self._taken = 0  # batches taken of the pass that began at `_begin`; 0 also after an error
        self._count = 0  # passes that have begun

    @property
    def position(self) -> Position:
        """The position of the next batch of this pass; assigning it sets where the next pass begins."""
        return self._position

    @position.setter
    def position(self, position: Position) -> None:
        self._position, self._taken = position, 0

    def __iter__(self) -> Generator[Any]:
        if not self._goes_on:
            yield from close_at_exit(self._start(Position(0, 0)))
            return
        if self._taken and self._position.step:  # the last pass was left within its epoch
            self._position = self._begin if self._taken == 1 else Position(self._position.epoch + 1, 0)
        self._begin, self._taken = self._position, 0
        self._count = count = self._count + 1
        batches, self._batches = self._batches, None  # after an error a new generator begins
        if batches is None or self._next != self.position:
            if batches is not None:
                batches.close()
            batches = close_at_exit(self._start(self.position))
        here = self._position
        first = here.epoch * self._steps + here.step
        for taken in range(1, self._steps - here.step + 1):
            if self._count != count:
                raise ConfigError(
                    "In training a pass must end before the next one begins, and a later one has begun, so this pass "
                    "cannot go on. Look at batches outside the loop, or with another reader of the same dataset."
                )
            self._batches, self._taken = None, 0
            batch = next(batches)
            # A position that was set meanwhile is kept for the next pass. Otherwise the position moves on before the
            # trainer gets the batch, so that a state that is saved during the step includes the batch.
            is_ours, here = self._position == here, Position(*divmod(first + taken, self._steps))
            self._batches, self._next = batches, here
            if is_ours:
                self._position, self._taken = here, taken
            yield batch

    def close(self) -> None:
        """Ends the threads that work ahead; the next pass starts new ones."""
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()


def close_at_exit(batches: Generator[_Result]) -> Generator[_Result]:
    """Returns the generator, which is closed at the program's end while its threads' modules still exist."""
    reference = weakref.ref(batches)

    def close() -> None:
        if (left := reference()) is not None:
            left.close()

    weakref.finalize(batches, close)
    return batches
