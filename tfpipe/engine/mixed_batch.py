"""The batch of a step of a mixture: fixed shares of several datasets, spread evenly over the rows.

```
rows of the global batch   0 1 2 3 4 5 6 7 ...
datasets 0.7 and 0.3       a a b a a b a a ...      the same in every batch, for any number of hosts
```

Each dataset has an order and epochs of its own. At step N it stands after N times its share of a batch, so a run can go
on at any step with any number of hosts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np

from tfpipe.engine.ahead import Maker
from tfpipe.engine.batch import STEPS_AHEAD, Batch, BatchMaker, Clocks, Transform
from tfpipe.engine.cache import share_cache_bytes
from tfpipe.engine.cached_batch import CachingMaker
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.features import BatchFeature, check_class_names
from tfpipe.engine.folder_cache.batch import FolderCacheMaker, open_folder_cache
from tfpipe.engine.join import join_rows
from tfpipe.engine.mixture import Mixture, apportion, check_same_images
from tfpipe.engine.plan import BatchPlan
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.system.file_io import is_url
from tfpipe.system.hash_permutation import IntArray


def deal_rows(shares: Sequence[int]) -> IntArray:
    """Deals the rows of a batch to its shares, as evenly as they can be: the share of each row, int64 [rows]."""
    counts, total = np.array(shares, np.int64), sum(shares)
    dealt, owners = np.zeros(len(shares), np.int64), np.empty(total, np.int64)
    for row in range(total):
        owners[row] = np.argmax(counts * (row + 1) - dealt * total)
        dealt[owners[row]] += 1
    return owners


@dataclass(frozen=True)
class MixedPlan:
    """The batches of one host of a mixture.

    Attributes:
        parts: The plan of each dataset's share of a batch.
        part_rows: The rows of this host's batch that each part has, int64 [rows of the part].
        config: The options.
        steps_per_epoch: The number of batches that have as many records as all datasets together.
        global_batch_size: The number of rows of a batch of all hosts.
        rows: The rows of the global batch that this host has.
    """

    parts: tuple[BatchPlan, ...]
    part_rows: tuple[IntArray, ...]
    config: PipelineConfig
    steps_per_epoch: int
    global_batch_size: int
    rows: range

    @property
    def batch_size(self) -> int:
        """The number of rows that this host has in each batch."""
        return len(self.rows)

    @cached_property
    def features(self) -> tuple[BatchFeature, ...]:
        """The features that a batch holds beside images and labels."""
        return self.parts[0].features

    @property
    def masks(self) -> tuple[str, ...]:
        """The features that hold masks."""
        return self.parts[0].masks

    @property
    def num_images(self) -> int | None:
        """The number of images of a record in a batch; None if there is one, without an axis for more."""
        return self.parts[0].num_images

    def locate(self, epoch: int, step: int) -> list[tuple[int, int]]:
        """Returns the epoch of each dataset, and the step in it, at a step of the mixture."""
        global_step = epoch * self.steps_per_epoch + step
        return [divmod(global_step, part.steps_per_epoch) for part in self.parts]


class MixedMaker:
    """A maker of any batch of a mixture, as `BatchMaker` is for one dataset.

    Args:
        plan: The plan of this host's batches.
        makers: The maker of each dataset's share.

    Attributes:
        clocks: The seconds that the makers spent.
    """

    steps_ahead, steps_asked = STEPS_AHEAD, 0

    def __init__(self, plan: MixedPlan, makers: Sequence[BatchMaker | CachingMaker]) -> None:
        self.plan, self._makers = plan, tuple(makers)
        self.clocks = makers[0].clocks
        for maker in makers:
            maker.clocks = self.clocks

    @property
    def block_steps(self) -> int:
        """The steps in which a row uses a block of records up, of the dataset that needs most."""
        return max(maker.block_steps for maker in self._makers)

    def list_numbers(self, epoch: int, step: int) -> list[IntArray]:
        """Lists the records of each dataset in a step, each int64 [rows of the part]."""
        places = self.plan.locate(epoch, step)
        return [maker.list_numbers(*place) for maker, place in zip(self._makers, places, strict=True)]

    def announce(self, numbers: Sequence[IntArray], soon: Sequence[Sequence[IntArray]] = ()) -> None:
        """Asks storage for records that are read soon."""
        for part, maker in enumerate(self._makers):
            maker.announce(numbers[part], [each[part] for each in soon])

    def for_rows(self, first: int, end: int) -> MixedMaker:
        """Returns a maker of some of the rows of this host's batches. It shares all that this one has open."""
        makers, part_rows = [], []
        for maker, rows in zip(self._makers, self.plan.part_rows, strict=True):
            begin, stop = np.searchsorted(rows, (first, end)).tolist()
            makers.append(maker.for_rows(begin, stop))
            part_rows.append(rows[begin:stop] - first)
        parts = tuple(maker.plan for maker in makers)
        plan = replace(self.plan, parts=parts, part_rows=tuple(part_rows), rows=self.plan.rows[first:end])
        return MixedMaker(plan, makers)

    def make(self, epoch: int, step: int, threads: int = 1) -> Batch:
        """Makes one batch; arguments, result and errors are those of `BatchMaker.make`."""
        return self.decode(self.read(epoch, step), threads)

    def read(self, epoch: int, step: int, numbers: Sequence[IntArray] | None = None) -> list[Any]:
        """Reads the records of one batch, those of each dataset for themselves."""
        places = self.plan.locate(epoch, step)
        return [
            maker.read(*place, None if numbers is None else numbers[part])
            for part, (maker, place) in enumerate(zip(self._makers, places, strict=True))
        ]

    def decode(self, stored: Sequence[Any], threads: int = 1) -> Batch:
        """Makes the arrays of a batch out of the records of each dataset."""
        out = self._makers[0].allocate_images(self.plan.batch_size) if self._has_images else None
        per_record, parts = self.plan.num_images or 1, []
        for maker, part, rows in zip(self._makers, stored, self.plan.part_rows, strict=True):
            images = (rows[:, None] * per_record + np.arange(per_record)).reshape(-1)
            parts.append(maker.decode(part, threads, out, images))
        return join_rows(parts, self.plan.part_rows, per_record)

    def make_example_image(self) -> Any:
        """Returns the result of the transform for the first image."""
        return self._makers[0].make_example_image()

    @property
    def is_remote(self) -> bool:
        """Whether a dataset lies in an object store."""
        return any(maker.is_remote for maker in self._makers)

    @property
    def _has_images(self) -> bool:
        return self.plan.parts[0].source.has_images


