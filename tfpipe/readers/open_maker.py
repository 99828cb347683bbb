"""Opens the engine for a reader: the maker of the batches of one process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfpipe.engine.batch import Batch, Transform
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.mixed_batch import AnyMaker, make_maker, make_mixed_maker, share_config
from tfpipe.engine.mixture import Mixture, get_whole_source
from tfpipe.engine.position import Position
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.open_dataset import load_if_path
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.service.remote import serve_remotely
from tfpipe.system.options import get_options


@dataclass(frozen=True)
class Rank:
    """One of the processes that share a batch.

    Attributes:
        index: The number of this rank, from 0.
        num_ranks: The number of ranks.
        num_replicas: The number of replicas of all ranks together; each has an equal share.
    """

    index: int = 0
    num_ranks: int = 1
    num_replicas: int = 1


def open_maker(
    data: Manifest | Mixture | str | os.PathLike[str],
    split: str,
    config: PipelineConfig,
    rank: Rank,
    transform: Transform | None = None,
    *,
    for_devices: bool = False,
) -> AnyMaker:
    """Opens a split for a reader.

    Args:
        data: A manifest from `load_manifest`, a dataset's directory or URL, or several datasets from `mix`.
        split: The name of a split.
        config: The options of `build_dataset`, without those that only `tf.data` has.
        rank: The part of each batch that is read.
        transform: A function that replaces crops, resizing and flips; it gets whole images.
        for_devices: Whether a batch may hold only what devices hold.

    Raises:
        ConfigError: The config does not fit this reader, the data or the number of ranks.
        DataError: There are no records, or the directory is not a finished dataset.
        FormatError: A file is missing, or has another size than the manifest says.
    """
    _check_config(config)
    if transform is not None and config.service.workers:
        raise ConfigError("A `transform` runs in this process, and a `service` makes batches elsewhere. Leave one out.")
    opened: Manifest | Mixture = load_if_path(data)
    if isinstance(opened, Mixture):
        return serve_remotely(_open_mixture(opened, split, config, rank, transform, for_devices))
    plan = _check_plan(Source.from_manifest(opened, split), config, rank, for_devices)
    return serve_remotely(make_maker(plan.make_batch_plan(), transform))


def _open_mixture(
    mixture: Mixture,
    split: str,
    config: PipelineConfig,
    rank: Rank,
    transform: Transform | None,
    for_devices: bool,
) -> AnyMaker:
    if not config.training:
        raise ConfigError("A mixture cannot be evaluated as a whole. Take its datasets one by one.")
    whole = ReadPlan(get_whole_source(mixture, split), config, rank.num_ranks, rank.index, rank.num_replicas)
    plans = []
    for manifest, options in zip(
        mixture.manifests, share_config(mixture, config, whole.global_batch_size), strict=True
    ):
        plans.append(_check_plan(Source.from_manifest(manifest, split), options, Rank(), for_devices).make_batch_plan())
    return make_mixed_maker(mixture, plans, whole.rows, transform)


def _check_plan(source: Source, config: PipelineConfig, rank: Rank, for_devices: bool) -> ReadPlan:
    """Returns the plan of a source, which fits the config and has all of its files."""
    plan = ReadPlan(source, config, rank.num_ranks, rank.index, rank.num_replicas)
    plan.check()
    if for_devices:
        plan.check_fits_devices()
    if config.cache_dir is None:  # it looks for them itself, unless it is whole
        source.check()
    return plan


def locate(maker: AnyMaker, start_step: int) -> Position:
    """Returns the position of a global step of a run.

    Raises:
        ConfigError: There is no such step.
    """
    if start_step < 0:
        raise ConfigError(f"`start_step` must be at least 0, got {start_step}.")
    if start_step and not maker.plan.config.training:
        raise ConfigError(f"`start_step` is for training; evaluation begins at 0, got {start_step}.")
    return Position(*divmod(start_step, maker.plan.steps_per_epoch))


def form_batch(batch: Batch, config: PipelineConfig) -> Any:
    """Returns a batch in the trainer's form: a dictionary, or (image, label[, mask]) with `as_supervised`.

    The features in `extra_features` then join the image in a dictionary.
    """
    if not config.as_supervised:
        return batch
    inputs = {name: batch[name] for name in ("image", *config.extra_features)}
    first = inputs if config.extra_features else inputs["image"]
    return (first, batch["label"], batch["mask"]) if "mask" in batch else (first, batch["label"])


def weigh_mask(batch: Batch, config: PipelineConfig) -> Batch:
    """Returns a batch whose mask is float32 weights, if the config asks for pairs."""
    if config.as_supervised and "mask" in batch:
        return {**batch, "mask": batch["mask"].astype(np.float32)}
    return batch


def _check_config(config: PipelineConfig) -> None:
    for name, option in get_options(config).items():
        value = getattr(config, name)
        if option.without_tensorflow is not None and value not in option.without_tensorflow:
            raise ConfigError(
                f"`{name}` {value!r} is for the TensorFlow pipeline only: here records are read one by one, in exact "
                "order. Leave it out."
            )
