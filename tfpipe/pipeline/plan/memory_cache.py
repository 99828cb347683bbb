"""The size of the cache in memory of one host, and whether it fits.

needed = estimate_cache_bytes(plan)
check_cache_fits(plan)
"""

from __future__ import annotations

from tfpipe.engine.cache import MAX_CACHE_SHARE
from tfpipe.errors import ConfigError
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.system import host_limits
from tfpipe.system.units import human_bytes, parse_bytes

_ELEMENT_BYTES = 200  # for a label, a few numbers and their tensors


def estimate_cache_bytes(plan: ReadPlan) -> int | None:
    """Estimates the bytes of this host's full cache from the manifest; None if nobody counted the records.

    Training takes any record on any host, so each holds them all; evaluation reads the same share every time.
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


def check_cache_fits(plan: ReadPlan) -> None:
    """Refuses a cache in memory that would not fit.

    Raises:
        ConfigError: The cache needs more memory than is free.
    """
    needed, free = estimate_cache_bytes(plan), host_limits.available_memory_bytes()
    if needed is not None and needed > MAX_CACHE_SHARE * free:
        advice = "Use a smaller `decoded_size`, or no cache."
        if plan.in_steps:
            advice = "Set `cache_bytes` to keep what fits, use a smaller `decoded_size`, a `cache_dir`, or no cache."
        raise ConfigError(
            f"`cache` {plan.config.cache} of {plan.source.name} needs {human_bytes(needed)} of memory, and "
            f"{human_bytes(free)} are free, of which it may take nine tenths. {advice}",
            page="docs/symptoms.md#memory-grows",
        )


def _get_element_bytes(plan: ReadPlan) -> float:
    """Returns the mean bytes that a record takes in the cache."""
    config = plan.config
    if config.cache == "bytes":
        return plan.source.record_bytes
    height, width = plan.decoded_size
    # Masks are uint16 in a cache.
    return (height * width * (3 + 2 * len(plan.masks)) if config.training else plan.image_bytes) + _ELEMENT_BYTES
