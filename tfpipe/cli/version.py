"""`tfpipe --version`: versions as lines, or with --json all that a report of an error needs.

The object is made to be published. So it has no path, and no name of a host, a person or a dataset. TensorFlow is not
loaded, since a TensorFlow that cannot be loaded may be what is reported.
"""

import json
import os
import platform
from pathlib import Path
from typing import Any

import click

from tfpipe._version import __version__

_DEVICES = {"NVIDIA GPU": "nvidia[0-9]*", "TPU": "accel[0-9]*"}


def print_versions(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """Prints the versions and exits, if the user asked; click calls it."""
    if not asked:
        return
    if ctx.params["as_json"]:
        click.echo(json.dumps(describe_installation()))
    else:
        for name, version in _get_versions().items():
            click.echo(f"{name} {version}")
    ctx.exit()


def describe_installation(root: Path = Path("/")) -> dict[str, Any]:
    """Collects the versions and the facts of this machine, whose file system begins at `root`."""
    from tfpipe.system import host_limits

    versions = _get_versions()
    devices = {name: len(list((root / "dev").glob(pattern))) for name, pattern in _DEVICES.items()}
    return {
        "tfpipe": versions.pop("tfpipe"),
        "python": versions.pop("Python"),
        "libraries": versions,
        "system": ", ".join(filter(None, [f"{platform.system()} {platform.machine()}", " ".join(platform.libc_ver())])),
        "processor": host_limits.read_processor_name(root),
        "cores": host_limits.usable_cpus(root),
        "all_cores": os.cpu_count() or 1,
        "memory_bytes": host_limits.memory_limit_bytes(root),
        "available_bytes": host_limits.available_memory_bytes(root),
        "devices": {name: count for name, count in devices.items() if count},
    }


def _get_versions() -> dict[str, str]:
    from tfpipe.system import extras

    found = {"tfpipe": __version__, "Python": platform.python_version()}
    return {**found, **extras.get_versions(extras.LIBRARIES)}
