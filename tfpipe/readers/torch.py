"""Batches for PyTorch: the records, order, crops and pixels of the TensorFlow pipeline, without TensorFlow.

Under `torch.distributed` every rank gets its part of each global batch.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Set
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tfpipe.dataset.load import load_if_path
from tfpipe.engine.ahead import Passes, list_positions, make_ahead
from tfpipe.engine.batch import Batch
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig, choose_config
from tfpipe.engine.host import Host
from tfpipe.engine.mixture import Mixture
from tfpipe.engine.plan import AnyPlan
from tfpipe.engine.position import Position, find_position
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.readers.base import Batches, BatchTransform, Data, Finish, Resumable, locate, open_data
from tfpipe.system.arguments import check_count, check_function, check_has
from tfpipe.system.extras import importing

with importing("`tfpipe.readers.torch`", "PyTorch", "tfpipe[torch]"):
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_DATA = "data"  # the dimension of a mesh along which rows are split
_PAIR = struct.Struct("<II")  # two numbers that a `SharedBegin` reads and writes as one
_PASSES, _MAX_WORKERS = 8, 1024  # the last passes of which a `SharedBegin` knows, and the workers of each


class TorchBatches(Batches, IterableDataset[Any]):
    """The batches of one rank, from a position to the end of its epoch; in evaluation all, exactly once.

    Each pass over it is the next epoch. Threads of this process make the batches ahead, so it needs no worker
    processes. Give it to `data_loader`, or to your own DataLoader with `batch_size=None`, but not to a wrapper that
    shards it again. If a DataLoader has workers, each makes every n-th batch with its share of the cores, and the order
    is the same for any number of them.

    Args:
        data: A manifest from `load_manifest`, a dataset's directory or URL, or several datasets from `tfpipe.mix`.
        split: The name of a split.
        config: The options of `build_dataset`. Options that only tf.data supports are refused.
        start_step: The global step of the run with which training begins, in whichever epoch it lies.
        transform: A function that replaces crop, resize and flip: from a whole Pillow image to a tensor, all of one
            shape and dtype. For each call torch's CPU generator gets the record's seed, so random numbers depend on no
            worker, rank or resume.
        rank: The number of this process, from 0, and the number of processes; or a `DeviceMesh` with a dimension
            `data`, where processes that differ in other dimensions, such as `tensor`, get the same rows. None: the
            processes of `torch.distributed` if it is initialized when a pass begins, else one process.
        batch_transform: A function from a finished batch, as a dictionary of tensors, to the dictionary that the
            trainer gets. The thread that makes the batch calls it, in a worker if there are workers.
        changes: Options that replace those of the config, or stand in for a config, such as `batch_size=256`.

    A batch is a dictionary of "image", uint8 [n, 3, height, width] in channels-last memory format, or normalized if
    `image_dtype` is a float, or the stacked results of `transform`, for several images of a record with an axis for
    them behind the first; "label", int64 [n] or one-hot float32 [n, classes];
    and the features in `extra_features`, or all if records have no image: text as lists of bytes, tensors of open size
    as lists of tensors unless `pad_to` gives them a size. In evaluation "mask", bool [n], is False in rows that fill a
    batch up, so that all ranks step together. With `as_supervised`: (image, label), in evaluation with the mask
    as a third; of one process the last batch is then as small as the records that are left.

    Raises:
        ConfigError: The config does not fit this reader, the data or the number of ranks.
        DataError: There are no records.
        FormatError: While reading: a file is missing or damaged, or an image is.
    """

    _begins: _LoaderBegins | None = None  # only while a `ShardLoader` begins a pass, and in its workers

    def __init__(
        self,
        data: Data,
        split: str,
        config: PipelineConfig | None = None,
        start_step: int = 0,
        transform: Callable[[Any], torch.Tensor] | None = None,
        rank: tuple[int, int] | DeviceMesh | None = None,
        batch_transform: BatchTransform | None = None,
        **changes: Any,
    ) -> None:
        super().__init__()
        config = choose_config(config, changes)
        check_function("transform", transform)
        self._transform = None if transform is None else partial(_call_seeded, transform)
        self._batch_transform = batch_transform
        self._data: Manifest | Mixture = load_if_path(data, Manifest, Mixture)
        self._split, self._asks_for_ranks, self._ranks = split, rank is None, find_rank(rank)
        self._open(config)
        self._begin = SharedBegin(locate(self._maker, start_step), len(self))
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0  # here, as a worker must not ask for it
        self._cpus = max(config.max_threads // max(gpus, 1), 1)

    @property
    def position(self) -> Position:
        """The position at which the next pass begins."""
        return self._begin.find_next(len(self))

    @position.setter
    def position(self, position: Position) -> None:
        self._begin.set(position, len(self))

    def set_epoch(self, epoch: int) -> None:
        """Lets the next pass begin with this epoch, as with a DistributedSampler."""
        self.position = find_position(check_count("epoch", epoch) * len(self) * self.config.training, len(self))

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        self._follow_ranks()
        begin, begins = Position(0, 0), self._begins
        if self.config.training:
            begin = self._begin.begin_pass(worker, len(self)) if begins is None else begins.read()
        positions = list_positions(begin, len(self), self.config.training and begins is not None)
        positions = itertools.islice(positions, first, None, workers)
        waiting = self.config.prefetch_batches
        if worker is not None and waiting is not None:
            waiting = 0  # batches wait in the DataLoader instead
        # A transform runs in no thread, because all threads of a process share torch's random generator.
        threads = max(self._cpus // workers, 1) if self._transform is None else 0
        return make_ahead(self._maker, positions, threads, self._finish, waiting)

    def __getstate__(self) -> dict[str, Any]:
        self._follow_ranks()  # a spawned worker is not one of the ranks
        return vars(self)

    def _follow_ranks(self) -> bool:
        """Opens this rank's rows if `torch.distributed` was initialized meanwhile; returns whether the rows changed."""
        changed = self._asks_for_ranks and torch.distributed.is_available() and torch.distributed.is_initialized()
        if not changed or (ranks := find_rank(None)) == self._ranks:
            return False
        self._ranks = ranks
        self._open(self.config)
        return True

    def _open(self, config: PipelineConfig) -> None:
        host = Host.from_rank(self._ranks)
        self._maker = open_data(self._data, self._split, config, host, self._transform)
        convert = partial(_make_tensors, self.plan.plans[0].source.has_images)
        self._finish = Finish(self._maker, self._batch_transform, convert, library="torch")


