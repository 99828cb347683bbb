"""The facts that a report of an error needs: versions, machine, options, dataset.

    report = make_report(settings=os.environ, config=config, data=manifest)
    print(format_report(report))

It is made to be published. So it has no path, no name of a host, a person, a dataset or a class, and no free text
that somebody wrote: of an option or a setting that takes such text it says only that it is given. It loads no
TensorFlow, since a TensorFlow that cannot be loaded may be what is reported.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfpipe._version import __version__
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.format.manifest import FORMAT_VERSION, Manifest
from tfpipe.native import library
from tfpipe.system import host_limits, versions
from tfpipe.system.options import Addresses, Names, Nested, Text, get_default, get_options
from tfpipe.system.units import human_bytes, human_count

SETTINGS = (
    *("CUDA_VISIBLE_DEVICES", "GCS_READAHEAD_BUFFER_SIZE_BYTES", "KERAS_BACKEND", "LD_PRELOAD", "MALLOC_ARENA_MAX"),
    *("OMP_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS", "TF_GPU_THREAD_MODE"),
    *("TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_XLA_FLAGS", "TPU_NAME", "XLA_FLAGS"),
)
"""The variables of the environment that change how a pipeline runs."""

GIVEN = "(given)"
_NUMBERS = re.compile(r"-?[0-9][0-9,.]{0,19}|-?1|true|false")
_PATHS = re.compile(r"/.*/[^\s:]*|/[^\s:]*")
_FREE_TEXT = (Addresses, Names, Text)
_DEVICES = {"NVIDIA GPU": "nvidia[0-9]*", "TPU": "accel[0-9]*"}


def make_report(
    settings: Mapping[str, str],
    config: PipelineConfig | None = None,
    data: Manifest | Source | None = None,
    root: Path = Path("/"),
) -> dict[str, Any]:
    """Collects the facts.

    Args:
        settings: The environment of the process.
        config: The options of the pipeline; None if nobody gave any.
        data: The dataset; None leaves it out.
        root: The directory where the file system begins. Tests pass another one.

    Returns:
        Values that JSON can hold, by the parts `tfpipe`, `libraries`, `machine`, `settings`, `config` and `dataset`.
    """
    return {
        "tfpipe": {"version": __version__, "native_library": _describe_native_library()},
        "libraries": versions.get_versions(versions.LIBRARIES),
        "machine": _describe_machine(root),
        "settings": {name: _hide_text(settings[name]) for name in SETTINGS if name in settings},
        "config": {} if config is None else _describe_config(config),
        "dataset": {} if data is None else _describe_data(data),
    }


def format_report(report: Mapping[str, Any]) -> str:
    """Returns the report as lines to paste into an issue."""
    machine = report["machine"]
    devices = ", ".join(human_count(count, name) for name, count in machine["devices"].items())
    cores = f"{machine['cores']} of {human_count(machine['all_cores'], 'core')}"
    memory = f"{human_bytes(machine['memory_bytes'])} of memory, {human_bytes(machine['available_bytes'])} free"
    lines = [
        f"tfpipe        {report['tfpipe']['version']}, native library {report['tfpipe']['native_library']}",
        f"Python        {machine['python']}",
        f"system        {machine['system']}",
        f"machine       {machine['processor']}, {cores}, {memory}",
        f"devices       {devices or 'no GPU and no TPU was seen'}",
    ]
    for part in ("libraries", "settings", "config", "dataset"):
        text = ", ".join(f"{name} {_format_value(value)}" for name, value in report[part].items())
        lines.append(f"{part:<14}{text or 'none'}")
    return "\n".join(lines)


def _describe_native_library() -> str:
    """Returns whether it is there, and why not, without the paths of the reason."""
    missing = library.explain_missing()
    return "there" if missing is None else f"missing: {_PATHS.sub('(path)', missing)}"


def _describe_machine(root: Path) -> dict[str, Any]:
    bits = sys.maxsize.bit_length() + 1
    libc = " ".join(filter(None, platform.libc_ver()))
    devices = {name: len(list((root / "dev").glob(pattern))) for name, pattern in _DEVICES.items()}
    return {
        "python": f"{platform.python_version()} ({platform.python_implementation()}, {bits} bits)",
        "system": ", ".join(filter(None, [f"{platform.system()} {platform.machine()}", libc])),
        "processor": host_limits.read_processor_name(root),
        "cores": host_limits.usable_cpus(root),
        "all_cores": os.cpu_count() or 1,
        "memory_bytes": host_limits.memory_limit_bytes(root),
        "available_bytes": host_limits.available_memory_bytes(root),
        "devices": {name: count for name, count in devices.items() if count},
    }


def _hide_text(value: str) -> str:
    """Returns a setting that is a number or a switch, and of any other that it is given."""
    return value if _NUMBERS.fullmatch(value) else GIVEN


def _describe_config(config: Any) -> dict[str, Any]:
    """Returns the options that differ from their defaults; of those that take free text only that they are given.

    Options of a nested object have names as in "tf_data.cycle_length".
    """
    changed: dict[str, Any] = {}
    for name, facts in get_options(config).items():
        value = getattr(config, name)
        if isinstance(facts.kind, Nested):
            changed |= {f"{name}.{inner}": each for inner, each in _describe_config(value).items()}
        elif value != get_default(type(config), name):
            hidden = isinstance(facts.kind, _FREE_TEXT)
            changed[name] = GIVEN if hidden else list(value) if isinstance(value, tuple) else value
    return changed


def _describe_data(data: Manifest | Source) -> dict[str, Any]:
    if isinstance(data, Source):
        return {"files": len(data.files), "bytes": data.total_bytes, "format": "TFRecords without a manifest"}
    splits = data.splits.values()
    return {
        "format": FORMAT_VERSION,
        "written by tfpipe": data.tool_version,
        "foreign": data.foreign is not None,
        "splits": len(splits),
        "shards": sum(len(split.shards) for split in splits),
        "records": sum(split.records for split in splits),
        "bytes": sum(shard.bytes for split in splits for shard in split.shards),
        "classes": len(data.label_names),
        "features": len(data.schema.names),
        **{name: value for name, value in data.image.items() if name in ("encoding", "resize_short", "square")},
    }


def _format_value(value: Any) -> str:
    return {True: "yes", False: "no", None: "none"}[value] if value is None or isinstance(value, bool) else str(value)
