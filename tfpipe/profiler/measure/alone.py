"""Runs stages of tf.data alone: what each costs on elements that were recorded in front of it.

```
read ──▶ [32 records] ──parse──▶ [32 examples] ──decode──▶ [32 images] ──▶ ...

stage      plays what the one before it gave, again and again, for a tenth of a second
function   a map of the user's own runs with 1 thread and with 2: the second helps it, or a lock stands in its way
```

So nothing is concluded from counters of a running pipeline, and nothing is known of other machines.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfpipe.profiler.measure.functions import TURNS, CallTimes, PythonLockWatch, Run, judge
from tfpipe.profiler.measure.host_usage import HostTime, read_threads
from tfpipe.system import host_limits

SECONDS = 0.12
"""The seconds for which a stage plays its elements, and a function with each number of threads."""
_ELEMENTS, _RECORDED_BYTES, _RECORD_S = 32, 2**26, 0.5
_COUNTED = 16  # elements for each call from Python
_MOST_OUT, _MOST_IN = 16, 2**13  # elements that a stage gives for each, before it counts as one that never ends


@dataclass(frozen=True)
class Alone:
    """The time and the elements of a stage that runs alone, for an element that it gives.

    Attributes:
        times: The time for an element.
        out_per_in: The elements that it gives for each that it takes.
        out_bytes: The bytes of an element that it gives.
        in_bytes: The bytes of an element that it takes.
    """

    times: CallTimes
    out_per_in: float
    out_bytes: float
    in_bytes: float


def record(dataset: Any) -> list[Any]:
    """Returns the first elements of a dataset, up to 32, and fewer of large or slow ones."""
    elements: list[Any] = []
    num_bytes, until = 0, 0.0
    for element in dataset.with_options(_make_options()):
        until = until or time.perf_counter() + _RECORD_S
        elements.append(element)
        num_bytes += count_bytes(element)
        if len(elements) == _ELEMENTS or num_bytes > _RECORDED_BYTES or time.perf_counter() > until:
            break
    return elements


def play(elements: Sequence[Any]) -> Any:
    """Returns a dataset that gives elements again and again, without a copy."""
    sources = [tf.data.Dataset.from_tensors(element).repeat() for element in elements]
    if len(sources) == 1:
        return sources[0]
    return tf.data.Dataset.choose_from_datasets(sources, tf.data.Dataset.range(len(sources)).repeat())


def count_bytes(element: Any) -> int:
    """Counts the bytes of an element's tensors."""
    return sum(_count_tensor_bytes(tensor) for tensor in tf.nest.flatten(element, expand_composites=True))


def run_stage(build: Callable[[Any], Any], elements: Sequence[Any], group: int = 1) -> tuple[Alone, list[Any]] | None:
    """Runs a stage on elements, and returns what it takes, and the elements that it gives.

    Args:
        build: The stage's function from a dataset to a dataset.
        elements: The recorded elements.
        group: The elements that the stage may make one of, so that whole ones are made.

    Returns:
        None if the stage gives nothing for these elements.
    """
    played = play(elements)
    given = record(build(played.take(max(4 * group, 4 * _ELEMENTS))))
    if not given:
        return None
    counted = _COUNTED if group == 1 else 1
    number = 3 * group if group > 1 else 2 * _COUNTED
    while True:
        began_s = time.perf_counter()
        most = _MOST_OUT * max(number, _ELEMENTS)
        done = run(build(played.take(number)).take(most), counted)
        passed_s = time.perf_counter() - began_s
        if passed_s >= SECONDS / 2 or number >= _MOST_IN or done.calls >= most:
            break
        number = min(group * max(int(number * SECONDS / passed_s / group), 4), max(_MOST_IN, 4 * group))
    ratio = 1.0 if done.calls >= most else done.calls / number
    counting, playing = (run(each.take(_ELEMENTS * 16), counted) for each in (tf.data.Dataset.range(_MOST_IN), played))
    source_s = max(playing.cpu_s - counting.cpu_s, 0.0) / max(ratio, 1e-9)
    cpu_s = max(done.cpu_s - counting.cpu_s - source_s, 0.0)
    wait_s = max(done.wall_s - done.cpu_s - done.queue_s, 0.0)
    sizes = [statistics.fmean(map(count_bytes, each)) for each in (given, elements)]
    return Alone(CallTimes(cpu_s, wait_s, None), ratio, *sizes), given


