"""The file that `tfpipe profile --apply` writes: options, and a table `tuned` with the host and data they fit."""

import copy
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from tfpipe.engine.config import toml_json
from tfpipe.engine.source import Source, get_source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.system import host_limits

_KEY_DIGITS = 8


def describe_environment(data: Manifest | Source, split: str | None) -> dict[str, Any]:
    """Describes the host and the data for the table `tuned`; its `key` identifies both, whatever the data's path."""
    source = get_source(data, split)
    processor, cores = host_limits.read_processor_name(), host_limits.usable_cpus()
    fingerprint = _digest([source.total_bytes, *(os.path.basename(path) for path in source.files)])
    if isinstance(data, Manifest) and split is not None:
        fingerprint = data.splits[split].fingerprint[:_KEY_DIGITS]
    return {
        "key": _digest([processor, cores, split or "", fingerprint]),
        "processor": processor,
        "cores": cores,
        "memory_bytes": host_limits.memory_limit_bytes(),
        "dataset": source.name,
        "split": split or "",
        "records": source.num_records or 0,
        "fingerprint": fingerprint,
    }


def check_path(path: str, environment: Mapping[str, Any]) -> None:
    """Refuses, before anything is measured, an existing file that was not tuned for this host and these data."""
    toml_json.check_suffix(path)
    if not os.path.lexists(path):
        return
    key = toml_json.read_with_notes(path)[1].get("key")
    if key != environment["key"]:
        unknown = "is there already and `tfpipe profile --apply` did not write it"
        reason = "was tuned on another host or other data" if key else unknown
        raise ConfigError(f"{path} {reason}. Move it away, or name another file.")


def write(
    path: str,
    given: Mapping[str, Any],
    changes: Mapping[str, Any],
    tuned_on: Mapping[str, Any],
    result: Mapping[str, Any],
) -> None:
    """Writes the options that the user gave, with the changes of the fixes, and the table `tuned`."""
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    versions = {name: importlib.metadata.version(name) for name in ("tfpipe", "tensorflow")}
    table = copy.deepcopy(dict(given))
    for name, value in changes.items():
        outer, _, inner = name.rpartition(".")
        options = table.setdefault(outer, {}) if outer else table
        options.pop(inner, None)
        if value is not None:  # TOML has no null: a missing option means None
            options[inner] = value
    notes = {"key": tuned_on["key"], "at": at, **tuned_on, **versions, **result}
    toml_json.write(path, {**table, toml_json.NOTES: notes})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]
