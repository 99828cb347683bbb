"""Batches for JAX: arrays that lie on all devices, each with its rows, without TensorFlow.

```
batches = DeviceBatches(tfpipe.load_manifest("/data/flowers"), "train", PipelineConfig(batch_size=256))
for epoch in range(90):
    for batch in batches:
        state = train_step(state, normalize(batch["image"], jnp.bfloat16), batch["label"])
```

With several processes (`jax.distributed.initialize`) each reads its own part, and the arrays are those of all of them.
`batches.state_dict()` is four integers. Records, order, crops and flips are those of `build_dataset`; pixels differ
by a few levels where the decoders round differently.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

import numpy as np

from tfpipe.engine.ahead import Passes, list_positions, make_ahead
from tfpipe.engine.batch import Batch
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host, find_host
from tfpipe.engine.mixed_batch import AnyMaker, AnyPlan
from tfpipe.engine.mixture import Mixture
from tfpipe.engine.position import Position, Resumable
from tfpipe.format.manifest import Manifest
from tfpipe.format.tensors.tensor_type import get_numpy_dtype
from tfpipe.readers.open_data import form_batch, locate, open_data, weigh_mask
from tfpipe.system.extras import importing
from tfpipe.system.host_limits import usable_cpus

with importing("`tfpipe.readers.jax`", "JAX", "tfpipe[jax]"):
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

_ROWS = 2520 * 2**20  # of a batch to ask a sharding about: any usual number of parts divides it


class DeviceBatches(Resumable):
    """The batches of one split on the devices of all processes, as an iterable of epochs.

    Each pass begins where the last one was left, and ends with the epoch; in evaluation it is the whole split, every
    record once. Threads make the batches and copy them to the devices, two steps ahead. In training they go on with the
    next epoch meanwhile, so its first batches are ready.

    Args:
        data: A manifest from `load_manifest`, a dataset's directory or URL, or several datasets from `tfpipe.mix`.
        split: The name of a split.
        config: The options of `build_dataset`; each part of the rows is a replica. Options that only tf.data supports
            are refused, and so is text in `extra_features`, which no device holds.
        start_step: The global step of the run with which training begins.
        sharding: The sharding of a batch's rows over the devices. On a mesh with an axis `model` beside `data`,
            `NamedSharding(mesh, PartitionSpec("data"))` splits rows over `data`, and they are whole along `model`:
            processes that hold the same rows read the same records. Each process must hold adjacent rows, as many as
            every other. None: rows over all devices, process after process.
        num_threads: The number of threads that read and decode. None: one for each core.

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
        data: Manifest | Mixture | str | os.PathLike[str],
        split: str,
        config: PipelineConfig,
        start_step: int = 0,
        sharding: jax.sharding.Sharding | None = None,
        num_threads: int | None = None,
    ) -> None:
        self._sharding = sharding or _shard_rows()
        self._maker = open_data(data, split, config, _find_host(self._sharding), for_devices=True)
        self.config = config
        start = partial(
            _start,
            self._maker,
            _Placing(self._maker.plan, self._sharding),
            usable_cpus() if num_threads is None else num_threads,
        )
        self._passes = Passes(start, len(self), locate(self._maker, start_step), config.training)

    def __len__(self) -> int:
        """Returns the number of batches in a whole epoch."""
        return self._maker.plan.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(self._passes)

    @property
    def position(self) -> Position:
        """The position of the batch that comes next."""
        return self._passes.position

    @position.setter
    def position(self, position: Position) -> None:
        self._passes.position = position

    @property
    def _run_seed(self) -> int:
        return self.config.seed


class _Placing:
    """The way in which batches come to the devices.

    Args:
        plan: The plan of the batches.
        sharding: The devices that hold their rows.
    """

    def __init__(self, plan: AnyPlan, sharding: jax.sharding.Sharding) -> None:
        self._config, self._sharding = plan.config, sharding
        self._global_batch_size = plan.config.batch_size
        tensors = {feature.name: feature.spec.tensor for feature in plan.features}
        self._bfloat16 = {name for name, tensor in tensors.items() if tensor is not None and tensor.dtype == "bfloat16"}
        if plan.config.image_dtype == "bfloat16":
            self._bfloat16.add("image")

    def place(self, batch: Batch) -> Any:
        """Puts a batch on the devices, in the trainer's form."""
        batch = weigh_mask(batch, self._config)
        return form_batch({name: self._place(name, values) for name, values in batch.items()}, self._config)

    def _place(self, name: str, values: np.ndarray[Any, Any]) -> jax.Array:
        if name == "label" and not self._config.one_hot:
            values = values.astype(np.int32)
        if name in self._bfloat16:
            values = values.view(get_numpy_dtype("bfloat16"))
        shape = (self._global_batch_size, *values.shape[1:])
        placed: jax.Array = jax.make_array_from_process_local_data(self._sharding, values, shape)
        return placed


def _start(maker: AnyMaker, placing: _Placing, threads: int, begin: Position) -> Generator[Any]:
    """Begins to make batches at a position, without end in training."""
    positions = list_positions(begin, maker.plan.steps_per_epoch, maker.plan.config.training)
    return make_ahead(maker, positions, threads, placing.place)


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


def _shard_rows() -> NamedSharding:
    """Spreads rows process after process, whatever the order in which JAX lists devices: each reads adjacent rows."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return NamedSharding(Mesh(np.array(devices), ("batch",)), PartitionSpec("batch"))


def _find_host(sharding: jax.sharding.Sharding) -> Host:
    """Finds the rows that the devices of this process hold: a host for each different part.

    Raises:
        ConfigError: They are not adjacent, or other processes hold more or fewer.
    """
    rows: dict[Any, Any] = dict(sharding.devices_indices_map((_ROWS,)))
    held_by: dict[int, set[tuple[int, ...]]] = {}
    for device, index in rows.items():
        held_by.setdefault(device.process_index, set()).add(index[0].indices(_ROWS)[:2])
    return find_host(held_by, jax.process_index())
