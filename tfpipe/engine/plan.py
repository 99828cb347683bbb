"""BatchPlan and MixedPlan: which records make the batch of a step on one host. Frozen, without a framework.

The batch depends on the data, the config and the step alone: not on the number of hosts or the batches before. Checks
of a plan say whether its options fit the records, the replicas and the devices, before a batch is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeAlias

import numpy as np

from tfpipe.engine.config.pipeline_config import MAX_IMAGES, PipelineConfig
from tfpipe.engine.encoded_images import DTYPES
from tfpipe.engine.epoch_weights import EpochWeights
from tfpipe.engine.features import BatchFeature, list_batch_features
from tfpipe.engine.host import Host, split_batch
from tfpipe.engine.order import Order, check_fills_batch, choose_block
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.system.hash_permutation import IntArray


@dataclass(frozen=True)
class BatchPlan:
    """The plan of one host's batches of one dataset, from `plan_batches`."""

    source: Source
    config: PipelineConfig
    host: Host
    rows: range  # of the global batch that are made here: those of the host, or some of them

    @cached_property
    def batch_size(self) -> int:
        """The number of rows of each batch that are made here."""
        return len(self.rows)

    @property
    def plans(self) -> tuple[BatchPlan, ...]:
        """The plan itself: the only dataset of its batches."""
        return (self,)

    @property
    def replica_batch_size(self) -> int:
        """The number of rows of the global batch that one replica gets."""
        return split_batch(self.config.batch_size, self.host.num_replicas)

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch, in training of full ones only; 0 if nobody counted the records."""
        if self.config.training:
            return (self.source.epoch_records or 0) // self.config.batch_size
        records, hosts = self.source.num_records or 0, self.host.num_hosts
        largest_share = -(-records // hosts)
        return -(-largest_share // (self.config.batch_size // hosts))

    @cached_property
    def order(self) -> Order:
        """The order of training. The size of its blocks follows from that of the records unless the config has one."""
        records, batch = self.source.epoch_records or 0, self.config.batch_size
        block = self.config.block_records or choose_block(self.source.record_bytes, records, batch)
        return Order(records, batch, block, self.config.seed)

    @cached_property
    def weights(self) -> EpochWeights | None:
        """The tables of the epochs of training for a view in which records have weights; None for other data."""
        chosen = self.source.chosen
        if not self.config.training or chosen is None or chosen.weights is None:
            return None
        return EpochWeights(chosen, self.config.seed)

    @cached_property
    def features(self) -> tuple[BatchFeature, ...]:
        """The features that a batch holds besides image and label."""
        return list_batch_features(self.source, self.config)

    @cached_property
    def masks(self) -> tuple[str, ...]:
        """The features that hold masks, which follow the crop of the image."""
        named = tuple(feature.name for feature in self.features if feature.spec.kind == "mask")
        return named if self.source.has_images else ()

    @cached_property
    def num_images(self) -> int | None:
        """The number of images of a record in a batch; None if there is one, which has no axis of its own."""
        counts, chosen = self.source.per_record, self.config.images
        if counts is None or chosen == "first":
            return None
        return counts.min if chosen == "all" else chosen

    @property
    def decoded_size(self) -> tuple[int, int]:
        """The height and width of whole images, for the device or for a cache of decoded images."""
        stored = self.source.images.size
        return self.config.resolve_decoded_size(None if stored is None else stored[0])

    @property
    def image_size(self) -> tuple[int, int]:
        """The height and width of the images of a batch."""
        return self.decoded_size if self.config.augment == "device" else self.config.size

    def list_numbers(self, epoch: int, step: int) -> IntArray:
        """Lists the records of these rows in a step, by their numbers in the split or in the view: int64 [n].

        If records have weights, a number holds that of the copy too: see `RECORD_MASK`. In evaluation each host has an
        equal share of adjacent records, so its last batches may have fewer than `batch_size`.
        """
        if self.config.training:
            numbers = self.order.list_numbers(epoch, step, self.rows)
            return numbers if self.weights is None else self.weights.list_asked(epoch, numbers)
        records, rows = self.host.share(self.source.num_records or 0), self.host.share(self.config.batch_size)
        first = records.start + step * len(rows) + self.rows.start - rows.start
        return np.arange(first, max(min(first + self.batch_size, records.stop), first))


@dataclass(frozen=True)
class MixedPlan:
    """The plan of one host's batches of a mixture."""

    plans: tuple[BatchPlan, ...]
    plan_rows: tuple[IntArray, ...]  # the rows of this host's batch that each dataset has, int64 [rows of the plan]
    config: PipelineConfig
    steps_per_epoch: int  # as many as the records of all datasets fill
    rows: range  # of the global batch that this host has

    @cached_property
    def batch_size(self) -> int:
        """The number of rows that this host has in each batch."""
        return len(self.rows)

    @cached_property
    def features(self) -> tuple[BatchFeature, ...]:
        """The features that a batch holds besides images and labels."""
        return self.plans[0].features

    @property
    def num_images(self) -> int | None:
        """The number of images of a record in a batch; None if there is one, which has no axis of its own."""
        return self.plans[0].num_images

    def locate(self, epoch: int, step: int) -> list[tuple[int, int]]:
        """Returns each dataset's epoch, and the step in that epoch, at a step of the mixture."""
        global_step = epoch * self.steps_per_epoch + step
        return [divmod(global_step, plan.steps_per_epoch) for plan in self.plans]

    def list_numbers(self, epoch: int, step: int) -> list[IntArray]:
        """Lists the records of each dataset in a step, each int64 [rows of the plan]."""
        return [
            plan.list_numbers(*position) for plan, position in zip(self.plans, self.locate(epoch, step), strict=True)
        ]


