"""Opens the engine for a reader: the maker of the batches of one process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfpipe.engine.batch import Batch, BatchMaker, Transform
from tfpipe.engine.cache import share_cache_bytes
from tfpipe.engine.cached_batch import CachingMaker
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.features import check_class_names
from tfpipe.engine.mixed_batch import AnyMaker, MixedMaker, MixedPlan, deal_rows
from tfpipe.engine.mixture import Mixture, apportion, check_same_images, get_whole_source
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.position import Position
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.open_dataset import load_manifest
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.system.file_io import is_url
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
    if isinstance(data, Mixture):
        return _open_mixture(data, split, config, rank, transform, for_devices)
    manifest = _locate_manifest(data if isinstance(data, Manifest) else load_manifest(os.fspath(data)))
    plan = _check_plan(Source.from_manifest(manifest, split), config, rank, for_devices)
    return _make_maker(plan.make_batch_plan(), manifest, split, transform)


def _open_mixture(
    mixture: Mixture,
    split: str,
    config: PipelineConfig,
    rank: Rank,
    transform: Transform | None,
    for_devices: bool,
) -> MixedMaker:
    if not config.training:
        raise ConfigError("A mixture cannot be evaluated as a whole. Take its datasets one by one.")
    manifests = [_locate_manifest(manifest) for manifest in mixture.manifests]
    whole = ReadPlan(get_whole_source(mixture, split), config, rank.num_ranks, rank.index, rank.num_replicas)
    shares = apportion(mixture.weights, whole.global_batch_size, 1)
    owners, rows = deal_rows(shares), whole.rows
    plans, part_rows, makers = [], [], []
    for part, (manifest, share) in enumerate(zip(manifests, shares, strict=True)):
        options = replace(config, global_batch_size=share, per_replica_batch_size=None, num_streams=None)
        source = replace(Source.from_manifest(manifest, split), num_classes=len(mixture.label_names) or None)
        plan = _check_plan(source, options, Rank(), for_devices)
        first, end = (int((owners[:stop] == part).sum()) for stop in (rows.start, rows.stop))
        plans.append(replace(plan.make_batch_plan(), rows=range(first, end)))
        part_rows.append(np.flatnonzero(owners[rows.start : rows.stop] == part))
    for part, part_bytes in enumerate(share_cache_bytes(plans, config.cache_bytes)):
        plans[part] = replace(plans[part], config=replace(plans[part].config, cache_bytes=part_bytes))
        classes = mixture.map_labels(manifests[part]) if manifests[part].label_names else None
        makers.append(_make_maker(plans[part], manifests[part], split, transform, classes))
    check_same_images([plan.num_images for plan in plans])
    check_class_names([plan.features for plan in plans])
    steps = (whole.source.num_records or 0) // whole.global_batch_size
    mixed = MixedPlan(tuple(plans), tuple(part_rows), config, steps, whole.global_batch_size, rank.num_ranks)
    return MixedMaker(mixed, makers)


def _make_maker(
    plan: BatchPlan,
    manifest: Manifest,
    split: str,
    transform: Transform | None,
    classes: Sequence[int] | None = None,
) -> BatchMaker | CachingMaker:
    maker = BatchMaker(plan, manifest, split, transform, classes)
    if plan.config.cache != "decoded":
        return maker
    if transform is not None:
        raise ConfigError("`transform` gets images as they are stored, which `cache` decoded does not keep. Use bytes.")
    return CachingMaker(maker)


def _check_plan(source: Source, config: PipelineConfig, rank: Rank, for_devices: bool) -> ReadPlan:
    """Returns the plan of a source, which fits the config and has all of its files."""
    plan = ReadPlan(source, config, rank.num_ranks, rank.index, rank.num_replicas)
    plan.check()
    if for_devices:
        plan.check_fits_devices()
    source.check()
    return plan


def _locate_manifest(manifest: Manifest) -> Manifest:
    """Returns a manifest whose directory does not depend on this process's working folder."""
    if not manifest.directory or is_url(manifest.directory):
        return manifest
    return replace(manifest, directory=os.path.abspath(manifest.directory))


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
