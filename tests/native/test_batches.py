"""Crops and images of whole batches, from the operations of the native library."""

import os
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from tests.native.conftest import Draw
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.native import library
from tfpipe.native.jpeg import make_seekable
from tfpipe.pipeline.native_operations import Result, draw_crops
from tfpipe.pipeline.stages._crop_box import sample_crop_box, sample_flip
from tfpipe.pipeline.stages.decode import decode_and_resize

RESULT = Result((20, 30), "uint8", 8, AugmentOptions())


@pytest.mark.parametrize(
    ("options", "stored"),
    [
        (AugmentOptions(), None),
        (AugmentOptions(scale=(0.9, 1.0), ratio=(0.2, 5.0)), None),  # most images have no such box
        (AugmentOptions(), (256, 256)),
        (AugmentOptions(ratio=(1.0, 1.0)), (64, 100)),
    ],
    ids=str,
)
def test_crops_and_flips_are_tensorflows(options: AugmentOptions, stored: tuple[int, int] | None) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    seeds = rng.integers(-(2**31), 2**31, (400, 2)).astype(np.int32)
    sizes = np.where(rng.random((400, 2)) < 0.3, rng.integers(1, 9, (400, 2)), rng.integers(1, 40000, (400, 2)))

    @tf.function
    def draw_one(values: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        seed, size = values
        return sample_crop_box(seed, (size[0], size[1]), stored, options), sample_flip(seed)

    each = (tf.constant(seeds), tf.constant(sizes, tf.int32))
    boxes, flips = tf.map_fn(draw_one, each, fn_output_signature=(tf.int32, tf.bool))
    ours, our_flips = draw_crops(*each, stored, options)
    np.testing.assert_array_equal(ours, boxes)
    np.testing.assert_array_equal(our_flips, flips)


def test_sizes_without_a_pixel_are_refused() -> None:
    for size in ((0, 5), (5, -1)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"Image height and width must be positive\."):
            draw_crops(tf.zeros([1, 2], tf.int32), tf.constant([size]), None, AugmentOptions())
    with pytest.raises(tf.errors.InvalidArgumentError, match="needs two numbers of a seed and two of a size"):
        draw_crops(tf.zeros([1, 2], tf.int32), tf.ones([2, 2], tf.int32), None, AugmentOptions())


def make_batch(draw_jpeg: Draw) -> tuple[list[bytes], NDArray[np.int32], list[bool]]:
    rng = random.Random(5)
    images, boxes = [], []
    for k in range(23):
        height, width = rng.randint(20, 300), rng.randint(20, 300)
        data = draw_jpeg(height, width, subsampling=k % 3)
        images.append(make_seekable(data) if k % 2 else data)
        high, wide = rng.randint(1, height), rng.randint(1, width)
        boxes.append((rng.randint(0, height - high), rng.randint(0, width - wide), high, wide))
    return images, np.array(boxes, np.int32), [k % 2 == 0 for k in range(23)]


@pytest.mark.parametrize("threads", [1, 2, 40])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_a_batch_has_the_images_of_single_calls(draw_jpeg: Draw, threads: int, dtype: str) -> None:
    images, boxes, flips = make_batch(draw_jpeg)
    result = RESULT._replace(dtype=dtype)
    expected = [
        decode_and_resize(tf.constant(image), tf.constant(box), tf.constant(flip), result)
        for image, box, flip in zip(images, boxes, flips, strict=True)
    ]
    batch = decode_and_resize(tf.constant(images), tf.constant(boxes), tf.constant(flips), result, threads)
    assert batch.shape == [23, 20, 30, 3]
    np.testing.assert_array_equal(batch, tf.stack(expected))
    unflipped = decode_and_resize(tf.constant(images), tf.constant(boxes), None, result, threads)
    np.testing.assert_array_equal(unflipped[1::2], batch[1::2])


def test_batches_of_many_threads_at_once(draw_jpeg: Draw) -> None:
    images, boxes, flips = make_batch(draw_jpeg)
    inputs = [tf.constant(images), tf.constant(boxes), tf.constant(flips)]
    expected = decode_and_resize(*inputs, RESULT).numpy()

    def decode_part(count: int) -> NDArray[np.uint8]:
        return decode_and_resize(*(part[:count] for part in inputs), RESULT, 1 + count % 4).numpy()

    with ThreadPoolExecutor(6) as pool:
        for count, batch in zip(counts := [23, 1, 0, 7, 12] * 12, pool.map(decode_part, counts), strict=True):
            np.testing.assert_array_equal(batch, expected[:count])


def test_one_bad_image_or_box_ends_a_batch(draw_jpeg: Draw) -> None:
    images, boxes, flips = make_batch(draw_jpeg)
    for broken, size in (([*images[:-1], images[-1][:200]], 200), ([b"", *images[1:]], 0)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"Invalid JPEG data, size {size}"):
            decode_and_resize(tf.constant(broken), tf.constant(boxes), tf.constant(flips), RESULT, 2)
    boxes[11] = (0, 0, 5000, 5000)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Invalid JPEG data or crop window"):
        decode_and_resize(tf.constant(images), tf.constant(boxes), tf.constant(flips), RESULT, 2)
    operations = tf.load_op_library(library.OPERATIONS_PATH)
    with pytest.raises(tf.errors.InvalidArgumentError, match="needs a box of four numbers and a flip for each image"):
        operations.tfpipe_decode(
            images, boxes[:5], flips, "uint8", 1, 1, 1, 100, 1, True, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        )


def test_a_forked_process_has_threads_of_its_own(draw_jpeg: Draw) -> None:
    """The threads of the parent are not there, and the call ends all the same."""
    images, boxes, flips = make_batch(draw_jpeg)
    expected = decode_in_threads(images, boxes, flips)
    child = os.fork()
    if child == 0:
        os._exit(0 if decode_in_threads(images, boxes, flips) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0


def decode_in_threads(images: list[bytes], boxes: NDArray[np.int32], flips: list[bool]) -> bytes:
    batch = decode_and_resize(tf.constant(images), tf.constant(boxes), tf.constant(flips), RESULT, 3)
    return bytes(batch.numpy().tobytes())