AnyPlan: TypeAlias = BatchPlan | MixedPlan
"""The batches of one host, of one dataset or of several."""


def plan_batches(source: Source, config: PipelineConfig, host: Host | None = None) -> BatchPlan:
    """Makes the plan of a host; None means one host with one replica. `check_plan` says if it can be carried out."""
    host = host or Host()
    check_start_step(host.start_step, config)
    if host.epochs is not None and not config.training:
        raise ConfigError(f"`epochs` is for training; evaluation is one pass, got {host.epochs}.")
    return BatchPlan(source, config, host, host.share(config.batch_size))


def estimate_row_bytes(config: PipelineConfig, plan: BatchPlan | None = None) -> int:
    """Estimates the bytes of a row of a batch from the options; with `plan` from what its records hold, too."""
    images = config.images if isinstance(config.images, int) else 1
    size = config.resolve_decoded_size() if config.augment == "device" else config.size
    axes = [(8, config.max_boxes), *(each if isinstance(each, tuple) else (each,) for each in config.pad_to.values())]
    masks = classes = 0
    if plan is not None:
        images, size, masks = (plan.num_images or 1) * plan.source.has_images, plan.image_size, len(plan.masks)
        axes = [each.pad_to or () for each in plan.features]
        classes = (plan.source.num_classes or 0) * (config.one_hot + len(config.multi_hot))
    pixel_bytes = 3 * int(np.dtype(DTYPES[config.image_dtype]).itemsize) + 4 * masks
    return prod(size) * images * pixel_bytes + 8 * sum(map(prod, axes)) + 4 * classes


def has_true_size(config: PipelineConfig, rows: int) -> bool:
    """Returns whether the last batch of an evaluation has rows for the remaining records only, without padding.

    It does for pairs if one process gets all `rows`, because Keras divides a loss by all rows, whatever their weights.
    """
    return config.as_supervised and not config.training and rows == config.batch_size


def check_start_step(start_step: int, config: PipelineConfig, name: str = "start_step") -> None:
    """Refuses a start step of an evaluation, which has this name."""
    if start_step and not config.training:
        raise ConfigError(f"`{name}` is for training; evaluation begins at 0, got {start_step}.")


def check_plan(plan: BatchPlan) -> None:
    """Refuses a config that needs what the source does not have, or a batch that hosts and replicas cannot share."""
    config, source = plan.config, plan.source
    if source.label_key is None and (config.one_hot or config.as_supervised):
        option = "one_hot" if config.one_hot else "as_supervised"
        raise ConfigError(f"`{option}` needs labels, and {source.name} has none.")
    if config.one_hot and not source.num_classes:
        raise ConfigError(f"`one_hot` needs the number of classes of {source.name}: give `num_classes`.")
    chosen, counts, name = config.images, source.per_record, source.name
    if counts is None and isinstance(chosen, int):
        raise ConfigError(f"`images` {chosen} needs records with several images, and {name} has none such.")
    if counts is not None:
        most = min(counts.min, MAX_IMAGES)
        if chosen == "all" and counts.min != counts.max:
            raise ConfigError(
                f"`images` all needs the same number of images in every record, and {name} has {counts.min} to "
                f"{counts.max}. Use first, or a number up to {most}."
            )
        if (plan.num_images or 0) > most:
            raise ConfigError(
                f"`images` {chosen} must give at most {MAX_IMAGES} images, and no more than each record of {name} has, "
                f"got {plan.num_images}. Use first, or a number up to {most}."
            )
    if config.cache == "decoded" and plan.num_images is not None:
        raise ConfigError("`cache` decoded keeps one image a record. Set `cache` to bytes, or `images` to first.")
    for option, value in (("as_supervised", True), ("augment", "device"), ("cache", "decoded")):
        if getattr(config, option) == value and not source.has_images:
            raise ConfigError(f"`{option}` {value} needs images, and {source.name} has none.")
    if not plan.features and not source.has_images:
        raise ConfigError(f"A batch must hold a feature, and the records of {source.name} have none.")
    check_shares(plan)


def check_shares(plan: BatchPlan) -> None:
    """Refuses a batch that replicas and hosts cannot share, or that the records do not fill."""
    split_batch(plan.config.batch_size, plan.host.num_replicas)
    if plan.config.training and plan.source.epoch_records is not None:
        check_fills_batch(plan.source.epoch_records, plan.config.batch_size)


def check_fits_devices(plan: BatchPlan) -> None:
    """Refuses features that devices do not hold: text, and tensors of several shapes."""
    text, ragged = list_text(plan.features), [feature.name for feature in plan.features if feature.is_ragged]
    if ragged:
        raise ConfigError(
            f"Arrays on devices must have one shape, and {', '.join(ragged)} has several. Give a size in `pad_to`, "
            f"as in {{{ragged[0]!r}: 77}}."
        )
    if text:
        advice = "Leave it out." if plan.config.extra_features else "Name the others in `extra_features`."
        raise ConfigError(f"No device holds text, got {', '.join(text)}. {advice}")


def list_text(features: tuple[BatchFeature, ...]) -> list[str]:
    """Lists the names of the features that hold text."""
    specs = [feature.spec for feature in features]
    return [spec.name for spec in specs if spec.dtype == "bytes" and spec.kind in ("values", "text")]
