"""The stage `cache`: encoded or decoded images kept in memory, or in files, which a separate process may fill."""

from __future__ import annotations

import logging
from dataclasses import replace

import tensorflow as tf

from tfpipe.engine.cache import MAX_CACHE_SHARE
from tfpipe.errors import ConfigError
from tfpipe.pipeline.plan.memory_cache import CacheParts, estimate_cache_bytes, split_by_cache
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage, Stages, tf_data_options
from tfpipe.pipeline.stages import _exact_order
from tfpipe.system import host_limits
from tfpipe.system.units import human_bytes

logger = logging.getLogger(__name__)


def cache_bytes(plan: ReadPlan) -> Stage:
    """Keeps encoded records in memory."""
    return _cache_in_memory(plan, "encoded records, above decoding: no file is read twice")


def cache_decoded(plan: ReadPlan) -> Stage:
    """Keeps images in memory: whole ones in training, finished ones in evaluation."""
    if plan.config.training:
        reason = "decoded images, above augmentation: none is decoded twice, and each crop is a new one"
    else:
        reason = "finished images: evaluation does the same to them every time"
    return _cache_in_memory(plan, reason)


def cache_in_files(plan: ReadPlan, kind: str, folder: str, *, is_whole: bool) -> Stage:
    """Represents a cache in files, which is a separate dataset: it was filled before, or is filled meanwhile."""
    settings = {"kind": kind, "where": folder, "size": human_bytes(plan.source.total_bytes)}
    if is_whole:
        reason = "filled before the first step; the stages below read it"
    else:
        reason = "filled meanwhile; the stages below read the source, and each shard from here once it is there"

    def apply(steps: tf.data.Dataset | None) -> tf.data.Dataset | None:
        if plan.by_steps:  # a worker begins with its steps
            return steps
        # The stage yields the folder, so that it can be run alone; the stages below read the files themselves.
        return tf.data.Dataset.from_tensors(folder)

    return Stage("cache", apply, settings, reason)


def check_cache_fits(plan: ReadPlan) -> None:
    """Refuses a cache in memory that would not fit.

    Raises:
        ConfigError: The cache needs more memory than is free, or the config leaves records out of a decoded cache.
    """
    config = plan.config
    if config.training and config.cache == "decoded" and config.on_bad_record == "skip":
        raise ConfigError(
            "`on_bad_record` skip excludes a cache of decoded images: every record must have its place in it. Use "
            "cache='bytes', or mend the data first."
        )
    split_by_cache(plan)  # it says whether `cache_bytes` can be used
    needed, free = estimate_cache_bytes(plan), host_limits.available_memory_bytes()
    if needed is None:
        logger.warning("Nobody counted the records of %s, so its cache may outgrow the memory.", plan.source.name)
    elif needed > MAX_CACHE_SHARE * free:
        advice = "Set `cache_bytes` to keep what fits, use" if plan.source.shard_records is not None else "Use"
        raise ConfigError(
            f"`cache` {plan.config.cache} of {plan.source.name} needs {human_bytes(needed)} of memory, and "
            f"{human_bytes(free)} are free, of which it may take nine tenths. {advice} a smaller "
            "`decoded_size`, a `cache_dir`, or no cache.",
            page="docs/symptoms.md#memory-grows",
        )


def _cache_in_memory(plan: ReadPlan, reason: str) -> Stage:
    needed = estimate_cache_bytes(plan)
    size = "unknown" if needed is None else human_bytes(needed)
    settings = {"kind": plan.config.cache, "where": "memory", "size": size}

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        if plan.config.training and plan.exact:
            # The stage `repeat` fetches by position. So what lies below runs by itself, once, and the options of the
            # whole do not reach it. It needs no AUTOTUNE, whose thread TensorFlow may wait for when the run ends: up to
            # a minute, one time in twenty.
            options = tf_data_options(replace(plan.config, autotune=False), plan.deterministic)
            dataset = dataset.with_options(options)
        return dataset.cache()

    return Stage("cache", apply, settings, reason)


def cache_part(plan: ReadPlan, parts: CacheParts, kept: Stages) -> Stage:
    """Keeps as many records in memory as `cache_bytes` says, and joins them with the others that come anew.

    Args:
        plan: The plan of all records.
        parts: The plans of both parts.
        kept: The stages that give the kept records as the stage before this one gives the others.
    """
    records = plan.source.num_records if plan.config.training else plan.evaluation_records
    settings = {
        "kind": plan.config.cache,
        "where": "memory",
        "size": human_bytes(estimate_cache_bytes(plan) or 0),
        "records": f"{parts.kept_records:,} of {records:,}",
    }

    def apply(others: tf.data.Dataset) -> tf.data.Dataset:
        if not plan.config.training:
            return kept.dataset().concatenate(others)
        choices = _exact_order.list_choices(parts.kept)
        return tf.data.Dataset.choose_from_datasets([others, kept.dataset()], choices, stop_on_empty_dataset=False)

    reason = "what fits is kept; the other records come anew, and both are joined in their order"
    return Stage("cache", apply, settings, reason)
