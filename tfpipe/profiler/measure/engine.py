"""Measures the engine: its clocks, and the user's functions that it calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tfpipe.engine.clocks import Clocks, Phase, PhaseTime
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.format.manifest import Manifest
from tfpipe.profiler.measure.clocks import HostTime
from tfpipe.profiler.measure.facts import BuiltStage
from tfpipe.profiler.measure.functions import run_function
from tfpipe.profiler.measure.samples import load_images
from tfpipe.profiler.measure.textbook import TriedStages
from tfpipe.profiler.types import Spread, StageTiming
from tfpipe.readers.finish import BatchTransform, ImageTransform, seed_transform
from tfpipe.readers.numpy import NumpyBatches

_PHASES: tuple[Phase, ...] = ("read", "parse", "decode", "transform", "batch", "batch_transform")
_PYTHON_PHASES: tuple[Phase, ...] = ("transform", "batch_transform")  # functions of the user's own
_MOST_PARTS = 10
_EXAMPLES = 16  # images with which a function is run


class Reading(NamedTuple):
    """The clocks of the engine at a moment, by `time.perf_counter`."""

    at: float
    times: Mapping[Phase, PhaseTime]


class Shape(NamedTuple):
    """The facts about a run that its clocks do not know."""

    images_per_second: float  # that left the pipeline
    reads: int  # batches that are read at once
    threads: int  # that decode at most
    calls: int  # of the user's `transform` at once, at most
    record_bytes: float
    image_bytes: float  # of a finished image


def time_phases(
    readings: Sequence[Reading], before: HostTime, after: HostTime, shape: Shape
) -> tuple[StageTiming, ...]:
    """Returns the figures of the phases that were passed, in their order."""
    size = max(-(-(len(readings) - 1) // _MOST_PARTS), 1)
    chosen = [*readings[:-1:size], readings[-1]]
    used_s = after.process - before.process
    # A thread that waits for a core waits for nothing else.
    stretch = 1 + max(after.queue - before.queue, 0.0) / used_s if used_s > 0 else 1.0
    timings = []
    for phase in _PHASES:
        costs_us = [_compute_us(phase, *pair, shape) for pair in pairwise(chosen)]
        cpu_us, wall_us = _compute_us(phase, chosen[0], chosen[-1], shape)
        if not wall_us:
            continue
        is_read = phase == "read"
        waits = max(wall_us - stretch * cpu_us, 0.0) if is_read or phase in _PYTHON_PHASES else 0.0
        timings.append(
            StageTiming(
                name=phase,
                cpu_us_per_image=Spread.from_values([cpu for cpu, _ in costs_us], cpu_us),
                wait_us_per_image=waits,
                parallelism={"read": shape.reads, "parse": shape.reads, "transform": shape.calls}.get(
                    phase, shape.threads
                ),
                bytes_out_per_image=shape.record_bytes if phase in ("read", "parse") else shape.image_bytes,
            )
        )
    return tuple(timings)


def _compute_us(phase: Phase, before: Reading, after: Reading, shape: Shape) -> tuple[float, float]:
    """Returns the processor time and the time by the clock of a phase between two readings, for an image."""
    images = shape.images_per_second * (after.at - before.at)
    then, now = before.times.get(phase, PhaseTime()), after.times.get(phase, PhaseTime())
    return 1e6 * (now.cpu_s - then.cpu_s) / images, 1e6 * (now.wall_s - then.wall_s) / images


@dataclass(frozen=True)
class Functions:
    """The Python functions in the engine, as the readers without TensorFlow take them."""

    transform: ImageTransform | None = None
    batch_transform: BatchTransform | None = None  # of a finished batch

    @property
    def names(self) -> tuple[str, ...]:
        """The names of those that are there."""
        given = {"transform": self.transform, "batch_transform": self.batch_transform}
        return tuple(name for name, function in given.items() if function is not None)


class NumpyPipeline:
    """The batches of `NumpyBatches`, with functions of the user's."""

    built: tuple[BuiltStage, ...] = ()

    def __init__(self, data: Manifest, split: str, config: PipelineConfig, functions: Functions) -> None:
        self.own_stages, self._functions = functions.names, functions
        self._batches = NumpyBatches(
            data, split, config, transform=functions.transform, batch_transform=functions.batch_transform
        )
        self._manifest, self._split, self._config = data, split, config
        self.clocks: Clocks | None = self._batches.clocks

    def open(self) -> Iterator[Any]:
        """Begins to make batches, without end."""
        return itertools.chain.from_iterable(itertools.repeat(self._batches))

    def try_parts(self, timings: Sequence[StageTiming], files_at_once: int, images_per_step: int) -> TriedStages:
        """Runs each function alone on recorded images or batches, with 1 thread and with 2."""
        judged = []
        for timing in timings:
            call, images = self._get_call(timing.name), self._config.batch_size if timing.name != "transform" else 1
            if call is not None:
                times = run_function(call)
                hold_us = None if times.hold_s is None else 1e6 * times.hold_s / images
                waits_us = 1e6 * times.wait_s / images
                timing = replace(timing, wait_us_per_image=waits_us, hold_us_per_image=hold_us)
                timing = replace(timing, holds_python_lock=times.is_pythons)
            judged.append(timing)
        return TriedStages(tuple(judged))

    def _get_call(self, name: str) -> Callable[[int], Any] | None:
        """Returns a call of one of the functions on recorded examples; None for any other part."""
        transform, on_batch = seed_transform(self._functions.transform), self._functions.batch_transform
        if name == "transform" and transform is not None:
            images = load_images(self._manifest, self._split, self._config, _EXAMPLES)
            return lambda k: transform(images[k % len(images)].copy(), k)
        if name == "batch_transform" and on_batch is not None:
            plain = replace(self._config, as_supervised=False)
            batch = NumpyBatches(self._manifest, self._split, plain, transform=self._functions.transform).read(0)
            return lambda _: on_batch(_copy(batch))
        return None


def _copy(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}
