"""Batches for PyTorch: the records, order and crops of the TensorFlow pipeline, without TensorFlow.

```
images = ShardedImages(tfpipe.load_manifest("/data/flowers"), "train", PipelineConfig(global_batch_size=256))
loader = data_loader(images, num_workers=8)
for epoch in range(90):
    for batch in loader:
        image = normalize(batch["image"].to("cuda", non_blocking=True), dtype=torch.bfloat16)
```

Under `torch.distributed` every rank gets its part of each global batch. `loader.state_dict()` is four integers.

Crops and flips are those that `build_dataset` draws for the same record, epoch and seed. With the native library the
pixels of JPEGs are the same too. Without it Pillow decodes, and they differ by a few levels where it rounds in another
way.
"""

from __future__ import annotations

import copy
import itertools
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.readers.batch_reader import BatchReader, Rank, form_batch
from tfpipe.readers.device_images.config import DeviceConfig as DeviceConfig
from tfpipe.readers.device_images.device_images import DeviceImages as DeviceImages
from tfpipe.readers.resume import Position, Resumable
from tfpipe.readers.torch_tensors import DTYPES, find_rank, make_tensors
from tfpipe.readers.torch_tensors import normalize as normalize
from tfpipe.readers.worker_turns import MOST_WORKERS, take_turns
from tfpipe.system.extras import importing
from tfpipe.system.file_io import is_url
from tfpipe.system.host_limits import usable_cpus

with importing("`tfpipe.readers.torch`", "PyTorch", "tfpipe[torch]"):
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


_WORKER_THREADS = 4  # of a process: what Python does around the decoder keeps one core busy from about 8 on


