"""The batches of a mesh of TensorFlow's DTensor, with an axis for the data and others for a model that is split.

Rows are split over `data` and whole along the others. Processes whose devices hold the same rows read the same records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from tfpipe.engine.config.pipeline_config import PipelineConfig, choose_config
from tfpipe.engine.host import find_host
from tfpipe.engine.mixture import Mixture, get_whole_source, open_any
from tfpipe.engine.plan import check_fits_devices, check_shares, plan_batches
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_host_stages
from tfpipe.pipeline.stage import Customize, prefer_textbook
from tfpipe.pipeline.textbook_choice import is_by_engine

_DATA = "data"  # the dimension along which rows are split


class MeshBatches:
    """The batches of a mesh, as an iterable. In training each pass begins at the start step and does not end.

    Attributes:
        mesh: The mesh.
        steps_per_epoch: The number of steps in an epoch; None if nobody counted the records.
    """

    def __init__(self, mesh: dtensor.Mesh, steps_per_epoch: int | None, dataset: tf.data.Dataset) -> None:
        """Sets the dataset of this process: for each step one batch per slice of the rows that its devices need."""
        self.mesh, self.steps_per_epoch = mesh, steps_per_epoch
        self._dataset = dataset
        slices = [location[_DATA] for location in mesh.local_device_locations()]
        own = sorted(set(slices))
        self._numbers = [own.index(number) for number in slices]

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of a pass: DTensors in the structure of `build_dataset`'s."""
        for slices in zip(*[iter(self._dataset)] * (max(self._numbers) + 1), strict=True):
            yield tf.nest.map_structure(self._pack, *slices)

    def _pack(self, *slices: tf.Tensor) -> Any:
        """Joins the slices that this process holds, one for each device, with those of the other processes."""
        layout = dtensor.Layout.batch_sharded(self.mesh, _DATA, slices[0].shape.rank)
        return dtensor.pack([slices[number] for number in self._numbers], layout)


def distribute_over_mesh(
    mesh: dtensor.Mesh,
    data: Manifest | Source | Mixture | str | os.PathLike[str],
    split: str | None,
    config: PipelineConfig | None = None,
    start_step: int = 0,
    customize: Customize | None = None,
    **changes: Any,
) -> MeshBatches:
    """Builds this process's pipeline for a mesh of DTensor, whose batches lie on the devices of all processes.

    Rows are split over the dimension `data` of the mesh, and are whole along the others. In exact order the global
    batches are those of `distribute_dataset`, for any mesh.

    Args:
        mesh: A mesh with a dimension `data`, from `dtensor.create_distributed_mesh`. With several processes
            `dtensor.initialize_accelerator_system` comes first.
        data: A manifest from `load_manifest`, or a dataset's directory or URL; several datasets from `mix`; or
            foreign files from `tfrecord_files`.
        split: The name of a split; None for foreign files.
        config: The options of `build_dataset`. Each part of `data` gets an equal part of `batch_size`.
        start_step: The global step at which training begins.
        customize: A function that changes the stages of each host's pipeline.
        changes: Options that replace those of the config, or stand in for a config, such as `batch_size=256`.

    Returns:
        An iterable of the batches of `build_dataset`, as DTensors. Training repeats without end.

    Raises:
        ConfigError: The mesh has no dimension `data`, a process does not hold adjacent rows, the parts cannot share the
            batch equally, processes that hold the same rows would read others, or `build_dataset` refuses the config.
        DataError: There are no records, or an index cannot be read.
        FormatError: An index is damaged.
    """
    if _DATA not in mesh.dim_names:
        raise ConfigError(f"`mesh` must have a dimension {_DATA}, got {', '.join(mesh.dim_names)}.")
    slices_of: dict[int, set[int]] = {}  # the slices of the rows that each process holds
    for device, location in mesh.unravel_index().items():  # devices are numbered process after process
        slices_of.setdefault(device // mesh.num_local_devices(), set()).add(location[_DATA])
    host = find_host(slices_of, mesh.local_device_ids()[0] // mesh.num_local_devices())
    host = replace(host, start_step=start_step)
    config = prefer_textbook(choose_config(config, changes), customize)
    opened = open_any(data)
    plan = plan_batches(get_whole_source(opened, split), config, host)
    check_shares(plan)
    check_fits_devices(plan)
    varies = config.tf_data.deterministic is False or (config.training and not is_by_engine(plan.source, config))
    if varies and host.num_hosts < len(slices_of) and not isinstance(opened, Mixture):
        must = "Processes that hold the same rows of a mesh must read the same records"
        raise ConfigError(f"{must}, and `order` {config.order} gives each process others. Use exact order.")
    stages = build_host_stages(opened, split, config, host, customize=customize)
    return MeshBatches(mesh, plan.steps_per_epoch or None, stages.dataset())
