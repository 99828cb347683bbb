"""The pipelines that a profile can run: stages of tf.data, or the engine with Python functions and no TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfpipe.engine.clocks import Clocks
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.stage import Stages
from tfpipe.profiler.measure.facts import BuiltStage
from tfpipe.profiler.measure.functions import run_function
from tfpipe.profiler.measure.samples import load_images
from tfpipe.profiler.measure.textbook import TriedStages, try_larger_batches, try_stages
from tfpipe.profiler.types import LARGE_BATCH, StageTiming, TriedChange
from tfpipe.readers.finish import BatchTransform, ImageTransform, seed_transform
from tfpipe.readers.numpy import NumpyBatches

_EXAMPLES = 16


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


class TensorFlowPipeline:
    """A pipeline of `build_stages`."""

    def __init__(self, stages: Stages, config: PipelineConfig) -> None:
        self.stages, self.built = stages, tuple(_build_each(stages))
        self.own_stages = tuple(stage.name for stage in self.built if stage.is_own)
        self.clocks = next((stage.clocks for stage in stages if stage.clocks is not None), None)
        self._config = config

    def open(self) -> Iterator[Any]:
        """Begins to make batches, without end."""
        dataset, options = self.built[-1].dataset, self.stages.make_options()
        dataset = dataset if options is None else dataset.with_options(options)
        batches: Iterator[Any] = iter(dataset if self._config.training else dataset.repeat())
        return batches

    def try_parts(self, timings: Sequence[StageTiming], files_at_once: int, images_per_step: int) -> TriedStages:
        """Runs each stage of tf.data's operations alone, and puts their figures behind those of the engine."""
        tried = try_stages(self.stages, self.built, self._config, files_at_once, images_per_step)
        return replace(tried, timings=(*timings, *tried.timings))

    def try_larger_batches(self, larger: Stages) -> dict[TriedChange, float]:
        """Returns what an image costs in these batches, and in those of stages that make larger ones."""
        return try_larger_batches(self.stages, larger, self.built, (self._config.batch_size, LARGE_BATCH))


class NumpyPipeline:
    """The batches of `NumpyBatches`, with functions of the user's."""

    stages, built = Stages(()), ()

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


AnyPipeline: TypeAlias = TensorFlowPipeline | NumpyPipeline  # a pipeline that can be run and measured


def _copy(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}


def _build_each(stages: Stages) -> list[BuiltStage]:
    built: list[BuiltStage] = []
    dataset: tf.data.Dataset | None = None
    for stage in stages:
        built.append(BuiltStage(stage.name, dataset, stage.apply(dataset), stage.random, stage.per_image))
        dataset = built[-1].dataset
    return built
