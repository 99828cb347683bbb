"""Which options could make a pipeline faster. Pure: a config in, changes out.

What the training step sees (shape and values of a batch, the order of records) stays as it is unless the caller says
that it may change: a search must not quietly train another model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from tfpipe.errors import ConfigError
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.system.options import get_names

Changes = Mapping[str, Any]

MECHANICAL = get_names(PipelineConfig, "speed")
"""The options that change how fast batches come and nothing else."""
CACHES = get_names(PipelineConfig, "cache")
"""The options of the cache. They are mechanical where bytes are kept; decoded images are cropped from smaller ones."""


def is_mechanical(changes: Changes) -> bool:
    """Whether the batches stay as they are: values, shapes, and the order as far as `order` promises one."""
    return all(name in MECHANICAL or (name in CACHES and value != "decoded") for name, value in changes.items())


def all_defaults(config: PipelineConfig) -> Changes:
    """What takes every mechanical option back to its default, measured or adjusted by tf.data while it runs."""
    return _different(config, {one.name: one.default for one in fields(config) if one.name in MECHANICAL})


def neighbours(config: PipelineConfig, cores: int, input_may_change: bool) -> Iterator[Changes]:
    """Single steps away from a config, the likeliest first.

    Args:
        config: Where one is.
        cores: Of this host.
        input_may_change: Also what the training step sees.
    """
    steps: list[dict[str, Any]] = [
        {"cache": "bytes"},
        {"map_fusion": True},
        *({"num_parallel_calls": calls} for calls in (None, cores, 2 * cores)),
        *({"prefetch_batches": batches} for batches in (None, 2, 8)),
        *({"private_threadpool_size": threads} for threads in (None, cores, 2 * cores)),
        *({"cycle_length": cycle} for cycle in (2 * config.cycle_length, max(config.cycle_length // 2, 1))),
        *({"block_length": block} for block in (2 * config.block_length, 4 * config.block_length)),
        *({"read_parallel_calls": calls} for calls in (None, cores)),
        *({"max_intra_op_parallelism": threads} for threads in (1, cores)),
    ]
    if input_may_change:
        steps = [
            {"cache": "decoded", "augment": "device", "image_dtype": "uint8"},
            {"augment": "device", "image_dtype": "uint8"},
            {"cache": "decoded"},
            {"image_dtype": "uint8"},
            {"dct_scaling": True},
            *steps,
            {"order": "throughput", "deterministic": False},
        ]
    for step in steps:
        if changes := _different(config, step):
            yield changes


def changed(config: PipelineConfig, changes: Changes) -> PipelineConfig | None:
    """The config with the changes; None where it would be the same, keep less, or be none that can be had."""
    if config.cache == "decoded" and changes.get("cache") == "bytes":
        return None
    try:
        made = replace(config, **changes)
    except ConfigError:
        return None
    return None if made == config else made


def _different(config: PipelineConfig, changes: Changes) -> Changes:
    """Only what is not so already."""
    return {name: value for name, value in changes.items() if value is not MISSING and getattr(config, name) != value}
