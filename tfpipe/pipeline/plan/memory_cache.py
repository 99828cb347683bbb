"""The cache in memory of one host: its size, and the records that it keeps if not all of them fit.

needed = estimate_cache_bytes(plan)
parts = split_by_cache(plan)               # None: the cache keeps every record
parts.kept, parts.others                   # two read plans; together they read what the plan reads

Which records are kept follows from the options and the data alone, so that every run and every host keeps the same. In
training they are pieces of adjacent records, in an order drawn from the seed: the blocks of the exact order then lie
inside a piece or outside, and those inside need not be read. In evaluation they are a host's first records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.system.hash_permutation import CACHE, IntArray, key_of, permutation
from tfpipe.system.units import human_bytes, parse_bytes

_ELEMENT_BYTES = 200  # for a label, a few numbers and their tensors
_BLOCKS_AT_ONCE = 16
"""The blocks of the order that are kept together. Of those that begin in one piece, one goes on in the next."""


class CacheParts(NamedTuple):
    """The two parts of what a plan reads.

    Attributes:
        kept: The plan of the records in the cache. It caches all that it reads.
        others: The plan of the records that are read anew in every epoch. It has no cache.
        kept_records: The number of records in the cache.
    """

    kept: ReadPlan
    others: ReadPlan
    kept_records: int


def estimate_cache_bytes(plan: ReadPlan) -> int | None:
    """Estimates the bytes of this host's full cache from the manifest; None if nobody counted the records.

    Training fetches any record on any host, so each holds them all; evaluation reads the same share every time.
    """
    records = plan.source.num_records
    if records is None:
        return None
    config = plan.config
    if not config.training:
        records = -(-records // plan.num_hosts)
    whole = round(records * _get_element_bytes(plan))
    if config.cache_bytes is None:
        return whole
    return min(whole, parse_bytes(config.cache_bytes, "cache_bytes"))


@lru_cache(maxsize=4)  # several parts of a program ask for the same plan
def split_by_cache(plan: ReadPlan) -> CacheParts | None:
    """Splits what a plan reads into the records that its cache keeps and the others; None if it keeps all.

    Raises:
        ConfigError: The records cannot be found by their number, or none fits into `cache_bytes`.
    """
    config = plan.config
    if config.cache_bytes is None:
        return None
    if plan.source.shard_records is None:
        raise ConfigError(
            f"`cache_bytes` needs to know where each record lies, and {plan.source.unplaced}. Leave it out."
        )
    numbers, cache_bytes = _list_candidates(plan), parse_bytes(config.cache_bytes, "cache_bytes")
    ends = np.cumsum(_measure_elements(plan, numbers))
    count = int(np.searchsorted(ends, cache_bytes, side="right"))
    if count == len(numbers):
        return None
    if count == 0:
        raise ConfigError(
            f"`cache_bytes` must hold a record, of which the first takes {human_bytes(int(ends[0]))}, got "
            f"{human_bytes(cache_bytes)}. Use more, or no cache."
        )
    kept = np.zeros(plan.source.num_records or 0, bool)
    kept[numbers[:count]] = True
    # Without a cache the config might not ask for the exact order, in which the two parts are joined.
    others = replace(config, cache="none", cache_bytes=None, deterministic=None)
    if plan.exact:
        others = replace(others, order="exact")
    whole = replace(config, cache_bytes=None, deterministic=None)
    return CacheParts(replace(plan, config=whole, chosen=kept), replace(plan, config=others, chosen=~kept), count)


def share_cache_bytes(plans: Sequence[ReadPlan], cache_bytes: int | str | None) -> list[int | None]:
    """Divides `cache_bytes` among the datasets of a mixture, in proportion to what each would take as a whole."""
    if cache_bytes is None:
        return [None] * len(plans)
    wholes = [estimate_cache_bytes(replace(plan, config=replace(plan.config, cache_bytes=None))) for plan in plans]
    all_bytes = max(sum(whole or 0 for whole in wholes), 1)
    return [max(parse_bytes(cache_bytes, "cache_bytes") * (whole or 0) // all_bytes, 1) for whole in wholes]


def get_decoding_plan(plan: ReadPlan) -> ReadPlan:
    """Returns the plan by which the stages of a pipeline decode: if only a part is cached, that of the others."""
    parts = split_by_cache(plan)
    return plan if parts is None else parts.others


def _list_candidates(plan: ReadPlan) -> IntArray:
    """Lists the records that this host may keep, the first one first: int64 [n]."""
    if not plan.config.training:
        records = plan.source.num_records or 0
        begin, end = (records * part // plan.num_hosts for part in (plan.host, plan.host + 1))
        return np.arange(begin, end)
    block, records = _BLOCKS_AT_ONCE * plan.order.block_records, plan.source.num_records or 0
    blocks = permutation(key_of(CACHE, plan.config.seed), -(-records // block))
    numbers: IntArray = (blocks[:, None] * block + np.arange(block)).reshape(-1)
    return numbers[numbers < records]


def _measure_elements(plan: ReadPlan, numbers: IntArray) -> NDArray[np.float64]:
    """Measures the bytes that each of some records takes in the cache: float64 [n]."""
    if plan.config.cache == "decoded":
        return np.full(len(numbers), _get_element_bytes(plan))
    source = plan.source
    ends = np.append(source.offsets()[1:], 0)
    filled = np.diff(source.bases) > 0
    ends[source.bases[1:][filled] - 1] = np.array(source.file_bytes)[filled]
    return (ends - source.offsets())[numbers].astype(np.float64)


def _get_element_bytes(plan: ReadPlan) -> float:
    """Returns the mean bytes that a record takes in the cache."""
    config = plan.config
    if config.cache == "bytes":
        return plan.source.record_bytes
    height, width = plan.decoded_size
    # Masks are uint16 in a cache.
    return (height * width * (3 + 2 * len(plan.masks)) if config.training else plan.image_bytes) + _ELEMENT_BYTES
