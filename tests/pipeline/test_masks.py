"""Masks follow the crop, the flip and the size of their images: against NumPy, and in all readers alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import write_files
from tests.mask_files import make_classes
from tests.mask_images import MASK_NAME, make_masked_images
from tfpipe.engine.host import Host
from tfpipe.errors import ConfigError
from tfpipe.images.masks import encode_mask
from tfpipe.pipeline.device.augment import augment, augment_masks, sample_crop_boxes, sample_flips
from tfpipe.pipeline.device.random_boxes import center_crop_boxes
from tfpipe.pipeline.mask_operations import crop_mask, decode_mask
from tfpipe.readers.base import open_data
from tfpipe.readers.torch import TorchBatches

SIZE = (12, 9)
STEPS = 5


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> tfpipe.Manifest:
    """PNGs, so that pixels are exact, whose red channel is their mask."""
    return _write(tmp_path_factory.mktemp("masks"), "PNG")


def _write(folder: Path, kind: str, **options: Any) -> tfpipe.Manifest:
    make_dataset(write_files(folder / "in", make_masked_images(18, kind)), folder / "out", num_shards=3, **options)
    return tfpipe.load_manifest(str(folder / "out"))


def make_config(**options: Any) -> tfpipe.PipelineConfig:
    defaults = {"batch_size": 6, "image_size": SIZE, "seed": 4, "extra_features": (MASK_NAME,)}
    return tfpipe.PipelineConfig(**(defaults | options))


def read(manifest: tfpipe.Manifest, config: tfpipe.PipelineConfig, **options: Any) -> list[dict[str, np.ndarray]]:
    dataset = tfpipe.build_dataset(manifest, "train", config, **options)
    return [{name: np.asarray(value) for name, value in batch.items()} for batch in dataset.take(STEPS)]


def check_equal(left: list[dict[str, np.ndarray]], right: list[dict[str, np.ndarray]]) -> None:
    assert len(left) == len(right) > 0
    for first, second in zip(left, right, strict=True):
        assert first[MASK_NAME].dtype == second[MASK_NAME].dtype == np.int32
        np.testing.assert_array_equal(first[MASK_NAME], second[MASK_NAME])


@pytest.mark.parametrize("bits", [8, 16])
def test_classes_are_decoded(bits: int) -> None:
    classes = np.random.default_rng(bits).integers(0, 2**bits, (7, 5)).astype(np.uint8 if bits == 8 else np.uint16)
    decoded = decode_mask(tf.constant(encode_mask(classes)))
    assert decoded.dtype == tf.uint16
    np.testing.assert_array_equal(decoded, classes)


def test_a_crop_takes_the_class_under_each_center() -> None:
    classes = make_classes(0, (31, 23), 256)
    for y, x, height, width in ((0, 0, 23, 31), (3, 5, 11, 13), (22, 30, 1, 1), (2, 0, 5, 31)):
        part = classes[y : y + height, x : x + width]
        for flip in (False, True):
            result = crop_mask(tf.constant(classes), tf.constant([y, x, height, width]), tf.constant(flip), SIZE)
            expected = np.empty(SIZE, np.uint8)
            for i in range(SIZE[0]):  # slow and plain
                for j in range(SIZE[1]):
                    column = int((j + 0.5) * width / SIZE[1])
                    expected[i, SIZE[1] - 1 - j if flip else j] = part[int((i + 0.5) * height / SIZE[0]), column]
            np.testing.assert_array_equal(result, expected)


@pytest.mark.slow
def test_caches_change_no_value(manifest: tfpipe.Manifest, tmp_path: Path) -> None:
    in_memory = read(manifest, make_config(cache="decoded", decoded_size=20))
    config = make_config(cache="decoded", decoded_size=20, cache_dir=str(tmp_path / "cache"))
    for _ in range(2):
        check_equal(read(manifest, config), in_memory)
    plain = read(manifest, make_config(cache="decoded", decoded_size=20, augment="none"))
    assert plain[0][MASK_NAME].shape == (6, *SIZE)
    for batch in read(manifest, make_config(order="throughput")):
        assert (np.abs(batch["image"][..., 0].astype(int) - 40 * batch[MASK_NAME]) <= 1).mean() > 0.5


def test_the_device_crops_masks_as_their_images() -> None:
    masks = np.stack([make_classes(k, (20, 20)) for k in range(6)])
    seeds = np.random.default_rng(0).integers(-(2**31), 2**31, (6, 2)).astype(np.int32)
    sides = np.arange(30, 36), np.arange(40, 46)
    for training in (True, False):
        result = augment_masks(tf.constant(masks), seeds, *sides, SIZE, training).numpy()
        flips = np.zeros(6, bool)
        if training:
            boxes, flips = sample_crop_boxes(seeds, *sides).numpy(), sample_flips(tf.constant(seeds)).numpy()
        else:
            boxes = center_crop_boxes(*sides, 0.875, SIZE[1] / SIZE[0]).numpy()
        for k, (top, left, bottom, right) in enumerate(boxes):
            rows = [int((top + (i + 0.5) / SIZE[0] * (bottom - top)) * 20) for i in range(SIZE[0])]
            columns = [int((left + (j + 0.5) / SIZE[1] * (right - left)) * 20) for j in range(SIZE[1])]
            expected = masks[k][rows][:, columns]
            expected = expected[:, ::-1] if flips[k] else expected
            assert (result[k] == expected).mean() > 0.97  # float32 may round a center to the neighbor
    with pytest.raises(ConfigError, match="`augment` needs `seeds` in training, got None"):
        augment_masks(tf.constant(masks), None, None, None, SIZE, True)


@pytest.mark.slow
def test_masks_are_cropped_by_a_compiled_function(manifest: tfpipe.Manifest) -> None:
    (batch, *_) = read(manifest, make_config(augment="device", decoded_size=20))
    assert (batch[MASK_NAME].shape, batch[MASK_NAME].dtype) == ((6, 20, 20), np.int32)
    arguments = [tf.constant(batch[name]) for name in ("seed", "height", "width")]
    masks = augment_masks(tf.constant(batch[MASK_NAME]), *arguments, SIZE, True)
    compiled = tf.function(augment_masks, jit_compile=True)(tf.constant(batch[MASK_NAME]), *arguments, SIZE, True)
    assert (masks.numpy() == compiled.numpy()).mean() > 0.97
    plain = tfpipe.AugmentOptions(mean=(0.0, 0.0, 0.0), std=(1 / 255,) * 3)
    images = augment(tf.constant(batch["image"]), *arguments, SIZE, True, options=plain)
    assert (np.abs(images.numpy()[..., 0] - 40 * masks.numpy()) <= 1).mean() > 0.5


def test_a_decoder_elsewhere_gets_the_same_masks(manifest: tfpipe.Manifest) -> None:
    maker = open_data(manifest, "train", make_config(), Host())
    stored = maker.read(1, 2)
    masks = maker.make_others(stored, maker.choose_images(stored))[MASK_NAME]
    np.testing.assert_array_equal(masks, maker.make(1, 2)[MASK_NAME])
    assert masks.any()


def test_a_transform_cannot_have_a_mask(manifest: tfpipe.Manifest) -> None:
    with pytest.raises(ConfigError) as error:
        TorchBatches(manifest, "train", make_config(), transform=lambda image: image)
    assert str(error.value) == (
        "`transform` gets an image without its mask, so a batch cannot hold 'image/mask' as well. Leave one of them "
        "out."
    )
