"""The stages of tf.data's operations: those of the textbook pipeline, and the user's own behind the engine.

Each runs alone on what was recorded in front of it, see `alone`. An element becomes a part of an image that leaves the
pipeline: a stage that drops three of four makes all stages before it four times as dear.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.pipeline.stage import Stage, Stages
from tfpipe.profiler.measure import alone
from tfpipe.profiler.measure.alone import Chain
from tfpipe.profiler.measure.datasets import BuiltStage
from tfpipe.profiler.measure.functions import CallTimes
from tfpipe.profiler.types import CallCosts, Spread, StageTiming, TriedChange
from tfpipe.system import host_limits

_PASSED = ("list", "repeat", "shuffle", "cache", "prefetch", "epochs")
"""Stages that hand elements on as they are."""
_LONG_S, _LONG_GROUP_S = 0.002, 0.06
"""The time of an element, and of all that become one element, in seconds, from which on it would hide what the stages
behind it cost."""
_SATURATED = 0.85
"""The share of the cores from which on a stage that reads computes, and waits for nothing else."""


@dataclass(frozen=True)
class Alone:
    """The figures of a stage for an element that it gives.

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


@dataclass(frozen=True)
class TriedStages:
    """The figures of stages that were tried.

    Attributes:
        timings: The figures of each stage that was tried, in their order, for an image that leaves the pipeline.
        element_bytes: The bytes of an element that a stage gives, by its name.
        records_per_image: The records that are read for an image that leaves the pipeline.
        handover_us: The processor time of handing elements from stage to stage for an image, in microseconds.
        call_costs: The costs of the user's stages that treat each image for itself, by the images in a call.
    """

    timings: tuple[StageTiming, ...] = ()
    element_bytes: Mapping[str, float] = field(default_factory=dict)
    records_per_image: float = 1.0
    handover_us: float | None = None
    call_costs: Mapping[str, CallCosts] = field(default_factory=dict)


def try_stages(
    stages: Stages, built: Sequence[BuiltStage], config: PipelineConfig, files_at_once: int, images_per_batch: int
) -> TriedStages:
    """Tries the stages of the textbook pipeline, or the user's own behind those of the engine.

    Args:
        stages: The stages of a pipeline that runs without errors.
        built: The stages with their datasets.
        config: The pipeline's options.
        files_at_once: The files that the textbook pipeline reads side by side.
        images_per_batch: The images in an element of the whole pipeline.
    """
    names = list(stages.names)
    by_engine = any(stage.clocks for stage in stages)
    first = next((k for k, stage in enumerate(built) if stage.is_own), len(names))
    first = first if by_engine else names.index("read") + 1
    if first == len(names):
        return TriedStages()
    before = [stage for stage in stages[:first] if stage.name not in ("repeat", "cache")]
    source = Stages(before, stages.options).dataset()
    elements = alone.record(source)
    tried: dict[str, Alone] = {}
    if not by_engine:
        tried["read"] = _try_reading(source, files_at_once, elements)
    handover_s = _measure_handover(elements)
    parts = [pair for pair in zip(stages[first:], built[first:], strict=True) if pair[0].name not in _PASSED]
    behind, own = _measure_each(parts, elements)
    tried |= behind
    tries = ((name, _try_calls(stages, name, taken, tried[name].times.cpu_s)) for name, taken in own.items())
    call_costs = {name: costs for name, costs in tries if costs is not None}
    return _count_for_images(tried, built, config, images_per_batch, (files_at_once, handover_s), call_costs)