def run_map(function: Callable[..., Any], elements: Sequence[Any]) -> CallTimes:
    """Runs the function of a map alone on elements, with 1 thread and with 2."""
    number = _COUNTED
    while True:
        one = _run_threads(function, elements, number, 1)
        if one.wall_s * number >= SECONDS or number >= _MOST_IN:
            break
        number = min(max(int(1.2 * SECONDS / max(one.wall_s, 1e-6)), 2 * number), _MOST_IN)
    turns = []
    with PythonLockWatch() as watch:
        for _ in range(TURNS):
            one, two = (_run_threads(function, elements, number, threads) for threads in (1, 2))
            turns.append((one, two))
    return judge(turns, host_limits.usable_cpus(), watch.late_s)


def _run_threads(function: Callable[..., Any], elements: Sequence[Any], number: int, threads: int) -> Run:
    """Runs a map, and returns what the threads took that called its function."""
    options = _make_options()
    options.threading.private_threadpool_size = threads
    known = read_threads()
    mapped = play(elements).take(number + threads).map(function, num_parallel_calls=threads)
    iterator = iter(mapped.map(lambda *_: tf.constant(0, tf.uint8)).with_options(options))
    next(iterator)
    began_s, cpu_s, before = time.perf_counter(), time.process_time(), read_threads()
    calls = sum(1 for _ in iterator)
    passed_s, cpu_s, after = time.perf_counter() - began_s, time.process_time() - cpu_s, read_threads()
    # The other new threads hand elements over, and the one that calls this counts them.
    new = [thread for thread in before if thread in after and thread not in known]
    spent = [(after[thread][0] - before[thread][0], after[thread][1] - before[thread][1]) for thread in new]
    callers = sorted(spent, reverse=True)[:threads]
    if callers:
        cpu_s = sum(cpu for cpu, _ in callers)
    return Run(calls, passed_s / calls, cpu_s / calls, sum(queue for _, queue in callers) / calls)


def run_for_a_while(dataset: Any) -> Run:
    """Runs a dataset that has no end for half a second, after its first elements."""
    iterator = iter(_count(dataset, _COUNTED))
    next(iterator)
    number, before = 0, HostTime.now()
    while not number or time.perf_counter() - before.at < _RECORD_S:
        number += len(next(iterator, ())) or _COUNTED
    return Run.since(before, number)


def _count(dataset: Any, counted: int) -> Any:
    """Returns a dataset of nothing in groups of so many elements."""
    return dataset.map(lambda *_: tf.constant(0, tf.uint8)).batch(counted).with_options(_make_options())


def run(dataset: Any, counted: int = _COUNTED) -> Run:
    """Runs a dataset to its end, and returns what an element took after the first ones.

    Args:
        dataset: The dataset.
        counted: The elements that Python takes at once.
    """
    iterator = iter(_count(dataset, counted))
    first, before = len(next(iterator, ())), HostTime.now()
    return Run.since(before, sum(len(batch) for batch in iterator), first)


def _make_options() -> tf.data.Options:
    """Returns options with which operations run as they were written."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.threading.private_threadpool_size = host_limits.usable_cpus() + 2
    return options


def _count_tensor_bytes(tensor: Any) -> int:
    if tensor.dtype == tf.string:
        return int(tf.reduce_sum(tf.strings.length(tensor)))
    return int(tf.size(tensor)) * (tensor.dtype.size or 0)
