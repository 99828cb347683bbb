"""The ledger of a training's steps: which batches each step took, and how long it waited for them.

```
trainer   call 0 ├──────────────┤ call 1 ├─────────────┤ call 2 ...   TrainCall: begin, end
clock        asked_at ├─wait─┤ got_at  asked_at ├┤ got_at              Delivery: asked_at, got_at
```

Pure: all times come in as numbers, in seconds, as `time.time()` gives them. `tfpipe.profiler.live.graph_clock` writes
the deliveries, and `tfpipe.profiler.live.step_recorder` fills the ledger.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_MAX_WAITING = 4096
_MAX_PROBES = 1000
_MIN_STEPS_TO_INFER = 8  # a replica takes a batch or two ahead, which must not decide


@dataclass(frozen=True)
class Delivery:
    """One element that a watched dataset gave.

    Attributes:
        index: The batch's number in its iterator; 0 marks the beginning of an iterator.
        asked_at: The time at which the consumer asked for it.
        got_at: The time at which the consumer got it.
        images: The length of its first tensor.
    """

    index: int
    asked_at: float
    got_at: float
    images: int


@dataclass
class TrainCall:
    """One call of a train function, which makes one step or several.

    Attributes:
        begin: The time at which the call began.
        asks: The earliest time at which the trainer can have asked for the batch.
        steps: The number of steps in the call.
        last_step: The number of its last step since the training began; 0 while it runs.
        end: The time at which the call ended; None while it runs.
        wait_s: The time that the trainer waited for its batches; None until their deliveries are known.
        images: The number of images in its batches.
        probe_begin: The time from which the device had nothing to do but this call; None without a probe.
        probe_end: The time at which the device had finished the call.
        compute_s: The time from `probe_begin` to `probe_end`, without the wait in it.
        counts: Whether the time of the end is known. Otherwise the sums leave the call out.
        resumed_at: The time at which training went on, for the first call after a pause. An iterator may have begun
            since then.
    """

    begin: float
    asks: float
    steps: int = 1
    last_step: int = 0
    end: float | None = None
    wait_s: float | None = None
    images: int = 0
    probe_begin: float | None = None
    probe_end: float | None = None
    compute_s: float | None = None
    counts: bool = True
    resumed_at: float | None = None

    def set_probe(self, begin: float, end: float) -> None:
        """Marks the call as a probe: between two times the device worked on nothing else."""
        self.probe_begin, self.probe_end = begin, end
        if self.wait_s is not None:  # the batch was there before the probe began
            self.compute_s = end - begin

    def receive(self, deliveries: Sequence[Delivery]) -> None:
        """Computes the wait from the clock inside the graph.

        Every strategy with more than one device has a thread between the clock and the trainer. That thread asks
        early, so the trainer waits only from the moment at which it asks itself.
        """
        self.wait_s = _sum_waits(deliveries, self.asks)
        self.images = sum(delivery.images for delivery in deliveries)
        if self.probe_begin is not None and self.probe_end is not None:
            waited_s = _sum_waits(deliveries, max(self.asks, self.probe_begin))
            self.compute_s = max(0.0, self.probe_end - self.probe_begin - waited_s)


@dataclass
class StepLedger:
    """The calls of a training in their order, and the deliveries of the clock that belong to them.

    Attributes:
        replicas: The number of elements that a step takes if each replica takes its own batch. A global batch is one
            element.
        waiting: The calls whose deliveries are not known yet.
        compute_s: The compute times of probes, in seconds for each step.
    """

    replicas: int = 1
    waiting: deque[TrainCall] = field(default_factory=lambda: deque(maxlen=_MAX_WAITING))
    compute_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_PROBES))
    _iterators: list[dict[int, Delivery]] = field(default_factory=list)
    _next_index: int = 0
    _elements_per_step: int | None = None

    @property
    def elements_per_step(self) -> int:
        """The number of elements that one step takes, by the deliveries so far."""
        return self._elements_per_step or self.replicas

    def settle(self, deliveries: Iterable[Delivery]) -> list[TrainCall]:
        """Assigns deliveries to calls. Returns the calls that are complete now, and forgets them."""
        for delivery in deliveries:
            if delivery.index == 0 or not self._iterators:
                self._iterators.append({})
            self._iterators[-1][delivery.index] = delivery
        if self._elements_per_step is None and any(call.wait_s is None for call in self.waiting):
            self._elements_per_step = self._infer_elements_per_step()
            if self._elements_per_step is None:
                return []
        settled = []
        while self.waiting and self.waiting[0].end is not None:
            call = self.waiting[0]
            if call.wait_s is None and not self._match(call):
                break
            settled.append(self.waiting.popleft())
            if call.counts and call.compute_s is not None:
                self.compute_s.append(call.compute_s / call.steps)
        return settled

    def forget_waiting(self) -> int:
        """Gives up the calls whose deliveries never came. Returns how many steps these calls made."""
        count = sum(call.steps for call in self.waiting)
        self._next_index += count * self.elements_per_step
        self.waiting.clear()
        return count

    def get_typical_compute_s(self) -> float | None:
        """Returns the median compute time of a step, in seconds; None before the first probe."""
        return statistics.median(self.compute_s) if self.compute_s else None

    def _match(self, call: TrainCall) -> bool:
        """Assigns a call its deliveries. Returns False if they are not there yet."""
        if call.resumed_at is not None:
            # A new epoch has either a new iterator, or goes on with the old one.
            resumed_at = call.resumed_at
            begun = [
                number
                for number, elements in enumerate(self._iterators)
                if number and 0 in elements and elements[0].asked_at >= resumed_at
            ]
            if begun:
                self._move_to(begun[-1])
        indices = range(self._next_index, self._next_index + call.steps * self.elements_per_step)
        if len(self._iterators) > 1 and not any(index in self._iterators[0] for index in indices):
            self._move_to(1)
            indices = range(call.steps * self.elements_per_step)
        if not self._iterators or indices[-1] not in self._iterators[0]:
            return False
        call.receive([self._iterators[0].pop(index) for index in indices if index in self._iterators[0]])
        self._next_index = indices[-1] + 1
        return True

    def _move_to(self, iterator: int) -> None:
        del self._iterators[:iterator]
        self._next_index = 0

    def _infer_elements_per_step(self) -> int | None:
        """Returns 1 if a step takes a global batch, `replicas` if it takes one each: the better fit to the clock."""
        if self.replicas == 1:
            return 1
        steps = sum(call.steps for call in self.waiting if call.end is not None)
        delivered = max((max(elements) + 1 for elements in self._iterators if elements), default=0)
        if steps < _MIN_STEPS_TO_INFER or not delivered:
            return None
        return 1 if delivered < steps * (1 + self.replicas) / 2 else self.replicas


def _sum_waits(deliveries: Iterable[Delivery], asks: float) -> float:
    """Returns the seconds from asking to getting, of a trainer that asks no earlier than `asks`."""
    return sum(max(0.0, delivery.got_at - max(delivery.asked_at, asks)) for delivery in deliveries)
