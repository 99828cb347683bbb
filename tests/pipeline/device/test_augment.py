"""The device's augmentations: against `tf.image`, with XLA and without, and what they draw."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfpipe.errors import ConfigError  # noqa: E402
from tfpipe.pipeline.device import random_boxes as drawing  # noqa: E402
from tfpipe.pipeline.device.augment import (  # noqa: E402
    IMAGENET_MEAN,
    IMAGENET_STD,
    AugmentLayer,
    AugmentOptions,
    augment,
    center_crop_boxes,
    crop_and_resize,
    cutmix,
    mixup,
    normalize,
    sample_crop_boxes,
    sample_flips,
)


def both(function: Callable[..., Any], *args: Any, **tolerance: float) -> Any:
    """The result with XLA, after checking it against the result without."""
    compiled = tf.function(function, jit_compile=True, autograph=False)(*args)
    plain = tf.function(function, autograph=False)(*args)
    for one, other in zip(tf.nest.flatten(compiled), tf.nest.flatten(plain), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        close = {"rtol": 1e-5, "atol": 1e-5, **tolerance}
        np.testing.assert_allclose(np.float64(one.numpy()), np.float64(other.numpy()), **close)
    return compiled


def random_images(batch: int, height: int, width: int) -> Any:
    return tf.constant(np.random.default_rng(0).integers(0, 256, (batch, height, width, 3)).astype(np.uint8))


def seeds_of(count: int, seed: int = 0) -> Any:
    return tf.constant(np.random.default_rng(seed).integers(-(2**31), 2**31, (count, 2)), tf.int32)


def test_generator_gives_the_published_answers():
    # Random123's kat_vectors, threefry2x32 with 20 rounds: counter, key, answer.
    known = [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ]
    for (high, low), key, answer in known:
        seed = tf.bitcast(tf.constant([key], tf.uint32), tf.int32)
        words = drawing._threefry(seed, tf.constant(high, tf.uint32), tf.constant([[low]], tf.uint32))
        assert tuple(int(word[0, 0]) for word in words) == answer


def test_uniform_numbers_are_uniform_and_do_not_repeat():
    numbers = both(lambda seeds: drawing.uniform(seeds, 0, 101), seeds_of(500), rtol=0, atol=0).numpy()
    assert numbers.shape == (500, 101)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=50, range=(0, 1))
    assert ((counts - 1010) ** 2 / 1010).sum() < 100  # chi squared, 49 degrees of freedom
    # Two words of one counter, neighbors and neighbouring seeds are unrelated.
    assert abs(np.corrcoef(numbers[:, 0], numbers[:, 51])[0, 1]) < 0.15
    assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.15
    assert not np.array_equal(numbers, drawing.uniform(seeds_of(500), 1, 101).numpy())


def test_split_seeds_differ_by_example_and_replica():
    seed = tf.constant([7, 9])
    first, second = drawing.split_seed(seed, 64).numpy(), drawing.split_seed(seed, 64, 1).numpy()
    assert len({*map(tuple, first), *map(tuple, second)}) == 128
    np.testing.assert_array_equal(drawing.split_seed(seed, 8).numpy(), first[:8])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_beta_draws_have_the_moments_and_quantiles_of_the_distribution(alpha):
    draws = both(lambda seeds: drawing.sample_beta(seeds, alpha), seeds_of(20_000), atol=1e-4).numpy()
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


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("size", [(24, 24), (17, 60)])
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


def test_the_whole_image_at_its_own_size_is_itself_and_a_flip_is_its_reverse():
    images = random_images(3, 16, 12)
    whole = tf.tile(tf.constant([[0.0, 0.0, 1.0, 1.0]]), [3, 1])
    np.testing.assert_allclose(crop_and_resize(images, whole, None, (16, 12)).numpy(), images.numpy(), atol=1e-3)
    boxes = sample_crop_boxes(seeds_of(3), [16] * 3, [12] * 3)
    plain = crop_and_resize(images, boxes, tf.zeros([3], tf.bool), 9).numpy()
    flipped = crop_and_resize(images, boxes, tf.ones([3], tf.bool), 9).numpy()
    np.testing.assert_allclose(flipped, plain[:, :, ::-1], atol=1e-3)


def test_bfloat16_products_stay_within_the_stated_error():
    images, boxes = random_images(16, 64, 64), sample_crop_boxes(seeds_of(16), [64] * 16, [64] * 16)
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


def test_crops_keep_area_and_aspect_within_bounds_in_the_original():
    count = 4000
    rng = np.random.default_rng(1)
    heights, widths = rng.integers(200, 600, count), rng.integers(200, 600, count)
    boxes = both(sample_crop_boxes, seeds_of(count), tf.constant(heights), tf.constant(widths)).numpy()
    assert boxes.shape == (count, 4)
    assert boxes.min() >= 0
    assert boxes.max() <= 1
    tall, wide = (boxes[:, 2] - boxes[:, 0]) * heights, (boxes[:, 3] - boxes[:, 1]) * widths
    area, aspect = tall * wide / (heights * widths), wide / tall
    assert area.min() > 0.0799
    assert area.max() <= 1
    assert aspect.min() > 0.7499
    assert aspect.max() < 1.3335
    assert abs(np.log(aspect).mean()) < 0.02
    # Of a square image nearly every draw up to half of the area fits, so it stays uniform there.
    square = sample_crop_boxes(seeds_of(count), [300] * count, [300] * count).numpy()
    small = (square[:, 2] - square[:, 0]) * (square[:, 3] - square[:, 1])
    small = small[small < 0.5]
    assert abs(small.mean() - 0.29) < 0.01
    # Uniform places: the free room is shared out evenly on average.
    room = 1 - (square[:, 2] - square[:, 0])
    assert abs((square[:, 0] / np.maximum(room, 1e-6))[room > 0.05].mean() - 0.5) < 0.02


def test_where_no_crop_fits_the_largest_allowed_one_is_centred():
    boxes = sample_crop_boxes(seeds_of(2), [100, 1000], [1000, 100], scale=(0.9, 1.0)).numpy()
    np.testing.assert_allclose(boxes[0], [0, 0.5 - 1 / 15, 1, 0.5 + 1 / 15], atol=1e-5)  # 100 high, 133 wide
    np.testing.assert_allclose(boxes[1], [0.5 - 1 / 15, 0, 0.5 + 1 / 15, 1], atol=1e-5)


def test_a_choice_depends_on_the_seed_alone_not_on_the_batch():
    seeds, heights, widths = seeds_of(9), tf.range(200, 209), tf.range(300, 291, -1)
    boxes, flips = sample_crop_boxes(seeds, heights, widths), sample_flips(seeds)
    images = random_images(9, 32, 32)
    whole = augment(images, seeds, heights, widths, 16, training=True).numpy()
    for i in (0, 4, 8):
        alone = slice(i, i + 1)
        np.testing.assert_array_equal(sample_crop_boxes(seeds[alone], heights[alone], widths[alone])[0], boxes[i])
        assert sample_flips(seeds[alone])[0] == flips[i]
        single = augment(images[alone], seeds[alone], heights[alone], widths[alone], 16, training=True).numpy()
        np.testing.assert_allclose(single[0], whole[i], atol=1e-4)
    assert len({tuple(box) for box in boxes.numpy()}) == 9


def test_half_are_flipped_whatever_the_crop():
    seeds = seeds_of(4000)
    flips = both(sample_flips, seeds).numpy()
    assert abs(flips.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(flips, sample_crop_boxes(seeds, [300] * 4000, [300] * 4000).numpy()[:, 1])[0, 1]) < 0.06


def test_center_crops_equal_resizing_the_short_side_and_cropping_the_middle():
    boxes = both(center_crop_boxes, tf.constant([256, 512, 300]), tf.constant([256, 256, 600])).numpy()
    np.testing.assert_allclose(boxes[0], [1 / 16, 1 / 16, 15 / 16, 15 / 16], atol=1e-6)
    np.testing.assert_allclose(boxes[1], [0.5 - 7 / 32, 1 / 16, 0.5 + 7 / 32, 15 / 16], atol=1e-6)
    np.testing.assert_allclose(boxes[2], [1 / 16, 0.5 - 7 / 32, 15 / 16, 0.5 + 7 / 32], atol=1e-6)
    wide = center_crop_boxes([300], [600], 1.0, aspect=1.5).numpy()[0]
    np.testing.assert_allclose(wide, [0, 0.125, 1, 0.875], atol=1e-6)  # 300 high, 450 wide


@pytest.mark.parametrize("training", [True, False])
def test_augment_compiles_with_a_static_shape(training):
    args = (random_images(4, 32, 32), seeds_of(4), tf.constant([20, 30, 40, 50]), tf.constant([50, 40, 30, 20]))
    result = both(lambda i, s, h, w: augment(i, s, h, w, (12, 16), training), *args, atol=1e-3)
    assert result.shape == (4, 12, 16, 3)
    function = tf.function(lambda *given: augment(*given, (12, 16), training, tf.bfloat16), autograph=False)
    graph = function.get_concrete_function(*args)
    assert graph.structured_outputs.shape == (4, 12, 16, 3)
    assert graph.structured_outputs.dtype == tf.bfloat16


def test_evaluation_needs_no_seed_and_never_changes():
    images = random_images(3, 32, 32)
    once = augment(images, None, None, None, 28, training=False).numpy()
    again = augment(images, seeds_of(3), [32] * 3, [32] * 3, 28, training=False).numpy()
    np.testing.assert_array_equal(once, again)
    # 28 of 32 is the default fraction: the middle, pixel for pixel.
    np.testing.assert_allclose(once, normalize(images[:, 2:-2, 2:-2]).numpy(), atol=1e-4)
    with pytest.raises(ConfigError, match="seeds"):
        augment(images, None, None, None, 28, training=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"scale": (0.0, 1.0)},
        {"scale": (0.5, 0.4)},
        {"ratio": (2.0, 1.0)},
        {"crop_fraction": 0},
        {"matmul_dtype": "int8"},
    ],
)
def test_wrong_options_are_named(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        AugmentOptions(**wrong)


def test_layer_does_what_the_function_does():
    images, seeds = random_images(4, 32, 32), seeds_of(4)
    layer = AugmentLayer(16)
    expected = augment(images, seeds, None, None, (16, 16), training=True).numpy()
    np.testing.assert_array_equal(layer(images, seeds, training=True).numpy(), expected)
    # Its own seeds: others each time, the same from the same seed.
    first, second = AugmentLayer(16, seed=3), AugmentLayer(16, seed=3)
    one, two = first(images, training=True).numpy(), first(images, training=True).numpy()
    assert not np.array_equal(one, two)
    np.testing.assert_array_equal(second(images, training=True).numpy(), one)
    np.testing.assert_array_equal(first(images).numpy(), second(images).numpy())
    assert AugmentLayer(16, dtype="mixed_bfloat16")(images).dtype == tf.bfloat16


def test_layer_comes_back_from_its_config():
    layer = AugmentLayer(
        (8, 12), AugmentOptions(scale=(0.3, 0.9), flip=False, mean=(0.5, 0.5, 0.5)), seed=5, name="crop"
    )
    for again in (
        AugmentLayer.from_config(layer.get_config()),
        tf.keras.layers.deserialize(tf.keras.layers.serialize(layer)),
    ):
        assert (again.size, again.options, again.seed, again.name) == ((8, 12), layer.options, 5, "crop")


def test_layer_trains_evaluates_and_is_saved_inside_a_compiled_model(tmp_path):
    image = tf.keras.Input((16, 16, 3), dtype="uint8", name="image")
    height, width = (tf.keras.Input((), dtype="int32", name=name) for name in ("height", "width"))
    pixels = AugmentLayer(8, seed=1, name="augment")(image, heights=height, widths=width)
    assert pixels.shape == (None, 8, 8, 3)
    pooled = tf.keras.layers.GlobalAveragePooling2D()(pixels)
    model = tf.keras.Model([image, height, width], tf.keras.layers.Dense(2)(pooled))
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=True)
    inputs = [random_images(8, 16, 16), tf.range(20, 28), tf.range(30, 38)]
    model.fit(inputs, tf.range(8) % 2, batch_size=4, epochs=2, verbose=0)
    predicted = model.predict(inputs, verbose=0)
    np.testing.assert_array_equal(model.predict(inputs, verbose=0), predicted)
    model.save(tmp_path / "model.keras")
    again = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(inputs, verbose=0), predicted, atol=1e-5)


REPLICAS = """
    import numpy as np, tensorflow as tf
    from tfpipe.pipeline.device.augment import AugmentLayer, augment

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layer = AugmentLayer(8, seed=1)
    image = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3)).astype(np.uint8)
    images, seeds = np.repeat(image, 8, 0), np.arange(16, dtype=np.int32).reshape(8, 2)

    @tf.function(jit_compile=True, autograph=False)
    def compiled(images, seeds):
        return augment(images, seeds, None, None, 8, training=True)

    @tf.function(autograph=False)
    def step(images, seeds):
        def replica(images, seeds):
            return compiled(images, seeds), layer(images, training=True)
        given, own = strategy.run(replica, args=(images, seeds))
        return strategy.gather(given, 0), strategy.gather(own, 0)

    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((images, seeds)).batch(8))
    given, own = step(*next(iter(dataset)))
    np.testing.assert_allclose(given, compiled(images, seeds), atol=1e-3)  # the batch in two halves is the batch
    assert len(np.unique(own.numpy().round(3), axis=0)) == 8  # replicas with one generator draw differently
    print("fine")
