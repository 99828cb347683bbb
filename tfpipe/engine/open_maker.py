"""Opens the maker of the batches of one host, for every face: checked, of one dataset or of several."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tfpipe.engine.batch import BatchMaker, Transform
from tfpipe.engine.cache import share_cache_bytes
from tfpipe.engine.cached_batch import CachingMaker, FileCachingMaker
from tfpipe.engine.check_plan import check_plan, check_shares
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.features import check_class_names
from tfpipe.engine.host import Host
from tfpipe.engine.mixed_batch import MixedMaker
from tfpipe.engine.mixture import Mixture, apportion, check_same_images, get_whole_source
from tfpipe.engine.plan import BatchPlan, MixedPlan, plan_batches
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.storage.file_io import is_url
from tfpipe.system.hash_permutation import IntArray


def open_maker(plan: BatchPlan, transform: Transform | None = None) -> BatchMaker:
    """Opens the maker of the batches of one dataset, whose source knows its manifest."""
    _check(plan, transform)
    return choose_maker(plan.config)(plan, *locate_split(plan), transform)


def choose_maker(config: PipelineConfig) -> type[BatchMaker]:
    """Chooses the class of a maker by its cache."""
    if config.cache != "decoded":
        return BatchMaker
    return CachingMaker if config.cache_dir is None else FileCachingMaker


def open_mixture(
    mixture: Mixture,
    split: str,
    config: PipelineConfig,
    host: Host,
    transform: Transform | None = None,
) -> MixedMaker:
    """Opens the maker of one host's batches of a mixture; the other arguments are those of `open_maker`."""
    if not config.training or config.cache_dir is not None:
        refused = "evaluated" if not config.training else "cached in files"
        raise ConfigError(f"A mixture cannot be {refused} as a whole. Take its datasets one by one.")
    whole = plan_batches(get_whole_source(mixture, split), config, host)
    check_shares(whole)
    plans = _plan_shares(mixture, split, whole)
    for plan in plans:
        _check(plan, transform)
    check_same_images([plan.num_images for plan in plans])
    check_class_names([plan.features for plan in plans])
    owners = deal_rows([plan.batch_size for plan in plans])
    parts, part_rows, makers = [], [], []
    for number, plan in enumerate(plans):
        first, end = (int((owners[:stop] == number).sum()) for stop in (whole.rows.start, whole.rows.stop))
        source = replace(plan.source, num_classes=len(mixture.label_names) or None)
        parts.append(replace(plan, source=source, rows=range(first, end)))
        part_rows.append(np.flatnonzero(owners[whole.rows.start : whole.rows.stop] == number))
        manifest = mixture.manifests[number]
        classes = mixture.map_labels(manifest) if manifest.label_names else None
        makers.append(choose_maker(config)(parts[-1], *locate_split(parts[-1]), transform, classes))
    return MixedMaker(
        MixedPlan(tuple(parts), tuple(part_rows), config, whole.steps_per_epoch, whole.rows),
        makers,
    )


def _plan_shares(mixture: Mixture, split: str, whole: BatchPlan) -> list[BatchPlan]:
    """Makes the plan of each dataset's share of the whole batch, which does not depend on the number of hosts."""
    config, shares = whole.config, apportion(mixture.weights, whole.config.batch_size)
    plans = [
        plan_batches(Source.from_manifest(manifest, split), replace(config, batch_size=share))
        for manifest, share in zip(mixture.manifests, shares, strict=True)
    ]
    part_bytes = share_cache_bytes(plans, config.cache_bytes)
    return [
        replace(plan, config=replace(plan.config, cache_bytes=num_bytes))
        for plan, num_bytes in zip(plans, part_bytes, strict=True)
    ]


def deal_rows(shares: Sequence[int]) -> IntArray:
    """Deals the rows of a batch to its shares, as evenly as they can be: the share of each row, int64 [rows]."""
    counts, total = np.array(shares, np.int64), sum(shares)
    dealt, owners = np.zeros(len(shares), np.int64), np.empty(total, np.int64)
    for row in range(total):
        owners[row] = np.argmax(counts * (row + 1) - dealt * total)
        dealt[owners[row]] += 1
    return owners


def locate_split(plan: BatchPlan) -> tuple[Manifest, str]:
    """Returns the manifest and the split of a plan. A copy of the maker may have another working folder."""
    manifest, split = plan.source.manifest, plan.source.split
    assert manifest is not None
    assert split is not None
    if manifest.directory and not is_url(manifest.directory):
        manifest = replace(manifest, directory=os.path.abspath(manifest.directory))
    return manifest, split


def _check(plan: BatchPlan, transform: Transform | None) -> None:
    """Refuses what does not fit one dataset, and files that are not there."""
    check_plan(plan)
    if transform is not None:
        _check_transform(plan.config)
    plan.source.check()


def _check_transform(config: PipelineConfig) -> None:
    if config.image_dtype != "uint8":
        raise ConfigError(
            f"`transform` returns images of its own dtype, so `image_dtype` {config.image_dtype} cannot be had. Leave "
            "it out."
        )
    if config.cache == "decoded":
        raise ConfigError("`transform` gets images as they are stored, which `cache` decoded does not keep. Use bytes.")