def _make_tensors(has_images: bool, batch: Batch, bfloat16: Set[str]) -> Batch:
    """Makes tensors of all arrays of a batch. Text stays, and tensors of several shapes are lists."""
    tensors: Batch = {}
    for name, value in batch.items():
        is_ragged = isinstance(value, list) and len(value) > 0 and isinstance(value[0], np.ndarray)
        if not is_ragged and not isinstance(value, np.ndarray):
            tensors[name] = value
            continue
        made = list(map(torch.from_numpy, [array.copy() for array in value] if is_ragged else [value]))
        if name in bfloat16:  # NumPy holds their bits
            made = [tensor.view(torch.bfloat16) for tensor in made]
        if name == "image" and has_images:  # [..., 3, height, width] in channels-last memory, without a copy
            made = [tensor.movedim(-1, -3) for tensor in made]
        tensors[name] = made if is_ragged else made[0]
    return tensors


class ShardLoader(Resumable, DataLoader[Any]):
    """A DataLoader that knows its position; `data_loader` makes one.

    Each pass is the next whole epoch, even if the last pass was left early; only the pass after `load_state_dict`,
    `set_epoch` or a `start_step` begins where these say. A look at one batch does not count as a pass. In training the
    first batches of the next epoch are made ahead too, and a pass cannot go on once a later one has begun. In
    evaluation each pass is the whole split; one that begins while another runs has workers of its own.
    """

    dataset: TorchBatches
    _passes: Passes | None = None
    _begins: _LoaderBegins  # of `_iterator`, where that is not None
    _is_accelerate_prepared = True  # without this attribute Accelerate would shard the loader again

    def __iter__(self) -> Any:  # DataLoader promises another iterator class
        passes = self._get_passes()
        if self.dataset._follow_ranks():
            passes.close()
            self._iterator = None  # persistent workers would read the rows of another rank
        yield from passes

    @property
    def plan(self) -> AnyPlan:
        """The plan of the batches."""
        return self.dataset.plan

    @property
    def position(self) -> Position:
        """The position of the batch that comes next."""
        return self.dataset.position if self._passes is None else self._passes.position

    @position.setter
    def position(self, position: Position) -> None:
        self._get_passes().position = self.dataset.position = position

    def _get_passes(self) -> Passes:
        if self._passes is None:
            loader = weakref.ref(self)  # so that no reference cycle keeps a forgotten loader's threads alive

            def start(position: Position) -> Generator[Any]:
                found = loader()
                assert found is not None  # the loader is being iterated
                return found._start(position)

            images = self.dataset
            self._passes = Passes(start, len(images), images.position, images.config.training)
        return self._passes

    def _start(self, position: Position) -> Generator[Any]:
        images = self.dataset
        if self._iterator is None:  # workers begin, too
            self._begins = _LoaderBegins()
        self._begins.write(position)
        if images.config.training:
            images.position = Position(position.epoch + 1, 0)
        images._begins = self._begins
        try:
            iterator = super().__iter__()
        finally:  # the pass has the iterator for itself, and an interrupted one is not used again
            images._begins = self._iterator = None
        return _run_pass(weakref.ref(self), iterator, images._ranks)