"""


@pytest.mark.slow
def test_two_replicas_draw_what_one_draws():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(REPLICAS)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.strip().endswith("fine"), done.stderr


@pytest.mark.parametrize("dtype", [pytest.param(tf.float32, marks=pytest.mark.slow), tf.bfloat16])
def test_mixup_blends_images_as_labels(dtype):
    images = tf.cast(tf.reshape(tf.range(8.0), [8, 1, 1, 1]) * tf.ones([8, 4, 4, 3]), dtype)
    labels = tf.one_hot(tf.range(8), 8)
    mixed, weights = both(mixup, images, labels, tf.constant([1, 2]), atol=0.05 if dtype == tf.bfloat16 else 1e-4)
    assert mixed.dtype == dtype
    assert mixed.shape == images.shape
    np.testing.assert_allclose(weights.numpy().sum(axis=1), 1, atol=1e-6)
    # An image is its number, so a mixture is the mean number of its label.
    expected = weights.numpy() @ np.arange(8)
    np.testing.assert_allclose(
        tf.cast(mixed[:, 0, 0, 0], tf.float32), expected, atol=0.05 if dtype == tf.bfloat16 else 1e-4
    )
    assert len(set(np.diag(weights.numpy()).tolist())) > 4
    _, other = mixup(images, labels, tf.constant([1, 3]))
    assert not np.array_equal(other.numpy(), weights.numpy())


def test_cutmix_weighs_labels_by_area():
    count = 64
    images = tf.reshape(tf.range(count), [count, 1, 1, 1]) * tf.ones([count, 20, 30, 3], tf.int32)
    images = tf.cast(images, tf.uint8)
    mixed, weights = both(cutmix, images, tf.one_hot(tf.range(count), count), tf.constant([4, 2]))
    assert mixed.dtype == tf.uint8
    assert mixed.shape == images.shape
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
