"""Times stages of tf.data by running longer and longer prefixes of their pipeline on a few repeated records.

A new prefix begins after a Python function, a buffer, or a slow stage, whose variation would hide later stages.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.stage import STAGE_NAMES, Stage, Stages
from tfpipe.pipeline.steps import CALL_NAME
from tfpipe.profiler.measure.clocks import CallTimes, HostTime, Rest, Run, measure_costs_us, run_function
from tfpipe.profiler.types import LARGE_BATCH, PipelineProfile, StageTiming, TriedChange
from tfpipe.system import host_limits

SECONDS = 0.12  # the seconds for which a stage runs on recorded elements
_ELEMENTS, _GROUPS, _RECORDED_BYTES, _RECORD_S = 32, 2, 2**26, 0.5
_EPOCH = 512  # elements after which a prefix begins again
_COUNTED, _COUNTED_S = 16, 0.02  # elements for each call from Python, and the seconds that they take at most
_MOST_OUT, _MOST_IN = 16, 2**13  # a stage with more elements out per element in counts as endless; the most elements in
_PASSED = ("list", "repeat", "shuffle", "cache", "prefetch", "epochs")  # stages that do not change elements
_LONG_S, _LONG_GROUP_S = 0.002, 0.06
"""The seconds for an element, and for all elements that are grouped into one, above which a stage would hide the cost
of later stages."""
_CAN_DROP = {"Filter", "FlatMap", "IgnoreErrors", "Interleave", "Unique"}
"""Kinds of operations that can drop an element."""
_COLLECTS = {"Batch", "GroupByReducer", "GroupByWindow", "PaddedBatch", "Rebatch", "Window"}
"""Kinds of operations that make one element of several."""
_PYTHON_OPERATIONS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_SATURATED = 0.85  # reading counts as computing, without waits for the storage, if it uses this share of the cores


@dataclass(frozen=True)
class BuiltStage:
    """A stage, with the datasets before and after it."""

    name: str
    before: Any  # the dataset that it took; None for the first stage
    dataset: Any  # the dataset that it returned
    random: bool | None = None  # as `Stage.random`
    per_image: bool | None = None  # as `Stage.per_image`

    @property
    def is_own(self) -> bool:
        """Whether the user added the stage."""
        return self.name not in STAGE_NAMES

    @property
    def kinds(self) -> set[str]:
        """The kinds of the stage's operations, as `get_kind` names them."""
        return {get_kind(dataset) for dataset in self.list_datasets()}

    @property
    def calls_python(self) -> bool:
        """Whether a Python function runs in the stage."""
        # Every class of tf.data has `_functions`. Only the graphs of a dataset's functions show what runs in it.
        # Calls of the engine do not count, because they release Python's lock.
        graphs = [wrapper.function.graph for dataset in self.list_datasets() for wrapper in dataset._functions()]
        nodes = chain.from_iterable(map(_list_nodes, graphs))
        return any(kind in _PYTHON_OPERATIONS and not name.startswith(CALL_NAME) for kind, name in nodes)

    @property
    def can_drop(self) -> bool:
        """Whether the stage can drop single images; grouping images into batches does not count."""
        return bool(self.kinds & _CAN_DROP) and ("Unbatch" in self.kinds or not self.kinds & _COLLECTS)

    def list_datasets(self) -> list[Any]:
        """Returns the datasets that the stage has made, the last one first."""
        datasets, dataset = [], self.dataset
        while dataset is not None and dataset is not self.before:
            datasets.append(dataset)
            # Every class of tf.data has `_inputs`; there is no public way back. A zip has several inputs.
            inputs = dataset._inputs()
            dataset = next((one for one in inputs if _leads_to(one, self.before)), inputs[0] if inputs else None)
        return datasets

    def count_buffered(self) -> int:
        """Counts the elements in the buffers of the stage's shuffles."""
        sizes = [getattr(each, "_buffer_size", None) for each in self.list_datasets() if get_kind(each) == "Shuffle"]
        return sum(int(tf.get_static_value(size) or 0) for size in sizes if size is not None)

    def count_grouped(self) -> int:
        """Counts the elements that the stage groups into one."""
        sizes = [each._batch_size for each in self.list_datasets() if hasattr(each, "_batch_size")]
        return math.prod(int(tf.get_static_value(size) or 1) for size in sizes)

    def get_ratio(self) -> float | None:
        """Returns the stage's output elements per input element; None if only running the stage can tell."""
        return 1 / self.count_grouped() if self.kinds <= {"Map", "Batch", "Prefetch"} else None

    def get_map(self) -> Callable[..., Any] | None:
        """Returns the function of a stage that is a single map; None for any other stage."""
        datasets = self.list_datasets()
        if len(datasets) != 1 or get_kind(datasets[0]) != "Map":
            return None
        function = datasets[0]._map_func.function  # both names are private
        spec = datasets[0].element_spec

        def call(*element: Any) -> Any:
            return tf.nest.pack_sequence_as(spec, tf.nest.flatten(function(*tf.nest.flatten(element))), True)

        plain: Callable[..., Any] = tf.autograph.experimental.do_not_convert(call)
        return plain

    def count_threads(self, most: int, autotunes: bool) -> int:
        """Counts the calls that run at once: `most` if tf.data chooses the number, but 1 for a map with a state."""
        counts = [1]
        for dataset in self.list_datasets():
            asked = getattr(dataset, "_num_parallel_calls", None)
            if asked is not None:
                value = tf.get_static_value(asked)
                counts.append(most if value is None or value < 1 else int(value))
            elif get_kind(dataset) == "Map" and autotunes and not _has_state(dataset._map_func.function.graph):
                counts.append(most)
        return max(counts)


