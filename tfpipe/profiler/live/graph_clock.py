"""Clocks for what a trainer waits for: one inside the `tf.data` graph, and ways to wait until a device has finished."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

ROWS = 1024
"""Deliveries that the clock remembers."""


@dataclass(frozen=True)
class Delivery:
    """One element of a watched dataset. Times as `time.time()` gives them."""

    index: int
    """In its iterator; 0 says that an iterator has begun."""
    asked: float
    got: float
    images: int
    """Length of its first tensor."""


class GraphClock:
    """Two clock reads around the last stage of a dataset, run by whoever takes its elements.

    The reads are kept in a plain variable, made outside every strategy, which dataset functions and the tf.functions
    of a trainer capture. The dataset must run in this process: a `tf.data` service cannot carry the clock away.
    """

    def __init__(self) -> None:
        self._ring = _plain_variable()
        self._last_got = 0.0

    def watch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """The same elements, cardinality and shapes, with the clock as the last stage."""
        # tf.data puts a prefetch behind a pipeline that ends without one. Behind the clock it would be the one who
        # waits, all the time, whatever the trainer does; so the same prefetch goes before the clock.
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        if _gets_prefetch(dataset):
            dataset = dataset.prefetch(tf.data.AUTOTUNE)
        begin = tf.constant(0, tf.int64)
        # One function for number and stamp: each function costs some 30 us an element.
        stamps = tf.data.Dataset.from_tensors(0).repeat().scan(begin, _stamp)
        # `zip` asks its inputs in order, and `map` runs when its element has come.
        return tf.data.Dataset.zip((stamps, dataset)).map(self._record).with_options(options)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _record(self, stamp: tuple[tf.Tensor, tf.Tensor], element: Any) -> Any:
        index, asked = stamp
        images = tf.cast(_length(element), tf.float64)
        row = tf.stack([tf.cast(index, tf.float64), asked, tf.timestamp(), images])
        self._ring.scatter_nd_update([[index % ROWS]], [row])
        return element

    def take(self) -> list[Delivery]:
        """What was delivered since the last call, in order; of more than `ROWS` the last ones."""
        rows = self._ring.numpy()
        rows = rows[rows[:, 2] > self._last_got]
        if not len(rows):
            return []
        rows = rows[rows[:, 2].argsort(kind="stable")]
        self._last_got = float(rows[-1, 2])
        return [Delivery(int(index), float(asked), float(got), int(images)) for index, asked, got, images in rows]


def runs_in_step() -> bool:
    """True where a step has ended when its call returns: on CPUs. GPU and TPU get their work ahead of time."""
    return not (tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))


def block_until_done(result: Any) -> None:
    """Waits for the devices to finish what they were given.

    Args:
        result: Something that the last step computed, in any structure, also per replica: one number of each tensor is
            fetched. None waits for GPUs alone; TensorFlow cannot wait for a TPU without a tensor of its work.
    """
    tf.test.experimental.sync_devices()
    for tensor in tensors_of(result):
        if tensor.shape.num_elements() != 0:
            tf.reshape(tensor, [-1])[:1].numpy()


def tensors_of(structure: Any) -> list[tf.Tensor]:
    """All tensors in a structure, those of all replicas of this process too."""
    flat = tf.nest.flatten(structure, expand_composites=True)
    return [value for value in flat if isinstance(value, tf.Tensor | tf.Variable)]


def images_in(batch: Any) -> int:
    """Length of the first tensor of a batch, of all replicas of this process together; 1 for a scalar."""
    first = next(iter(tf.nest.flatten(batch)), None)
    parts = getattr(first, "values", None)  # of a per-replica value
    parts = parts if isinstance(parts, tuple) else (first,)
    return sum(int(part.shape[0] or 0) if len(part.shape) else 1 for part in parts if hasattr(part, "shape"))


def _stamp(index: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
    return index + 1, (index, tf.timestamp())


def _length(element: Any) -> Any:
    tensors = [value for value in tf.nest.flatten(element) if isinstance(value, tf.Tensor)]
    return tf.shape(tensors[0])[0] if tensors and tensors[0].shape.rank else 1


def _plain_variable() -> tf.Variable:
    """The ring: rows of index, asked, got and images."""
    made: list[tf.Variable] = []

    def make() -> None:
        with tf.init_scope(), tf.device("/CPU:0"):
            made.append(tf.Variable(tf.zeros([ROWS, 4], tf.float64), trainable=False, name="tfpipe_clock"))

    # Inside a strategy's scope it would become one variable a replica, some on devices that tf.data cannot reach.
    # Scopes belong to threads.
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def _gets_prefetch(dataset: tf.data.Dataset) -> bool:
    """Whether tf.data would put a prefetch behind this dataset."""
    options = dataset.options()
    wishes = (
        options.experimental_optimization.inject_prefetch,
        options.experimental_optimization.apply_default_optimizations,
        options.autotune.enabled,
    )
    if any(wish is False for wish in wishes):
        return False
    last = dataset
    while type(last).__name__ == "_OptionsDataset":  # has no public name
        last = last._input_dataset
    return type(last).__name__ != "_PrefetchDataset"
