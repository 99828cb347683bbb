"""The read plan for a cache in files, which is read as a dataset once it is whole, and until then beside its source.

Both have the same records in the same order with the same pixels, so a run may begin with one and end with the other.
"""

from __future__ import annotations

from dataclasses import replace

from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.format.schema import IMAGE_CHANNELS, IMAGE_COLORSPACE, IMAGE_ENCODED, IMAGE_FORMAT
from tfpipe.pipeline.file_cache.cache import fill_cache
from tfpipe.pipeline.file_cache.cache_folder import CacheFolder
from tfpipe.pipeline.file_cache.live_fill import start_live_fill
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.system import file_io

_CHANGED = {IMAGE_ENCODED, IMAGE_FORMAT, IMAGE_CHANNELS, IMAGE_COLORSPACE}
"""The features that differ between a source and its cache of decoded images."""


def plan_cached_read(plan: ReadPlan, cache: CacheFolder, fill_first: bool) -> ReadPlan:
    """Makes the read plan for a cache in files.

    Args:
        plan: The read plan of the source without a cache.
        cache: The cache.
        fill_first: Whether to return only once the cache is whole. Otherwise a cache that is not whole begins to be
            filled, unless an extra feature is one that the cache changes, or TensorFlow has no client for the source:
            then it is filled first, too.

    Raises:
        ConfigError: An option cannot be used, or the disk is too small.
        FormatError: A file of the source is missing or, if the cache is filled first, damaged.
        DataError: A file cannot be read or written.
    """
    plan.check()
    cache.check()
    pinned = plan.pin_order()
    if not file_io.can_tensorflow_read(plan.source.files[0]):  # the pipeline of a cache that is being filled is its own
        _check_copied(plan, cache)
        fill_first = True
    fill_first |= cache.is_decoded and not _CHANGED.isdisjoint(plan.config.extra_features)
    whole = fill_cache(cache.manifest, cache.split, cache.config) if fill_first else cache.find()
    if whole is not None:
        # The size of a record is an estimate for decoded images; with the true size a buffer would differ a little from
        # that of a run which began while the cache was filled.
        source = replace(Source.from_manifest(whole, cache.split), record_bytes=cache.record_bytes)
        return replace(pinned, source=source)
    plan.source.check()
    filling = start_live_fill(cache)
    total_bytes = round(cache.info.records * cache.record_bytes)
    source = replace(cache.source, images=cache.images, record_bytes=cache.record_bytes, total_bytes=total_bytes)
    return replace(pinned, source=source, filling=filling)


def _check_copied(plan: ReadPlan, cache: CacheFolder) -> None:
    """Refuses a cache of decoded images of files that TensorFlow has no client for."""
    if cache.is_decoded:
        raise ConfigError(
            f"`cache` decoded in files is made by TensorFlow, which cannot read {plan.source.files[0]}. Use bytes, or "
            "copy the dataset to a local disk."
        )
