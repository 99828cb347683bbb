"""DeviceImages: batches that a GPU decodes, with less than one core of the host.

```
images = DeviceImages(tfpipe.load_manifest("/data/flowers"), "train", PipelineConfig(batch_size=256))
for epoch in range(90):
    for batch in images:                # on the GPU, in channels-last memory
        loss = train_step(batch["image"], batch["label"])
```

    reader threads ──files in pinned memory──▶ one thread: decode, resize ──batches on the device──▶ trainer
    num_threads steps                          on a stream of its own       prefetch_batches steps

Records, order, crops and flips are those of `TorchBatches` and `build_dataset`. Pixels differ by a few levels where
decoders round differently, or enlarge color in another way.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter, deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tfpipe.engine.ahead import list_positions
from tfpipe.engine.batch import BatchMaker
from tfpipe.engine.config.augment_config import compute_scaling
from tfpipe.engine.config.pipeline_config import PipelineConfig, choose_config
from tfpipe.engine.host import Host
from tfpipe.engine.position import Position
from tfpipe.errors import ConfigError, FormatError, explain_pipeline_error
from tfpipe.format.manifest import Manifest
from tfpipe.readers.device_images.config import DeviceConfig
from tfpipe.readers.device_images.crops import Crop, ResizeConfig
from tfpipe.readers.device_images.decoders import (
    JpegDecoder,
    describe_full_memory,
    find_device,
    is_full,
    make_decoder,
)
from tfpipe.readers.device_images.host_batches import HostBatch, HostBatches, HostImage
from tfpipe.readers.device_images.resize import find_resize
from tfpipe.readers.epoch_batches import EpochBatches
from tfpipe.readers.open_data import form_batch, open_data, weigh_mask
from tfpipe.readers.torch_tensors import DTYPES, find_rank, make_tensors

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

REFUSED = "JPEG that the decoder refused"
"""The kind of a fallback that no header tells."""


class DeviceImages(EpochBatches):
    """The batches of one rank on its device, as an iterable of epochs.

    Threads of this process read records. One call decodes the JPEGs of a batch on the device, and one kernel crops,
    resizes, flips and normalizes them. So the host computes next to nothing. Images that the decoder does not take
    (progressive, CMYK, PNG) are decoded by the CPU: `fallbacks` counts them, and `tfpipe doctor --gpu-decode` names
    them before a run.

    Each pass begins where the last one was left, and ends with the epoch; in evaluation it is the whole split, every
    record once. In training the next epoch is read ahead meanwhile.

    Args:
        manifest: The manifest of a local dataset, from `load_manifest`, or its directory.
        split: The name of a split.
        config: The options of `build_dataset`. Options that only tf.data supports are refused, and so is
            `prefetch_batches`, which `DeviceConfig` has; `dct_scaling` has no effect here.
        device: The device: "cuda", "cuda:1", ... or "cpu".
        start_step: The global step of the run with which training begins, in whichever epoch it lies.
        rank: The number of this process, from 0, and the number of processes, or a mesh, as for `TorchBatches`.
        device_config: The number of threads and of batches ahead, and the memory format. None: the defaults.
        decoder: A decoder in place of torchvision's or torchcodec's, or on the CPU of Pillow's.
        changes: Options in place of a config, or other than in it, such as `batch_size=256`.

    A batch is a dictionary of "image", uint8 [n, 3, height, width] or normalized if `image_dtype` is a float; "label",
    int64 [n] or one-hot float32 [n, classes]; and the features in `extra_features`: text as lists of bytes, all other
    on the device. In evaluation "mask", bool [n], is False in rows that fill a batch up. With `as_supervised`: (image,
    label), in evaluation with the mask as a third.

    Attributes:
        config: The options of the pipeline.
        device: The device.
        fallbacks: The number of images that the CPU decoded, by their kind, such as "progressive JPEG" or "PNG". They
            count once their batch was given out.

    Raises:
        ConfigError: The config does not fit this reader, the data or the number of ranks, or there is no such device.
        DataError: There are no records. While reading: the device's memory is full, or it fails.
        FormatError: While reading: a file is missing or damaged, or an image is.
        MissingDependencyError: The device is a GPU, and neither torchvision nor torchcodec is there to decode on it.
    """

    def __init__(
        self,
        manifest: Manifest | str | os.PathLike[str],
        split: str,
        config: PipelineConfig | None = None,
        device: str | torch.device = "cuda",
        start_step: int = 0,
        rank: tuple[int, int] | DeviceMesh | None = None,
        device_config: DeviceConfig | None = None,
        decoder: JpegDecoder | None = None,
        **changes: Any,
    ) -> None:
        config = choose_config(config, changes)
        self.device = find_device(device)
        options = _limit_threads(device_config or DeviceConfig(), config)
        number, ranks = find_rank(rank)
        if config.prefetch_batches is not None:
            raise ConfigError(
                f"`prefetch_batches` {config.prefetch_batches} of the pipeline counts batches of the host. Give it to "
                "`DeviceConfig`, and leave it out here."
            )
        if config.cache == "decoded" or config.cache_dir is not None:
            raise ConfigError(
                "`DeviceImages` decodes on the device, so it reads no cache of decoded images and none in files. Use "
                "cache='bytes' without a `cache_dir`, or TorchBatches."
            )
        maker = open_data(manifest, split, config, Host(number, ranks, ranks))
        if not isinstance(maker, BatchMaker):
            raise ConfigError("`DeviceImages` reads one dataset, got a mixture. Use TorchBatches.")
        if not maker.plan.source.has_images:
            raise ConfigError(f"`DeviceImages` needs images, and {maker.plan.source.name} has none. Use TorchBatches.")
        if maker.plan.num_images is not None:
            raise ConfigError(
                f"`DeviceImages` decodes one image a record, and {maker.plan.source.name} has several. Set `images` "
                "to first, or use TorchBatches."
            )
        decoder = make_decoder(self.device, maker.form) if decoder is None else decoder
        self.fallbacks: Counter[str] = Counter()
        self._host = HostBatches(maker, pins_memory=self.device.type == "cuda")
        self._finisher = _Finisher(maker, self._host, decoder, self.device, options)
        super().__init__(maker, start_step, partial(_work_ahead, self._host, self._finisher, options, self.fallbacks))

    def close(self) -> None:
        """Ends the threads that work ahead; the next pass starts new ones."""
        self._passes.close()


def _limit_threads(options: DeviceConfig, config: PipelineConfig) -> DeviceConfig:
    """Returns the options with no more threads than `cpu_budget` leaves, if there is one."""
    if config.cpu_budget is None:
        return options
    return replace(options, num_threads=min(options.num_threads, config.max_threads))


class _DeviceBatch(NamedTuple):
    """A batch on the device.

    Attributes:
        parts: All parts by their names.
        fallbacks: The number of images that the CPU decoded, by their kind.
    """

    parts: dict[str, Any]
    fallbacks: Counter[str]

    def hand_over(self, config: PipelineConfig) -> Any:
        """Returns the batch in the trainer's form, for work on the caller's stream."""
        for value in self.parts.values():
            for tensor in value if isinstance(value, list) else [value]:
                if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                    # It was allocated on another stream, which may not have its memory again before this one is done.
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return form_batch(self.parts, config)


def _work_ahead(
    host: HostBatches, finisher: _Finisher, options: DeviceConfig, fallbacks: Counter[str], begin: Position
) -> Generator[Any]:
    """Yields the batches from a position on, without end in training, and works on the next meanwhile.

    At most `num_threads` steps are being read, and at most `prefetch_batches` are being decoded or ready. Threads end
    with what they have in hand.

    Args:
        host: The host's part of the batches.
        finisher: The device's part.
        options: The number of threads and of batches ahead.
        fallbacks: The counts of images that the CPU decoded, which grow.
        begin: The position.

    Raises:
        TfpipeError: A batch cannot be read or decoded.
    """
    plan = host.plan
    steps = list_positions(begin, plan.steps_per_epoch, plan.config.training)
    readers = ThreadPoolExecutor(options.num_threads, "tfpipe-read")
    decoder = ThreadPoolExecutor(1, "tfpipe-decode")
    reads: deque[Future[HostBatch]] = deque()
    ready: deque[Future[_DeviceBatch]] = deque()

    def read_ahead() -> None:
        for step in itertools.islice(steps, options.num_threads - len(reads)):
            reads.append(readers.submit(host.read, *step))

    def fill() -> None:
        read_ahead()
        while reads and len(ready) < options.prefetch_batches:
            ready.append(decoder.submit(finisher.finish, reads.popleft()))
            read_ahead()

    try:
        fill()
        while ready:
            batch = ready.popleft().result()
            fill()
            fallbacks.update(batch.fallbacks)
            yield batch.hand_over(plan.config)
    finally:
        for executor in (decoder, readers):
            executor.shutdown(wait=False, cancel_futures=True)


class _Finisher:
    """The work of the one thread that keeps the device busy."""

    def __init__(
        self,
        batches: BatchMaker,
        host: HostBatches,
        decoder: JpegDecoder,
        device: torch.device,
        options: DeviceConfig,
    ) -> None:
        config = batches.plan.config
        self._batches, self._host, self._decoder, self._device = batches, host, decoder, device
        augment = config.augment_options
        offset, factor = compute_scaling(augment.mean, augment.std)
        self._form = ResizeConfig(augment.antialias, tuple(offset), tuple(factor))
        self._resize = find_resize(device)
        self._format = torch.channels_last if options.channels_last else torch.contiguous_format
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def finish(self, read: Future[HostBatch]) -> _DeviceBatch:
        """Waits until a batch is read, and makes its tensors on the device.

        Raises:
            TfpipeError: It could not be read, an image is damaged, or the device's memory is full.
        """
        try:
            host = read.result()
            with self._use_stream():
                batch = self._make(host)
                self._wait()
        except RuntimeError as error:
            raise (describe_full_memory() if is_full(error) else explain_pipeline_error(error)) from error
        self._host.release(host)
        return batch

    def _make(self, host: HostBatch) -> _DeviceBatch:
        config, fallbacks = self._batches.plan.config, Counter(host.fallbacks)
        shape = (self._batches.plan.batch_size, 3, *config.size)
        images = self._decode(host.images, fallbacks)
        out = torch.empty(shape, dtype=DTYPES[config.image_dtype], device=self._device, memory_format=self._format)
        out[len(images) :] = 0
        if images:
            pixels = [image.tensor for image in images]
            self._resize(pixels, [Crop(image.box, image.flip) for image in images], out, self._form)
        others = make_tensors(weigh_mask(host.others, config), self._batches.plan)
        parts = {"image": out, **{name: self._place(value) for name, value in others.items()}}
        return _DeviceBatch(parts, fallbacks)

    def _decode(self, images: list[HostImage], fallbacks: Counter[str]) -> list[HostImage]:
        """Returns the images with their pixels on the device."""
        files = [image for image in images if image.is_file]
        decoded = iter(self._decode_files(files, fallbacks))
        return [next(decoded) if image.is_file else self._move(image) for image in images]

    def _decode_files(self, images: list[HostImage], fallbacks: Counter[str]) -> list[HostImage]:
        """Decodes all files with one call; if it fails, each half with one, and a single file by the CPU."""
        if not images:
            return []
        try:
            pixels = self._decoder.decode([image.tensor for image in images])
        except RuntimeError as error:
            if is_full(error):
                raise
            if middle := len(images) // 2:
                halves = images[:middle], images[middle:]
                return [image for half in halves for image in self._decode_files(half, fallbacks)]
            fallbacks[REFUSED] += 1
            return [self._move(self._host.decode_crop(images[0]))]
        return [self._check(image, tensor) for image, tensor in zip(images, pixels, strict=True)]

    def _check(self, image: HostImage, pixels: torch.Tensor) -> HostImage:
        """Checks the size that the decoder found. A kernel would read beyond an image that is smaller."""
        if pixels.ndim != 3 or pixels.shape[0] not in (1, 3) or tuple(pixels.shape[1:]) != image.size:
            height, width = image.size
            raise FormatError(
                f"Record {image.number} of {self._batches.split!r}: its image must have 3 x {height} x {width} values, "
                f"as its header says, and the decoder returned {' x '.join(map(str, pixels.shape))}."
            )
        return image.with_pixels(pixels.expand(3, -1, -1))

    def _move(self, image: HostImage) -> HostImage:
        return image.with_pixels(self._place(image.tensor))

    def _place(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._place(part) if isinstance(part, torch.Tensor) else part for part in value]
        return value.to(self._device, non_blocking=True) if isinstance(value, torch.Tensor) else value

    def _use_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _wait(self) -> None:
        """Waits until the batch is made, without keeping a core busy.

        Then its files are free, what went wrong on the device is known, and the decoder, which works on a stream of its
        own, may have the memory of the decoded images again.
        """
        if self._stream is not None:
            done = torch.cuda.Event(blocking=True)
            done.record(self._stream)
            done.synchronize()