class ShardedImages(IterableDataset[Any]):
    """The batches of one rank, from a position to the end of its epoch; in evaluation all, exactly once.

    A worker of a DataLoader makes every n-th batch, and the DataLoader takes them in turn, so batches come in the same
    order for any number of workers, and each record is read once. With the native library the workers share the cores,
    and each decodes with its part of them. Give it to `data_loader`, or to your own DataLoader
    with `batch_size=None`, but not to a wrapper that shards it again.

    Args:
        manifest: The manifest of a dataset on a local disk or in a bucket, from `load_manifest`.
        split: The name of a split.
        config: The options of `build_dataset`. Options that only tf.data supports are refused; its threads, buffers and
            budgets have no effect here.
        start_step: The global step of the run with which training begins, in whichever epoch it lies.
        transform: A function in place of crop, resize and flip: from a whole Pillow image to a tensor, all of one
            shape. For each call torch's CPU generator gets the record's seed, so random numbers do not depend on the
            workers.
        rank: The number of this process, from 0, and the number of processes; or a `DeviceMesh` with a dimension
            `data`, where processes that differ in other dimensions, such as `tensor`, get the same rows. None: the
            processes of `torch.distributed` if it is initialized, else one process.

    A batch is a dictionary of "image", uint8 [n, 3, height, width] in channels-last memory format, or normalized if
    `image_dtype` is a float, or the stacked results of `transform`, for several images of a record with an axis for
    them behind the first; "label", int64 [n] or one-hot float32 [n, classes];
    and the features in `extra_features`, or all if records have no image: text as lists of bytes, tensors of open size
    as lists of tensors unless `pad_to` gives them a size. In evaluation "mask", bool [n], is False in rows that fill a
    batch up, so that all ranks step together. With `as_supervised`: (image, label), in evaluation with the mask
    as a third.

    Raises:
        ConfigError: The config does not fit this reader, the data or the number of ranks.
        DataError: There are no records.
        FormatError: While reading: a file is missing or damaged, or an image is.
    """

    def __init__(
        self,
        manifest: Manifest,
        split: str,
        config: PipelineConfig,
        start_step: int = 0,
        transform: Callable[[Any], torch.Tensor] | None = None,
        rank: tuple[int, int] | DeviceMesh | None = None,
    ) -> None:
        super().__init__()
        number, ranks = find_rank(rank)
        seeded_transform = None if transform is None else _SeededTransform(transform)
        place = Rank(number, ranks, ranks)
        self._batches = BatchReader(manifest, split, config, place, _resize, seeded_transform, start_step)
        # Shared with workers that live longer than an epoch: they look here when a pass begins.
        self._begin = torch.tensor(self._batches.plan.start, dtype=torch.int64).share_memory_()
        # Nobody knows here how many workers there will be: a DataLoader comes later.
        self._rows_made = torch.zeros(MOST_WORKERS, dtype=torch.int64).share_memory_()
        self._runs_on = False
        self._cpus = _count_cpus()  # here, because a worker must not ask for GPUs

    @property
    def config(self) -> PipelineConfig:
        """The options of the pipeline."""
        return self._batches.config

    @property
    def position(self) -> Position:
        """The position at which the next pass begins."""
        epoch, step = self._begin.tolist()
        return Position(epoch, step)

    @position.setter
    def position(self, position: Position) -> None:
        self._begin.copy_(torch.tensor(position, dtype=torch.int64))

    def set_epoch(self, epoch: int) -> None:
        """Lets the next pass begin with this epoch, as with a DistributedSampler."""
        self.position = Position(epoch, 0)

    def __len__(self) -> int:
        """Returns the number of batches in a whole epoch."""
        return self._batches.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        positions = itertools.islice(self._list_positions(), first, None, workers)
        run = take_turns(self._rows_made.numpy(), self._batches.calls_per_batch, first, workers)
        for batch in self._batches.iterate(positions, run, max(self._cpus // workers, 1)):
            yield self._make_tensors(batch)

    def _list_positions(self) -> Iterator[Position]:
        """Lists the positions of a pass, or of all that follow, if passes run on."""
        position = begin = self.position if self.config.training else Position(0, 0)
        while position.epoch == begin.epoch or self._runs_on:
            yield position
            position = position.after(len(self))

    def _run_on(self) -> ShardedImages:
        """Returns these images, with passes that run on from epoch to epoch without end. Both share their position."""
        images = copy.copy(self)
        images._runs_on = True
        return images

    def _count_workers(self) -> int:
        """Counts the processes that are enough to use all cores."""
        return -(-self._cpus // _WORKER_THREADS) if self._batches.decodes_batches else self._cpus

    def _make_tensors(self, batch: dict[str, Any]) -> Any:
        config, image = self.config, batch.pop("image", None)
        others = make_tensors(batch, self._batches.plan)
        if image is None:
            return others
        if isinstance(image, np.ndarray):
            image = torch.from_numpy(image).movedim(-1, -3)
            if config.image_dtype != "uint8":
                image = normalize(image, config.augment_options, DTYPES[config.image_dtype])
        else:
            # A rank may have fewer records to evaluate than others, and none for its last batch.
            of_record = self._batches.plan.num_images
            rows = self._batches.batch_size * (of_record or 1)
            image = _stack(image or [self._batches.make_example_image()], rows)
            if of_record is not None:
                image = image.reshape(-1, of_record, *image.shape[1:])
            image[len(batch["mask"].nonzero()[0]) if "mask" in batch else len(image) :] = 0
        return form_batch({"image": image, **others}, config)


class ShardLoader(Resumable, DataLoader[Any]):
    """A DataLoader that knows its position; `data_loader` makes one.

    Each pass begins where the last one was left, and ends with the epoch; `set_epoch` goes elsewhere. In training the
    workers go on with the next epoch meanwhile, so its first batches are ready. In evaluation each pass is the whole
    split.
    """

    dataset: ShardedImages
    _batches: Iterator[Any] | None = None

    def __iter__(self) -> Any:  # DataLoader promises another iterator class
        images = self.dataset
        if not images.config.training:
            yield from super().__iter__()
            return
        if self._batches is None:
            images.position = self._next = self.position
            self._batches = super().__iter__()
        batches = self._batches
        for _ in range(self.position.step, len(images)):
            self._batches = None  # after an error the workers begin anew
            batch = next(batches)
            # Counted before the trainer gets it, so that a state that is saved meanwhile includes it.
            self._batches, self._next = batches, self.position.after(len(images))
            yield batch

    def __len__(self) -> int:
        """Returns the number of batches in a whole epoch."""
        return len(self.dataset)

    @property
    def position(self) -> Position:
        """The position of the batch that comes next."""
        return getattr(self, "_next", None) or self.dataset.position

    @position.setter
    def position(self, position: Position) -> None:
        self._next, self._batches = position, None

    @property
    def _run_seed(self) -> int:
        return self.dataset.config.seed


def data_loader(
    images: ShardedImages,
    num_workers: int | None = None,
    prefetch_factor: int = 2,
    pin_memory: bool | None = None,
    start_method: str | None = None,
) -> ShardLoader:
    """Makes a DataLoader of complete batches. Its workers live on from epoch to epoch.

    Args:
        images: The images to read.
        num_workers: The number of processes that read and decode. None: one for each of this machine's cores, which are
            shared out among its GPUs; where the native library decodes whole batches one for four cores, since each
            works on four then, and batches come more evenly. 0: the trainer's own process.
        prefetch_factor: The number of batches that each worker has ready.
        pin_memory: Whether batches lie in pinned memory, from which a GPU copies by itself. None: if there is a GPU.
        start_method: The way in which workers begin: "fork", "spawn" or "forkserver". None: Python's default, but for
            a dataset in an object store "spawn", since a forked process cannot read from there.
    """
    if start_method is None and is_url(images._batches.manifest.directory):
        start_method = "spawn"
    workers = images._count_workers() if num_workers is None else num_workers
    return ShardLoader(
        images._run_on() if images.config.training else images,
        batch_size=None,
        num_workers=workers,
        pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
        prefetch_factor=prefetch_factor if workers else None,
        persistent_workers=workers > 0,
        multiprocessing_context=start_method if workers else None,
        worker_init_fn=_end_on_sigterm,
    )


def xla_loader(loader: ShardLoader, device: Any = None) -> Iterable[Any]:
    """Copies the loader's batches to an XLA device ahead of their step, by torch_xla's `MpDeviceLoader`.

    It was tried with torch-xla 2.9 on a CPU, and never on a TPU. The loader's position counts what was copied, so save
    states between epochs.

    Args:
        loader: A loader from `data_loader`.
        device: The device. None: torch_xla's current one.

    Raises:
        MissingDependencyError: torch_xla is not installed.
    """
    with importing("`xla_loader`", "the `torch_xla` package", "torch_xla[tpu]"):
        import torch_xla
        from torch_xla.distributed.parallel_loader import MpDeviceLoader
    loaded: Iterable[Any] = MpDeviceLoader(loader, torch_xla.device() if device is None else device)
    return loaded


def _count_cpus() -> int:
    """Counts the cores for each GPU of this machine, or all without one."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return max(usable_cpus() // max(gpus, 1), 1)


class _SeededTransform:
    """A transform that is seeded by the record; the generator of the process keeps its state."""

    def __init__(self, transform: Callable[[Any], torch.Tensor]) -> None:
        self._transform = transform

    def __call__(self, image: Any, seed: int) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self._transform(image)


def _end_on_sigterm(worker: int) -> None:
    """Lets SIGTERM end a worker, which may have inherited a trainer's handler that only notes it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _resize(image: Any, size: tuple[int, int], antialias: bool) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Resizes by torch: its vector instructions take half of Pillow's time, and antialias is a choice."""
    pixels = torch.from_numpy(np.array(image))
    if pixels.shape[:2] == size:
        return pixels.numpy()
    planes = pixels.permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(planes, size, mode="bilinear", antialias=antialias)
    return resized[0].permute(1, 2, 0).numpy()


def _stack(images: list[Any], batch_size: int) -> torch.Tensor:
    not_tensor = next((image for image in images if not isinstance(image, torch.Tensor)), None)
    if not_tensor is not None or len({image.shape for image in images}) > 1:
        got = type(not_tensor).__name__ if not_tensor is not None else "several shapes"
        raise ConfigError(f"`transform` must return tensors of one shape, got {got}.")
    return torch.stack([*images, *[torch.zeros_like(images[0])] * (batch_size - len(images))])
