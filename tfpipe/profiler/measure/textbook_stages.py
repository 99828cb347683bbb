"""The stages of tf.data's operations: those of the textbook pipeline, and the user's own behind the engine.

Each runs alone on what was recorded in front of it, see `alone`. An element becomes a part of an image that leaves the
pipeline: a stage that drops three of four makes all stages before it four times as dear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import IMAGES_PER_CALL, PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.pipeline.stage import Stages
from tfpipe.profiler.measure import alone
from tfpipe.profiler.measure.alone import Alone
from tfpipe.profiler.measure.datasets import BuiltStage
from tfpipe.profiler.measure.functions import CallTimes
from tfpipe.profiler.types import CallCosts, Spread, StageTiming
from tfpipe.system import host_limits

_PASSED = ("list", "repeat", "shuffle", "cache", "prefetch", "epochs")
"""Stages that hand elements on as they are."""
_SATURATED = 0.85
"""The share of the cores from which on a stage that reads computes, and waits for nothing else."""


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
    call_costs: dict[str, CallCosts] = {}
    handover_s = _measure_handover(elements)
    for stage, of in zip(stages[first:], built[first:], strict=True):
        if stage.name in _PASSED:
            continue
        try:
            done = alone.run_stage(stage.apply, elements, of.count_grouped())
            if done is None:
                break
            tried[stage.name], given = done
            if of.is_own:
                tried[stage.name] = replace(done[0], times=_time_own(of, done[0], elements))
                if costs := _try_calls(stages, stage.name, elements, tried[stage.name].times.cpu_s, given):
                    call_costs[stage.name] = costs
        except tf.errors.OpError:  # of a function that counts its calls, say: the rest is not known
            break
        elements = given
    return _count_for_images(tried, built, config, images_per_batch, (files_at_once, handover_s), call_costs)


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
    num_bytes = float(np.mean([alone.count_bytes(record) for record in records])) if records else 0.0
    return Alone(CallTimes(run.cpu_s, wait_s, None), 1.0, num_bytes, num_bytes)


def _time_own(stage: BuiltStage, tried: Alone, elements: Sequence[Any]) -> CallTimes:
    """Returns the times of a stage of the user's own: those of its function, if it is one map that runs Python."""
    function = stage.get_map()
    if function is not None and stage.calls_python:
        return alone.run_map(function, elements)
    return tried.times if stage.count_threads(2, False) == 1 else tried.times._replace(wait_s=0.0)


def _measure_handover(elements: Sequence[Any]) -> float:
    """Returns the processor time of handing an element to a map with threads, which does nothing, in seconds."""
    played = alone.play(elements).take(2048) if elements else tf.data.Dataset.range(2048)
    plain = alone.run(played)
    mapped = alone.run(played.map(lambda *element: element, num_parallel_calls=2))
    return max(mapped.cpu_s - plain.cpu_s, 0.0)


def _try_calls(
    stages: Stages, name: str, elements: Sequence[Any], one_s: float, expected: Sequence[Any]
) -> CallCosts | None:
    """Tries a stage that treats each image for itself on many images in a call; None if it cannot.

    Nobody can read from a function whether both give the same. So the values are compared, to the bit.
    """
    stage = stages[stages.names.index(name)]
    if stage.per_image is not True or "images_per_call" in stage.settings:
        return None
    ways: list[CallCosts] = []
    for entry in (name, f"{name} with vectorized_map"):
        vectorized = stages.vectorize(entry)[stages.names.index(name)]
        try:
            done = alone.run_stage(vectorized.apply, elements, IMAGES_PER_CALL)
        except (ConfigError, ValueError, TypeError, tf.errors.OpError):  # whatever it raises for a group of images
            continue
        if done is not None:
            same = _are_same(done[1], expected)
            ways.append(CallCosts(max(1e6 * one_s, 1.0), max(1e6 * done[0].times.cpu_s, 1.0), entry, same))
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
