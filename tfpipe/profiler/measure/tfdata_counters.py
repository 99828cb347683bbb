"""Samples of tf.data's own counters of a running pipeline, a few times a second.

Every dataset operation has a node with counters since it was made: elements, bytes, and the time during which one of
its threads was blocked neither on its input nor on its consumer (`tensorflow/core/framework/model.proto`). That is time
by the clock: where more threads want to run than there are cores, it includes the wait for a core. Linux counts that
wait for every thread (`/proc/<pid>/schedstat`, see Documentation/scheduler/sched-stats.rst), so it can be taken out.

A sample takes 1.6 ms of a core if there are 50 threads: four a second cost 0.6 % of one core.

Between two samples the sampler wakes up ten times to see how long it must wait for Python's lock. A thread that runs
Python gives the lock up every 5 ms (`sys.getswitchinterval`), so a wait says that some thread runs Python. The share of
late wake-ups is the share of the time in which the lock was held.
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
"""The delay above which a thread that wakes up by itself must have waited: timers are 0.05 ms late."""


@dataclass(frozen=True)
class Node:
    """A dataset operation with its counters since it was made.

    Attributes:
        name: The operation's name.
        inputs: The numbers of its input nodes. The first is the one that it was built on. Others are the further inputs
            of a zip, or what an interleave has open at the moment.
        elements: The number of elements that it gave.
        busy_s: The time in which its threads were not blocked, in seconds.
        bytes_in: The bytes that it took.
        bytes_out: The bytes that it gave.
        buffered: The number of elements in its buffer.
        parameters: The parameters by name, such as "parallelism".
        max_parallelism: The number of threads that AUTOTUNE may give it, or that it was given; None if it has none
            of its own.
    """

    name: str
    inputs: tuple[int, ...] = ()
    elements: int = 0
    busy_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    buffered: int = 0
    parameters: Mapping[str, float] | None = None
    max_parallelism: float | None = None


@dataclass(frozen=True)
class Sample:
    """The counters of all nodes at one moment.

    Attributes:
        at: The time in seconds, by `time.perf_counter`.
        nodes: The nodes by number.
        output: The number of the last node.
        cpu_s: The processor time of all threads of the process, in seconds.
        queue_s: The time in which threads could have run and no core was free, in seconds.
        lock_fraction: The share of the time since the last sample in which another thread held Python's lock.
    """

    at: float
    nodes: Mapping[int, Node]
    output: int
    cpu_s: float
    queue_s: float
    lock_fraction: float = 0.0

    def list_chain(self) -> list[int]:
        """Returns the operations from the last one back to the source, following what each was built on.

        From a zip or a choice the chain follows the input with most nodes behind it. The others are a counter, a table
        or a cache.
        """
        chain = [self.output]
        while inputs := self.nodes[chain[-1]].inputs:
            joins = self.nodes[chain[-1]].name.startswith(("Zip", "DirectedInterleave"))
            chain.append(max(inputs, key=lambda node: len(self.list_subtree(node))) if joins else inputs[0])
        return chain

    def list_side_inputs(self, node: int, next_node: int) -> list[int]:
        """Returns the inputs of a node that are not the next node of the chain."""
        return [number for number in self.nodes[node].inputs if number != next_node]

    def list_subtree(self, node: int) -> list[int]:
        """Returns a node, its inputs, their inputs, and so on."""
        return [node, *(number for child in self.nodes[node].inputs for number in self.list_subtree(child))]


def make_sample(proto: Any, at: float, cpu_s: float, queue_s: float, lock_fraction: float = 0.0) -> Sample:
    """Builds a sample out of a `ModelProto`; the other arguments are the sample's attributes."""
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
                (
                    parameter.max if parameter.tunable else parameter.value
                    for parameter in node.parameters
                    if parameter.name == "parallelism"
                ),
                None,
            ),
        )
        for number, node in proto.nodes.items()
    }
    return Sample(at, nodes, proto.output, cpu_s, queue_s, lock_fraction)


class Sampler:
    """A thread that samples a pipeline until its `with` block ends.

    Args:
        read_model: Returns the `ModelProto`. An exception that it raises ends the sampling.
        every_s: Seconds between two samples.

    Attributes:
        samples: The samples so far.
        error: The exception that ended the sampling, if there was one.
    """

    def __init__(self, read_model: Callable[[], Any], every_s: float = EVERY_S) -> None:
        self.samples: list[Sample] = []
        self.error: Exception | None = None
        self._read_model, self._every_s = read_model, every_s
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
                proto = self._read_model()
            except Exception as error:  # of the library, whose errors this module does not know
                self.error = error
                return
            self.samples.append(make_sample(proto, time.perf_counter(), *read_thread_seconds(), late / _WAKES))

    def _wakes_late(self) -> bool:
        """Sleeps a little, and returns whether it then had to wait for something else than a core."""
        if self._stop.is_set():
            return False
        queued_s, sleep_s = _read_own_queue_s(), self._every_s / _WAKES
        started = time.perf_counter()
        time.sleep(sleep_s)  # not an Event: its own lock costs another wait
        return time.perf_counter() - started - sleep_s - (_read_own_queue_s() - queued_s) > _LATE_S


def read_thread_seconds(process: str = "/proc/self") -> tuple[float, float]:
    """Returns the processor time of all threads and the time that they waited for a core, in seconds.

    The second is 0 if the kernel does not count it.
    """
    ran_ns = waited_ns = 0
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
            ran_ns, waited_ns = ran_ns + int(fields[0]), waited_ns + int(fields[1])
    except (OSError, ValueError, IndexError):
        return time.process_time(), 0.0
    # A kernel without these counters has the files missing, or all zeros.
    return (ran_ns / 1e9, waited_ns / 1e9) if ran_ns else (time.process_time(), 0.0)


def _read_own_queue_s() -> float:
    """Returns the time that this thread has waited for a core, in seconds; 0 if the kernel does not count it."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read(128).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
