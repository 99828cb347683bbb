"""A pipeline as a tuple of named stages that folds into one `tf.data.Dataset`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from tfpipe.engine.clocks import Clocks
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.system.units import parse_bytes, shorten

STAGE_NAMES = (
    "list",
    "read",
    "shuffle",
    "parse",
    "decode",
    "cache",
    "repeat",
    "augment",
    "batch",
    "prefetch",
    "epochs",
)
"""The names of all stages, in their usual order; `textbook.py` and `steps.py` say which stand where."""


@dataclass(frozen=True)
class Stage:
    """One step of a pipeline.

    Attributes:
        name: The name, one of `STAGE_NAMES` or your own.
        apply: The function that takes the previous stage's dataset and returns this stage's. The first stage gets None.
        settings: The values that the stage was built with, for people and for the profiler.
        reason: The reason for the stage or for its place.
        random: Whether it draws anew in each epoch, so that no cache may keep its results. None: unknown.
        per_image: Whether it treats each image for itself, so that it can also run on the accelerator, on a batch.
            None: unknown.
        clocks: The clocks of the engine, if it makes the batches; None for a stage of tf.data's operations.
        passes: The passes that the stage ends, for `tfpipe.EndFirstEpoch`; None if it ends none.
    """

    name: str
    apply: Callable[[Any], Any] = field(repr=False, compare=False)
    settings: Mapping[str, object] = field(default_factory=dict)
    reason: str = ""
    random: bool | None = None
    per_image: bool | None = None
    clocks: Clocks | None = field(default=None, repr=False, compare=False)
    passes: Any = field(default=None, repr=False, compare=False)


class Stages(tuple[Stage, ...]):
    """The stages of a pipeline, in order: a tuple that prints as a table."""

    options: tf.data.Options | None = None

    def __new__(cls, stages: tuple[Stage, ...] | list[Stage], options: tf.data.Options | None = None) -> Stages:
        """Makes a tuple of stages, with the `tf.data` options that hold for all of them."""
        for stage in stages:
            if not isinstance(stage, Stage):
                raise ConfigError(f"A stage must be a tfpipe.Stage(name, function), got {shorten(stage)}.")
        self = super().__new__(cls, stages)
        self.options = options
        return self

    @property
    def passes(self) -> list[Any]:
        """The passes that stages end, for `tfpipe.EndFirstEpoch`."""
        return [stage.passes for stage in self if stage.passes is not None]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages, in order."""
        return tuple(stage.name for stage in self)

    def until(self, name: str) -> Stages:
        """Returns the stages up to `name`, with that stage.

        Raises:
            ConfigError: No stage has this name.
        """
        return Stages(self[: self._find(name) + 1], self.options)

    def replace(self, name: str, *stages: Stage) -> Stages:
        """Returns the pipeline with other stages in place of `name`, or without it if none are given.

        Raises:
            ConfigError: No stage has this name.
        """
        index = self._find(name)
        return Stages([*self[:index], *stages, *self[index + 1 :]], self.options)

    def insert_after(self, name: str, *stages: Stage) -> Stages:
        """Returns the pipeline with further stages right after `name`.

        Raises:
            ConfigError: No stage has this name.
        """
        return self.replace(name, self[self._find(name)], *stages)

    def _find(self, name: str) -> int:
        if name not in self.names:
            hint = "" if "parse" in self.names else " With order='throughput' it has stages for single records."
            raise ConfigError(f"This pipeline has no stage {name!r}; it has {', '.join(self.names)}.{hint}")
        return self.names.index(name)

    def dataset(self) -> tf.data.Dataset:
        """Builds the dataset: applies each stage to the one before, then sets the options."""
        return self.apply_to(None)

    def apply_to(self, dataset: Any) -> tf.data.Dataset:
        """Builds the stages on a dataset that takes the place of all earlier stages."""
        for stage in self:
            dataset = stage.apply(dataset)
        options = self.make_options()
        return dataset if options is None else dataset.with_options(options)

    def make_options(self) -> tf.data.Options | None:
        """Makes the `tf.data` options that the stages run with; None if there are none.

        With a stage of the user's own, AUTOTUNE must give threads to the slowest stage, one at a time. Its default,
        hill climbing, left the map of such a stage at one thread in 11 of 15 starts, whether tf.data had fused map and
        batch or not (2 cores, TensorFlow 2.21).
        """
        if self.options is None or all(stage.name in STAGE_NAMES for stage in self):
            return self.options
        by_stages = tf.data.Options()
        by_stages.autotune.autotune_algorithm = tf.data.experimental.AutotuneAlgorithm.STAGE_BASED
        return self.options.merge(by_stages)

    def __str__(self) -> str:
        width, lines = max((len(stage.name) for stage in self), default=0), list[str]()
        for stage in self:
            settings = ", ".join(f"{name}={_show(value)}" for name, value in stage.settings.items())
            lines.append(f"{stage.name:<{width}}  {settings}".rstrip())
            if stage.reason:
                lines.append(f"{'':<{width}}  {stage.reason}")
        return "\n".join(lines)


def without_autograph(stage: Stage) -> Stage:
    """Returns the stage without AutoGraph's slow conversion, for stages that do not branch in Python on a tensor."""
    return replace(stage, apply=tf.autograph.experimental.do_not_convert(stage.apply))


Customize = Callable[[Stages], Stages]
"""A function that changes the stages of a pipeline before it is built: it inserts a map, or moves the cache."""


def prefer_textbook(config: PipelineConfig, customize: Customize | None) -> PipelineConfig:
    """Chooses the textbook pipeline for stages of the user's own, which treat single records, if `order` is auto."""
    return replace(config, order="throughput") if customize is not None and config.order == "auto" else config


def tf_data_options(config: PipelineConfig, deterministic: bool, busy_threads: int = 0) -> tf.data.Options:
    """Makes the `tf.data` options that a config asks for.

    `busy_threads` is the number of threads that long operations keep busy, such as decoding a batch. In TensorFlow's
    pool, which has a thread for each core, reading would stop until a batch is done. So the pipeline gets a pool of its
    own with this number of threads more, unless `private_threadpool_size` gives the size.
    """
    options = tf.data.Options()
    options.deterministic = deterministic
    options.autotune.enabled = config.autotunes
    if config.autotunes and config.cpu_budget is not None:
        options.autotune.cpu_budget = config.max_threads
    if config.autotunes and config.tf_data.ram_budget is not None:
        options.autotune.ram_budget = parse_bytes(config.tf_data.ram_budget, "ram_budget")
    options.experimental_optimization.inject_prefetch = config.tf_data.inject_prefetch
    options.experimental_optimization.map_fusion = config.tf_data.map_fusion
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    if config.threadpool_size is not None:
        options.threading.private_threadpool_size = config.threadpool_size
    if busy_threads and config.tf_data.private_threadpool_size is None:
        options.threading.private_threadpool_size = config.max_threads + busy_threads
    if config.tf_data.max_intra_op_parallelism:
        options.threading.max_intra_op_parallelism = config.tf_data.max_intra_op_parallelism
    # Without autotuning tf.data must not turn a serial `map` into a parallel one.
    options.experimental_optimization.apply_default_optimizations = config.autotunes
    return options


def _show(value: object) -> str:
    if value is None or value == tf.data.AUTOTUNE:
        return "auto"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
