"""A pipeline as a tuple of named stages that folds into one `tf.data.Dataset`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from tfpipe.engine.clocks import Clocks
from tfpipe.engine.config.pipeline_config import IMAGES_PER_CALL, PipelineConfig
from tfpipe.errors import ConfigError, TfpipeError, explain_pipeline_error
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

_MAPS = ("_MapDataset", "_ParallelMapDataset")


@dataclass(frozen=True)
class Stage:
    """One step of a pipeline.

    Attributes:
        name: The name, one of `STAGE_NAMES` or your own.
        apply: The function that takes the previous stage's dataset and returns this stage's. The first stage gets None.
        settings: The values that the stage was built with, for people and for the profiler.
        reason: The reason for the stage or for its place.
        commutes_with: The names of stages that may change places with this one: what leaves the two stays the same. A
            filter on the label commutes with "decode". What is not named is unknown, and stays where it is.
        shrinks: Whether it drops elements or makes them smaller, so that less is to do behind it. None: unknown.
        random: Whether it draws anew in each epoch, so that no cache may keep its results. None: unknown.
        per_image: Whether it treats each image for itself, so that it can also run on a batch, here or on the
            accelerator. None: unknown.
        clocks: The clocks of the engine, if it makes the batches; None for a stage of tf.data's operations.
        passes: The passes that the stage ends, for `tfpipe.EndFirstEpoch`; None if it ends none.
    """

    name: str
    apply: Callable[[Any], Any] = field(repr=False, compare=False)
    settings: Mapping[str, object] = field(default_factory=dict)
    reason: str = ""
    commutes_with: frozenset[str] = frozenset()
    shrinks: bool | None = None
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
        place = self._find(name)
        return Stages([*self[:place], *stages, *self[place + 1 :]], self.options)

    def insert_after(self, name: str, *stages: Stage) -> Stages:
        """Returns the pipeline with further stages right after `name`.

        Raises:
            ConfigError: No stage has this name.
        """
        place = self._find(name) + 1
        return Stages([*self[:place], *stages, *self[place:]], self.options)

    def move(self, move: str) -> Stages:
        """Returns the pipeline with one stage moved up, such as "keep_cats before decode".

        Raises:
            ConfigError: The stages are not there in this order, or one of those between does not say that both may
                change places (`Stage.commutes_with`).
        """
        name, _, before = move.partition(" before ")
        place, target = self._find(name), self._find(before)
        if target >= place:
            raise ConfigError(f"Stage {name!r} stands before {before!r} already. Leave this move out.")
        for other in self[target:place]:
            if not _commute(self[place], other):
                raise ConfigError(
                    f"The stage {name!r} may move before {other.name!r} only if one of them names the other in its "
                    "`commutes_with`, and neither does."
                )
        others = self[target:place]
        return Stages([*self[:target], self[place], *others, *self[place + 1 :]], self.options)

    def list_moves(self) -> list[str]:
        """Lists the moves that are allowed and leave less to do: stages that shrink, as far up as they may go."""
        moves = []
        for place, stage in enumerate(self):
            target = place
            while stage.shrinks and target and _commute(stage, self[target - 1]):
                target -= 1
            if target < place:
                moves.append(f"{stage.name} before {self[target].name}")
        return moves

    def vectorize(self, entry: str) -> Stages:
        """Returns the pipeline with one stage that treats many images in one call.

        Args:
            entry: The stage's name: its function gets them as they are, with another dimension in front. Or "NAME with
                vectorized_map", where TensorFlow makes such a function of one for a single image.

        Raises:
            ConfigError: There is no such stage, or it does not declare `per_image`.
        """
        name, separator, way = entry.partition(" with ")
        if separator and way != "vectorized_map":
            raise ConfigError(f"A stage is vectorized as 'blur' or 'blur with vectorized_map', got {entry!r}.")
        stage = self[self._find(name)]
        if stage.per_image is not True:
            raise ConfigError(f"The stage {name!r} may treat many images in one call only if it declares `per_image`.")
        return self.replace(name, _vectorize(stage, by_tensorflow=way == "vectorized_map"))

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

        Beside a stage of the user's own AUTOTUNE goes through the stages and gives threads to the slowest one. Its
        default, hill climbing, left the map of such a stage at one thread in 11 of 15 starts, whether tf.data had fused
        map and batch or not (2 cores, TensorFlow 2.21).
        """
        if self.options is None or all(stage.name in STAGE_NAMES for stage in self):
            return self.options
        by_stages = tf.data.Options()
        by_stages.autotune.autotune_algorithm = tf.data.experimental.AutotuneAlgorithm.STAGE_BASED
        return self.options.merge(by_stages)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _vectorize(stage: Stage, by_tensorflow: bool) -> Stage:
    """Returns a stage that gives the same elements in the same order, made by calls for `IMAGES_PER_CALL` of them."""

    def apply(dataset: Any) -> Any:
        groups = dataset.batch(IMAGES_PER_CALL)
        if not by_tensorflow:
            return stage.apply(groups).unbatch()
        return groups.map(_make_vectorized_map(stage, dataset), num_parallel_calls=tf.data.AUTOTUNE).unbatch()

    return replace(stage, apply=apply, settings={**stage.settings, "images_per_call": IMAGES_PER_CALL})


