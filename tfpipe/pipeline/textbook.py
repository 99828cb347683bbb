"""The textbook pipeline: stock operations of TensorFlow, record by record, without a promised order.

It is for files without an index that the engine can use, and for stages of the user's own that treat single records.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.engine.cache import check_memory, estimate_cache_bytes
from tfpipe.engine.plan import BatchPlan
from tfpipe.errors import ConfigError
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages import augment_images, batch_examples, decode_images, parse_records, prefetch_batches
from tfpipe.system.hash_permutation import FILES, key_of
from tfpipe.system.units import human_bytes, parse_bytes

logger = logging.getLogger(__name__)

_FILE_BUFFER_BYTES = 2**21  # of each file; with tf.data's 256 KiB, remote storage is asked eight times as often
_FILES_AT_ONCE = 8


def list_textbook_stages(plan: BatchPlan) -> tuple[Stage, ...]:
    """Makes the stages of the pipeline; refuses a cache that does not fit into memory, and fewer files than hosts."""
    config = plan.config
    if config.cache != "none":
        if (needed := estimate_cache_bytes(plan)) is None:
            logger.warning("Nobody counted the records of %s, so its cache may outgrow the memory.", plan.source.name)
        check_memory(plan, needed or 0, by_engine=False)
    parse, decode, augment = parse_records(plan), decode_images(plan), augment_images(plan)
    images = (decode, augment) if plan.source.has_images else ()
    end = (batch_examples(plan), prefetch_batches(plan))
    listing, read = _list_files(plan), _read_files(plan)
    if not config.training:
        cached = {
            "none": (parse, *images),
            "bytes": (_cache(plan, "encoded records: no file is read twice"), parse, *images),
            "decoded": (parse, *images, _cache(plan, "finished images: evaluation does the same to them every time")),
        }
        return (listing, read, *cached[config.cache], *end)
    repeat = Stage("repeat", lambda dataset: dataset.repeat(), {}, "each epoch comes from the cache")
    records, seed = count_shuffled_records(plan), _make_seed(plan, 1)
    reason = f"encoded records, not images: about {human_bytes(records * plan.source.record_bytes)}"
    shuffle = Stage("shuffle", lambda dataset: dataset.shuffle(records, seed=seed), {"buffer_size": records}, reason)
    if config.cache == "none":
        repeat = replace(repeat, reason="in front of the files, so that reading runs on from one epoch into the next")
        return (listing, repeat, read, shuffle, parse, *images, *end)
    if config.cache == "bytes":
        cache = _cache(plan, "encoded records: no file is read twice")
        return (listing, read, cache, repeat, shuffle, parse, *images, *end)
    cache = _cache(plan, "decoded images, above augmentation: none is decoded twice, and each crop is a new one")
    return (listing, read, shuffle, parse, decode, cache, repeat, augment, *end)


def count_files_at_once(plan: BatchPlan) -> int:
    """Counts the files that are read in parallel: one in evaluation."""
    return (plan.config.tf_data.cycle_length or _FILES_AT_ONCE) if plan.config.training else 1


def count_shuffled_records(plan: BatchPlan) -> int:
    """Counts the records of average size that the shuffle buffer holds, at most an epoch of this host."""
    size, source = plan.config.tf_data.shuffle_buffer_size, plan.source
    if not isinstance(size, int):
        size = max(round(parse_bytes(size, "shuffle_buffer_size") / source.record_bytes), 1)
    records = source.num_records
    if records is None:
        records = max(round(source.total_bytes / source.record_bytes), 1)  # an estimate
    return min(size, -(-records // plan.host.num_hosts))


def count_records_ahead(plan: BatchPlan) -> int:
    """Counts the records that tf.data reads before they are needed, without those of the shuffle buffer."""
    ahead = 3 * count_files_at_once(plan) * (2 * plan.config.tf_data.block_length + 1)
    records = plan.source.num_records
    return ahead if records is None else min(ahead, records)


def _list_files(plan: BatchPlan) -> Stage:
    """Lists this host's files in a new order every epoch; in evaluation this host's part of each file, in order."""
    settings = {"files": len(plan.source.files), "host": f"{plan.host.index} of {plan.host.num_hosts}"}
    if not plan.config.training:
        files = np.arange(len(plan.source.files))
        firsts, counts = np.zeros(len(files), np.int64), np.full(len(files), -1, np.int64)  # as if nobody counted
        if plan.source.shard_records is not None:
            bases, share = plan.source.bases, plan.host.share(plan.source.num_records or 0)
            firsts, ends = np.clip(bases[:-1], share.start, share.stop), np.clip(bases[1:], share.start, share.stop)
            files = np.flatnonzero(ends > firsts)
            firsts, counts = (firsts - bases[:-1])[files], (ends - firsts)[files]
        shares = (tf.constant(np.array(plan.source.files)[files]), tf.constant(firsts), tf.constant(counts))
        reason = "every record once, an equal share for each host"
        return Stage("list", lambda _: tf.data.Dataset.from_tensor_slices(shares), settings, reason)
    if len(plan.source.files) < plan.host.num_hosts:
        raise ConfigError(
            f"{plan.host.num_hosts} input pipelines but only {len(plan.source.files)} files in {plan.source.name}. "
            f"Write {plan.host.num_hosts} or more shards, or read in exact order, which shares out records."
        )
    names = plan.source.files[plan.host.index :: plan.host.num_hosts]

    def apply(_: Any) -> tf.data.Dataset:
        files = tf.data.Dataset.from_tensor_slices(tf.constant(names)).shuffle(len(names), seed=_make_seed(plan, 0))
        return files.map(lambda file: (file, tf.constant(0, tf.int64), tf.constant(-1, tf.int64)))

    return Stage("list", apply, {**settings, "order": "throughput"}, "files in a new order every epoch")


def _read_files(plan: BatchPlan) -> Stage:
    """Reads the records of files, a block of each in turn; in evaluation file after file."""
    config, cycle = plan.config, count_files_at_once(plan)
    calls = config.tf_data.read_parallel_calls or (cycle if config.training else None)

    def read(file: tf.Tensor, first: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(file, plan.source.compression, buffer_size=_FILE_BUFFER_BYTES)
        return records.skip(first).take(count)

    def apply(files: tf.data.Dataset) -> tf.data.Dataset:
        return files.interleave(
            read,
            cycle_length=cycle,
            block_length=config.tf_data.block_length,
            num_parallel_calls=None if calls is None else min(calls, cycle),
            deterministic=None if calls is None else config.keeps_order,
        )

    settings = {
        "cycle_length": cycle,
        "block_length": config.tf_data.block_length,
        "num_parallel_calls": calls,
        "deterministic": config.keeps_order,
    }
    return Stage("read", apply, settings, "several files side by side" if cycle > 1 else "in the order of the files")


def _cache(plan: BatchPlan, reason: str) -> Stage:
    """Keeps the elements of the stage before in memory."""
    needed = estimate_cache_bytes(plan)
    size = "unknown" if needed is None else human_bytes(needed)
    settings = {"kind": plan.config.cache, "where": "memory", "size": size}
    return Stage("cache", lambda dataset: dataset.cache(), settings, reason)


def _make_seed(plan: BatchPlan, purpose: int) -> int:
    """Makes a seed for tf.data, which differs for each purpose and each start step."""
    return key_of(FILES, plan.config.seed, plan.host.start_step, purpose) >> 1
