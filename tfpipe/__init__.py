"""Images in, TFRecord shards out, a tuned input pipeline, and a profiler that says why the accelerator waits.

A name loads its module at its first use, so `import tfpipe` loads neither TensorFlow nor Beam.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tfpipe._version import __version__
from tfpipe.system import notebook
from tfpipe.system.extras import importing

if TYPE_CHECKING:  # the names that load at their first use
    from tfpipe import fields as fields
    from tfpipe.columns.add import add_column as add_column
    from tfpipe.dataset.load import load_manifest as load_manifest
    from tfpipe.distribution.distribute import distribute_dataset as distribute_dataset
    from tfpipe.distribution.distribute import steps_per_epoch as steps_per_epoch
    from tfpipe.distribution.mesh import distribute_over_mesh as distribute_over_mesh
    from tfpipe.distribution.strategy import resolve_strategy as resolve_strategy
    from tfpipe.distribution.strategy import set_precision as set_precision
    from tfpipe.engine.config.augment_config import AugmentOptions as AugmentOptions
    from tfpipe.engine.config.pipeline_config import PipelineConfig as PipelineConfig
    from tfpipe.engine.config.pipeline_config import ServiceOptions as ServiceOptions
    from tfpipe.engine.config.pipeline_config import TfDataOptions as TfDataOptions
    from tfpipe.engine.mixture import mix as mix
    from tfpipe.engine.source import tfrecord_files as tfrecord_files
    from tfpipe.errors import ConfigError as ConfigError
    from tfpipe.errors import DataError as DataError
    from tfpipe.errors import FormatError as FormatError
    from tfpipe.errors import TfpipeError as TfpipeError
    from tfpipe.format.manifest import Manifest as Manifest
    from tfpipe.pipeline.build import build_dataset as build_dataset
    from tfpipe.pipeline.build import build_stages as build_stages
    from tfpipe.pipeline.stage import Stage as Stage
    from tfpipe.pipeline.stage import Stages as Stages
    from tfpipe.pipeline.stages import masked_sum as masked_sum
    from tfpipe.profiler.live.idle_monitor import IdleMonitor as IdleMonitor
    from tfpipe.readers.data_source import data_source as data_source
    from tfpipe.readers.grain import GrainBatches as GrainBatches
    from tfpipe.readers.jax import JaxBatches as JaxBatches
    from tfpipe.readers.keras import EndFirstEpoch as EndFirstEpoch
    from tfpipe.readers.keras import KerasBatches as KerasBatches
    from tfpipe.readers.numpy import NumpyBatches as NumpyBatches
    from tfpipe.readers.sampler import ExactSampler as ExactSampler
    from tfpipe.readers.torch import TorchBatches as TorchBatches
    from tfpipe.readers.torch import data_loader as data_loader
    from tfpipe.writer.write import write as write

# The module of each name above, which a test compares.
_NAMES = {
    "tfpipe.columns.add": ("add_column",),
    "tfpipe.dataset.load": ("load_manifest",),
    "tfpipe.distribution.distribute": ("distribute_dataset", "steps_per_epoch"),
    "tfpipe.distribution.mesh": ("distribute_over_mesh",),
    "tfpipe.distribution.strategy": ("resolve_strategy", "set_precision"),
    "tfpipe.engine.config.augment_config": ("AugmentOptions",),
    "tfpipe.engine.config.pipeline_config": ("PipelineConfig", "ServiceOptions", "TfDataOptions"),
    "tfpipe.engine.mixture": ("mix",),
    "tfpipe.engine.source": ("tfrecord_files",),
    "tfpipe.errors": ("ConfigError", "DataError", "FormatError", "TfpipeError"),
    "tfpipe.format.manifest": ("Manifest",),
    "tfpipe.pipeline.build": ("build_dataset", "build_stages"),
    "tfpipe.pipeline.stage": ("Stage", "Stages"),
    "tfpipe.pipeline.stages": ("masked_sum",),
    "tfpipe.profiler.live.idle_monitor": ("IdleMonitor",),
    "tfpipe.readers.data_source": ("data_source",),
    "tfpipe.readers.grain": ("GrainBatches",),
    "tfpipe.readers.jax": ("JaxBatches",),
    "tfpipe.readers.keras": ("EndFirstEpoch", "KerasBatches"),
    "tfpipe.readers.numpy": ("NumpyBatches",),
    "tfpipe.readers.sampler": ("ExactSampler",),
    "tfpipe.readers.torch": ("TorchBatches", "data_loader"),
    "tfpipe.writer.write": ("write",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", "fields", *sorted(_MODULES)]


def __getattr__(name: str) -> object:
    if name == "fields":  # a module, with the kinds of values for `tfpipe.write`
        return import_module("tfpipe.fields")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with importing(f"`tfpipe.{name}`", "TensorFlow", "tfpipe[tensorflow]"):  # readers name their own
        value = globals()[name] = getattr(import_module(module), name)  # the next access does not come here
    return value


def _draw_for_notebook(shown: object) -> str | None:
    from tfpipe.readers.thumbnails import draw_for_notebook

    return draw_for_notebook(shown)


notebook.draw = _draw_for_notebook


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
