"""Changes of options that could make a pipeline faster. Pure: a config in, changes out.

The training step's input (shape and values of a batch, the order of records) stays the same unless the caller says that
it may change: a search must not quietly train another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.system.options import get_default, get_names, get_value, replace_options

Changes = Mapping[str, Any]

MECHANICAL = get_names(PipelineConfig, "speed")
"""The options that change how fast batches come and nothing else."""
CACHES = get_names(PipelineConfig, "cache")
"""The options of the cache. They are mechanical where bytes are kept; decoded images are cropped from smaller ones."""


def describe_changes(changes: Changes) -> str:
    """Formats changes as in `cache = 'bytes', tf_data.cycle_length = 16`."""
    return ", ".join(f"{name} = {'auto' if value is None else repr(value)}" for name, value in changes.items())


def is_mechanical(changes: Changes) -> bool:
    """Returns whether the batches stay the same: values, shapes, and the order as far as `order` promises one."""
    return all(name in MECHANICAL or (name in CACHES and value != "decoded") for name, value in changes.items())


def reset_to_defaults(config: PipelineConfig) -> Changes:
    """Returns the changes that take every mechanical option back to its default."""
    defaults = {name: get_default(PipelineConfig, name) for name in MECHANICAL}
    return {name: value for name, value in defaults.items() if get_value(config, name) != value}


def apply_changes(config: PipelineConfig, changes: Changes) -> PipelineConfig | None:
    """Returns the config with the changes; None if it is the same, caches less, or is not a valid config."""
    if config.cache == "decoded" and changes.get("cache") == "bytes":
        return None
    try:
        changed_config: PipelineConfig = replace_options(config, changes)
    except ConfigError:
        return None
    return None if changed_config == config else changed_config
