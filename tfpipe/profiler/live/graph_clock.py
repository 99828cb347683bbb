"""A clock inside the `tf.data` graph: it notes when a trainer asked for each element and when the element came."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple

import tensorflow as tf

_ROWS = 4096  # of 32 bytes each: enough for 64 steps of 64 elements between two reads
_MIN_STEPS_TO_INFER = 8  # a replica takes a batch or two ahead, which must not decide


class Delivery(NamedTuple):
    """One element that a watched dataset gave."""

    number: int  # in its iterator; 0 marks the beginning of one
    asked_at: float
    got_at: float
    images: int  # the length of its first tensor


class GraphClock:
    """Two clock reads around the last stage of a dataset, by the thread that takes its elements.

    The reads are kept in a plain variable, which is created outside every strategy. Dataset functions and a trainer's
    tf.functions capture it. The dataset must run in this process, because a `tf.data` service cannot move the clock.
    """

    def __init__(self) -> None:
        self._rows = _create_plain_variable()
        self._last_got = 0.0
        self._deliveries: deque[Delivery] = deque(maxlen=_ROWS)  # that no step has taken
        self._elements_per_step: int | None = None

    def watch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a dataset with the same elements, cardinality and shapes, whose last stage is the clock."""
        # tf.data puts a prefetch behind a pipeline that ends without one. Behind the clock this prefetch would wait
        # all the time, whatever the trainer does. So the same prefetch goes before the clock.
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        if _gets_prefetch(dataset):
            dataset = dataset.prefetch(tf.data.AUTOTUNE)
        first_index = tf.constant(0, tf.int64)
        # One function makes the number and the time, because each function costs some 30 us an element.
        stamps = tf.data.Dataset.from_tensors(0).repeat().scan(first_index, _stamp)
        # `zip` asks its inputs in order, and `map` runs when its element has come.
        return tf.data.Dataset.zip((stamps, dataset)).map(self._record).with_options(options)

    def read(self, steps: int, replicas: int) -> None:
        """Reads the deliveries since the last call, and finds whether a step takes one, or one for each replica."""
        rows = self._rows.numpy()
        rows = rows[rows[:, 2] > self._last_got]
        for number, asked_at, got_at, images in rows[rows[:, 2].argsort(kind="stable")]:
            self._deliveries.append(Delivery(int(number), float(asked_at), float(got_at), int(images)))
            self._last_got = float(got_at)
        has_enough = replicas == 1 or steps >= _MIN_STEPS_TO_INFER
        if self._elements_per_step is None and self._deliveries and has_enough:
            delivered = max(delivery.number for delivery in self._deliveries) + 1
            self._elements_per_step = 1 if delivered < steps * (1 + replicas) / 2 else replicas

    def take(self, steps: int, resumed_at: float | None) -> list[Delivery] | None:
        """Takes the deliveries of the next steps, after a pause those since then; None if they are not there yet."""
        if resumed_at is not None:
            begun = [k for k, one in enumerate(self._deliveries) if one.number == 0 and one.asked_at >= resumed_at]
            self._drop(begun[-1] if begun else 0)
        count = steps * (self._elements_per_step or 0)
        if not count or len(self._deliveries) < count:
            return None
        return [self._deliveries.popleft() for _ in range(count)]

    def forget(self, steps: int, replicas: int) -> None:
        """Drops the deliveries of steps whose time is given up."""
        self._drop(steps * (self._elements_per_step or replicas))

    def _drop(self, count: int) -> None:
        for _ in range(min(count, len(self._deliveries))):
            self._deliveries.popleft()

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _record(self, stamp: tuple[tf.Tensor, tf.Tensor], element: Any) -> Any:
        index, asked_at = stamp
        images = tf.cast(_get_length(element), tf.float64)
        row = tf.stack([tf.cast(index, tf.float64), asked_at, tf.timestamp(), images])
        self._rows.scatter_nd_update([[index % _ROWS]], [row])
        return element


def _stamp(index: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
    return index + 1, (index, tf.timestamp())


def _get_length(element: Any) -> Any:
    tensors = [value for value in tf.nest.flatten(element) if isinstance(value, tf.Tensor)]
    return tf.shape(tensors[0])[0] if tensors and tensors[0].shape.rank else 1


def _create_plain_variable() -> tf.Variable:
    """Creates a ring buffer with one row for each delivery: index, asked_at, got_at, images."""
    variables: list[tf.Variable] = []

    def create() -> None:
        with tf.init_scope(), tf.device("/CPU:0"):
            variables.append(tf.Variable(tf.zeros([_ROWS, 4], tf.float64), trainable=False, name="tfpipe_clock"))

    # Inside a strategy's scope there would be one variable for each replica, some on devices that tf.data cannot
    # reach. A scope belongs to its thread.
    thread = threading.Thread(target=create)
    thread.start()
    thread.join()
    return variables[0]


def _gets_prefetch(dataset: tf.data.Dataset) -> bool:
    """Returns whether tf.data would put a prefetch behind this dataset."""
    options = dataset.options()
    switches = (
        options.experimental_optimization.inject_prefetch,
        options.experimental_optimization.apply_default_optimizations,
        options.autotune.enabled,
    )
    if any(switch is False for switch in switches):
        return False
    last = dataset
    while type(last).__name__ == "_OptionsDataset":  # has no public name
        last = last._input_dataset
    return type(last).__name__ != "_PrefetchDataset"
