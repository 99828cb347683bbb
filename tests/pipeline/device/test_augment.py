"""The device's augmentations: against `tf.image`, with XLA and without, and what they draw."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import write_files
from tests.mask_files import MASK_NAME, make_masked_images
from tests.refusals import refusal
from tfpipe.errors import ConfigError
from tfpipe.format.image_form import ImageForm
from tfpipe.pipeline.device.augment import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    AugmentLayer,
    AugmentOptions,
    _draw_beta,
    augment,
    augment_masks,
    crop_and_resize,
    cutmix,
    mixup,
    normalize,
)
from tfpipe.readers.torch import TorchBatches


def both(function: Callable[..., Any], *args: Any, **tolerance: float) -> Any:
    """The result with XLA, after checking it against the result without."""
    compiled = tf.function(function, jit_compile=True, autograph=False)(*args)
    plain = tf.function(function, autograph=False)(*args)
    for one, other in zip(tf.nest.flatten(compiled), tf.nest.flatten(plain), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        close = {"rtol": 1e-5, "atol": 1e-5, **tolerance}
        np.testing.assert_allclose(np.float64(one.numpy()), np.float64(other.numpy()), **close)
    return compiled


def random_images(batch: int, height: int, width: int) -> Any:
    return tf.constant(np.random.default_rng(0).integers(0, 256, (batch, height, width, 3)).astype(np.uint8))


def draw_crops(count: int, seed: int = 0) -> tuple[Any, Any]:
    """Draws crops and flips, as a batch of the engine has them."""
    random = np.random.default_rng(seed)
    corners = np.sort(random.uniform(0, 1, (count, 2, 2)), axis=1)
    return tf.constant(corners.reshape(count, 4), tf.float32), tf.constant(random.integers(0, 2, count) == 1)


@pytest.mark.parametrize(
    ("alpha", "compiles"), [(0.2, False), (1.0, False), (3.0, False), pytest.param(3.0, True, marks=pytest.mark.slow)]
)
def test_beta_draws_have_the_moments_and_quantiles_of_the_distribution(alpha: float, compiles: bool) -> None:
    draw = tf.function(lambda seed: _draw_beta(seed, 20_000, alpha), jit_compile=compiles, autograph=False)
    draws = draw(tf.constant([3, 4])).numpy()
    assert draws.min() >= 0
    assert draws.max() <= 1
    assert abs(draws.mean() - 0.5) < 0.015
    assert draws.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)
    for x in (0.001, 0.05, 0.3, 0.5, 0.9):
        expected = float(tf.math.betainc(alpha, alpha, x))
        assert abs((draws < x).mean() - expected) < 0.015, x


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_normalize(dtype):
    images = random_images(2, 5, 4)
    result = both(lambda x: normalize(x, dtype), images, rtol=1e-2 if dtype == tf.bfloat16 else 1e-5)
    assert result.dtype == dtype
    expected = (images.numpy() / 255 - IMAGENET_MEAN) / IMAGENET_STD
    np.testing.assert_allclose(
        tf.cast(result, tf.float32).numpy(), expected, atol=1e-2 if dtype == tf.bfloat16 else 1e-5
    )
    np.testing.assert_array_equal(
        normalize(tf.cast(images, tf.float32), dtype).numpy(), normalize(images, dtype).numpy()
    )


# Crop and resize

PIXEL_BOXES = [(0, 0, 40, 50), (3, 7, 33, 29), (0, 40, 9, 50), (39, 0, 40, 50), (11, 12, 12, 13), (8, 5, 40, 45)]


@pytest.mark.parametrize(("size", "antialias"), [((24, 24), False), ((17, 60), True)])
def test_whole_pixel_boxes_agree_with_tf_image_up_to_the_border(size, antialias):
    images = random_images(len(PIXEL_BOXES), 40, 50)
    boxes = tf.constant(np.array(PIXEL_BOXES) / (40, 50, 40, 50), tf.float32)
    flips = tf.constant([False, True] * (len(PIXEL_BOXES) // 2))
    result = both(
        lambda i, b, f: crop_and_resize(i, b, f, size, antialias=antialias), images, boxes, flips, rtol=0, atol=0.01
    )
    assert result.shape == (len(PIXEL_BOXES), *size, 3)
    assert result.dtype == tf.float32
    for i, (ymin, xmin, ymax, xmax) in enumerate(PIXEL_BOXES):
        expected = tf.image.resize(images[i, ymin:ymax, xmin:xmax], size, antialias=antialias).numpy()
        np.testing.assert_allclose(result[i].numpy(), expected[:, ::-1] if flips[i] else expected, atol=0.05)


def test_a_box_between_pixels_shows_nothing_from_outside():
    image = np.zeros((1, 10, 10, 3), np.uint8)
    image[:, 2:8, 3:7] = 200
    # Pixels 2 to 7 and 3 to 6 are covered, at least in part.
    box = tf.constant([[0.23, 0.31, 0.77, 0.69]])
    for antialias in (False, True):
        result = crop_and_resize(tf.constant(image), box, None, 6, antialias=antialias).numpy()
        np.testing.assert_allclose(result, 200, atol=1e-3)


def test_bfloat16_products_stay_within_the_stated_error():
    images, (boxes, _) = random_images(16, 64, 64), draw_crops(16)
    exact = crop_and_resize(images, boxes, None, 48).numpy()
    rounded = tf.function(
        lambda i, b: crop_and_resize(i, b, None, 48, matmul_dtype=tf.bfloat16), jit_compile=True, autograph=False
    )(images, boxes)
    error = np.abs(rounded.numpy() - exact)
    assert rounded.dtype == tf.float32
    assert error.max() < 2.1
    assert error.mean() < 0.45


def test_an_empty_box_is_black_not_nan():
    assert not crop_and_resize(random_images(1, 8, 8), tf.constant([[0.5, 0.5, 0.5, 0.5]]), None, 4).numpy().any()


def test_augment_compiles_with_a_static_shape() -> None:
    args = (random_images(4, 32, 32), *draw_crops(4))
    take = lambda i, c, f, dtype=tf.float32: augment(i, c, f, (12, 16), dtype)  # noqa: E731
    result = both(take, *args, atol=1e-3)
    assert result.shape == (4, 12, 16, 3)
    function = tf.function(lambda *given: take(*given, dtype=tf.bfloat16), autograph=False)
    graph = function.get_concrete_function(*args)
    assert (graph.structured_outputs.shape, graph.structured_outputs.dtype) == ((4, 12, 16, 3), tf.bfloat16)


def test_several_images_of_a_record_are_cropped_one_by_one() -> None:
    images, (crops, flips) = random_images(6, 20, 24), draw_crops(6)
    alone = augment(images, crops, flips, 8)
    together = augment(
        *(tf.reshape(part, [2, 3, *part.shape[1:]]) for part in (images, crops, flips)), 8, options=AugmentOptions()
    )
    assert together.shape == (2, 3, 8, 8, 3)
    np.testing.assert_array_equal(tf.reshape(together, alone.shape), alone)


def test_masks_take_the_class_under_each_center() -> None:
    random = np.random.default_rng(0)
    masks, (crops, flips) = random.integers(0, 9, (6, 20, 25)).astype(np.int32), draw_crops(6)
    result = both(lambda m, c, f: augment_masks(m, c, f, (12, 9)), tf.constant(masks), crops, flips, rtol=0, atol=0)
    assert result.dtype == tf.int32
    for k, (top, left, bottom, right) in enumerate(crops.numpy().astype(np.float64)):
        rows = [int((top + (i + 0.5) / 12 * (bottom - top)) * 20) for i in range(12)]
        columns = [int((left + (j + 0.5) / 9 * (right - left)) * 25) for j in range(9)]
        expected = masks[k][rows][:, columns]
        np.testing.assert_array_equal(result[k], expected[:, ::-1] if flips[k] else expected)
    np.testing.assert_array_equal(
        augment_masks(tf.constant(masks), crops, None, 9)[0],
        augment_masks(tf.constant(masks), crops, tf.zeros([6], tf.bool), 9)[0],
    )


def test_layer_does_what_the_function_does_and_comes_back_from_its_config():
    images, (crops, flips) = random_images(4, 32, 32), draw_crops(4)
    expected = augment(images, crops, flips, (16, 16)).numpy()
    np.testing.assert_array_equal(AugmentLayer(16)(images, crops, flips).numpy(), expected)
    assert AugmentLayer(16, dtype="mixed_bfloat16")(images, crops).dtype == tf.bfloat16
    layer = AugmentLayer((8, 12), AugmentOptions(scale=(0.3, 0.9), flip=False, mean=(0.5, 0.5, 0.5)), name="crop")
    for again in (
        AugmentLayer.from_config(layer.get_config()),
        tf.keras.layers.deserialize(tf.keras.layers.serialize(layer)),
    ):
        assert (again.size, again.options, again.name) == ((8, 12), layer.options, "crop")


def test_layer_trains_evaluates_and_is_saved_inside_a_compiled_model(tmp_path):
    image = tf.keras.Input((16, 16, 3), dtype="uint8", name="image")
    crop, flip = tf.keras.Input((4,), name="crop"), tf.keras.Input((), dtype="bool", name="flip")
    pixels = AugmentLayer(8, name="augment")(image, crop, flip)
    assert pixels.shape == (None, 8, 8, 3)
    pooled = tf.keras.layers.GlobalAveragePooling2D()(pixels)
    model = tf.keras.Model([image, crop, flip], tf.keras.layers.Dense(2)(pooled))
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    inputs = [random_images(8, 16, 16), *draw_crops(8)]
    model.fit(inputs, tf.range(8) % 2, batch_size=4, epochs=1, verbose=0)
    predicted = model(inputs)
    model.save(tmp_path / "model.keras")
    again = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(inputs), predicted, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "compiles"),
    [(tf.float32, False), (tf.bfloat16, False), pytest.param(tf.float32, True, marks=pytest.mark.slow)],
)
def test_mixup_blends_images_as_labels(dtype: tf.DType, compiles: bool) -> None:
    images = tf.cast(tf.reshape(tf.range(8.0), [8, 1, 1, 1]) * tf.ones([8, 4, 4, 3]), dtype)
    labels = tf.one_hot(tf.range(8), 8)
    mix = tf.function(mixup, jit_compile=compiles, autograph=False)
    mixed, weights = mix(images, labels, tf.constant([1, 2]))
    assert (mixed.dtype, mixed.shape) == (dtype, images.shape)
    np.testing.assert_allclose(weights.numpy().sum(axis=1), 1, atol=1e-6)
    # An image is its number, so a mixture is the mean number of its label.
    expected = weights.numpy() @ np.arange(8)
    np.testing.assert_allclose(
        tf.cast(mixed[:, 0, 0, 0], tf.float32), expected, atol=0.05 if dtype == tf.bfloat16 else 1e-4
    )
    assert len(set(np.diag(weights.numpy()).tolist())) > 4
    _, other = mix(images, labels, tf.constant([1, 3]))
    assert not np.array_equal(other.numpy(), weights.numpy())


@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_cutmix_weighs_labels_by_area(compiles: bool) -> None:
    count = 64
    images = tf.reshape(tf.range(count), [count, 1, 1, 1]) * tf.ones([count, 20, 30, 3], tf.int32)
    images = tf.cast(images, tf.uint8)
    mix = tf.function(cutmix, jit_compile=compiles, autograph=False)
    mixed, weights = mix(images, tf.one_hot(tf.range(count), count), tf.constant([4, 2]))
    assert (mixed.dtype, mixed.shape) == (tf.uint8, images.shape)
    np.testing.assert_allclose(weights.numpy().sum(axis=1), 1, atol=1e-6)
    own = mixed.numpy()[..., 0] == np.arange(count)[:, None, None]
    partner = mixed.numpy()[..., 0] == np.arange(count)[::-1, None, None]
    assert (own ^ partner).all()
    np.testing.assert_allclose(np.diag(weights.numpy()), own.mean(axis=(1, 2)), atol=1e-6)
    assert 0.2 < partner.mean(axis=(1, 2)).mean() < 0.5  # half as drawn, less what the border cuts off
    # Each patch is one rectangle.
    for area in partner:
        rows, columns = area.any(axis=1), area.any(axis=0)
        assert area.sum() == rows.sum() * columns.sum()


def test_the_device_crops_images_and_masks_as_the_host_does(tmp_path: Path) -> None:
    """PNGs, so that pixels are exact."""
    form, size = ImageForm(square=20), (12, 9)
    make_dataset(write_files(tmp_path / "in", make_masked_images(18)), tmp_path / "out", num_shards=3, form=form)
    config = tfpipe.PipelineConfig(batch_size=6, image_size=size, seed=4, extra_features=(MASK_NAME,))
    plain = AugmentOptions(mean=(0.0, 0.0, 0.0), std=(1 / 255,) * 3)
    crop = tf.function(lambda *part: (augment(*part[1:], size, options=plain), augment_masks(part[0], *part[2:], size)),
                       jit_compile=True, autograph=False)  # fmt: skip
    for training in (True, False):
        on_host, on_device = (
            tfpipe.build_dataset(tmp_path / "out", "train", config, training=training, augment=where).take(5)
            for where in ("host", "device")
        )
        for host, device in zip(on_host, on_device, strict=True):
            assert (device[MASK_NAME].shape, device[MASK_NAME].dtype) == ((6, 20, 20), np.int32)
            assert (host[MASK_NAME].shape, host[MASK_NAME].dtype) == ((6, *size), np.int32)
            images, masks = crop(*(device[name] for name in (MASK_NAME, "image", "crop", "flip")))
            np.testing.assert_allclose(images, host["image"], atol=0.51)  # which is rounded
            # float32 may round a center to the neighbor.
            assert (masks.numpy() == host[MASK_NAME].numpy()).mean() > 0.97
    assert refusal(ConfigError, TorchBatches, tmp_path / "out", "train", config, transform=lambda image: image) == (
        "`transform` gets an image without its mask, so a batch cannot hold 'image/mask' as well. Leave one of them "
        "out."
    )
