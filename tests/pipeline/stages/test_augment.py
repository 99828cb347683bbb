"""Augmentation on the host: each mode, and that its pixels agree with those of the device."""

import io
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.stored_images import StoredImages
from tfpipe.errors import ConfigError
from tfpipe.pipeline.device import augment
from tfpipe.pipeline.stages import _crop_box
from tfpipe.pipeline.stages.augment import augment_on_host, convert_values, crop_for_host, resize_image
from tfpipe.pipeline.stages.decode import decode_crop, decode_for_device, decode_for_host, decode_image, decode_whole

JPEG, RAW = StoredImages(frozenset(["JPEG"])), StoredImages(frozenset(["RAW"]), (32, 32))
OPTIONS = AugmentOptions()


def draw(height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 17 + y / 29), np.cos(x / 11 - y / 23), np.sin((x + y) / 7)]
    return (128 + 100 * np.stack(waves, -1)).astype(np.uint8)


def jpeg(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, subsampling=0)
    return file.getvalue()


def record(encoded: bytes, height: int, width: int) -> dict[str, Any]:
    sizes = {"image/height": tf.constant(height, tf.int64), "image/width": tf.constant(width, tf.int64)}
    return {"image/encoded": tf.constant(encoded), **sizes}


def seeds_of(count: int, seed: int = 0) -> Any:
    return tf.constant(np.random.default_rng(seed).integers(-(2**31), 2**31, (count, 2)), tf.int32)


def config(**options: Any) -> PipelineConfig:
    return PipelineConfig(**{"batch_size": 8, "image_size": 16, **options})


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("crop_box", [(0, 0, 40, 50), (3, 7, 30, 22), (39, 0, 1, 50), (5, 40, 35, 10)])
def test_host_and_device_agree(crop_box, antialias) -> None:
    encoded, out = jpeg(draw(40, 50)), (24, 28)
    host = resize_image(decode_crop(encoded, tf.constant(crop_box), (40, 50), out, JPEG, False), out, antialias)
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


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("flip", [True, False])
def test_host_mode(dtype, training, flip) -> None:
    options = AugmentOptions(flip=flip)
    run_config = config(image_dtype=dtype, training=training, image_size=(12, 16), augment_options=options)
    features = record(jpeg(draw(60, 90)), 60, 90)

    @tf.autograph.experimental.do_not_convert
    def whole(seed: Any) -> Any:
        image, _, flipped = decode_for_host(features, seed, JPEG, run_config)
        assert (flipped is not None) == (training and flip)
        return augment_on_host(image, flipped, run_config)

    dataset = tf.data.Dataset.from_tensor_slices(seeds_of(6)).map(whole)
    assert dataset.element_spec == tf.TensorSpec((12, 16, 3), tf.as_dtype(dtype))
    results = np.stack([image.numpy() for image in dataset])
    assert len({image.tobytes() for image in results}) == (6 if training else 1)
    if training:
        seed = seeds_of(6)[4]
        crop_box = _crop_box.sample_crop_box(seed, (60, 90), None, options)
    else:
        seed, crop_box = None, _crop_box.center_crop_box((60, 90), None, (12, 16), 0.875)
    image = decode_crop(features["image/encoded"], crop_box, (60, 90), (12, 16), JPEG, True)
    image = resize_image(image, (12, 16))
    image = convert_values(image, dtype, options)
    if training and flip and _crop_box.sample_flip(seed):
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


def test_flips_mirror() -> None:
    image, run_config = tf.constant(draw(20, 24)), config(image_dtype="uint8")
    plain = augment_on_host(image, None, run_config).numpy()
    np.testing.assert_array_equal(augment_on_host(image, tf.constant(False), run_config), plain)
    np.testing.assert_array_equal(augment_on_host(image, tf.constant(True), run_config), plain[:, ::-1])


@pytest.mark.parametrize("training", [True, False])
def test_a_decoded_image_is_cropped_as_a_stored_one(training) -> None:
    pixels, run_config, seed = draw(32, 32), config(training=training), seeds_of(1)[0]
    stored, _, flip = decode_for_host(record(pixels.tobytes(), 100, 300), seed, RAW, run_config)
    cached, _, again = crop_for_host(tf.constant(pixels), (100, 300), seed, run_config)
    np.testing.assert_array_equal(stored, cached)
    assert stored.shape[0] > stored.shape[1]  # squeezed as the whole is
    assert (flip is None, again is None) == (not training, not training)
    if training:
        assert bool(flip) == bool(again) == bool(_crop_box.sample_flip(seed))
    alone, _, _ = decode_for_host({"image/encoded": tf.constant(pixels.tobytes())}, seed, RAW, run_config)
    np.testing.assert_array_equal(alone, crop_for_host(tf.constant(pixels), None, seed, run_config)[0])


def test_device_mode_hands_over_whole_images_of_one_size() -> None:
    run_config, pixels = config(augment="device"), draw(60, 90)
    features, encoded = record(jpeg(pixels), 60, 90), jpeg(pixels)
    function = tf.function(lambda: decode_for_device(features, JPEG, run_config, (40, 48)), autograph=False)
    graph = function.get_concrete_function()
    assert graph.output_shapes == (40, 48, 3)
    expected = convert_values(resize_image(decode_image(encoded, JPEG), (40, 48)), "uint8", OPTIONS)
    np.testing.assert_array_equal(graph(), expected)
    # What is stored in that size is handed over as it is.
    raw = draw(32, 32)
    np.testing.assert_array_equal(decode_for_device(record(raw.tobytes(), 60, 90), RAW, run_config, (32, 32)), raw)
    # Twice as large on both sides: reduced while decoding.
    half = decode_for_device(features, JPEG, run_config, (30, 45))
    np.testing.assert_array_equal(half, tf.io.decode_jpeg(encoded, ratio=2, channels=3))


@pytest.mark.parametrize("dct_scaling", [True, False])
def test_mode_none_shows_the_whole_image(dct_scaling) -> None:
    run_config, features = (
        config(augment="none", augment_options=AugmentOptions(dct_scaling=dct_scaling)),
        record(jpeg(draw(60, 90)), 60, 90),
    )
    image = decode_whole(features, JPEG, run_config.size, run_config)
    assert image.shape == ((30, 45, 3) if dct_scaling else (60, 90, 3))
    result = augment_on_host(image, None, run_config).numpy().astype(float)
    whole = tf.image.resize(tf.io.decode_jpeg(features["image/encoded"]), (16, 16), antialias=True)
    assert np.abs(result - whole).mean() < 12


def test_random_crops_need_a_seed() -> None:
    with pytest.raises(ConfigError) as caught:
        decode_for_host(record(jpeg(draw(9, 9)), 9, 9), None, JPEG, config())
    assert str(caught.value) == (
        "Random crops need a seed for each record, got None. Give two int32, or set `training` off."
    )
