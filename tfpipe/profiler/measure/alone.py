"""Runs stages of tf.data alone, on elements that were recorded in front of them.

```
records ──▶ parse ──▶ decode ──▶ augment      a chain plays the records again and again, up to each of its stages
        ├─▶ parse ──▶ decode                  in turn: what a stage costs is the difference to the one before it
        └─▶ parse                             so handing over costs as much as in the pipeline

function    a map of the user's own runs with 1 thread and with 2: the second helps it, or a lock stands in its way
```

So nothing is concluded from counters of a running pipeline, and nothing is known of other machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfpipe.profiler.measure import turns
from tfpipe.profiler.measure.functions import TURNS, CallTimes, PythonLockWatch, Run, judge
from tfpipe.profiler.measure.host_usage import HostTime, read_threads
from tfpipe.system import host_limits

SECONDS = 0.12
"""The seconds for which a stage plays its elements, and a function with each number of threads."""
_ELEMENTS, _GROUPS, _RECORDED_BYTES, _RECORD_S = 32, 2, 2**26, 0.5
_EPOCH = 512  # elements after which a chain begins again
_COUNTED, _COUNTED_S = 16, 0.02  # elements for each call from Python, and the seconds that they take at most
_MOST_OUT, _MOST_IN = 16, 2**13  # elements that a stage gives for each, before it counts as one that never ends


def record(dataset: Any) -> list[Any]:
    """Returns the first elements of a dataset, up to 32, and fewer of large or slow ones."""
    return _record(dataset, _ELEMENTS)[0]


def _record(dataset: Any, most: int) -> tuple[list[Any], Run]:
    """Returns the first elements of a dataset, and what one took after the first."""
    elements: list[Any] = []
    num_bytes, before = 0, HostTime.now()
    for element in dataset.with_options(_make_options()):
        before = before if elements else HostTime.now()
        elements.append(element)
        num_bytes += count_bytes(element)
        is_long = time.perf_counter() > before.at + _RECORD_S
        if len(elements) == most or num_bytes > _RECORDED_BYTES or is_long:
            break
    return elements, Run.since(before, len(elements) - 1, 1)


def play(elements: Sequence[Any]) -> Any:
    """Returns a dataset that gives elements again and again, without a copy."""
    sources = [tf.data.Dataset.from_tensors(element).repeat() for element in elements]
    if len(sources) == 1:
        return sources[0]
    return tf.data.Dataset.choose_from_datasets(sources, tf.data.Dataset.range(len(sources)).repeat())


def count_bytes(element: Any) -> int:
    """Counts the bytes of an element's tensors."""
    return sum(_count_tensor_bytes(tensor) for tensor in tf.nest.flatten(element, expand_composites=True))


class Chain:
    """A row of stages, one behind the other, on elements that are played again and again.

    Args:
        elements: The elements that the first stage takes.

    Attributes:
        element_s: The time that an element takes up to the last stage, in seconds.
    """

    def __init__(self, elements: Sequence[Any]) -> None:
        self._datasets, self._counted, self._ratios = [play(elements).take(_EPOCH)], [_COUNTED], dict[str, float]()
        self.element_s = 0.0

    def add(self, name: str, build: Callable[[Any], Any], out_per_in: float) -> list[Any]:
        """Puts a stage at the end.

        Args:
            name: The stage's name.
            build: Its function from a dataset to a dataset.
            out_per_in: The elements that it gives for each that it takes.

        Returns:
            The first elements that it gives; if there are none, the stage is left out.
        """
        dataset = build(self._datasets[-1])
        given, taken = _record(dataset, _ELEMENTS if out_per_in > 0.5 else _GROUPS)
        if given:
            self._datasets.append(dataset)
            self._ratios[name], self.element_s = out_per_in, taken.wall_s
            self._counted.append(min(max(int(_COUNTED_S / max(taken.wall_s, 1e-9)), 1), _COUNTED))
        return given

    def measure(self) -> dict[str, float]:
        """Returns the processor time of each stage for an element that it gives, in seconds."""
        if not self._ratios:
            return {}
        before, *after = _measure_cpu_s(self._datasets, self._counted)
        costs = {}
        for (name, ratio), cpu_s in zip(self._ratios.items(), after, strict=True):
            costs[name] = max(cpu_s - before / ratio, 0.0)
            before = cpu_s
        return costs


