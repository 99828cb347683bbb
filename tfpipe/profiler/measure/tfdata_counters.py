"""What tf.data's own model of a running pipeline says, looked at a few times a second.

Every dataset operation has a node, with counters since it was made: elements, bytes, and the time during which one of
its threads was neither blocked on its input nor on its consumer (`tensorflow/core/framework/model.proto`). That is
time by the clock: where more threads want to run than there are cores, it includes the wait for a core. Linux counts
that wait for every thread (`/proc/<pid>/schedstat`, see Documentation/scheduler/sched-stats.rst), so it can be taken
out again.

A look takes 1.6 ms of a core where there are 50 threads: four a second cost 0.6 % of one core.

Between two looks the sampler wakes up ten times to see how long it must wait for Python's lock: a thread that runs
Python gives it up every 5 ms (`sys.getswitchinterval`), so a wait says that one does, and their share is the time in
which the lock was held.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

EVERY_S = 0.25
_WAKES = 10
_LATE_S = 0.001
"""A thread that wakes up by itself is later than that only where it waits: timers are 0.05 ms late."""


@dataclass(frozen=True)
class Node:
    """A dataset operation; counters since it was made."""

    name: str
    inputs: tuple[int, ...] = ()
    """The first is what it was built on; others are a zip's further ones, and what an interleave has open now."""
    elements: int = 0
    busy_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    buffered: int = 0
    parameters: Mapping[str, float] | None = None
    max_parallelism: float | None = None
    """Threads that AUTOTUNE may give it, or that it was given; None where it has none of its own."""


@dataclass(frozen=True)
class Sample:
    """One look."""

    at: float
    nodes: Mapping[int, Node]
    output: int
    cpu_s: float
    """Of all threads of the process."""
    queue_s: float
    """During which threads could have run, and no core was free."""
    lock_fraction: float = 0.0
    """Share of the time since the last look in which some other thread held Python's lock."""

    def chain(self) -> list[int]:
        """The operations from the last one back to the source: of each, what it was built on.

        Of a zip that is what has most behind it: the other is a counter, or a table that goes with it.
        """
        found = [self.output]
        while inputs := self.nodes[found[-1]].inputs:
            zipped = self.nodes[found[-1]].name.startswith("Zip")
            found.append(max(inputs, key=lambda one: len(self.below(one))) if zipped else inputs[0])
        return found

    def beside(self, node: int, next_node: int) -> list[int]:
        """The inputs of an operation that are not the chain's."""
        return [one for one in self.nodes[node].inputs if one != next_node]

    def below(self, node: int) -> list[int]:
        """A node and all its inputs, theirs, and so on."""
        inputs = self.nodes[node].inputs
        return [node, *(one for child in inputs for one in self.below(child))]


def sample_of(proto: Any, at: float, cpu_s: float, queue_s: float, lock_fraction: float = 0.0) -> Sample:
    """A look, from a `ModelProto`."""
    nodes = {
        number: Node(
            name=node.name,
            inputs=tuple(child for child in node.inputs if child in proto.nodes),
            elements=node.num_elements,
            busy_s=node.processing_time / 1e9,
            bytes_in=node.bytes_consumed,
            bytes_out=node.bytes_produced,
            buffered=node.buffered_elements,
            parameters={parameter.name: parameter.value for parameter in node.parameters},
            max_parallelism=next(
                (p.max if p.tunable else p.value for p in node.parameters if p.name == "parallelism"), None
            ),
        )
        for number, node in proto.nodes.items()
    }
    return Sample(at, nodes, proto.output, cpu_s, queue_s, lock_fraction)


class Sampler:
    """Looks at a pipeline from a thread of its own, until the `with` block ends.

    Args:
        model: Gives the `ModelProto`; what it raises ends the sampling and is kept in `error`.
    """

    def __init__(self, model: Callable[[], Any], every_s: float = EVERY_S) -> None:
        self.samples: list[Sample] = []
        self.error: Exception | None = None
        self._model, self._every_s = model, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfpipe-sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            late = sum(self._wakes_late() for _ in range(_WAKES))
            if self._stop.is_set():
                return
            try:
                proto = self._model()
            except Exception as error:  # of the library, whose errors this module does not know
                self.error = error
                return
            self.samples.append(sample_of(proto, time.perf_counter(), *thread_seconds(), late / _WAKES))

    def _wakes_late(self) -> bool:
        """Sleeps a little; whether it then had to wait, and not for a core."""
        if self._stop.is_set():
            return False
        queued, slept = _own_queue_s(), self._every_s / _WAKES
        started = time.perf_counter()
        time.sleep(slept)  # not an Event: its own lock costs another wait
        return time.perf_counter() - started - slept - (_own_queue_s() - queued) > _LATE_S


def _own_queue_s() -> float:
    """Time that this thread has waited for a core; 0 where nobody counts it."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read(128).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def thread_seconds(process: str = "/proc/self") -> tuple[float, float]:
    """Processor time of all threads, and the time they waited for a core; where nobody counts the second, 0."""
    ran = waited = 0
    try:
        for thread in os.listdir(f"{process}/task"):
            try:
                file = os.open(f"{process}/task/{thread}/schedstat", os.O_RDONLY)  # a third of the cost of `open`
            except OSError:  # it has just ended
                continue
            try:
                fields = os.read(file, 128).split()
            finally:
                os.close(file)
            ran, waited = ran + int(fields[0]), waited + int(fields[1])
    except (OSError, ValueError, IndexError):
        return time.process_time(), 0.0
    # A kernel without these counters has the files missing, or all zeros.
    return (ran / 1e9, waited / 1e9) if ran else (time.process_time(), 0.0)