def _run_pass(found: Callable[[], ShardLoader | None], iterator: Any, ranks: tuple[int, int]) -> Generator[Any]:
    """Yields a pass's batches, and then leaves its workers to the loader's next pass, unless there was an error."""
    with contextlib.suppress(GeneratorExit):
        yield from iterator
    loader = found()
    if loader is not None and loader.num_workers and loader.dataset._ranks == ranks:
        loader._iterator = iterator


def data_loader(
    images: TorchBatches,
    num_workers: int | None = None,
    pin_memory: bool | None = None,
    start_method: str | None = None,
) -> ShardLoader:
    """Makes a DataLoader of complete batches.

    Args:
        images: The images to read.
        num_workers: The number of processes that make batches, which live on from epoch to epoch. They share the
            `prefetch_batches`, or have two each. 0: threads of the trainer's own process make batches. None: 0, or with
            a `transform`, which would hold up the trainer, one for each core, or for each that `cpu_budget` leaves; the
            cores of a machine are shared out among its GPUs.
        pin_memory: Whether batches lie in pinned memory, from which a GPU copies by itself. None: if there is a GPU.
        start_method: The way in which workers begin: "fork", "spawn" or "forkserver". None: Python's default, but for
            a dataset in an object store "spawn", since a forked process cannot read from there.

    Raises:
        ConfigError: `images` is no `TorchBatches`, or its options do not fit the number of workers.
    """
    if not isinstance(images, TorchBatches):
        raise ConfigError(f"`data_loader` takes TorchBatches(dataset, split, batch_size=256), got {images!r}.")
    if num_workers is None:
        num_workers = images._cpus if images._transform is not None else 0
    if start_method is not None and not num_workers:
        raise ConfigError(f"`start_method` {start_method} needs workers. Leave it out, or give `num_workers`.")
    if num_workers and images.config.cache != "none" and images.config.cache_dir is None:
        raise ConfigError(
            f"`cache` {images.config.cache} needs `num_workers` 0, got {num_workers}: each process would have a cache "
            "of its own. Leave one of them out."
        )
    waiting = images.config.prefetch_batches
    if waiting and not num_workers and images._transform is not None:
        raise ConfigError(
            f"`prefetch_batches` {waiting} needs workers with a `transform`: it uses the random numbers of the "
            "process, so no thread runs it ahead. Leave one out, or give `num_workers`."
        )
    if waiting == 0 and num_workers:
        raise ConfigError("`prefetch_batches` 0 needs `num_workers` 0: a batch of each worker waits. Leave one out.")
    for_each = 2 if waiting is None else -(-waiting // max(num_workers, 1))
    return ShardLoader(
        images,
        batch_size=None,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
        prefetch_factor=for_each if num_workers else None,
        persistent_workers=num_workers > 0,
        multiprocessing_context=start_method or ("spawn" if num_workers and images._maker.is_remote else None),
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


class _LoaderBegins:
    """The positions at which the passes of a loader begin, in memory that it shares with its workers.

    A pass begins after every worker has confirmed the last one, and thus has read the one before: two rows are enough.
    """

    def __init__(self) -> None:
        self._rows, self._count = torch.zeros(2, 2, dtype=torch.int64).share_memory_(), 0

    def write(self, position: Position) -> None:
        """Lets the loader's next pass begin at a position."""
        self._rows[self._count % 2] = torch.tensor(position)
        self._count += 1  # before the workers begin, whose copies count on from here

    def read(self) -> Position:
        """Returns the position of the pass that begins in this process."""
        self._count += 1
        return Position(*self._rows[self._count % 2].tolist())


class SharedBegin:
    """The position at which the next pass begins, in memory shared with the workers of a DataLoader of one's own.

    PyTorch tells its workers only the seed of a pass. So the first worker that begins a pass writes its position, and
    the other workers read it, even if the next pass has begun meanwhile.
    """

    def __init__(self, position: Position, steps_per_epoch: int) -> None:
        # A row for each of the last passes: for each worker that has begun it the pass's number, plus 1, then the step
        # and the seed, which is 0 without workers. In the last row: the step and the number of the next pass.
        self._memory = torch.zeros(_PASSES + 1, _MAX_WORKERS + 1, dtype=torch.int64).share_memory_()
        self.set(position, steps_per_epoch)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._memory = state["_memory"].share_memory_()  # a copy has memory of its own

    def set(self, position: Position, steps_per_epoch: int) -> None:
        """Lets the next pass begin at a position."""
        self._write(-1, position.epoch * steps_per_epoch + position.step, self._read(-1)[1])

    def find_next(self, steps_per_epoch: int) -> Position:
        """Returns the position at which the next pass begins."""
        return Position(*divmod(self._read(-1)[0], steps_per_epoch))

    def begin_pass(self, worker: Any, steps_per_epoch: int) -> Position:
        """Begins a pass in this process: the oldest that other workers have begun and this one has not, or the next."""
        step, number = self._read(-1)  # first: another worker that begins the pass meanwhile writes the same
        seed = 0 if worker is None else 1 + (worker.seed - worker.id + worker.num_workers) % 0xFFFFFFFF
        slot = 0 if worker is None else worker.id % _MAX_WORKERS
        for past in range(max(number - _PASSES + 1, 0), number):
            row = past % _PASSES
            if self._read(row)[1] == seed and int(self._memory[row, slot]) != 1 + past:
                step, number = self._read(row)[0], past
                break
        else:
            self._write(number % _PASSES, step, seed)
            self._write(-1, (step // steps_per_epoch + 1) * steps_per_epoch, number + 1)
        self._memory[number % _PASSES, slot] = 1 + number
        return Position(*divmod(step, steps_per_epoch))

    def _read(self, row: int) -> tuple[int, ...]:
        return _PAIR.unpack(int(self._memory[row, -1]).to_bytes(_PAIR.size, "little", signed=True))

    def _write(self, row: int, *pair: int) -> None:
        self._memory[row, -1] = int.from_bytes(_PAIR.pack(*pair), "little", signed=True)


def _call_seeded(transform: Callable[[Any], torch.Tensor], image: Any, seed: int) -> torch.Tensor:
    """Calls a transform with torch's generator seeded by the record; the generator of the process keeps its state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return transform(image)


def normalize(
    images: torch.Tensor, options: AugmentOptions | None = None, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Subtracts the mean and divides by the deviation, on whichever device the images are.

    Args:
        images: uint8 of shape [..., 3, height, width].
        options: `mean` and `std` are used, by default ImageNet's.
        dtype: The dtype of the result, which is computed in float32.
    """
    options = options or AugmentOptions()
    mean, std = (
        torch.tensor(values, device=images.device).mul(255).view(-1, 1, 1) for values in (options.mean, options.std)
    )
    return ((images - mean) / std).to(dtype)


def find_rank(rank: tuple[int, int] | DeviceMesh | None) -> tuple[int, int]:
    """Finds the number of this process and the number of processes.

    `rank` is this pair, or a mesh with a dimension `data`. None: `torch.distributed` if it is initialized, else (0, 1).
    """
    if isinstance(rank, tuple):
        return rank
    if rank is not None:
        check_has("rank", rank, "mesh_dim_names", "a pair of numbers or a DeviceMesh")
        names = rank.mesh_dim_names or ()
        if _DATA not in names:
            raise ConfigError(f"`rank` must be a mesh with a dimension {_DATA}, got {', '.join(names) or 'no names'}.")
        return rank.get_local_rank(_DATA), rank.size(names.index(_DATA))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
