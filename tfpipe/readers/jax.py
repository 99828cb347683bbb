"""Batches for JAX: arrays that lie on all devices, each with its rows, without TensorFlow.

With several processes each reads its own rows, and each array spans the devices of all processes.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from typing import Any

import numpy as np

from tfpipe.engine.batch import Batch, view_bfloat16
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig, choose_config
from tfpipe.engine.host import find_host
from tfpipe.engine.plan import AnyPlan, check_fits_devices
from tfpipe.errors import ConfigError
from tfpipe.readers.base import BatchTransform, Data, EpochBatches, Finish, ImageTransform, open_data, seed_transform
from tfpipe.system.arguments import check_has
from tfpipe.system.extras import importing

with importing("`tfpipe.readers.jax`", "JAX", "tfpipe[jax]"):
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

_ROWS = 2520 * 2**20  # of an imaginary batch to ask a sharding about: any usual number of parts divides it


class JaxBatches(EpochBatches):
    """The batches of one split on the devices of all processes, as an iterable of epochs.

    Each pass is the next whole epoch, even if the last pass was left early; only the pass after `load_state_dict`,
    `set_epoch` or a `start_step` begins where these say. A look at one batch does not count as a pass. In evaluation
    each pass is the whole split, every record once. Threads make the batches and copy them to the devices, two steps
    ahead or as many as `prefetch_batches` says. In training they also make the first batches of the next epoch ahead.

    Args:
        data: A manifest from `load_manifest`, a dataset's directory or URL, or several datasets from `tfpipe.mix`.
        split: The name of a split.
        config: The options of `build_dataset`; each part of the rows is a replica. Options that only tf.data supports
            are refused, and so is text in `extra_features`, which no device holds, without a `batch_transform`.
        start_step: The global step of the run with which training begins.
        sharding: The sharding of a batch's rows over the devices. On a mesh with an axis `model` beside `data`,
            `NamedSharding(mesh, PartitionSpec("data"))` splits rows over `data`, and they are whole along `model`:
            processes that hold the same rows read the same records. Each process must hold adjacent rows, as many as
            every other. None: rows over all devices, process after process.
        num_threads: The number of threads that decode. None: one for each core, or what `cpu_budget` leaves.
        transform: A function that replaces crop, resize and flip, as for `NumpyBatches`.
        batch_transform: A function from a finished batch, as a dictionary of NumPy arrays, to the dictionary of arrays
            with as many rows that is copied to the devices. It may turn text into numbers, or leave it out. The threads
            that make batches call it.
        changes: Options that replace those of the config, or stand in for a config, such as `batch_size=256`.

    A batch is a dictionary of "image", uint8 [batch, height, width, 3] or normalized if `image_dtype` is a float, for
    several images of a record [batch, images, height, width, 3],
    "label", int32 [batch] or one-hot float32, the features in `extra_features`, and in evaluation "mask", bool [batch];
    or with `as_supervised` (image, label[, mask]). JAX keeps 32 bits of 64-bit integers unless told otherwise.

    Raises:
        ConfigError: The config does not fit this reader, the data or the number of devices.
        DataError: There are no records.
        FormatError: While reading: a file is missing or damaged, or an image is.
    """

    def __init__(
        self,
        data: Data,
        split: str,
        config: PipelineConfig | None = None,
        start_step: int = 0,
        sharding: jax.sharding.Sharding | None = None,
        num_threads: int | None = None,
        *,
        transform: ImageTransform | None = None,
        batch_transform: BatchTransform | None = None,
        **changes: Any,
    ) -> None:
        config = choose_config(config, changes)
        rows, seeded = sharding, seed_transform(transform)
        if rows is None:
            # Sorted by process, because JAX lists devices in any order and each process must read adjacent rows.
            devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
            rows = NamedSharding(Mesh(np.array(devices), ("batch",)), PartitionSpec("batch"))
        check_has("sharding", rows, "devices_indices_map", "a jax.sharding.Sharding")
        if isinstance(rows, NamedSharding):
            if any(rows.spec[1:]):
                raise ConfigError(f"`sharding` must split rows only, the first axis of each array, got {rows.spec}.")
            rows = NamedSharding(rows.mesh, PartitionSpec(*rows.spec[:1]), memory_kind=rows.memory_kind)
        slices_of: dict[int, set[Any]] = {}  # the rows that each process holds: a host for each different part
        indices: dict[Any, Any] = dict(rows.devices_indices_map((_ROWS,)))
        for device, index in indices.items():
            slices_of.setdefault(device.process_index, set()).add(index[0].indices(_ROWS)[:2])
        maker = open_data(data, split, config, find_host(slices_of, jax.process_index()), seeded)
        if batch_transform is None:  # which may leave text out, or turn it into numbers
            for plan in maker.plan.plans:
                check_fits_devices(plan)
        put = partial(_put_on_devices, maker.plan, rows)
        finish = Finish(maker, batch_transform, _convert, put, fills_up=True)
        super().__init__(maker, start_step, num_threads, finish)


def _convert(batch: Batch, bfloat16: Set[str]) -> Batch:
    """Makes int32 labels, and arrays of bfloat16 of their bits."""
    batch = view_bfloat16(batch, bfloat16)
    is_class = "label" in batch and batch["label"].dtype == np.int64
    return {**batch, "label": batch["label"].astype(np.int32)} if is_class else batch


def _put_on_devices(plan: AnyPlan, sharding: jax.sharding.Sharding, batch: Batch) -> Batch:
    """Copies each array's rows to the devices of this process, which share the array with all other processes."""
    on_devices = Batch()
    for name, values in batch.items():
        if not isinstance(values, np.ndarray) or values.shape[:1] != (plan.batch_size,):
            got = f"the shape {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
            raise ConfigError(
                f"`batch_transform` must return arrays of {plan.batch_size} rows for JAX, got {got} as {name!r}."
            )
        shape = (plan.config.batch_size, *values.shape[1:])
        on_devices[name] = jax.make_array_from_process_local_data(sharding, values, shape)
    return on_devices


def normalize(images: jax.Array, dtype: Any = jnp.float32, options: AugmentOptions | None = None) -> jax.Array:
    """Subtracts the mean and divides by the deviation; may be called inside a compiled function.

    Args:
        images: uint8 of shape [..., height, width, 3].
        dtype: The dtype of the result, which is computed in float32.
        options: `mean` and `std` are used, by default ImageNet's.
    """
    options = options or AugmentOptions()
    mean, std = (jnp.array(values, jnp.float32) * 255 for values in (options.mean, options.std))
    return ((images.astype(jnp.float32) - mean) / std).astype(dtype)
