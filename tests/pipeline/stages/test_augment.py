"""Augmentation on the host: what is drawn, and that pixels agree with `device.py`."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

tf = pytest.importorskip("tensorflow")

from tfpipe.errors import ConfigError  # noqa: E402
from tfpipe.pipeline.config.augment_config import AugmentOptions  # noqa: E402
from tfpipe.pipeline.config.pipeline_config import PipelineConfig  # noqa: E402
from tfpipe.pipeline.device import augment  # noqa: E402
from tfpipe.pipeline.plan.stored_images import StoredImages  # noqa: E402
from tfpipe.pipeline.stages import _crop_box  # noqa: E402
from tfpipe.pipeline.stages.augment import augment_on_host, convert_values, crop_for_host, resize_image  # noqa: E402
from tfpipe.pipeline.stages.decode import (  # noqa: E402
    decode_crop,
    decode_for_device,
    decode_for_host,
    decode_image,
    decode_whole,
)

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


def mapped(function: Any, *elements: Any, parallel: int | None = None) -> np.ndarray:
    """One value for each element, by a `tf.data` map."""
    dataset = tf.data.Dataset.from_tensor_slices(elements).map(function, num_parallel_calls=parallel)
    return next(iter(dataset.batch(len(elements[0])))).numpy()


def config(**options: Any) -> PipelineConfig:
    return PipelineConfig(**{"global_batch_size": 8, "image_size": 16, **options})


# Windows


def check_area_and_aspect(height: np.ndarray, width: np.ndarray, sizes: np.ndarray, slack: float) -> np.ndarray:
    """Within the options but for whole pixels; those that are the whole image left out. The shares of area."""
    whole = (height == sizes[:, 0]) & (width == sizes[:, 1])
    area, aspect = height * width / sizes.prod(1), width / height
    assert whole.mean() < 0.05
    assert area[~whole].min() > 0.08 - slack
    assert area.max() <= 1
    assert aspect[~whole].min() > 0.75 - slack
    assert aspect[~whole].max() < 4 / 3 + slack
    return area


def test_crops_keep_area_and_aspect_within_bounds():
    sizes = np.random.default_rng(1).integers(200, 600, (3000, 2)).astype(np.int32)
    windows = mapped(lambda s, n: _crop_box.sample_crop_box(s, (n[0], n[1]), None, OPTIONS), seeds_of(3000), sizes)
    assert windows.dtype == np.int32
    y, x, height, width = windows.T
    assert (windows >= [0, 0, 1, 1]).all()
    assert (y + height <= sizes[:, 0]).all()
    assert (x + width <= sizes[:, 1]).all()
    area = check_area_and_aspect(height, width, sizes, 0.02)
    assert 0.31 < area.mean() < 0.37
    # Uniform places: the free room is shared out evenly on average.
    room = sizes[:, 0] - height
    assert abs((y / np.maximum(room, 1))[room > 10].mean() - 0.5) < 0.02


def test_crops_of_a_squeezed_image_have_their_shape_in_the_original():
    originals = np.random.default_rng(2).integers(200, 600, (3000, 2)).astype(np.int32)
    windows = mapped(
        lambda s, n: _crop_box.sample_crop_box(s, (n[0], n[1]), (256, 128), OPTIONS), seeds_of(3000), originals
    )
    y, x, height, width = windows.T
    assert (windows >= [0, 0, 1, 1]).all()
    assert (y + height).max() <= 256
    assert (x + width).max() <= 128
    check_area_and_aspect(height / 256 * originals[:, 0], width / 128 * originals[:, 1], originals, 0.05)
    # The same window as of the original, up to a pixel.
    plain = mapped(lambda s, n: _crop_box.sample_crop_box(s, (n[0], n[1]), None, OPTIONS), seeds_of(3000), originals)
    scale = np.tile([256, 128] / originals, 2)
    assert np.abs(plain * scale - windows).max() <= 1.01


@pytest.mark.parametrize(
    ("original", "stored"), [((1, 1), None), ((600, 3), (2, 2)), ((3, 600), (1, 1)), ((1, 9), None)]
)
def test_tiny_images_have_windows_of_a_pixel_at_least(original, stored):
    for function in (
        lambda s: _crop_box.sample_crop_box(s, original, stored, OPTIONS),
        lambda s: _crop_box.center_crop_box(original, stored, (224, 224), 0.875),
    ):
        windows = mapped(function, seeds_of(50))
        extent = np.array(stored or original)
        assert (windows[:, :2] >= 0).all()
        assert (windows[:, 2:] >= 1).all()
        assert (windows[:, :2] + windows[:, 2:] <= extent).all()


def test_where_no_crop_fits_it_is_the_whole_image():
    options = AugmentOptions(scale=(0.99, 1.0), ratio=(3.0, 3.0))
    windows = mapped(lambda s: _crop_box.sample_crop_box(s, (100, 100), None, options), seeds_of(5))
    np.testing.assert_array_equal(windows, [[0, 0, 100, 100]] * 5)


def test_draws_are_a_function_of_the_seed_alone():
    def both(seed: Any) -> Any:
        window = _crop_box.sample_crop_box(seed, (300, 400), None, OPTIONS)
        return tf.concat([window, [tf.cast(_crop_box.sample_flip(seed), tf.int32)]], 0)

    once = mapped(both, seeds_of(200))
    np.testing.assert_array_equal(mapped(both, seeds_of(200), parallel=4), once)
    np.testing.assert_array_equal(mapped(both, seeds_of(200)[100:]), once[100:])
    assert len({tuple(row) for row in once}) == 200


@pytest.mark.parametrize("seeds", [seeds_of(4000), tf.stack([tf.zeros(4000, tf.int32), tf.range(4000)], 1)])
def test_half_are_flipped_whatever_the_window(seeds):
    flips = mapped(_crop_box.sample_flip, seeds)
    assert flips.dtype == bool
    assert abs(flips.mean() - 0.5) < 0.03
    windows = mapped(lambda s: _crop_box.sample_crop_box(s, (500, 500), None, OPTIONS), seeds)
    for column in (*windows.T, windows[:, 3] / windows[:, 2]):
        assert abs(np.corrcoef(flips, column)[0, 1]) < 0.05


@pytest.mark.parametrize("out", [(224, 224), (100, 200)])
def test_center_windows_are_the_devices_boxes_in_whole_pixels(out):
    sizes = np.random.default_rng(3).integers(1, 600, (300, 2)).astype(np.int32)
    boxes = augment.center_crop_boxes(sizes[:, 0], sizes[:, 1], 0.875, out[1] / out[0]).numpy()
    for stored in (None, (256, 300)):
        windows = mapped(lambda n, s=stored: _crop_box.center_crop_box((n[0], n[1]), s, out, 0.875), sizes)
        exact = boxes * np.tile(sizes if stored is None else [stored] * 300, 2)
        exact[:, 2:] -= exact[:, :2]
        assert np.abs(exact - windows).max() <= 1
    assert _crop_box.center_crop_box((256, 512), None, (224, 224), 0.875).numpy().tolist() == [16, 144, 224, 224]
    assert _crop_box.center_crop_box((256, 512), (256, 256), (224, 224), 0.875).numpy().tolist() == [16, 72, 224, 112]


# Pixels


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("window", [(0, 0, 40, 50), (3, 7, 30, 22), (39, 0, 1, 50), (5, 40, 35, 10)])
def test_host_and_device_agree(window, antialias):
    encoded, out = jpeg(draw(40, 50)), (24, 28)
    host = resize_image(decode_crop(encoded, tf.constant(window), out, JPEG, False), out, antialias)
    y, x, height, width = window
    box = np.array([[y / 40, x / 50, (y + height) / 40, (x + width) / 50]], np.float32)
    image = decode_image(encoded, JPEG)[None]
    other = augment.crop_and_resize(image, tf.constant(box), None, out, antialias=antialias)[0]
    assert host.dtype == tf.float32
    np.testing.assert_allclose(host, other, atol=1)
    assert np.abs(host - other).mean() < 0.05


def test_uint8_is_the_nearest_and_floats_are_the_devices():
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


# Modes


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("flip", [True, False])
def test_host_mode(dtype, training, flip):
    options = AugmentOptions(flip=flip)
    asked = config(image_dtype=dtype, training=training, image_size=(12, 16), augment_options=options)
    features = record(jpeg(draw(60, 90)), 60, 90)

    def whole(seed: Any) -> Any:
        image, flipped = decode_for_host(features, seed, JPEG, asked)
        assert (flipped is not None) == (training and flip)
        return augment_on_host(image, flipped, asked)

    dataset = tf.data.Dataset.from_tensor_slices(seeds_of(6)).map(whole)
    assert dataset.element_spec == tf.TensorSpec((12, 16, 3), tf.as_dtype(dtype))
    results = np.stack([image.numpy() for image in dataset])
    assert len({image.tobytes() for image in results}) == (6 if training else 1)
    if training:
        seed = seeds_of(6)[4]
        window = _crop_box.sample_crop_box(seed, (60, 90), None, options)
    else:
        seed, window = None, _crop_box.center_crop_box((60, 90), None, (12, 16), 0.875)
    image = resize_image(decode_crop(features["image/encoded"], window, (12, 16), JPEG, True), (12, 16))
    image = convert_values(image, dtype, options)
    if training and flip and _crop_box.sample_flip(seed):
        image = image[:, ::-1]
    np.testing.assert_array_equal(results[4], image.numpy())


def test_flips_mirror():
    image, asked = tf.constant(draw(20, 24)), config(image_dtype="uint8")
    plain = augment_on_host(image, None, asked).numpy()
    np.testing.assert_array_equal(augment_on_host(image, tf.constant(False), asked), plain)
    np.testing.assert_array_equal(augment_on_host(image, tf.constant(True), asked), plain[:, ::-1])


@pytest.mark.parametrize("training", [True, False])
def test_a_decoded_image_is_cropped_as_a_stored_one(training):
    pixels, asked, seed = draw(32, 32), config(training=training), seeds_of(1)[0]
    stored, flip = decode_for_host(record(pixels.tobytes(), 100, 300), seed, RAW, asked)
    cached, again = crop_for_host(tf.constant(pixels), (100, 300), seed, asked)
    np.testing.assert_array_equal(stored, cached)
    assert stored.shape[0] > stored.shape[1]  # squeezed as the whole is
    assert flip is again is None or bool(flip) == bool(again)
    without = {"image/encoded": tf.constant(pixels.tobytes())}
    alone, _ = decode_for_host(without, seed, RAW, asked)
    np.testing.assert_array_equal(alone, crop_for_host(tf.constant(pixels), None, seed, asked)[0])


def test_device_mode_hands_over_whole_images_of_one_size():
    asked, pixels = config(augment="device"), draw(60, 90)
    features, encoded = record(jpeg(pixels), 60, 90), jpeg(pixels)
    graph = tf.function(lambda: decode_for_device(features, JPEG, asked, (40, 48))).get_concrete_function()
    assert graph.output_shapes == (40, 48, 3)
    expected = convert_values(resize_image(decode_image(encoded, JPEG), (40, 48)), "uint8", OPTIONS)
    np.testing.assert_array_equal(graph(), expected)
    # What is stored in that size is handed over as it is.
    raw = draw(32, 32)
    same = decode_for_device(record(raw.tobytes(), 60, 90), RAW, asked, (32, 32))
    np.testing.assert_array_equal(same, raw)
    # Twice as large on both sides: reduced while decoding.
    half = decode_for_device(features, JPEG, asked, (30, 45))
    np.testing.assert_array_equal(half, tf.io.decode_jpeg(encoded, ratio=2, channels=3))


@pytest.mark.parametrize("dct_scaling", [True, False])
def test_mode_none_shows_the_whole_image(dct_scaling):
    asked, features = config(augment="none", dct_scaling=dct_scaling), record(jpeg(draw(60, 90)), 60, 90)
    image = decode_whole(features, JPEG, asked)
    assert image.shape == ((30, 45, 3) if dct_scaling else (60, 90, 3))
    result = augment_on_host(image, None, asked).numpy().astype(float)
    whole = tf.image.resize(tf.io.decode_jpeg(features["image/encoded"]), (16, 16), antialias=True)
    assert np.abs(result - whole).mean() < 12


def test_random_crops_need_a_seed():
    with pytest.raises(ConfigError) as caught:
        decode_for_host(record(jpeg(draw(9, 9)), 9, 9), None, JPEG, config())
    assert str(caught.value) == (
        "Random crops need a seed for each record, got None. Give two int32, or set `training` off."
    )