def share_config(mixture: Mixture, config: PipelineConfig, global_batch_size: int) -> list[PipelineConfig]:
    """Returns the options of each dataset's share of a batch, which do not depend on the number of hosts.

    Raises:
        ConfigError: A weight is too small for any share.
    """
    return [replace(config, batch_size=share) for share in apportion(mixture.weights, global_batch_size, 1)]


def make_mixed_maker(
    mixture: Mixture, plans: Sequence[BatchPlan], rows: range, transform: Transform | None = None
) -> MixedMaker:
    """Makes the maker of one host's batches of a mixture.

    Args:
        mixture: The datasets.
        plans: The plan of each dataset's whole share of a batch.
        rows: The rows of the global batch that this host has.
        transform: A function that replaces crops, resizing and flips.

    Raises:
        ConfigError: The datasets do not fit each other, or a cache does not fit into the memory.
    """
    owners = deal_rows([plan.batch_size for plan in plans])
    names, config = mixture.label_names, plans[0].config
    if config.cache_dir is not None:
        raise ConfigError("A mixture cannot be cached in files as a whole. Take its datasets one by one.")
    check_same_images([plan.num_images for plan in plans])
    check_class_names([plan.features for plan in plans])
    parts, part_rows, makers = [], [], []
    for part, (plan, part_bytes) in enumerate(zip(plans, share_cache_bytes(plans, config.cache_bytes), strict=True)):
        first, end = (int((owners[:stop] == part).sum()) for stop in (rows.start, rows.stop))
        source = replace(plan.source, num_classes=len(names) or None)
        options = replace(plan.config, cache_bytes=part_bytes)
        parts.append(replace(plan, source=source, config=options, rows=range(first, end)))
        part_rows.append(np.flatnonzero(owners[rows.start : rows.stop] == part))
        manifest = mixture.manifests[part]
        classes = mixture.map_labels(manifest) if manifest.label_names else None
        makers.append(_make_maker_of_one(parts[-1], transform, classes))
    steps = sum(plan.source.num_records or 0 for plan in plans) // len(owners)
    config = replace(config, batch_size=len(owners), cache_bytes=None)
    return MixedMaker(MixedPlan(tuple(parts), tuple(part_rows), config, steps, len(owners), rows), makers)


