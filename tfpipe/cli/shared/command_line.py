"""A job as a line for a shell, for `--print-command`."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from beam_jobs.config import ShardConfig
from tfpipe.format.image_form import ImageForm

# Every other option has the name of its field.
_OPTIONS = {"shard_size_bytes": "shard_size", "drop_features": "drop_feature"}
_NOT_OPTIONS = ("input", "output", "datasets", "form", "form_changes", "known_labels", "known_images")


def format_command(config: ShardConfig, beam_args: Sequence[str]) -> str:
    """Returns the command that runs a job; options that have their default are left out."""
    if len(config.datasets) > 1:
        words = ["merge", *config.datasets, config.output]
    elif config.datasets:
        words = ["reshard", *config.datasets, config.output]
    else:
        words = ["shard", config.input, config.output]
    values = _changed_fields(config, ShardConfig(config.input, config.output))
    form_values = _changed_fields(config.form, ImageForm()) | dict(config.form_changes)
    options = [
        _format_option(name, value)
        for name, given in {**values, **form_values}.items()
        for value in (given if isinstance(given, tuple) else (given,))
    ]
    return shlex.join(["python", "-m", "beam_jobs", *words, *options, *(["--", *beam_args] if beam_args else [])])


def _changed_fields(config: Any, default: Any) -> dict[str, Any]:
    names = [field.name for field in fields(config) if field.name not in _NOT_OPTIONS]
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(default, name)}


def _format_option(name: str, value: Any) -> str:
    option = _OPTIONS.get(name, name).replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={share}" for key, share in value.items())
    return f"--{option}={value}"