def get_kind(dataset: Any) -> str:
    """Returns the kind of a dataset's operation: `_MapDataset` and `_ParallelMapDataset` are both a "Map"."""
    name = re.sub(r"^_|Dataset$|V\d+$", "", type(dataset).__name__)
    name = re.sub(r"^(Parallel|Forever|Finite)", "", name.removesuffix("Dataset"))
    return "Cache" if "Cache" in name else name


def _leads_to(dataset: Any, before: Any) -> bool:
    return dataset is before or any(_leads_to(parent, before) for parent in dataset._inputs())


def _list_nodes(graph: Any) -> Iterable[tuple[str, str]]:
    for operation in graph.get_operations():
        yield operation.type, operation.name
    for function in graph._functions.values():
        for node in function.cached_definition.node_def:
            yield node.op, node.name


def _has_state(graph: Any) -> bool:
    from tensorflow.python.framework import op_def_registry

    definitions = (op_def_registry.get(kind) for kind, _ in _list_nodes(graph))
    return any(definition is not None and definition.is_stateful for definition in definitions)


def record(dataset: Any, most: int = _ELEMENTS) -> tuple[list[Any], Run]:
    """Returns the first elements of a dataset, fewer if large or slow, and the times per element after the first."""
    elements: list[Any] = []
    num_bytes, before = 0, HostTime.now()
    for element in dataset.with_options(_make_options()):
        before = before if elements else HostTime.now()
        elements.append(element)
        num_bytes += count_bytes(element)
        if len(elements) == most or num_bytes > _RECORDED_BYTES or time.perf_counter() > before.at + _RECORD_S:
            break
    return elements, Run.since(before, len(elements) - 1, 1)


def play(elements: Sequence[Any]) -> Any:
    """Returns a dataset that repeats the given elements without end and without copying them."""
    sources = [tf.data.Dataset.from_tensors(element) for element in elements]
    return tf.data.Dataset.choose_from_datasets(sources, tf.data.Dataset.range(len(sources))).cache().repeat()


def count_bytes(element: Any) -> int:
    """Counts the bytes of an element's tensors."""
    return sum(
        int(tf.reduce_sum(tf.strings.length(each))) if each.dtype == tf.string else int(tf.size(each)) * each.dtype.size
        for each in tf.nest.flatten(element, expand_composites=True)
    )


class Prefixes:
    """The prefixes of a pipeline, each one stage longer than the last, which all get the same repeated elements."""

    def __init__(self, elements: Sequence[Any]) -> None:
        self._prefixes = list[tuple[str, float, Any, int]]()  # its last stage, the ratio of that, and how it is run
        self.begin_with(elements)

    def begin_with(self, elements: Sequence[Any]) -> None:
        """Lets the following prefixes begin with recorded elements, in place of the stages that made these."""
        self._prefixes.append(("", 1.0, play(elements).take(_EPOCH), _COUNTED))
        self.element_s = 0.0

    def add(self, name: str, build: Callable[[Any], Any], out_per_in: float) -> list[Any]:
        """Adds a prefix that is one stage longer, and returns some of its elements."""
        dataset = build(self._prefixes[-1][2])
        given, taken = record(dataset, _ELEMENTS if out_per_in > 0.5 else _GROUPS)
        if given:
            counted = min(max(int(_COUNTED_S / max(taken.wall_s, 1e-9)), 1), _COUNTED)
            self._prefixes.append((name, out_per_in, dataset, counted))
            self.element_s = taken.wall_s
        return given

    def measure(self) -> dict[str, float]:
        """Returns the seconds of processor time that each stage adds to the prefix before it, per output element."""
        costs_s = _measure_cpu_s([(dataset, counted) for _, _, dataset, counted in self._prefixes])
        added = zip(self._prefixes[1:], pairwise(costs_s), strict=True)
        return {name: max(cpu_s - before_s / ratio, 0.0) for (name, ratio, _, _), (before_s, cpu_s) in added if name}