def make_maker(plan: BatchPlan, transform: Transform | None = None) -> BatchMaker | CachingMaker | FolderCacheMaker:
    """Makes the maker of the batches of one dataset, whose source knows its manifest.

    Args:
        plan: The plan.
        transform: A function that replaces crops, resizing and flips.

    Raises:
        ConfigError: A transform or a cache does not fit the data.
        FormatError: A cache in files is not whole, and a file of the source is missing.
        DataError: The folder of a cache in files cannot be written.
    """
    _check_transform(plan.config, transform)
    if plan.config.cache_dir is None:
        return _make_maker_of_one(plan, transform, None)
    return open_folder_cache(plan, *locate_split(plan), transform)


def _make_maker_of_one(
    plan: BatchPlan, transform: Transform | None, classes: Sequence[int] | None
) -> BatchMaker | CachingMaker:
    _check_transform(plan.config, transform)
    maker = BatchMaker(plan, *locate_split(plan), transform, classes)
    return CachingMaker(maker) if plan.config.cache == "decoded" else maker


def _check_transform(config: PipelineConfig, transform: Transform | None) -> None:
    if transform is None:
        return
    if config.image_dtype != "uint8":
        raise ConfigError(
            f"`transform` returns images of its own dtype, so `image_dtype` {config.image_dtype} cannot be had. Leave "
            "it out."
        )
    if config.cache == "decoded":
        raise ConfigError("`transform` gets images as they are stored, which `cache` decoded does not keep. Use bytes.")


def locate_split(plan: BatchPlan) -> tuple[Manifest, str]:
    """Returns the manifest and the split of a plan. A copy of the maker may have another working folder."""
    manifest, split = plan.source.manifest, plan.source.split
    assert manifest is not None
    assert split is not None
    if manifest.directory and not is_url(manifest.directory):
        manifest = replace(manifest, directory=os.path.abspath(manifest.directory))
    return manifest, split


AnyPlan: TypeAlias = BatchPlan | MixedPlan
"""The batches of one host, of one dataset or of several."""


class AnyMaker(Maker, Protocol):
    """A maker of such batches: of this process, or workers elsewhere."""

    clocks: Clocks

    @property
    def plan(self) -> AnyPlan:
        """The plan of the batches."""

    @property
    def is_remote(self) -> bool:
        """Whether it holds connections, which a forked process cannot use: to an object store, or to workers."""

    def for_rows(self, first: int, end: int) -> AnyMaker:
        """Returns a maker of some of the rows of this host's batches. It shares all that this one has open."""

    def make(self, epoch: int, step: int, threads: int = 1) -> Batch:
        """Makes one batch: `decode` of what `read` returns."""

    def make_example_image(self) -> Any:
        """Returns the result of the transform for the first image."""
