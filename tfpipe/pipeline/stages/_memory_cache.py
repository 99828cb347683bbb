"""A cache in memory that can be read in any order: what an epoch needs is fetched by position, not shuffled.

`tf.data`'s own `cache().shuffle()` would either repeat the first epoch's order or shuffle decoded images. Its cache
can, however, give the element at a position (`GetElementAtIndex`), and fills itself up to there. So records are
cached in the order in which the first epoch reads them, the first epoch runs at the speed of reading, and every
later one fetches positions in an order of its own: about 100 us of a core for an image of 256 x 256.
"""

import logging

import numpy as np
import tensorflow as tf

from tfpipe.errors import ConfigError
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stages._read import numbers_of
from tfpipe.system import host_limits
from tfpipe.system.hash_permutation import IntArray
from tfpipe.system.units import human_bytes

logger = logging.getLogger(__name__)

_SHARE = 0.9  # of the memory that is free; the trainer and its buffers need the rest
_ELEMENT_BYTES = 200  # of a label, a few numbers and their tensors


def cache_bytes(plan: ReadPlan) -> int | None:
    """What this host's cache will hold when it is full, estimated from the manifest; None if nobody counted.

    Training fetches any record on any host, so each holds them all; evaluation reads the same share every time.
    """
    records = plan.source.num_records
    if records is None:
        return None
    config = plan.config
    if not config.training:
        records = -(-records // plan.num_hosts)
    if config.cache == "bytes":
        return round(records * plan.source.record_bytes)
    whole = config.training or config.augment == "device"
    height, width = plan.decoded_size if whole else config.size
    item = 1 if whole else {"uint8": 1, "float32": 4, "bfloat16": 2}[config.image_dtype]
    return records * (height * width * 3 * item + _ELEMENT_BYTES)


def check_fits(plan: ReadPlan) -> None:
    """Refuses a cache in memory that would not fit.

    Raises:
        ConfigError: With what it needs and what there is.
    """
    config = plan.config
    if config.training and config.cache == "decoded" and config.on_bad_record == "skip":
        raise ConfigError(
            "`on_bad_record` skip excludes a cache of decoded images: every record must have its place in it. Use "
            "cache='bytes', or mend the data first."
        )
    needed, free = cache_bytes(plan), host_limits.available_memory_bytes()
    if needed is None:
        logger.warning("Nobody counted the records of %s, so its cache may outgrow the memory.", plan.source.name)
    elif needed > _SHARE * free:
        raise ConfigError(
            f"`cache` {plan.config.cache} of {plan.source.name} needs {human_bytes(needed)} of memory, and "
            f"{human_bytes(free)} are free, of which it may take nine tenths. Use a smaller `decoded_size`, a "
            "`cache_dir`, or no cache."
        )


def first_use(plan: ReadPlan) -> IntArray:
    """Runs that read every record once, those first that training needs first: int64 [n, 3]."""
    order, (epoch, step) = plan.order, plan.start
    first = step * plan.share // order.window_records
    parts = [
        order.window_runs(epoch, stream, window)
        for window in range(first, order.num_windows)
        for stream in plan.streams
    ]
    used = numbers_of(plan, np.concatenate(parts))
    rest = np.ones(plan.source.num_records or 0, bool)
    rest[used] = False
    return np.concatenate([*parts, _as_runs(plan, np.flatnonzero(rest))])


def fetch(plan: ReadPlan, cached: tf.data.Dataset, runs: IntArray, records: tf.data.Dataset) -> tf.data.Dataset:
    """The cached elements of these records.

    Args:
        plan: What is read.
        cached: Ends with `cache()`; element i is the i-th record of `runs`.
        runs: From `first_use`.
        records: Of (record, seed), from `windows.exact_records`.

    Returns:
        Of (element, record, seed).
    """
    numbers = numbers_of(plan, runs)
    positions = np.empty_like(numbers)
    positions[numbers] = np.arange(len(numbers))
    table = tf.constant(positions)
    flat = tf.nest.flatten(cached.element_spec)
    variant = tf.data.experimental.to_variant(cached)

    def get(record: tf.Tensor, seed: tf.Tensor) -> tuple[object, tf.Tensor, tf.Tensor]:
        tensors = tf.raw_ops.GetElementAtIndex(
            dataset=variant,
            index=tf.gather(table, record),
            output_types=[spec.dtype for spec in flat],
            output_shapes=[spec.shape for spec in flat],
        )
        return tf.nest.pack_sequence_as(cached.element_spec, tensors), record, seed

    return records.map(
        get, num_parallel_calls=plan.config.num_parallel_calls or tf.data.AUTOTUNE, deterministic=plan.deterministic
    )


def _as_runs(plan: ReadPlan, numbers: IntArray) -> IntArray:
    """Rising record numbers as runs, cut where one is missing or a shard ends."""
    bases = plan.source.bases
    shard = np.searchsorted(bases, numbers, side="right") - 1
    new = np.ones(len(numbers), bool)
    new[1:] = (np.diff(numbers) != 1) | (np.diff(shard) != 0)
    starts = np.flatnonzero(new)
    counts = np.diff(np.append(starts, len(numbers)))
    return np.stack([shard[starts], numbers[starts] - bases[shard[starts]], counts], axis=1).astype(np.int64)
