"""Batches for JAX: arrays that lie on all devices, each with its rows, without TensorFlow.

```
batches = DeviceBatches(tfpipe.load_manifest("/data/flowers"), "train", PipelineConfig(global_batch_size=256))
for epoch in range(90):
    for batch in batches:
        state = train_step(state, normalize(batch["image"], jnp.bfloat16), batch["label"])
```

With several processes (`jax.distributed.initialize`) each reads its own part, and the arrays are those of all of them.
`batches.state_dict()` is four integers. Records, order, crops and flips are those of `build_dataset`; pixels differ
by a few levels where the decoders round differently.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from tfpipe.format.manifest import Manifest
from tfpipe.format.tensors.tensor_type import get_numpy_dtype
from tfpipe.images.decode import resize_crop
from tfpipe.pipeline.config.augment_config import AugmentOptions
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.read_plan import ReadPlan, find_host
from tfpipe.readers.batch_reader import Batch, BatchReader, Rank, form_batch
from tfpipe.readers.resume import Position, Resumable
from tfpipe.system.extras import importing
from tfpipe.system.host_limits import usable_cpus

with importing("`tfpipe.readers.jax`", "JAX", "tfpipe[jax]"):
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

_ROWS = 2520 * 2**20  # of a batch to ask a sharding about: any usual number of parts divides it
_READY_BATCHES = 2  # on the devices, beside the one in use


class DeviceBatches(Resumable):
    """The batches of one split on the devices of all processes, as an iterable of epochs.

    Each pass begins where the last one was left, and ends with the epoch; in evaluation it is the whole split, every
    record once. Several threads decode, since Pillow lets them work at once; another thread copies to the devices, two
    batches ahead. In training they go on with the next epoch meanwhile, so its first batches are ready.

    Args:
        manifest: The manifest of a dataset on a local disk or in a bucket, from `load_manifest`.
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
        manifest: Manifest,
        split: str,
        config: PipelineConfig,
        start_step: int = 0,
        sharding: jax.sharding.Sharding | None = None,
        num_threads: int | None = None,
    ) -> None:
        self._sharding = sharding or _shard_rows()
        self._batches = BatchReader(manifest, split, config, _find_rank(self._sharding), resize_crop, None, start_step)
        self._batches.plan.check_fits_devices()
        self._placing = _Placing(self._batches.plan, self._sharding)
        self.config = config
        self._threads = usable_cpus() if num_threads is None else num_threads
        self.position = Position(*self._batches.plan.start)
        self._passes: Generator[Any] | None = None  # in training, over the epochs, from `_next` on
        self._next = self.position

    def __len__(self) -> int:
        """Returns the number of batches in a whole epoch."""
        return self._batches.steps_per_epoch

    @property
    def _run_seed(self) -> int:
        return self.config.seed

    def __iter__(self) -> Iterator[Any]:
        if self.config.training:
            return self._iterate_epoch()
        return self._start(Position(0, 0), range(len(self)))

    def _iterate_epoch(self) -> Generator[Any]:
        """Yields the batches of training from the position on, to the end of the epoch."""
        passes, self._passes = self._passes, None  # after an error they begin anew
        if passes is None or self._next != self.position:
            if passes is not None:
                passes.close()
            passes = self._start(self.position, range(sys.maxsize))
        for _ in range(self.position.step, len(self)):
            self._passes = None
            batch = next(passes)
            self._passes, self._next = passes, self.position.after(len(self))
            self.position = self._next
            yield batch

    def _start(self, begin: Position, steps: range) -> Generator[Any]:
        # It does not hold this object, which may hold it: so it is closed as soon as nobody has them.
        batches = _iterate(self._batches, self._placing, self._threads, begin, steps)
        _close_at_exit(batches)
        return batches


class _Placing:
    """The way in which batches come to the devices.

    Args:
        plan: The read plan of the batches.
        sharding: The devices that hold their rows.
    """

    def __init__(self, plan: ReadPlan, sharding: jax.sharding.Sharding) -> None:
        self._config, self._sharding, self._global_batch_size = plan.config, sharding, plan.global_batch_size
        tensors = {feature.name: feature.spec.tensor for feature in plan.features}
        self._bfloat16 = {name for name, tensor in tensors.items() if tensor is not None and tensor.dtype == "bfloat16"}

    def load(self, batches: Iterator[Batch]) -> Any:
        """Takes the next batch and places it, in the trainer's form."""
        batch = next(batches)
        placed = {name: self._place(name, values) for name, values in batch.items()}
        if "image" in placed and self._config.image_dtype != "uint8":
            dtype = jnp.dtype(self._config.image_dtype)
            placed["image"] = normalize(placed["image"], dtype, self._config.augment_options)
        return form_batch(placed, self._config)

    def _place(self, name: str, values: np.ndarray[Any, Any]) -> jax.Array:
        if name == "label" and not self._config.one_hot:
            values = values.astype(np.int32)
        if name in self._bfloat16:
            values = values.view(get_numpy_dtype("bfloat16"))
        shape = (self._global_batch_size, *values.shape[1:])
        placed: jax.Array = jax.make_array_from_process_local_data(self._sharding, values, shape)
        return placed


def _iterate(reader: BatchReader, placing: _Placing, threads: int, begin: Position, steps: range) -> Generator[Any]:
    """Yields the batches of some steps, counted from a position on."""
    decoders, mover = ThreadPoolExecutor(threads), ThreadPoolExecutor(1)
    ready: deque[Future[Any]] = deque()
    first, epoch_steps = begin.step, reader.steps_per_epoch
    positions = ((begin.epoch + (first + k) // epoch_steps, (first + k) % epoch_steps) for k in steps)
    batches = reader.iterate(positions, decoders.map, threads)
    try:
        for _ in steps:
            ready.append(mover.submit(placing.load, batches))
            if len(ready) > _READY_BATCHES:
                yield ready.popleft().result()
        while ready:
            yield ready.popleft().result()
    finally:
        for future in ready:
            future.cancel()
        _close(batches, mover, decoders)


def _close(batches: Generator[Any], mover: ThreadPoolExecutor, decoders: ThreadPoolExecutor) -> None:
    """Closes an iterator in the thread that runs it: one that runs cannot be closed by another.

    Nobody waits for that: Python may close a forgotten iterator in any thread.
    """
    try:
        mover.submit(batches.close)
    except RuntimeError:  # the program ends, and no thread takes new work
        mover.shutdown()
        batches.close()
    mover.shutdown(wait=False)
    decoders.shutdown(wait=False, cancel_futures=True)


def _close_at_exit(batches: Generator[Any]) -> None:
    """Closes an iterator that the program still holds at its end, while the modules of its threads are there."""
    reference = weakref.ref(batches)

    def close() -> None:
        if (left := reference()) is not None:
            left.close()

    weakref.finalize(batches, close)


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


def _find_rank(sharding: jax.sharding.Sharding) -> Rank:
    """Finds the rows that the devices of this process hold: a rank for each different part.

    Raises:
        ConfigError: They are not adjacent, or other processes hold more or fewer.
    """
    rows: dict[Any, Any] = dict(sharding.devices_indices_map((_ROWS,)))
    held_by: dict[int, set[tuple[int, ...]]] = {}
    for device, index in rows.items():
        held_by.setdefault(device.process_index, set()).add(index[0].indices(_ROWS)[:2])
    return Rank(*find_host(held_by, jax.process_index()))
