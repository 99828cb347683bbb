"""Images in, TFRecord shards out, a tuned input pipeline, and a profiler that says why the accelerator waits.

A name loads its module when it is first asked for: `import tfpipe` loads neither TensorFlow nor Beam.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tfpipe._version import __version__

if TYPE_CHECKING:
    from tfpipe.distribution import resolve_strategy, set_precision
    from tfpipe.errors import ConfigError, DataError, FormatError, MissingDependencyError, TfpipeError
    from tfpipe.format.manifest import Manifest
    from tfpipe.readers.dataset import load_manifest

__all__ = [
    "ConfigError",
    "DataError",
    "FormatError",
    "Manifest",
    "MissingDependencyError",
    "TfpipeError",
    "__version__",
    "load_manifest",
    "resolve_strategy",
    "set_precision",
]

_MODULES = {
    "ConfigError": "tfpipe.errors",
    "DataError": "tfpipe.errors",
    "FormatError": "tfpipe.errors",
    "Manifest": "tfpipe.format.manifest",
    "MissingDependencyError": "tfpipe.errors",
    "TfpipeError": "tfpipe.errors",
    "load_manifest": "tfpipe.readers.dataset",
    "resolve_strategy": "tfpipe.distribution",
    "set_precision": "tfpipe.distribution",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)  # the next access is a plain one
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