def try_larger_batches(
    stages: Stages, larger: Stages, built: Sequence[BuiltStage], sizes: tuple[int, int]
) -> dict[TriedChange, float]:
    """Returns what an image costs in small batches and in larger ones, from the last full cache on.

    Args:
        stages: The stages of the textbook pipeline.
        larger: The stages with larger batches.
        built: The stages with their datasets.
        sizes: The numbers of images in a small batch and in a larger one.
    """
    first = 1 + max(k for k, stage in enumerate(built) if stage.name == "read" or "Cache" in stage.kinds)
    before = Stages([stage for stage in stages[:first] if stage.name not in ("repeat", "cache")], stages.options)
    elements, datasets = alone.record(before.dataset()), {}
    for size, each in zip(sizes, (stages, larger), strict=True):
        dataset = alone.play(elements)
        for stage in each[first:]:
            dataset = stage.apply(dataset) if stage.name not in _PASSED[:-2] else dataset
        options = each.make_options()
        datasets[size] = dataset if options is None else dataset.with_options(options)
    seconds = alone.measure_batches_s(datasets)
    return {"batch": 1e6 * seconds[0], "large_batch": 1e6 * seconds[1]}


def _measure_each(
    parts: Sequence[tuple[Stage, BuiltStage]], elements: Sequence[Any]
) -> tuple[dict[str, Alone], dict[str, Sequence[Any]]]:
    """Returns the figures of stages one behind the other, and the elements in front of each of the user's own.

    It ends at a stage that gives nothing, or whose function fails because it counts its calls, say.
    """
    tried: dict[str, Alone] = {}
    own: dict[str, Sequence[Any]] = {}
    chains, in_bytes = [Chain(elements)], _compute_bytes(elements)
    with contextlib.suppress(tf.errors.OpError):
        for stage, of in parts:
            function = of.get_map() if of.is_own and of.calls_python else None
            times, ratio = CallTimes(0.0, 0.0, None), of.get_ratio()
            if ratio is None:
                ratio, run = alone.count_given(stage.apply, elements, of.count_grouped())
                if of.count_threads(2, False) == 1:
                    times = times._replace(wait_s=max(run.wall_s - run.cpu_s - run.queue_s, 0.0))
            if function is not None:
                times, given = alone.run_map(function, elements), alone.record(stage.apply(alone.play(elements)))
                chains.append(Chain(given))
            elif ratio:
                holds_many = of.count_buffered() > 0  # a buffer fills all at once, with what stands in front of it
                if holds_many or chains[-1].element_s > min(_LONG_S, _LONG_GROUP_S * ratio):
                    chains.append(Chain(elements))
                given = chains[-1].add(stage.name, stage.apply, ratio)
                if holds_many:
                    chains.append(Chain(given))
            if not ratio or not given:
                break
            tried[stage.name] = Alone(times, ratio, _compute_bytes(given), in_bytes)
            if of.is_own:
                own[stage.name] = elements
            elements, in_bytes = given, tried[stage.name].out_bytes
        for name, cpu_s in (one for chain in chains for one in chain.measure().items()):
            tried[name] = replace(tried[name], times=tried[name].times._replace(cpu_s=cpu_s))
    return tried, own


def leave_out_cached(timings: Sequence[StageTiming], built: Sequence[BuiltStage]) -> tuple[StageTiming, ...]:
    """Returns the stages behind the last cache that is full: what stands in front of it does not run."""
    kept = [timing.name for timing in timings]
    for stage in built:
        if "Cache" in stage.kinds:
            behind = [each.name for each in built[built.index(stage) :]]
            kept = [name for name in kept if name in behind]
    return tuple(timing for timing in timings if timing.name in kept)


