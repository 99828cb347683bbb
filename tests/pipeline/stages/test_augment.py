"""Augmentation by TensorFlow's operations: each mode, and that its pixels agree with those of the device."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.pipeline.stages.test_decode import JPEG, draw, jpeg
from tests.refusals import refusal
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import StoredImages
from tfpipe.errors import ConfigError
from tfpipe.pipeline.device import augment
from tfpipe.pipeline.stages import (
    augment_on_host,
    center_crop_box,
    choose_crop,
    convert_values,
    decode_crop,
    decode_image,
    find_crop,
    resize_image,
    sample_crop_box,
    sample_flip,
)

RAW = StoredImages(frozenset(["RAW"]), (32, 32))
OPTIONS = AugmentOptions()


def record(encoded: bytes, height: int, width: int) -> dict[str, Any]:
    sizes = {"height": tf.constant(height, tf.int64), "width": tf.constant(width, tf.int64)}
    return {"encoded": tf.constant(encoded), **sizes}


def seeds_of(count: int, seed: int = 0) -> Any:
    return tf.constant(np.random.default_rng(seed).integers(-(2**31), 2**31, (count, 2)), tf.int32)


def config(**options: Any) -> PipelineConfig:
    return PipelineConfig(**{"batch_size": 8, "image_size": 16, **options})


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("crop_box", [(0, 0, 40, 50), (3, 7, 30, 22), (39, 0, 1, 50), (5, 40, 35, 10)])
def test_host_and_device_agree(crop_box, antialias) -> None:
    encoded, out = jpeg(draw(40, 50)), (24, 28)
    host = resize_image(decode_crop(tf.constant(encoded), tf.constant(crop_box), (40, 50), JPEG), out, antialias)
    y, x, height, width = crop_box
    box = np.array([[y / 40, x / 50, (y + height) / 40, (x + width) / 50]], np.float32)
    image = decode_image(encoded, JPEG)[None]
    other = augment.crop_and_resize(image, tf.constant(box), None, out, antialias=antialias)[0]
    assert host.dtype == tf.float32
    np.testing.assert_allclose(host, other, atol=1)
    assert np.abs(host - other).mean() < 0.05


def test_uint8_is_the_nearest_and_floats_are_the_devices() -> None:
    image = tf.constant(np.random.default_rng(0).uniform(0, 255, (5, 7, 3)), tf.float32)
    np.testing.assert_array_equal(convert_values(image, "uint8", OPTIONS), np.floor(image.numpy() + np.float32(0.5)))
    ends = tf.constant([[[0.0, 254.5, 255.0]]])
    assert convert_values(ends, "uint8", OPTIONS).numpy().tolist() == [[[0, 255, 255]]]
    options = AugmentOptions(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 0.125))
    for dtype in (tf.float32, tf.bfloat16):
        expected = augment.normalize(image, dtype, options.mean, options.std)
        result = convert_values(image, dtype.name, options)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result.numpy(), expected.numpy())


@pytest.mark.parametrize(
    ("dtype", "training", "flip"),
    [("uint8", True, True), ("float32", True, False), ("bfloat16", True, True), ("uint8", False, True)],
)
def test_host_mode(dtype, training, flip) -> None:
    options = AugmentOptions(flip=flip)
    run_config = config(image_dtype=dtype, training=training, image_size=(12, 16), augment_options=options)
    features = record(jpeg(draw(60, 90)), 60, 90)

    @tf.autograph.experimental.do_not_convert
    def whole(seed: Any) -> Any:
        crop_box, flipped, size = find_crop(features, seed, JPEG, run_config)
        assert (flipped is not None) == (training and flip)
        return augment_on_host(decode_crop(features["encoded"], crop_box, size, JPEG), flipped, run_config)

    dataset = tf.data.Dataset.from_tensor_slices(seeds_of(6)).map(whole)
    assert dataset.element_spec == tf.TensorSpec((12, 16, 3), tf.as_dtype(dtype))
    results = np.stack([image.numpy() for image in dataset])
    assert len({image.tobytes() for image in results}) == (6 if training else 1)
    if training:
        seed = seeds_of(6)[4]
        crop_box = sample_crop_box(seed, (60, 90), None, options)
    else:
        seed, crop_box = None, center_crop_box((60, 90), None, (12, 16), 0.875)
    image = decode_crop(features["encoded"], crop_box, (60, 90), JPEG)
    image = resize_image(image, (12, 16))
    image = convert_values(image, dtype, options)
    if training and flip and sample_flip(seed):
        image = image[:, ::-1]
    np.testing.assert_array_equal(results[4], image.numpy())


@pytest.mark.parametrize("size", [(1, 1), (37, 500), (256, 512), (256, 513)], ids=str)
@pytest.mark.parametrize("is_static", [True, False], ids=["static", "dynamic"])
def test_what_is_converted_before_the_resize_comes_out_the_same(size: tuple[int, int], is_static: bool) -> None:
    image = np.random.default_rng(sum(size)).integers(0, 256, (*size, 3), np.uint8)
    expected = tf.image.resize(tf.constant(image), (120, 101)).numpy()
    spec = tf.TensorSpec((*size, 3) if is_static else (None, None, 3), tf.uint8)
    resize = tf.function(lambda pixels: resize_image(pixels, (120, 101)), [spec], autograph=False)
    np.testing.assert_array_equal(resize(image).numpy().view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("training", [True, False])
def test_a_squeezed_image_is_cropped_in_the_shape_of_its_original(training: bool) -> None:
    features, run_config, seed = record(bytes(32 * 32 * 3), 100, 300), config(training=training), seeds_of(1)[0]
    stored, flip, size = find_crop(features, seed, RAW, run_config)
    assert [int(side) for side in size] == [32, 32]
    cached, again = choose_crop((32, 32), (100, 300), seed, run_config)
    np.testing.assert_array_equal(stored, cached)
    assert stored[2] > stored[3]  # squeezed as the whole is
    assert (flip is None, again is None) == (not training, not training)
    if training:
        assert bool(flip) == bool(again) == bool(sample_flip(seed))
    alone, _, _ = find_crop({"encoded": features["encoded"]}, seed, RAW, run_config)
    np.testing.assert_array_equal(alone, choose_crop((32, 32), None, seed, run_config)[0])


def test_random_crops_need_a_seed() -> None:
    assert refusal(ConfigError, find_crop, record(jpeg(draw(9, 9)), 9, 9), None, JPEG, config()) == (
        "Random crops need a seed for each record, got None. Give two int32, or set `training` off."
    )
