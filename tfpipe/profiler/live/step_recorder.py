"""The book of a training's steps: when each began and ended, what it waited, and what follows for all together.

Pure: times come in as numbers. `tfpipe.profiler.live.idle_monitor` reads the clocks.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

IdleFrom = Literal["wait", "probes"]


class Delivered(Protocol):
    """An element that a watched dataset gave; see `tfpipe.profiler.live.graph_clock.Delivery`."""

    @property
    def index(self) -> int:
        """In its iterator."""

    @property
    def asked(self) -> float:
        """When somebody asked for it."""

    @property
    def got(self) -> float:
        """When it was there."""

    @property
    def images(self) -> int:
        """In it."""


@dataclass
class Step:
    """One call of a train function, of one step or several."""

    begin: float
    asks: float
    """It cannot have asked for its batch before."""
    steps: int = 1
    end: float | None = None
    wait_s: float | None = None
    """Unknown until its deliveries have been found."""
    images: int = 0
    compute_from: float | None = None
    """Its compute was timed, on a device that had nothing else to do: from then on, less what it waited after that."""
    compute_until: float | None = None
    compute_s: float | None = None
    counts: bool = True
    """False where nobody saw when it ended."""
    since: float | None = None
    """Of the first step after a pause: when training went on; an iterator may have begun since."""

    def receive(self, deliveries: Sequence[Delivered]) -> None:
        """Works out the wait from the clock inside the graph.

        Where a thread stands between clock and trainer (every strategy with more than one device has one), that thread
        asks early: the trainer waits only from the moment in which it asks itself.
        """
        self.wait_s = sum(max(0.0, one.got - max(one.asked, self.asks)) for one in deliveries)
        self.images = sum(one.images for one in deliveries)
        if self.compute_from is not None and self.compute_until is not None:
            begin = self.compute_from
            waited = sum(max(0.0, one.got - max(one.asked, self.asks, begin)) for one in deliveries)
            self.compute_s = max(0.0, self.compute_until - begin - waited)


@dataclass
class Sums:
    """Steps added up."""

    steps: int = 0
    images: int = 0
    wall_s: float = 0.0
    wait_s: float = 0.0

    def add(self, step: Step) -> None:
        """Adds a step that has ended and whose wait is known."""
        assert step.end is not None
        assert step.wait_s is not None
        self.steps += step.steps
        self.images += step.images
        self.wall_s += step.end - step.begin
        self.wait_s += step.wait_s

    @property
    def input_wait_fraction(self) -> float:
        """Share of the time in which the trainer stood still for a batch."""
        return min(1.0, self.wait_s / self.wall_s) if self.wall_s > 0 else 0.0

    @property
    def images_per_second(self) -> float:
        """Taken by the trainer."""
        return self.images / self.wall_s if self.wall_s > 0 else 0.0

    def idle_fraction(self, compute_s: float | None) -> float:
        """Share of the time in which the device had no batch: what its compute leaves, but never more than the wait.

        Args:
            compute_s: Of one step; None where the device works on a step while its call lasts, and is idle while
                the trainer waits.
        """
        wait = self.input_wait_fraction
        if compute_s is None or self.wall_s <= 0:
            return wait
        return max(0.0, min(wait, 1.0 - self.steps * compute_s / self.wall_s))


@dataclass
class Ledger:
    """Steps in the order in which they were made, and the deliveries of the clock that belong to them."""

    replicas: int = 1
    """Elements that a step takes if each replica takes its own; a global batch is one element."""
    waiting: deque[Step] = field(default_factory=lambda: deque(maxlen=4096))
    compute_s: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    _iterators: list[dict[int, Delivered]] = field(default_factory=list)
    _next: int = 0
    _per_step: int | None = None

    @property
    def per_step(self) -> int:
        """Elements that one step takes, as far as is known."""
        return self._per_step or self.replicas

    def settle(self, deliveries: Iterable[Delivered]) -> list[Step]:
        """Gives steps their deliveries; returns those that are complete, and forgets them."""
        for one in deliveries:
            if one.index == 0 or not self._iterators:
                self._iterators.append({})
            self._iterators[-1][one.index] = one
        if self._per_step is None and any(step.wait_s is None for step in self.waiting):
            self._per_step = self._guess_per_step()
            if self._per_step is None:
                return []
        done = []
        while self.waiting and self.waiting[0].end is not None:
            step = self.waiting[0]
            if step.wait_s is None and not self._find(step):
                break
            done.append(self.waiting.popleft())
            if step.counts and step.compute_s is not None:
                self.compute_s.append(step.compute_s / step.steps)
        return done

    def forget_waiting(self) -> int:
        """Gives up steps whose deliveries never came, at a pause; returns how many."""
        count = sum(step.steps for step in self.waiting)
        self._next += count * self.per_step
        self.waiting.clear()
        return count

    def typical_compute_s(self) -> float | None:
        """Of one step; None before the first one was timed."""
        return statistics.median(self.compute_s) if self.compute_s else None

    def _find(self, step: Step) -> bool:
        if step.since is not None:
            # A new epoch: a new iterator, or the old one goes on.
            since = step.since
            begun = [i for i, seen in enumerate(self._iterators) if i and 0 in seen and seen[0].asked >= since]
            if begun:
                self._move_to(begun[-1])
        wanted = range(self._next, self._next + step.steps * self.per_step)
        if len(self._iterators) > 1 and not any(i in self._iterators[0] for i in wanted):
            self._move_to(1)
            wanted = range(step.steps * self.per_step)
        if not self._iterators or wanted[-1] not in self._iterators[0]:
            return False
        mine = [self._iterators[0].pop(i) for i in wanted if i in self._iterators[0]]
        step.receive(mine)
        self._next = wanted[-1] + 1
        return True

    def _move_to(self, iterator: int) -> None:
        del self._iterators[:iterator]
        self._next = 0

    def _guess_per_step(self) -> int | None:
        """A global batch a step, or a batch for each replica: whichever is nearer to what was seen."""
        if self.replicas == 1:
            return 1
        steps = sum(step.steps for step in self.waiting if step.end is not None)
        seen = max((max(one) + 1 for one in self._iterators if one), default=0)
        if steps < 8 or not seen:  # a replica has a batch or two ahead of it, which must not decide
            return None
        return 1 if seen < steps * (1 + self.replicas) / 2 else self.replicas
