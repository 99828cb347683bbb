"""Records whose images and masks are squeezed to the size of a cache: what it keeps, and what it does not have yet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tfpipe.engine.batch import BatchMaker, StoredBatch
from tfpipe.engine.buffers import allocate
from tfpipe.engine.columns.images import decode_images
from tfpipe.engine.parse import BadRecord, Column, collect_column
from tfpipe.format.schema import IMAGE_CHANNELS, IMAGE_COLORSPACE, IMAGE_FORMAT
from tfpipe.images.errors import BadImage
from tfpipe.images.masks import encode_mask, read_mask, resize_nearest
from tfpipe.system.hash_permutation import IntArray

RAW = {IMAGE_FORMAT: b"RAW", IMAGE_CHANNELS: 3, IMAGE_COLORSPACE: b"RGB"}
"""The features that say what a raw image is."""


class Squeezer:
    """A maker of the records of a cache of decoded images out of those of its source.

    The features that say how an image is stored change with it; all others stay, also the original's height and width.

    Args:
        maker: A maker of batches of the source, which knows how images are stored.
        size: The height and width of images in the cache.
    """

    def __init__(self, maker: BatchMaker, size: tuple[int, int]) -> None:
        self._maker, self._size = maker, size
        self._decoding = replace(maker.decoding, size=size, dtype="uint8")
        self._masks = [spec.name for spec in maker.plan.source.schema.masks]

    def squeeze(self, stored: StoredBatch, threads: int) -> StoredBatch:
        """Returns the records as the cache has them.

        Args:
            stored: Records of the source, one image each.
            threads: The most threads that decode, of all batches together. With 1 the caller does it.

        Raises:
            BadRecord: An image or a mask is damaged.
            FormatError: A record does not have an image of the size that it says.
        """
        images = self._maker.choose_images(stored)
        whole = self._maker.get_whole_boxes(images.sizes)
        images = replace(images, boxes=whole, flips=np.zeros(len(whole), np.bool_))
        pixels = allocate((len(whole), *self._size, 3), np.uint8)
        decode_images(images, pixels, None, self._decoding, threads)
        count, memory = len(whole), pixels.reshape(-1)
        stride = len(memory) // max(count, 1)
        places = np.stack((np.arange(count) * stride, np.full(count, stride)), axis=1)
        columns = {**stored.columns}
        for name in columns:
            if name == self._maker.plan.source.image_key:
                columns[name] = Column(np.ones(count, np.int64), places, memory)
            elif name in self._masks:
                columns[name] = self._squeeze_masks(name, columns[name], whole[:, 2:].astype(np.int64))
            elif name in RAW:
                text = RAW[name]
                value = [text] if isinstance(text, bytes) else np.array([text], np.int64)
                columns[name] = collect_column([value] * count, name, self._maker.kinds[name])
        return replace(stored, columns=columns)

    def _squeeze_masks(self, name: str, column: Column, sizes: IntArray) -> Column:
        column.check_counts(1, name)
        masks: list[list[bytes]] = []
        for row, (height, width) in enumerate(sizes.tolist()):
            try:
                classes = read_mask(column.get_bytes(row), height * width)
            except BadImage as error:
                raise BadRecord(row, f"{name!r} cannot be used, {error}") from None
            masks.append([encode_mask(resize_nearest(classes, self._size))])
        return collect_column(masks, name, "bytes")
