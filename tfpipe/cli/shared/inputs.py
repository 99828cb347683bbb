"""What commands that run a pipeline do first: open the data, read the options, start TensorFlow."""

import glob
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tfpipe.cli.shared.params import PER_REPLICA_BATCH_SIZE
from tfpipe.errors import ConfigError
from tfpipe.system.extras import check_installed

if TYPE_CHECKING:
    from tfpipe.format.manifest import Manifest
    from tfpipe.pipeline.config.pipeline_config import PipelineConfig
    from tfpipe.pipeline.plan.source import Source


def need_tensorflow(command: str) -> None:
    """Checks that TensorFlow is installed, without loading it.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
    """
    check_installed("tensorflow", f"`tfpipe {command}`", "TensorFlow", "tfpipe[tensorflow]")


@contextmanager
def quiet_start() -> Iterator[None]:
    """Drops what TensorFlow's libraries log as they start, which no level keeps back; not with --debug."""
    if "--debug" in sys.argv:
        yield
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what ends a run comes as an exception, too
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def hide_gpus() -> None:
    """Keeps a TensorFlow that is not loaded yet off GPUs: nobody needs one, and each process would take all of it."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


def pipeline_config(
    path: str | None,
    global_batch_size: int | None,
    per_replica_batch_size: int | None,
    default_batch_size: int = PER_REPLICA_BATCH_SIZE,
    given: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> "PipelineConfig":
    """The file's options, with the batch of the command line in place of the file's.

    Args:
        path: Of the file, if there is one.
        global_batch_size: Of the command line.
        per_replica_batch_size: Likewise.
        default_batch_size: Images of a replica where neither says how many.
        given: Other options of the command line, which go before the file's; those that are None do not count.
        defaults: What holds where neither gives it.
    """
    from tfpipe.pipeline.config import toml_json
    from tfpipe.pipeline.config.pipeline_config import PipelineConfig

    if global_batch_size is not None and per_replica_batch_size is not None:
        raise ConfigError("--global-batch-size and --per-replica-batch-size exclude each other.")
    table = {} if path is None else toml_json.read(path)
    asked = {"global_batch_size": global_batch_size, "per_replica_batch_size": per_replica_batch_size}
    batch = {name: value for name, value in asked.items() if value is not None}
    if batch:
        table = {name: value for name, value in table.items() if name not in asked}
    elif not any(name in table for name in asked):
        batch = {"per_replica_batch_size": default_batch_size}
    more = {name: value for name, value in (given or {}).items() if value is not None}
    table = {**(defaults or {}), **table, **batch, **more}
    return PipelineConfig(**table) if path is None else toml_json.build(PipelineConfig, table, path)


def open_data(dataset: str, split: str | None) -> "tuple[Manifest | Source, str | None]":
    """A dataset and one of its splits, or foreign files and None."""
    if (glob.has_magic(dataset) and not os.path.isdir(dataset)) or os.path.isfile(dataset):
        from tfpipe.pipeline.plan.source import tfrecord_files

        if split is not None:
            raise ConfigError(f"Files found by a pattern have no splits, got --split {split}. Leave it out.")
        return tfrecord_files(dataset), None
    from tfpipe.open_dataset import load_manifest

    manifest = load_manifest(dataset)
    names = list(manifest.splits)
    if split is None:
        split = "train" if "train" in names or len(names) != 1 else names[0]
    if split not in names:
        raise ConfigError(f"The dataset has no split {split!r}; it has {', '.join(names)}. Choose one with --split.")
    return manifest, split