def _count_for_images(
    tried: Mapping[str, Alone],
    built: Sequence[BuiltStage],
    config: PipelineConfig,
    images_per_batch: int,
    known: tuple[int, float],
    call_costs: Mapping[str, CallCosts],
) -> TriedStages:
    """Turns figures of elements into figures of images that leave the pipeline."""
    files_at_once, handover_s = known
    stages = {stage.name: stage for stage in built}
    threads = config.tf_data.num_parallel_calls or config.max_threads
    own_threads = config.threadpool_size or config.max_threads
    per_image: dict[str, float] = {}
    elements, timings = 1 / images_per_batch, []
    for name in reversed(list(tried)):
        per_image[name], elements = elements, elements / max(tried[name].out_per_in, 1e-9)
    for name, each in tried.items():
        count, times, stage = per_image[name], each.times, stages[name]
        us = 1e6 * count * times.cpu_s
        count_threads = threads if name != "batch" else 1
        if stage.is_own:
            count_threads = stage.count_threads(own_threads, config.autotunes)
        hold_us = None if times.hold_s is None or not stage.is_own else 1e6 * count * times.hold_s
        timings.append(
            StageTiming(
                name=name,
                cpu_us_per_image=Spread(us, us, us),
                wait_us_per_image=1e6 * count * times.wait_s if stage.is_own or name == "read" else 0.0,
                parallelism=files_at_once if name == "read" else count_threads,
                bytes_in_per_image=count / max(each.out_per_in, 1e-9) * each.in_bytes,
                bytes_out_per_image=count * each.out_bytes,
                holds_python_lock=times.is_pythons,
                hold_us_per_image=hold_us,
                elements_out_per_in=each.out_per_in,
            )
        )
    has_read = "read" in tried
    return TriedStages(
        tuple(timings),
        {name: each.out_bytes for name, each in tried.items()},
        per_image["read"] if has_read else 1.0,
        1e6 * handover_s * sum(per_image.values()) if has_read else None,
        call_costs,
    )


def _try_reading(source: Any, files_at_once: int, records: Sequence[Any]) -> Alone:
    """Reads records as fast as it goes."""
    run = alone.run_for_a_while(source)
    computes = run.cpu_s / run.wall_s >= _SATURATED * host_limits.usable_cpus()
    wait_s = 0.0 if computes else max(files_at_once * run.wall_s - run.cpu_s - run.queue_s, 0.0)
    num_bytes = _compute_bytes(records)
    return Alone(CallTimes(alone.measure_cpu_s(source), wait_s, None), 1.0, num_bytes, num_bytes)


def _compute_bytes(elements: Sequence[Any]) -> float:
    """Returns the mean size of elements, in bytes."""
    return float(np.mean([alone.count_bytes(element) for element in elements])) if elements else 0.0


def _measure_handover(elements: Sequence[Any]) -> float:
    """Returns the processor time of handing an element to a map with threads, which does nothing, in seconds."""
    played = alone.play(elements).take(512) if elements else tf.data.Dataset.range(512)
    plain = alone.run(played)
    mapped = alone.run(played.map(lambda *element: element, num_parallel_calls=2))
    return max(mapped.cpu_s - plain.cpu_s, 0.0)


def _try_calls(stages: Stages, name: str, elements: Sequence[Any], one_s: float) -> CallCosts | None:
    """Tries a stage that treats each image for itself on many images in a call; None if it cannot.

    Nobody can read from a function whether both give the same. So the values are compared, to the bit.
    """
    stage = stages[stages.names.index(name)]
    if stage.per_image is not True or "images_per_call" in stage.settings:
        return None
    ways, expected = list[CallCosts](), alone.record(stage.apply(alone.play(elements)))
    for entry in (name, f"{name} with vectorized_map"):
        vectorized = stages.vectorize(entry)[stages.names.index(name)]
        chain = Chain(elements)
        try:
            given = chain.add(name, vectorized.apply, 1.0)
            many_s = chain.measure()[name]
        except (ConfigError, ValueError, TypeError, tf.errors.OpError):  # whatever it raises for a group of images
            continue
        ways.append(CallCosts(max(1e6 * one_s, 1.0), max(1e6 * many_s, 1.0), entry, _are_same(given, expected)))
    # A function that TensorFlow makes of the user's must be clearly cheaper.
    return min(
        ways, key=lambda way: (not way.same_values, way.many_us * (1.0 if way.entry == name else 1.25)), default=None
    )


def _are_same(given: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Returns whether elements have the same structure, types, shapes and bits."""
    count = min(len(given), len(expected))
    try:
        for one, other in zip(given[:count], expected[:count], strict=True):
            tf.nest.assert_same_structure(one, other)
            for left, right in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
                if left.dtype != right.dtype or not np.array_equal(
                    left.numpy(), right.numpy(), equal_nan=left.dtype.is_floating
                ):
                    return False
    except (TypeError, ValueError):
        return False
    return count > 0
