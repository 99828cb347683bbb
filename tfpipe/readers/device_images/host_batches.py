"""The part of a batch that the host makes: files to decode, crop boxes in them, and what the CPU had to decode.

```
host = HostBatches(batches, pins_memory=True)
batch = host.read(epoch, step)          # by any thread
...                                     # decode `batch.files`
host.release(batch)                     # its memory is used again
```

Of a seekable JPEG only the intervals that the crop needs go on, as a small JPEG.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tfpipe.engine.batch import Batch, BatchMaker
from tfpipe.engine.numpy_crops import CropBox, Size
from tfpipe.errors import FormatError
from tfpipe.images import seekable
from tfpipe.images.decode import decode_crop
from tfpipe.images.errors import BadImage
from tfpipe.images.hardware_jpeg import read_hardware_header

_SPARE = 1.25  # of a batch's mean bytes: what lies between records, and batches of larger ones


class _StoredImage(NamedTuple):
    """An image as it is stored, and the part of it that the trainer gets.

    Attributes:
        number: The number of its record, counted through all shards.
        data: The bytes in the record, uint8 [bytes].
        crop_box: The crop in pixels of the stored image. A record that lies about its size may have one outside of it.
        flip: Whether the crop is mirrored left to right.
    """

    number: int
    data: NDArray[np.uint8]
    crop_box: CropBox
    flip: bool


@dataclass(frozen=True)
class HostImage:
    """An image that is ready for the device.

    Attributes:
        number: The number of its record.
        tensor: The file, uint8 [bytes]; or pixels that the host has, uint8 [3, height, width].
        box: The crop in pixels of the file's image, or of the pixels.
        flip: Whether the crop is mirrored left to right.
        size: The height and width that the file's image must have, or that the pixels have.
    """

    number: int
    tensor: torch.Tensor
    box: CropBox
    flip: bool
    size: Size

    @property
    def is_file(self) -> bool:
        """Whether the image is still to be decoded."""
        return self.tensor.ndim == 1

    def with_pixels(self, pixels: torch.Tensor) -> HostImage:
        """Returns the same crop of pixels, uint8 [3, height, width], in place of the file."""
        return replace(self, tensor=pixels)


@dataclass(frozen=True)
class HostBatch:
    """A batch before it is decoded.

    Attributes:
        images: The images in the order of the rows; in evaluation there may be fewer than rows.
        others: All parts of the batch but the images.
        fallbacks: The number of images that the CPU decoded, by their kind.
        memory: The memory that the files lie in; None if it was not taken from a pool.
    """

    images: list[HostImage]
    others: Batch
    fallbacks: Mapping[str, int]
    memory: _Memory | None = field(default=None, repr=False)


class HostBatches:
    """The host's part of the batches of one rank. Threads may share it.

    Args:
        maker: The maker of the batches, whose records are read here.
        pins_memory: Whether files lie in pinned memory, from which a GPU copies by itself.

    Attributes:
        plan: The plan of the batches.
    """

    def __init__(self, maker: BatchMaker, pins_memory: bool) -> None:
        self._maker, self._pins_memory = maker, pins_memory
        self._cuts = maker.plan.source.images.seekable
        self.plan = maker.plan
        self._free: queue.SimpleQueue[_Memory] = queue.SimpleQueue()

    def read(self, epoch: int, step: int) -> HostBatch:
        """Reads a batch, and decodes what a GPU's decoder does not take.

        Raises:
            FormatError: A file is missing or damaged, or an image is.
            DataError: A file cannot be read.
        """
        memory = self._take_memory()
        stored = self._maker.read(epoch, step, memory=memory.records.numpy())
        images = self._maker.choose_images(stored)
        fallbacks: Counter[str] = Counter()
        prepared = []
        for row, number in enumerate(stored.numbers.tolist()):
            y, x, height, width = images.boxes[row].tolist()
            image = _StoredImage(number, images.column.get_view(row), (y, x, height, width), bool(images.flips[row]))
            try:
                prepared.append(self._prepare(image, memory, fallbacks))
            except BadImage as error:
                raise self._name_bad_image(number, error) from None
        return HostBatch(prepared, self._maker.make_others(stored, images), fallbacks, memory)

    def decode_crop(self, image: HostImage) -> HostImage:
        """Decodes a file by the CPU after all.

        Raises:
            FormatError: The image is damaged.
        """
        try:
            pixels = self._decode(image.tensor.numpy().tobytes(), image.box)
        except BadImage as error:
            raise self._name_bad_image(image.number, error) from None
        return _make_pixels(image.number, pixels, image.flip)

    def release(self, batch: HostBatch) -> None:
        """Gives the memory of a batch back. Nobody may need its files any more."""
        if batch.memory is not None:
            self._free.put(batch.memory)

    def _take_memory(self) -> _Memory:
        try:
            memory = self._free.get_nowait()
        except queue.Empty:
            num_bytes = int(self._maker.plan.source.record_bytes * self._maker.plan.batch_size * _SPARE)
            return _Memory(num_bytes, self._pins_memory, self._cuts)
        memory.clear()
        return memory

    def _name_bad_image(self, number: int, error: BadImage) -> FormatError:
        return self._maker.name_record(number, f"its image cannot be used, {error}")

    def _prepare(self, image: _StoredImage, memory: _Memory, fallbacks: Counter[str]) -> HostImage:
        form = self._maker.form
        data = bytes(image.data)
        if form.encoding == "raw":  # nothing is decoded
            return _make_pixels(image.number, self._decode(data, image.crop_box), image.flip)
        found = read_hardware_header(data, form.max_pixels)
        if found.refusal or found.jpeg is None:
            fallbacks[found.refusal] += 1
            return _make_pixels(image.number, self._decode(data, image.crop_box), image.flip)
        size = found.jpeg.height, found.jpeg.width
        _check_box(image.crop_box, size)
        splice = seekable.splice_box(found.jpeg.decodable, image.crop_box) if self._cuts else None
        if splice is None:
            return HostImage(image.number, memory.place(image.data), image.crop_box, image.flip, size)
        y, x, height, width = image.crop_box
        box = y - splice.y, x - splice.x, height, width
        return HostImage(image.number, memory.place(splice.data), box, image.flip, (splice.height, splice.width))

    def _decode(self, data: bytes, box: CropBox) -> NDArray[np.uint8]:
        return np.array(decode_crop(data, self._maker.form, box, 1, self._cuts))


class _Memory:
    """The memory of the files of one batch.

    Attributes:
        records: The memory that records are read into: uint8 [bytes].
    """

    def __init__(self, num_bytes: int, pins: bool, cuts: bool) -> None:
        """Takes memory. Where files are cut, records need not be pinned, but the small files are."""
        self.records = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pins and not cuts)
        self._small = torch.empty(num_bytes if cuts else 0, dtype=torch.uint8, pin_memory=pins and cuts)
        self._cuts, self._used = cuts, 0

    def clear(self) -> None:
        """Forgets the small files."""
        self._used = 0

    def place(self, data: bytes | NDArray[np.uint8]) -> torch.Tensor:
        """Returns a file as a tensor: where it was read, or in the memory of small files as long as that suffices."""
        if not self._cuts and isinstance(data, np.ndarray) and data.flags.writeable:
            return torch.from_numpy(data)
        end = self._used + len(data)
        # A copy, because PyTorch knows no tensors that must not be written to.
        place = self._small[self._used : end] if end <= len(self._small) else torch.empty(len(data), dtype=torch.uint8)
        place.numpy()[:] = np.frombuffer(data, np.uint8)
        self._used = end
        return place


def _make_pixels(number: int, pixels: Any, flip: bool) -> HostImage:
    height, width, _ = pixels.shape
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    return HostImage(number, tensor, (0, 0, height, width), flip, (height, width))


def _check_box(box: CropBox, size: Size) -> None:
    """Checks that a box lies in an image: a record may lie about its size, and a GPU would read beyond it."""
    (y, x, height, width), (rows, columns) = box, size
    if not (0 <= y <= rows - height and 0 <= x <= columns - width and height > 0 and width > 0):
        raise BadImage(f"{columns} x {rows} pixels, which is not the size that its record gives")