def _measure_cpu_s(runs: Sequence[tuple[Any, int]]) -> list[float]:
    """Measures an element's processor time in each dataset, taken in groups of so many elements."""
    takes = {str(k): iter(_count(dataset.repeat(), counted)).__next__ for k, (dataset, counted) in enumerate(runs)}
    costs_us = measure_costs_us(takes, 1, Rest().wait)
    return [costs_us[str(k)] / counted / 1e6 for k, (_, counted) in enumerate(runs)]


def count_given(build: Callable[[Any], Any], elements: Sequence[Any], group: int = 1) -> tuple[float, Run]:
    """Runs a stage on recorded elements; returns its elements out per element in, and the times of the run."""
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
    """Runs the function of a map alone on elements, with 1 thread and with 2: each has an iterator of its own."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1  # more would look for work all the time
    idle = [iter(_count(play(elements).map(function), _COUNTED).with_options(options)) for _ in range(2)]

    def call(_: int) -> None:
        iterator = idle.pop()
        next(iterator)
        idle.append(iterator)

    return run_function(call, _COUNTED)


def _count(dataset: Any, counted: int) -> Any:
    """Replaces each element by a byte, in groups of `counted`, so that taking elements costs next to nothing."""
    return dataset.map(lambda *_: tf.constant(0, tf.uint8)).batch(counted).with_options(_make_options())


def run(dataset: Any, counted: int = _COUNTED) -> Run:
    """Runs a dataset to its end, and returns the times per element after the first group."""
    iterator = iter(_count(dataset, counted))
    first, before = len(next(iterator, ())), HostTime.now()
    return Run.since(before, sum(len(batch) for batch in iterator), first)


def _make_options() -> tf.data.Options:
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.threading.private_threadpool_size = host_limits.usable_cpus() + 2
    return options


def _time_each(
    stages: Sequence[tuple[Stage, BuiltStage]], elements: Sequence[Any], config: PipelineConfig
) -> dict[str, StageTiming]:
    """Returns the timings of stages per output element, up to the first stage that gives none."""
    tried: dict[str, StageTiming] = {}
    prefixes, in_bytes = Prefixes(elements), _compute_bytes(elements)
    with contextlib.suppress(tf.errors.OpError):
        for stage, of in stages:
            times, ratio = CallTimes(0.0, 0.0), of.get_ratio()
            if ratio is None:
                ratio, run = count_given(stage.apply, elements, of.count_grouped())
                if of.count_threads(2, False) == 1:
                    times = times._replace(wait_s=max(run.wall_s - run.cpu_s - run.queue_s, 0.0))
            function = of.get_map() if of.is_own and of.calls_python else None
            if function is not None:
                times, given = run_map(function, elements), record(stage.apply(play(elements)))[0]
                prefixes.begin_with(given)
            elif ratio:
                holds_many = of.count_buffered() > 0  # a buffer fills in a burst, in which all stages before it run
                if holds_many or prefixes.element_s > min(_LONG_S, _LONG_GROUP_S * ratio):
                    prefixes.begin_with(elements)
                given = prefixes.add(stage.name, stage.apply, ratio)
                if holds_many and given:
                    prefixes.begin_with(given)
            if not ratio or not given:
                break
            threads = config.tf_data.num_parallel_calls or config.max_threads
            if of.is_own:
                threads = of.count_threads(config.threadpool_size or config.max_threads, config.autotunes)
            tried[stage.name] = StageTiming(
                name=stage.name,
                cpu_us_per_image=1e6 * times.cpu_s,
                wait_us_per_image=1e6 * times.wait_s,
                parallelism=threads if stage.name != "batch" else 1,
                bytes_in_per_image=in_bytes,
                bytes_out_per_image=_compute_bytes(given),
                locked_us_per_image=1e6 * times.locked_s,
                holds_python_lock=times.is_pythons,
                elements_out_per_in=ratio,
            )
            elements, in_bytes = given, tried[stage.name].bytes_out_per_image
        for name, cpu_s in prefixes.measure().items():
            tried[name] = replace(tried[name], cpu_us_per_image=1e6 * cpu_s)
    return tried


def _time_reading(source: Any, files_at_once: int, records: Sequence[Any]) -> StageTiming:
    iterator = iter(_count(source, _COUNTED))
    next(iterator)
    number, before = 0, HostTime.now()
    while not number or time.perf_counter() - before.at < _RECORD_S:
        number += len(next(iterator, ())) or _COUNTED
    run = Run.since(before, number)
    computes = run.cpu_s / run.wall_s >= _SATURATED * host_limits.usable_cpus()
    wait_s = 0.0 if computes else max(files_at_once * run.wall_s - run.cpu_s - run.queue_s, 0.0)
    cpu_s, num_bytes = _measure_cpu_s([(source, _COUNTED)])[0], _compute_bytes(records)
    return StageTiming("read", 1e6 * cpu_s, 1e6 * wait_s, files_at_once, num_bytes, num_bytes)


def _compute_bytes(elements: Sequence[Any]) -> float:
    return float(np.mean([count_bytes(element) for element in elements])) if elements else 0.0


class TensorFlowPipeline:
    """A pipeline of `build_stages`."""

    def __init__(self, stages: Stages, config: PipelineConfig) -> None:
        self.stages, self.built, self._config = stages, list[BuiltStage](), config
        dataset: tf.data.Dataset | None = None
        for stage in stages:
            before, dataset = dataset, stage.apply(dataset)
            self.built.append(BuiltStage(stage.name, before, dataset, stage.random, stage.per_image))
        self.own_stages = tuple(stage.name for stage in self.built if stage.is_own)
        self.clocks = next((stage.clocks for stage in stages if stage.clocks is not None), None)

    def open(self) -> Iterator[Any]:
        """Begins to make batches, without end."""
        dataset, options = self.built[-1].dataset, self.stages.make_options()
        dataset = dataset if options is None else dataset.with_options(options)
        batches: Iterator[Any] = iter(dataset if self._config.training else dataset.repeat())
        return batches

    def time_stages(self, profile: PipelineProfile) -> tuple[PipelineProfile, Mapping[str, float]]:
        """Adds the timings of tf.data's stages to those of the engine; also returns the bytes of their elements."""
        first = next((k for k, stage in enumerate(self.built) if stage.is_own), len(self.built))
        first = first if self.clocks else self.stages.names.index("read") + 1
        if first == len(self.built):
            return profile, {}
        source = self._build(first)
        elements, tried = record(source)[0], dict[str, StageTiming]()
        if not self.clocks:
            tried["read"] = _time_reading(source, profile.dataset.cycle_length, elements)
        played = play(elements).take(512) if elements else tf.data.Dataset.range(512)
        handed = run(played.map(lambda *element: element, num_parallel_calls=2))  # by a map that does nothing
        handover_s = max(handed.cpu_s - run(played).cpu_s, 0.0)
        pairs = zip(self.stages[first:], self.built[first:], strict=True)
        tried |= _time_each([pair for pair in pairs if pair[0].name not in _PASSED], elements, self._config)
        sizes = {name: each.bytes_out_per_image for name, each in tried.items()}
        count, counts = 1 / profile.step.images_per_step, 0.0  # of elements per image
        for name, each in reversed(list(tried.items())):
            of_output = ("cpu_us_per_image", "wait_us_per_image", "bytes_out_per_image", "locked_us_per_image")
            scaled: dict[str, Any] = {field: count * getattr(each, field) for field in of_output}
            counts, count = counts + count, count / max(each.elements_out_per_in, 1e-9)
            tried[name] = replace(each, bytes_in_per_image=count * each.bytes_in_per_image, **scaled)
        if not self.clocks:
            profile = replace(profile, records_per_image=count, handover_us=1e6 * handover_s * counts)
        timings = [*profile.stages, *tried.values()]
        caches = [k for k, stage in enumerate(self.built) if "Cache" in stage.kinds]
        if caches and not profile.fill_s:  # stages before a full cache do not run
            behind = {stage.name for stage in self.built[caches[-1] :]}
            timings = [timing for timing in timings if timing.name in behind]
        return replace(profile, stages=tuple(timings)), sizes

    def _build(self, first: int) -> tf.data.Dataset:
        """Builds the first stages for a single epoch without a cache."""
        before = [stage for stage in self.stages[:first] if stage.name not in ("repeat", "cache")]
        return Stages(before, self.stages.options).dataset()

    def try_larger_batches(self, larger: Stages) -> dict[TriedChange, float]:
        """Measures an image's cost in batches of this size and of `LARGE_BATCH`, without stages before a full cache."""
        first = 1 + max(k for k, stage in enumerate(self.built) if stage.name == "read" or "Cache" in stage.kinds)
        elements, batches = record(self._build(first))[0], {}
        sizes = {"batch": self._config.batch_size, "large_batch": LARGE_BATCH}
        for name, stages in zip(sizes, (self.stages, larger), strict=True):
            behind = [stage for stage in stages[first:] if stage.name not in _PASSED[:-2]]
            batches[name] = iter(Stages(behind, stages.options).apply_to(play(elements))).__next__
        costs_us = measure_costs_us(batches, 1, Rest().wait)
        return {name: costs_us[name] / size for name, size in sizes.items()}
