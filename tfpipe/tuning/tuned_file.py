"""The file that a tuner writes: the options, and in a table `tuned` on which host and data they were tried.

`PipelineConfig.from_file` reads the options and leaves the table out; what is in it is for people, and for the next run
of the tuner, which must not take one host's options for another's.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.config import toml_json
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.source import Source, get_source
from tfpipe.system import host_limits

_KEY_DIGITS = 8


@dataclass(frozen=True)
class Place:
    """Where options were tried: they need not be the best anywhere else."""

    processor: str
    cores: int
    memory_bytes: int
    dataset: str
    split: str
    records: int
    """0 where nobody knows."""
    fingerprint: str
    """Of the split's files: names, sizes, and checksums where there are any."""

    @property
    def key(self) -> str:
        """Eight digits that differ where host or data do; where the data lie, and what is free there, is no matter."""
        return _digest([self.processor, self.cores, self.split, self.fingerprint])


def place_of(data: Manifest | Source, split: str | None) -> Place:
    """This host and these data."""
    source = get_source(data, split)
    return Place(
        processor=processor_name(),
        cores=host_limits.usable_cpus(),
        memory_bytes=host_limits.memory_limit_bytes(),
        dataset=source.name,
        split=split or "",
        records=source.num_records or 0,
        fingerprint=_fingerprint(data, split, source),
    )


def default_path(place: Place) -> str:
    """In the current folder, with a name of its own for each host and data set."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", place.dataset).strip("-") or "pipeline"
    return f"{name}-{place.key}.toml"


def check_path(path: str, place: Place) -> None:
    """Refuses a file that was tuned elsewhere, before anything is measured.

    Raises:
        ConfigError: The name ends in neither .toml nor .json, or the file is no tuner's for this host and these data.
    """
    if Path(path).suffix not in (".toml", ".json"):
        raise ConfigError(f"The file for the options must end in .toml or .json, got {path!r}.")
    if not os.path.lexists(path):
        return
    _, notes = toml_json.read_with_notes(path)
    key = notes.get("key")
    if key != place.key:
        what = "was tuned on another host or other data" if key else "is there already and no tuner's"
        raise ConfigError(f"{path} {what}. Move it away, or name another file.")


def write(path: str, config: PipelineConfig, place: Place, result: Mapping[str, Any]) -> None:
    """Writes options and notes in one step.

    Args:
        path: Ends in .toml or .json.
        config: The options.
        place: Where they were tried.
        result: What came out, plain values.

    Raises:
        ConfigError: It cannot be written.
    """
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    versions = {name: importlib.metadata.version(name) for name in ("tfpipe", "tensorflow")}
    config.to_file(path, {"key": place.key, "at": at, **asdict(place), **versions, **result})


def processor_name() -> str:
    """As the kernel calls it, or the architecture."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def _fingerprint(data: Manifest | Source, split: str | None, source: Source) -> str:
    if isinstance(data, Manifest) and split is not None:
        return data.splits[split].fingerprint[:_KEY_DIGITS]
    return _digest([source.total_bytes, *(os.path.basename(path) for path in source.files)])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]
