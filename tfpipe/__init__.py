"""Images in, TFRecord shards out, a tuned input pipeline, and a profiler that says why the accelerator waits.

A name loads its module at its first use, so `import tfpipe` loads neither TensorFlow nor Beam.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tfpipe._version import __version__
from tfpipe.system import notebook
from tfpipe.system.extras import importing

if TYPE_CHECKING:
    from tfpipe.columns.add import add_column
    from tfpipe.dataset.load import load_manifest
    from tfpipe.distribution import (
        distribute_dataset,
        distribute_over_mesh,
        resolve_strategy,
        set_precision,
        steps_per_epoch,
    )
    from tfpipe.engine.config.augment_config import AugmentOptions
    from tfpipe.engine.config.pipeline_config import PipelineConfig
    from tfpipe.engine.config.service_options import ServiceOptions
    from tfpipe.engine.config.tf_data_options import TfDataOptions
    from tfpipe.engine.mixture import mix
    from tfpipe.engine.source import tfrecord_files
    from tfpipe.errors import ConfigError, DataError, FormatError, MissingDependencyError, TfpipeError
    from tfpipe.format.manifest import Manifest
    from tfpipe.pipeline.build import build_dataset, build_stages
    from tfpipe.pipeline.stage import Stage, Stages
    from tfpipe.pipeline.stages.batch import masked_sum
    from tfpipe.profiler.live.idle_monitor import IdleMonitor, measure_training
    from tfpipe.readers.data_source import data_source
    from tfpipe.writer.fields import Image, Images, Label, Labels, Mask, Tensor, Text, Values
    from tfpipe.writer.write import write

__all__ = [
    "AugmentOptions",
    "ConfigError",
    "DataError",
    "FormatError",
    "IdleMonitor",
    "Image",
    "Images",
    "Label",
    "Labels",
    "Manifest",
    "Mask",
    "MissingDependencyError",
    "PipelineConfig",
    "ServiceOptions",
    "Stage",
    "Stages",
    "Tensor",
    "Text",
    "TfDataOptions",
    "TfpipeError",
    "Values",
    "__version__",
    "add_column",
    "build_dataset",
    "build_stages",
    "data_source",
    "distribute_dataset",
    "distribute_over_mesh",
    "load_manifest",
    "masked_sum",
    "measure_training",
    "mix",
    "resolve_strategy",
    "set_precision",
    "steps_per_epoch",
    "tfrecord_files",
    "write",
]

_MODULES = {
    "AugmentOptions": "tfpipe.engine.config.augment_config",
    "ConfigError": "tfpipe.errors",
    "DataError": "tfpipe.errors",
    "FormatError": "tfpipe.errors",
    "IdleMonitor": "tfpipe.profiler.live.idle_monitor",
    "Image": "tfpipe.writer.fields",
    "Images": "tfpipe.writer.fields",
    "Label": "tfpipe.writer.fields",
    "Labels": "tfpipe.writer.fields",
    "Mask": "tfpipe.writer.fields",
    "Manifest": "tfpipe.format.manifest",
    "MissingDependencyError": "tfpipe.errors",
    "PipelineConfig": "tfpipe.engine.config.pipeline_config",
    "ServiceOptions": "tfpipe.engine.config.service_options",
    "Stage": "tfpipe.pipeline.stage",
    "Stages": "tfpipe.pipeline.stage",
    "Tensor": "tfpipe.writer.fields",
    "Text": "tfpipe.writer.fields",
    "TfpipeError": "tfpipe.errors",
    "Values": "tfpipe.writer.fields",
    "add_column": "tfpipe.columns.add",
    "build_dataset": "tfpipe.pipeline.build",
    "build_stages": "tfpipe.pipeline.build",
    "distribute_dataset": "tfpipe.distribution",
    "distribute_over_mesh": "tfpipe.distribution",
    "tfrecord_files": "tfpipe.engine.source",
    "load_manifest": "tfpipe.dataset.load",
    "TfDataOptions": "tfpipe.engine.config.tf_data_options",
    "masked_sum": "tfpipe.pipeline.stages.batch",
    "measure_training": "tfpipe.profiler.live.idle_monitor",
    "mix": "tfpipe.engine.mixture",
    "data_source": "tfpipe.readers.data_source",
    "resolve_strategy": "tfpipe.distribution",
    "set_precision": "tfpipe.distribution",
    "steps_per_epoch": "tfpipe.distribution",
    "write": "tfpipe.writer.write",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with importing(f"`tfpipe.{name}`", "TensorFlow", "tfpipe[tensorflow]"):  # the one extra that a name here may need
        value = globals()[name] = getattr(import_module(module), name)  # the next access does not come here
    return value


def _draw_for_notebook(shown: object) -> str | None:
    from tfpipe.readers.thumbnails import draw_for_notebook

    return draw_for_notebook(shown)


notebook.draw = _draw_for_notebook


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
