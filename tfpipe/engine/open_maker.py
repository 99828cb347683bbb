"""Opens the checked maker of one host's batches, of one dataset or of a mixture, for every framework.

A batch of a mixture has fixed shares of several datasets, spread evenly over the rows. Before step N, a run has read N
times its share of a batch from each dataset, so it resumes at any step with any number of hosts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfpipe.engine.batch import Batch, BatchMaker, Maker, Transform
from tfpipe.engine.cache import share_cache_bytes
from tfpipe.engine.cached_batch import CachingMaker, FileCachingMaker, join_rows
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.engine.mixture import Mixture, apportion, get_whole_source
from tfpipe.engine.plan import BatchPlan, MixedPlan, check_plan, check_shares, plan_batches
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.storage.file_io import is_url
from tfpipe.system.hash_permutation import IntArray


def open_maker(plan: BatchPlan, transform: Transform | None = None, classes: Sequence[int] | None = None) -> BatchMaker:
    """Opens the maker of the batches of one dataset, whose source has a manifest.

    Refuses a plan that does not fit the dataset, and missing files. `classes` are the classes' numbers in a mixture.
    """
    check_plan(plan)
    config = plan.config
    if transform is not None and config.image_dtype != "uint8":
        raise ConfigError(
            f"`transform` returns images of its own dtype, so `image_dtype` {config.image_dtype} cannot be had. "
            "Leave it out."
        )
    if transform is not None and config.cache == "decoded":
        raise ConfigError("`transform` gets images as they are stored, which `cache` decoded does not keep. Use bytes.")
    plan.source.check()
    kind = BatchMaker
    if config.cache == "decoded":
        kind = CachingMaker if config.cache_dir is None else FileCachingMaker
    return kind(plan, *locate_split(plan), transform, classes)


def open_mixture(
    mixture: Mixture, split: str, config: PipelineConfig, host: Host, transform: Transform | None = None
) -> MixedMaker:
    """Opens the maker of one host's batches of a mixture; the other arguments are those of `open_maker`."""
    if not config.training or config.cache_dir is not None:
        refused = "evaluated" if not config.training else "cached in files"
        raise ConfigError(f"A mixture cannot be {refused} as a whole. Take its datasets one by one.")
    whole = plan_batches(get_whole_source(mixture, split), config, host)
    check_shares(whole)
    # The plan of each dataset's share of the whole batch does not depend on the number of hosts.
    shares = apportion(mixture.weights, config.batch_size)
    plans = [
        plan_batches(Source.from_manifest(manifest, split), replace(config, batch_size=share))
        for manifest, share in zip(mixture.manifests, shares, strict=True)
    ]
    plans = [
        replace(plan, config=replace(plan.config, cache_bytes=num_bytes))
        for plan, num_bytes in zip(plans, share_cache_bytes(plans, config.cache_bytes), strict=True)
    ]
    if len({plan.num_images for plan in plans}) > 1:
        got = ", ".join(str(plan.num_images or 1) for plan in plans)
        raise ConfigError(
            f"The datasets of a mixture must give the same number of images a record, got {got}. Set `images` to "
            "first, or to a number that all have."
        )
    names = {feature.name: feature.spec.names for feature in plans[0].features}
    for feature in (feature for plan in plans for feature in plan.features):
        if feature.spec.names != names.get(feature.name, feature.spec.names):
            raise ConfigError(
                f"The classes of {feature.name!r} must have the same names in all datasets of a mixture. Leave it out "
                "of `extra_features`."
            )
    # Each dataset's rows are spread over the batch as evenly as possible.
    dealt, owners = np.zeros(len(shares), np.int64), np.empty(config.batch_size, np.int64)
    for row in range(config.batch_size):
        owners[row] = np.argmax(np.array(shares) * (row + 1) - dealt * config.batch_size)
        dealt[owners[row]] += 1
    plan_rows, makers = [], []
    for number, plan in enumerate(plans):
        first, end = (int((owners[:stop] == number).sum()) for stop in (whole.rows.start, whole.rows.stop))
        source = replace(plan.source, num_classes=len(mixture.label_names) or None)
        plan_rows.append(np.flatnonzero(owners[whole.rows.start : whole.rows.stop] == number))
        manifest = mixture.manifests[number]
        classes = [mixture.label_names.index(name) for name in manifest.label_names] or None
        makers.append(open_maker(replace(plan, source=source, rows=range(first, end)), transform, classes))
    plans = [maker.plan for maker in makers]
    return MixedMaker(MixedPlan(tuple(plans), tuple(plan_rows), config, whole.steps_per_epoch, whole.rows), makers)


def locate_split(plan: BatchPlan) -> tuple[Manifest, str]:
    """Returns a plan's manifest, with an absolute path because a copy may have another working folder, and split."""
    manifest, split = plan.source.manifest, plan.source.split
    assert manifest is not None
    assert split is not None
    if manifest.directory and not is_url(manifest.directory):
        manifest = replace(manifest, directory=os.path.abspath(manifest.directory))
    return manifest, split


class MixedMaker(Maker):
    """A maker of any batch of a mixture, as `BatchMaker` is for one dataset."""

    def __init__(self, plan: MixedPlan, makers: Sequence[BatchMaker]) -> None:
        self.plan: MixedPlan = plan
        self._makers = tuple(makers)
        self.is_remote = any(maker.is_remote for maker in makers)
        self.block_steps = max(maker.block_steps for maker in makers)
        self.clocks = makers[0].clocks
        for maker in makers:
            maker.clocks = self.clocks

    def announce(self, numbers: Sequence[IntArray], soon: Sequence[Sequence[IntArray]] = ()) -> None:
        """Asks storage for the records of the next batch; an object store, in the same requests, also for `soon`."""
        for index, maker in enumerate(self._makers):
            maker.announce(numbers[index], [each[index] for each in soon])

    def for_rows(self, first: int, end: int) -> MixedMaker:
        """Returns a maker of the rows `first` to `end` of this host's batches, which shares this maker's open files."""
        makers, plan_rows = [], []
        for maker, rows in zip(self._makers, self.plan.plan_rows, strict=True):
            begin, stop = np.searchsorted(rows, (first, end)).tolist()
            makers.append(maker.for_rows(begin, stop))
            plan_rows.append(rows[begin:stop] - first)
        plans = tuple(maker.plan for maker in makers)
        plan = replace(self.plan, plans=plans, plan_rows=tuple(plan_rows), rows=self.plan.rows[first:end])
        return MixedMaker(plan, makers)

    def read(self, epoch: int, step: int, numbers: Sequence[IntArray] | None = None) -> list[Any]:
        """Reads the records of one batch, separately for each dataset."""
        listed = self.plan.list_numbers(epoch, step) if numbers is None else numbers
        positions = self.plan.locate(epoch, step)
        return [
            maker.read(*position, each) for maker, position, each in zip(self._makers, positions, listed, strict=True)
        ]

    def decode(self, stored: Sequence[Any], threads: int = 1) -> Batch:
        """Makes the arrays of a batch from the records of each dataset."""
        out = self._makers[0].allocate_images(self.plan.batch_size) if self.plan.plans[0].source.has_images else None
        per_record, batches = self.plan.num_images or 1, []
        for maker, records, rows in zip(self._makers, stored, self.plan.plan_rows, strict=True):
            images = (rows[:, None] * per_record + np.arange(per_record)).reshape(-1)
            batches.append(maker.decode(records, threads, out, images))
        return join_rows(batches, self.plan.plan_rows, per_record)

    def make_example_image(self) -> Any:
        """Returns the first image of the first dataset after the transform."""
        return self._makers[0].make_example_image()
