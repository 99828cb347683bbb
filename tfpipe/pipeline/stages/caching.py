"""What is kept, and how epochs are made of it: the stages `cache` and the `repeat` behind it."""

from __future__ import annotations

import tensorflow as tf

from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages import _exact_order, _memory_cache, _outputs
from tfpipe.pipeline.stages._order_ops import example_seed
from tfpipe.system.units import human_bytes


def cache_bytes(plan: ReadPlan) -> Stage:
    """Encoded records in memory."""
    return _cache(plan, "encoded records, above decoding: no file is read twice")


def cache_decoded(plan: ReadPlan) -> Stage:
    """Images in memory: whole ones in training, finished ones in evaluation."""
    if plan.config.training:
        return _cache(plan, "decoded images, above augmentation: none is decoded twice, and each crop is a new one")
    return _cache(plan, "finished images: evaluation does the same to them every time")


def _cache(plan: ReadPlan, reason: str) -> Stage:
    needed = _memory_cache.cache_bytes(plan)
    settings = {
        "kind": plan.config.cache,
        "where": "memory",
        "size": "unknown" if needed is None else human_bytes(needed),
    }
    return Stage("cache", lambda dataset: dataset.cache(), settings, reason)


def filled_cache(manifest: Manifest, split: str, config: PipelineConfig) -> Stage:
    """A cache in a file, which is a dataset of its own and is filled before."""
    size = human_bytes(manifest.splits[split].bytes)
    settings = {"kind": config.cache, "where": manifest.directory, "size": size}
    # The folder as an element, for who looks at this stage alone; no stage below asks what came before.
    folder = manifest.directory
    return Stage(
        "cache",
        lambda _: tf.data.Dataset.from_tensors(folder),
        settings,
        "filled before the first step; the stages below read it",
    )


def repeat_cached(plan: ReadPlan) -> Stage:
    """Fetches every epoch from the cache in its exact order."""

    def apply(cached: tf.data.Dataset) -> tf.data.Dataset:
        records = _exact_order.exact_records(plan, _exact_order.list_epochs(plan))
        fetched = _memory_cache.fetch(plan, cached, _memory_cache.first_use(plan), records)
        if plan.config.cache == "bytes":
            return fetched.map(lambda element, record, seed: (element[0], record, seed))
        return fetched.map(lambda features, _, seed: _outputs.with_seed(plan, features, seed))

    settings = {"order": "exact", "seed": plan.order.seed, "start_step": plan.start_step}
    return Stage("repeat", apply, settings, "positions in the cache are permuted, images are not moved")


def repeat_pass(plan: ReadPlan) -> Stage:
    """Reads a cache of uncounted records again and again."""

    def apply(cached: tf.data.Dataset) -> tf.data.Dataset:
        def again(epoch: tf.Tensor) -> tf.data.Dataset:
            if plan.config.cache == "bytes":
                return cached.map(
                    lambda payload, record, _: (payload, record, example_seed(plan.config.seed, epoch, record))
                )
            return cached.map(
                lambda features: _outputs.with_seed(
                    plan, features, example_seed(plan.config.seed, epoch, features.pop("number"))
                )
            )

        return _exact_order.list_epochs(plan).flat_map(again)

    reason = "nobody counted the records, so they come in the order in which they were cached"
    return Stage("repeat", apply, {}, reason)
