"""Stages and functions of the user's own, as the faults have them. Other processes find them by name."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image, ImageFilter

from tfpipe.pipeline.stage import Stage, Stages

_LOCK = threading.Lock()

# Python functions


def negate_red(image: Any, generator: Any = None) -> Any:
    """Inverts the red of every pixel in a loop, which holds Python's lock."""
    pixels = bytearray(np.asarray(image).tobytes())
    for k in range(0, len(pixels), 3):
        pixels[k] = 255 - pixels[k]
    return np.frombuffer(pixels, np.uint8).reshape(*np.asarray(image).shape)


def take(image: Any, generator: Any = None) -> Any:
    return np.asarray(image)


def blur_locked(image: Any, generator: Any = None) -> Any:
    """Blurs a crop with Pillow, which lets go of Python's lock, behind a lock of its own."""
    with _LOCK:
        return blur(image)


def blur(image: Any, generator: Any = None) -> Any:
    picture = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    return np.asarray(picture.filter(ImageFilter.GaussianBlur(2)))


def wait(value: Any, seconds: float, lock: Any = None) -> Any:
    """Waits as for the answer of a server, behind a lock if there is one."""
    if lock is None:
        time.sleep(seconds)
    else:
        with _LOCK:
            time.sleep(seconds)
    return value


def shrink(image: Any, generator: Any = None, then: Callable[[Any], Any] | None = None) -> Any:
    array = np.asarray(image.resize((224, 224), Image.Resampling.NEAREST))
    return array if then is None else then(array)


def sort_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """Sorts the pixels of each image: NumPy, which lets go of Python's lock."""
    return {**batch, "image": np.sort(batch["image"].reshape(len(batch["image"]), -1), axis=1)}


def call(features: Any, function: Callable[[Any], Any], key: str = "image") -> Any:
    value = features[key]
    return {**features, key: tf.ensure_shape(tf.numpy_function(function, [value], value.dtype), value.shape)}


def negate(features: Any) -> Any:
    """Inverts the red of every pixel with TensorFlow's operations."""
    mask = tf.constant([255, 0, 0] * 224**2, tf.uint8, [224, 224, 3])  # whole: to stretch one costs more
    return {**features, "image": tf.bitwise.bitwise_xor(features["image"], mask)}


def keep(features: Any) -> Any:
    return features


def widen(features: Any) -> Any:
    """Makes eight bytes of each byte of the images."""
    return {**features, "image": tf.cast(features["image"], tf.float64)}


def add_noise(features: Any) -> Any:
    """Adds noise; random operations keep tf.data from giving a map threads by itself."""
    image = tf.cast(features["image"], tf.float32)
    for _ in range(3):
        with tf.control_dependencies([image]):  # one after the other, not side by side
            image += tf.random.normal(image.shape, stddev=3.0)
    return {**features, "image": tf.saturate_cast(image, tf.uint8)}


def blur_widely(features: Any) -> Any:
    image = tf.cast(features["image"], tf.float32)[None]
    blurred = tf.nn.depthwise_conv2d(image, tf.ones([7, 7, 3, 1]) / 49, [1, 1, 1, 1], "SAME")[0]
    return {**features, "image": tf.saturate_cast(blurred, tf.uint8)}


def shrink_and_blur(features: Any) -> Any:
    small = tf.saturate_cast(tf.image.resize(features["image"], (256, 256)), tf.uint8)
    return blur_widely({**features, "image": tf.ensure_shape(small, [256, 256, 3])})


def without(stages: Stages) -> Stages:
    return stages


def add(stages: Stages, name: str, apply: Callable[[Any], Any], after: str = "augment", **declared: Any) -> Stages:
    return stages.insert_after(after, Stage(name, apply, **declared))


def add_map(stages: Stages, name: str, function: Callable[[Any], Any], calls: int | None = -1, **place: Any) -> Stages:
    return add(stages, name, lambda dataset: dataset.map(function, num_parallel_calls=calls), **place)


def add_call(stages: Stages, name: str, function: Callable[[Any], Any], key: str = "image", **place: Any) -> Stages:
    """Adds a map of a Python function of one feature."""
    return add_map(stages, name, partial(call, function=function, key=key), **place)


def add_shuffle(stages: Stages, after: str = "augment") -> Stages:
    """Shuffles 2,000 decoded images: single ones, or those of batches."""
    if after == "batch":
        return add(stages, "mix", lambda dataset: dataset.unbatch().shuffle(2000).batch(64), after)
    return add(stages, "mix", lambda dataset: dataset.shuffle(2000), after)


def add_cache(stages: Stages, after: str = "augment", in_file: bool = False) -> Stages:
    """Keeps the first 400 images, counted so that the cache is whole before it is read again."""
    place = [tempfile.mkdtemp() + "/images"] if in_file else []
    return add(stages, "kept", lambda dataset: dataset.take(400).cache(*place).repeat(), after)


def add_filter(stages: Stages, after: str) -> Stages:
    apply: Callable[[Any], Any] = lambda dataset: dataset.filter(lambda features: features["label"] == 1)  # noqa: E731
    return add(stages, "dogs", apply, after)


def add_steady_blur(stages: Stages, cached: bool = False) -> Stages:
    """Blurs whole images of one size, the same way in each epoch, and says so."""
    stages = add_map(stages, "blur", shrink_and_blur, after="decode", random=False)
    return add_cache(stages, "blur") if cached else stages


def add_late_batches(stages: Stages) -> Stages:
    """Makes every eighth batch take 0.3 s longer, as if something were fetched now and then."""

    def fetch(number: Any) -> Any:
        if number % 8 == 7:
            time.sleep(0.3)
        return number

    def own(number: tf.Tensor, batch: Any) -> Any:
        with tf.control_dependencies([tf.numpy_function(fetch, [number], tf.int64)]):
            return {name: tf.identity(value) for name, value in batch.items()}

    return add(stages, "fetch", lambda dataset: dataset.enumerate().map(own), after="batch")
