"""Batches that are made before the trainer asks for them, by threads, in order; and a loader's passes over epochs."""

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

_Result = TypeVar("_Result")
_Step: TypeAlias = tuple[int, int, Any]
"""The epoch, the step in it, and the numbers of its records."""

PAUSE_S = 0.001
"""The seconds for which a thread waits before it makes a batch, if the trainer has one: it needs Python's lock to go on
with that."""

_STEPS_ANNOUNCED = 4  # beyond those that are made storage is asked for, which takes no memory of this process
_DECODING = 2  # batches are decoded at once; each uses all threads that decode
_working = threading.local()
_ending = threading.Event()
# `atexit` comes too late: before it, pools wait for their threads, and these perhaps for the workers of a service.
threading._register_atexit(_ending.set)  # type: ignore[attr-defined]


def make_ahead(
    maker: Maker,
    positions: Iterable[tuple[int, int]],
    threads: int,
    finish: Callable[[Batch], Any] = dict,
    waiting: int | None = None,
) -> Generator[Any]:
    """Yields the batches of several positions, in their order, and makes those of the next steps meanwhile.

    One group of threads reads records; another decodes, and calls `finish` with each batch. With 0 `threads` whoever
    takes a batch does that. `waiting` is the most finished batches that wait, without those that a worker was asked
    for; None: `steps_ahead` of the maker.
    """
    readers = ThreadPoolExecutor(maker.steps_ahead, "tfpipe-read")
    decoders = ThreadPoolExecutor(count_decoded(threads) or 1, "tfpipe-decode")
    steps = _Steps(maker, positions)

    def make(stored: Future[Any]) -> Any:
        try:
            return finish(maker.decode(stored.result(), threads))
        finally:
            del stored  # an error that it holds would hold it, and all that is open

    # The batches that are finished or in the making, beside the one that the trainer waits for.
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
        # Nobody waits: Python may close a forgotten generator in any thread, also in one that has just been started.
        for pool in (decoders, readers):
            pool.shutdown(wait=False, cancel_futures=True)
        steps.close()


def count_decoded(threads: int) -> int:
    """Returns the number of batches that are decoded at once, by up to so many threads."""
    return min(_DECODING, threads)


def is_left() -> bool:
    """Returns whether this thread reads for a trainer that has left, so that nobody waits for what it reads."""
    steps: _Steps | None = getattr(_working, "steps", None)
    return _ending.is_set() or (steps is not None and steps.is_closed)


class _NoMoreSteps(Exception):
    """The sign that all steps were read."""


class _Steps:
    """The steps of some batches. Threads read their records, and ask storage for those of later steps.

    So the trainer's thread has little to do: it would need Python's lock for it, while others hold that.
    """

    def __init__(self, maker: Maker, positions: Iterable[tuple[int, int]]) -> None:
        self.maker, self._positions = maker, iter(positions)
        self._lock = threading.Lock()  # guards what follows
        self._listed: dict[int, _Step] = {}
        self._num_listed = self._num_announced = 0
        self.is_closed = False

    def read(self, index: int, pauses: bool) -> Any:
        """Reads the records of the batch with this number, after a moment if the trainer has a batch to go on with."""
        if pauses:
            time.sleep(PAUSE_S)
        with self._lock:
            # The steps that are announced grow by one with each, so the first batch waits for its own records only.
            first, end = self._num_announced, index + 1 + min(index, _STEPS_ANNOUNCED)
            self._num_announced = max(first, end)
            asked = []
            for place in range(first, end):  # with the steps that use up a block of records with it
                steps = range(place, place + self.maker.block_steps)
                while self._num_listed < steps.stop and not self.is_closed:
                    position = next(self._positions, None)
                    if position is None:
                        break
                    self._listed[self._num_listed] = (*position, self.maker.list_numbers(*position))
                    self._num_listed += 1
                asked.append([self._listed[k][2] for k in steps if k in self._listed])
            step = self._listed.pop(index, None)
        if step is None:
            raise _NoMoreSteps
        for numbers in filter(None, asked):
            self.maker.announce(numbers[0], numbers)
        _working.steps = self
        return self.maker.read(*step)

    def close(self) -> None:
        """Lists no steps any more."""
        with self._lock:
            self.is_closed = True
            self._listed.clear()


def list_positions(begin: Position, steps_per_epoch: int, goes_on: bool) -> Iterator[Position]:
    """Lists the positions from one on to the end of its epoch, or without end."""
    for step in itertools.count(begin.epoch * steps_per_epoch + begin.step):
        position = Position(*divmod(step, steps_per_epoch))
        if position.epoch > begin.epoch and not goes_on:
            return
        yield position


class Passes:
    """The passes of a loader over its epochs: each is the next epoch, whole, but for the first after a position is set.

    That one begins there and ends with its epoch. A pass of which only one batch was taken does not count: the next one
    begins with that batch again, so that a look at a batch changes nothing. In training the batches of the next epoch
    are made meanwhile. In evaluation each pass is a whole epoch. `start`, which begins to make batches at a position,
    must not hold this object.
    """

    def __init__(
        self, start: Callable[[Position], Generator[Any]], steps_per_epoch: int, position: Position, goes_on: bool
    ) -> None:
        self._start, self._steps, self._goes_on = start, steps_per_epoch, goes_on
        self._batches: Generator[Any] | None = None  # they go on with `_next`
        self._position = self._next = self._begin = position
        self._taken = 0  # batches of the pass that began at `_begin`; 0 too after an error

    @property
    def position(self) -> Position:
        """The position of the batch that comes next in this pass; one that is set is where the next pass begins."""
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
        batches, self._batches = self._batches, None  # after an error they begin anew
        if batches is None or self._next != self.position:
            if batches is not None:
                batches.close()
            batches = close_at_exit(self._start(self.position))
        here = self._position
        first = here.epoch * self._steps + here.step
        for taken in range(1, self._steps - here.step + 1):
            self._batches, self._taken = None, 0
            batch = next(batches)
            # A position that somebody sets meanwhile counts for the next pass. Else it moves before the trainer gets
            # the batch, so that a state that is saved meanwhile includes it.
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
    """Closes batches that the program still holds at its end, while the modules of their threads are there."""
    reference = weakref.ref(batches)

    def close() -> None:
        if (left := reference()) is not None:
            left.close()

    weakref.finalize(batches, close)
    return batches