def _make_vectorized_map(stage: Stage, dataset: Any) -> Callable[..., Any]:
    """Returns the function of a stage's map, for many elements at once."""
    mapped = stage.apply(dataset)
    if type(mapped).__name__ not in _MAPS or mapped._input_dataset is not dataset:  # neither has a public name
        raise ConfigError(f"The stage {stage.name!r} must be a single map for vectorized_map, got {mapped!r:.80}.")
    function = mapped._map_func.function

    def on_group(*elements: Any) -> Any:
        tensors = tuple(tf.nest.flatten(elements))
        results = tf.vectorized_map(lambda each: tuple(tf.nest.flatten(function(*each))), tensors)
        return tf.nest.pack_sequence_as(mapped.element_spec, list(results))

    plain: Callable[..., Any] = tf.autograph.experimental.do_not_convert(on_group)
    return plain


def _commute(stage: Stage, other: Stage) -> bool:
    return other.name in stage.commutes_with or stage.name in other.commutes_with


def without_autograph(stage: Stage) -> Stage:
    """Returns the stage without AutoGraph's slow conversion, for stages that do not branch in Python on a tensor."""
    return replace(stage, apply=tf.autograph.experimental.do_not_convert(stage.apply))


Customize = Callable[[Stages], Stages]
"""A function that changes the stages of a pipeline before it is built: it inserts a map, or moves the cache."""


def prefer_textbook(config: PipelineConfig, customize: Customize | None) -> PipelineConfig:
    """Returns the config for stages of the user's own: these treat single records unless `order` is exact."""
    return replace(config, order="throughput") if customize is not None and config.order == "auto" else config


def customize_stages(stages: Stages, customize: Customize | None) -> Stages:
    """Returns the stages as the user's function changes them."""
    if customize is None:
        return stages
    customized = customize(stages)
    if not isinstance(customized, Stages) or not customized:
        raise ConfigError(f"The function that changes the stages must return tfpipe.Stages, got {customized!r:.80}.")
    return customized


def tf_data_options(config: PipelineConfig, deterministic: bool, held_threads: int = 0) -> tf.data.Options:
    """Makes the `tf.data` options that a config asks for.

    `held_threads` are held by long operations, such as decoding a batch. TensorFlow's pool has a thread for each core,
    and reading would stop until a batch is done. So the pipeline gets a pool with as many more, unless
    `private_threadpool_size` says its size.
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
    if held_threads and config.tf_data.private_threadpool_size is None:
        options.threading.private_threadpool_size = config.max_threads + held_threads
    if config.tf_data.max_intra_op_parallelism:
        options.threading.max_intra_op_parallelism = config.tf_data.max_intra_op_parallelism
    # Without autotuning tf.data must not turn a serial `map` into a parallel one.
    options.experimental_optimization.apply_default_optimizations = config.autotunes
    return options


def _lines(stages: Stages) -> Iterator[str]:
    width = max((len(stage.name) for stage in stages), default=0)
    for stage in stages:
        settings = ", ".join(f"{name}={_show(value)}" for name, value in stage.settings.items())
        yield f"{stage.name:<{width}}  {settings}".rstrip()
        if stage.reason:
            yield f"{'':<{width}}  {stage.reason}"


def _show(value: object) -> str:
    if value is None or value == tf.data.AUTOTUNE:
        return "auto"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@contextlib.contextmanager
def explain_customize_errors(customize: Customize | None) -> Iterator[None]:
    """Turns any error of the user's own stages into a sentence. Without a function, errors pass as they are."""
    try:
        yield
    except Exception as error:  # the user's code may raise anything
        if customize is None or isinstance(error, TfpipeError):
            raise
        raise explain_pipeline_error(error) from error
