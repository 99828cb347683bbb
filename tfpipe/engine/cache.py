"""Caches in memory: records as they are stored, or decoded images with all other features.

A record is cached when it is first read. Evaluation crops an image the same way each time, so it caches the crop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.encoded_images import DTYPES
from tfpipe.engine.parse import ReadBlock, RecordBlock, join_block, read_missing
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError
from tfpipe.system import host_limits
from tfpipe.system.hash_permutation import CACHE, IntArray, key_of, permutation
from tfpipe.system.units import human_bytes, parse_bytes

MAX_CACHE_SHARE = 0.9
"""The share of the free memory that a cache may take; the trainer and its buffers need the rest."""

_BLOCK_RECORDS = 256  # adjacent records that are kept together
_MASK_BYTES = 2  # a pixel, at most: the cache keeps masks as PNG
_OTHER_BYTES = 200  # an image, for its other features


def choose_kept(plan: BatchPlan, reader: RecordReader) -> IntArray:
    """Chooses each record's slot in a cache, or -1: int64 [records]. In training all hosts choose the same slots."""
    config, records = plan.config, plan.source.num_records or 0
    candidates: IntArray = np.arange(records)  # this host's records, in the order in which they get slots
    if not config.training:
        candidates = np.array(plan.host.share(records), np.int64)
    elif config.cache_bytes is not None:
        blocks = permutation(key_of(CACHE, config.seed), -(-records // _BLOCK_RECORDS))
        candidates = (blocks[:, None] * _BLOCK_RECORDS + np.arange(_BLOCK_RECORDS)).reshape(-1)
        candidates = candidates[candidates < records]
    if config.cache == "bytes":
        sizes = reader.list_sizes(candidates)
    else:
        sizes = np.full(len(candidates), _count_image_bytes(plan), np.int64)
    ends = np.cumsum(sizes)
    count = len(candidates)
    if config.cache_bytes is not None:
        limit = parse_bytes(config.cache_bytes, "cache_bytes")
        count = int(np.searchsorted(ends, limit, side="right"))
        if count == 0 and len(candidates):
            raise ConfigError(
                f"`cache_bytes` must hold a record, of which the first takes {human_bytes(int(ends[0]))}, got "
                f"{human_bytes(limit)}. Use more, or no cache."
            )
    check_memory(plan, int(ends[count - 1]) if count else 0, by_engine=True)
    slots = np.full(records, -1, np.int64)
    slots[candidates[:count]] = np.arange(count)
    return slots


def estimate_cache_bytes(plan: BatchPlan) -> int | None:
    """Estimates the bytes of this host's full cache from the manifest; None if nobody counted the records."""
    config, records = plan.config, plan.source.num_records
    if records is None:
        return None
    if not config.training:
        records = -(-records // plan.host.num_hosts)
    whole = round(records * (plan.source.record_bytes if config.cache == "bytes" else _count_image_bytes(plan)))
    return whole if config.cache_bytes is None else min(whole, parse_bytes(config.cache_bytes, "cache_bytes"))


def check_memory(plan: BatchPlan, needed: int, by_engine: bool) -> None:
    """Refuses a cache that does not fit into memory; `by_engine`: the message offers to cache fewer records."""
    free = host_limits.available_memory_bytes()
    if needed > MAX_CACHE_SHARE * free:
        advice = "Use a smaller `decoded_size`, or no cache."
        if by_engine:
            advice = "Set `cache_bytes` to keep what fits, use a smaller `decoded_size`, a `cache_dir`, or no cache."
        raise ConfigError(
            f"`cache` {plan.config.cache} of {plan.source.name} needs {human_bytes(needed)} of memory, and "
            f"{human_bytes(free)} are free, of which a cache may take 90 %. {advice}",
            page="symptoms#memory-grows",
        )


def get_cached_form(plan: BatchPlan) -> tuple[tuple[int, int], str]:
    """Returns the height and width of cached images, and the name of their dtype."""
    config = plan.config
    if not config.training and config.augment != "device":
        return config.size, config.image_dtype
    return plan.decoded_size, "uint8"


def _count_image_bytes(plan: BatchPlan) -> int:
    (height, width), dtype = get_cached_form(plan)
    pixel_bytes = 3 * int(np.dtype(DTYPES[dtype]).itemsize) + _MASK_BYTES * len(plan.masks)
    return height * width * pixel_bytes + _OTHER_BYTES


def share_cache_bytes(plans: Sequence[BatchPlan], cache_bytes: int | str | None) -> list[int | None]:
    """Divides `cache_bytes` among the datasets of a mixture, in proportion to the bytes of each one's whole cache."""
    if cache_bytes is None:
        return [None] * len(plans)
    wholes = [
        plan.source.total_bytes
        if plan.config.cache == "bytes"
        else (plan.source.num_records or 0) * _count_image_bytes(plan)
        for plan in plans
    ]
    limit = parse_bytes(cache_bytes, "cache_bytes")
    return [max(limit * whole // max(sum(wholes), 1), 1) for whole in wholes]


class _MemoryCache:
    """The base of caches in memory: each record's slot, and which slots are filled. Threads may share it."""

    def __init__(self, slots: IntArray) -> None:
        self.slots = slots  # each record's slot, or -1: int64 [records]
        self.count = int(slots.max(initial=-1)) + 1
        self.present = np.zeros(self.count + 1, np.bool_)  # the last entry is that of slot -1

    def find(self, numbers: IntArray) -> NDArray[np.bool_]:
        """Returns whether the cache has each record, bool [n]."""
        found: NDArray[np.bool_] = self.present[self.slots[numbers]]
        return found


class BytesCache(_MemoryCache):
    """A cache of records as they are stored."""

    def __init__(self, slots: IntArray) -> None:
        super().__init__(slots)
        self._payloads: list[bytes | None] = [None] * self.count

    def read_block(self, numbers: IntArray, memory: NDArray[np.uint8] | None, read: ReadBlock) -> RecordBlock:
        """Reads records from the cache; those that it lacks come from `read`, and are kept if they have a slot."""
        slots, there = self.slots[numbers], self.find(numbers)
        found = join_block([self._payloads[slot] for slot in slots[there].tolist()], memory)
        if there.all():
            return found
        block, added = read_missing(found, there, numbers, memory, read)
        rows = np.flatnonzero((slots[~there] >= 0) & added.whole)
        for slot, payload in zip(slots[~there][rows].tolist(), added.choose(rows).list_payloads(), strict=True):
            self._payloads[slot] = payload
            self.present[slot] = True
        return block

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.slots,)  # a copy in another process begins empty


class DecodedCache(_MemoryCache):
    """A cache of decoded images and the other features of their records."""

    def __init__(self, slots: IntArray, plan: BatchPlan) -> None:
        super().__init__(slots)
        size, dtype = get_cached_form(plan)
        self.images = np.empty((self.count, *size, 3), DTYPES[dtype])  # slots that were never written take no memory
        self.sizes = np.zeros((self.count, 2), np.int64)
        self.others: list[dict[str, Any]] = [{}] * self.count  # by slot: features by name
