"""Batches made slowly: TensorFlow reads the files, decodes whole images and crops them, one record after another."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.order import Order
from tfpipe.format.manifest import Manifest
from tfpipe.system.hash_permutation import EXAMPLE, key_of

FLIP_KEY = np.array((0x243F6A88, 0x05A308D3), np.int32)


class Dataset:
    """The records of a split, all in memory."""

    def __init__(self, manifest: Manifest, split: str) -> None:
        shards = manifest.splits[split].shards
        files = [str(Path(manifest.directory) / shard.file) for shard in shards]
        self.records = [tf.train.Example.FromString(data.numpy()) for data in tf.data.TFRecordDataset(files)]
        self.side = manifest.image.get("square") if manifest.image.get("encoding") == "raw" else None
        self.names = manifest.label_names

    def get(self, number: int, name: str) -> Any:
        feature = self.records[number].features.feature[name]
        return getattr(feature, feature.WhichOneof("kind") or "bytes_list").value

    def decode(self, number: int) -> Any:
        """Decodes the whole image of a record: uint8 [height, width, 3]."""
        data = self.get(number, "image/encoded")[0]
        if self.side is not None:
            return np.frombuffer(data, np.uint8).reshape(self.side, self.side, 3)
        return tf.io.decode_image(data, channels=3).numpy()


def make_image(dataset: Dataset, number: int, epoch: int, config: PipelineConfig) -> Any:
    """Crops, resizes, flips and converts the image of a record."""
    pixels, options = dataset.decode(number), config.augment_options
    if config.training and config.cache == "decoded":
        pixels = np.rint(tf.image.resize(pixels, [config.decoded_size] * 2).numpy())
    (top, left, bottom, right), flip = choose_crop(dataset, number, epoch, config, pixels.shape[:2])
    image = tf.image.resize(pixels[top:bottom, left:right], config.size).numpy()
    image = image[:, ::-1] if flip else image
    if config.image_dtype == "uint8":
        return image
    return (image / 255 - np.array(options.mean)) / np.array(options.std)


def make_mask_crop(dataset: Dataset, number: int, epoch: int, config: PipelineConfig, name: str) -> list[Any]:
    """Crops the mask of a record as its image, and takes the class under the center of each pixel."""
    classes = tf.io.decode_png(dataset.get(number, name)[0], channels=1).numpy()[..., 0].astype(int)
    if config.training and config.cache == "decoded":
        classes = resize_nearest(classes, [config.decoded_size] * 2)
    (top, left, bottom, right), flip = choose_crop(dataset, number, epoch, config, classes.shape)
    mask = resize_nearest(classes[top:bottom, left:right], config.size)
    return list((mask[:, ::-1] if flip else mask).tolist())


def get_numbers(dataset: Dataset, number: int, _: int, config: PipelineConfig, name: str) -> list[Any]:
    """Returns the numbers of a feature, cut or padded as the config says: lists with -1, and boxes with 0."""
    values, is_box = list(dataset.get(number, name)), name.startswith("image/object/")
    length = config.max_boxes if is_box else config.pad_to.get(name, len(values))
    return (values + [0.0 if is_box else -1] * length)[:length]


def resize_nearest(classes: Any, size: Sequence[Any]) -> Any:
    rows, columns = (
        ((2 * np.arange(out) + 1) * side) // (2 * out) for side, out in zip(classes.shape, size, strict=True)
    )
    return classes[rows[:, None], columns]


def choose_crop(dataset: Dataset, number: int, epoch: int, config: PipelineConfig, stored: Any) -> Any:
    """Returns the top, left, bottom and right of a crop of a stored image, and whether it is mirrored."""
    original = [int(dataset.get(number, f"image/{name}")[0]) for name in ("height", "width")]
    (height, width), options, flip = config.size, config.augment_options, False
    if config.training:
        seed = np.array([key_of(EXAMPLE, config.seed, epoch, number)], "<u8").view("<i4").astype(np.int32)
        _, _, box = tf.image.stateless_sample_distorted_bounding_box(
            [*original, 3],
            tf.zeros([1, 0, 4]),
            seed,
            min_object_covered=0.0,
            aspect_ratio_range=options.ratio,
            area_range=options.scale,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        corners = np.rint(box.numpy().reshape(2, 2) * np.array(stored, np.float32)).astype(int)
        top, left = np.minimum(corners[0], np.array(stored) - 1)
        bottom, right = np.maximum(corners[1], (top + 1, left + 1))
        flip = options.flip and bool(
            tf.random.stateless_uniform([], seed ^ FLIP_KEY, minval=0, maxval=2, dtype=tf.int32) == 1
        )
    else:
        units = [side / out for side, out in zip(original, (height, width), strict=True)]
        share = [min(units) / unit * options.crop_fraction for unit in units]
        rows, cols = (max(int(part * side + 0.5), 1) for part, side in zip(share, stored, strict=True))
        top, left = (stored[0] - rows) // 2, (stored[1] - cols) // 2
        bottom, right = top + rows, left + cols
    return (top, left, bottom, right), flip


def list_rows(sources: Sequence[Dataset], weights: Sequence[float], config: PipelineConfig, step: int) -> list[Any]:
    batch = config.batch_size
    exact = [batch * weight / sum(weights) for weight in weights]
    shares = [int(part) for part in exact]
    for part in sorted(range(len(exact)), key=lambda part: (shares[part] - exact[part], part))[: batch - sum(shares)]:
        shares[part] += 1
    parts = []
    for dataset, share in zip(sources, shares, strict=True):
        order = Order(len(dataset.records), share, config.block_records or 1, config.seed)
        epoch, place = order.locate(step)
        parts.append([(dataset, epoch, number) for number in order.list_numbers(epoch, place).tolist()])
    rows: list[Any] = []
    for row in range(batch):  # as evenly as they can be
        lacks = [share * (row + 1) - (share - len(part)) * batch for share, part in zip(shares, parts, strict=True)]
        rows.append(parts[int(np.argmax(lacks))].pop(0))
    return rows