def measure_cpu_s(dataset: Any) -> float:
    """Returns the processor time of an element of a dataset, in seconds."""
    return _measure_cpu_s([dataset], [_COUNTED])[0]


def _measure_cpu_s(datasets: Sequence[Any], counted: Sequence[int]) -> list[float]:
    """Measures datasets in turns, each of which begins and ends with full buffers."""
    each = {str(k): iter(_count(datasets[k].repeat(), counted[k])).__next__ for k in range(len(datasets))}
    costs_us = turns.measure_costs_us(each, 1, turns.Rest().wait)
    return [costs_us[str(k)] / counted[k] / 1e6 for k in range(len(datasets))]


def measure_batches_s(datasets: Mapping[int, Any]) -> list[float]:
    """Returns the processor time of an image in batches that Python takes one by one, in seconds.

    Args:
        datasets: Datasets without end, by the number of images in a batch.
    """
    each = {str(size): iter(dataset).__next__ for size, dataset in datasets.items()}
    costs_us = turns.measure_costs_us(each, 1, turns.Rest().wait)
    return [costs_us[str(size)] / size / 1e6 for size in datasets]


def count_given(build: Callable[[Any], Any], elements: Sequence[Any], group: int = 1) -> tuple[float, Run]:
    """Runs a stage on recorded elements for a while.

    Args:
        build: The stage's function from a dataset to a dataset.
        elements: The elements.
        group: The elements that the stage may make one of, so that whole ones are made.

    Returns:
        The elements that it gives for each that it takes, and what one of them took.
    """
    played = play(elements)
    number = 3 * group if group > 1 else 2 * _COUNTED
    while True:
        began_s = time.perf_counter()
        most = _MOST_OUT * max(number, _ELEMENTS)
        done = run(build(played.take(number)).take(most), _COUNTED if group == 1 else 1)
        passed_s = time.perf_counter() - began_s
        if passed_s >= SECONDS / 2 or number >= _MOST_IN or done.calls >= most:
            return 1.0 if done.calls >= most else done.calls / number, done
        number = min(group * max(int(number * SECONDS / passed_s / group), 4), max(_MOST_IN, 4 * group))


def run_map(function: Callable[..., Any], elements: Sequence[Any]) -> CallTimes:
    """Runs the function of a map alone on elements, with 1 thread and with 2."""
    number, pairs = _COUNTED, []
    with PythonLockWatch() as watch:
        watch.counts = False
        while True:
            one = _run_threads(function, elements, number, 1, watch)
            if one.wall_s * number >= SECONDS or number >= _MOST_IN:
                break
            number = min(max(int(1.2 * SECONDS / max(one.wall_s, 1e-6)), 2 * number), _MOST_IN)
        for _ in range(TURNS):
            one, two = (_run_threads(function, elements, number, threads, watch) for threads in (1, 2))
            pairs.append((one, two))
    return judge(pairs, host_limits.usable_cpus(), watch.late_s)


def _run_threads(
    function: Callable[..., Any], elements: Sequence[Any], number: int, threads: int, watch: PythonLockWatch
) -> Run:
    """Runs a map, and returns what the threads took that called its function. The watch counts only meanwhile."""
    options = _make_options()
    options.threading.private_threadpool_size = threads
    known = read_threads()
    mapped = play(elements).take(number + threads).map(function, num_parallel_calls=threads)
    iterator = iter(mapped.map(lambda *_: tf.constant(0, tf.uint8)).with_options(options))
    next(iterator)
    watch.counts = True  # not while a dataset is made, which takes as long
    began_s, cpu_s, before = time.perf_counter(), time.process_time(), read_threads()
    calls = sum(1 for _ in iterator)
    passed_s, cpu_s, after = time.perf_counter() - began_s, time.process_time() - cpu_s, read_threads()
    watch.counts = False
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
