"""A limit on the wait for a batch from elsewhere: TensorFlow itself asks a worker that is gone again without end.

    batches = limit_wait(batches, 300, lambda count: tf.strings.format("No batch came after the {}th.", count))

A clock runs beside the batches: an `interleave` gives what comes first, a batch or a tick. Each is an optional value,
so that both have one structure, whatever the batches hold; nothing is copied. The ticks between two batches are
counted. So a trainer that pauses, and asks for no batch, ends nothing: a batch lies ready when it goes on. It costs 0.2
ms of a core for each batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_MAX_TICK_S, _MIN_TICKS = 1.0, 20
"""The time between two looks at the clock, at most; and the looks before an error, at least."""
_TICK, _BATCH, _END = 0, 1, 2
"""The kinds of what comes."""


def limit_wait(batches: tf.data.Dataset, limit_s: int, explain: Callable[[tf.Tensor], tf.Tensor]) -> tf.data.Dataset:
    """Ends a dataset with an error if no batch comes for some seconds.

    Args:
        batches: The dataset, of any structure.
        limit_s: The seconds to wait for a batch.
        explain: The function that makes the sentence of the error from the number of the batches that came, int64.

    Returns:
        The same batches. Their number is unknown to TensorFlow.
    """
    tick_s, spec = get_tick_s(limit_s), batches.element_spec
    optional = tf.experimental.Optional

    def mark(*batch: Any) -> tuple[tf.Tensor, Any]:
        return tf.constant(_BATCH), optional.from_value(batch if isinstance(spec, tuple) else batch[0])

    def mark_empty(kind: int) -> tuple[tf.Tensor, Any]:
        return tf.constant(kind), optional.empty(spec)

    marked = batches.map(mark).concatenate(tf.data.Dataset.range(1).map(lambda _: mark_empty(_END)))
    ticks = tick(tick_s).map(lambda _: mark_empty(_TICK))
    variants = tf.stack([tf.data.experimental.to_variant(one) for one in (marked, ticks)])

    def count_ticks(state: tuple[tf.Tensor, tf.Tensor], kind: tf.Tensor, held: Any) -> Any:
        ticks, count = state
        ticks = tf.where(tf.equal(kind, _TICK), ticks + 1, 0)
        too_long = ticks > round(limit_s / tick_s)
        sentence = tf.cond(too_long, lambda: explain(count), lambda: tf.constant(""))
        with tf.control_dependencies([tf.debugging.Assert(~too_long, [sentence])]):
            return (tf.identity(ticks), count + tf.cast(tf.equal(kind, _BATCH), tf.int64)), (kind, held)

    both = tf.data.Dataset.range(2).interleave(
        lambda which: tf.data.experimental.from_variant(tf.gather(variants, which), marked.element_spec),
        cycle_length=2,
        num_parallel_calls=2,
        deterministic=False,
    )
    counted = both.scan((tf.constant(0), tf.constant(0, tf.int64)), lambda state, element: count_ticks(state, *element))
    until_end = counted.take_while(lambda kind, _: tf.not_equal(kind, _END))
    return until_end.filter(lambda kind, _: tf.equal(kind, _BATCH)).map(lambda _, held: held.get_value())


def get_tick_s(limit_s: float) -> float:
    """Returns the time between two looks at the clock."""
    return min(_MAX_TICK_S, limit_s / _MIN_TICKS)


def tick(seconds: float) -> tf.data.Dataset:
    """Gives numbers without end, int64, some time apart. To end it, nobody waits for it."""
    # Not `counter()`, which calls a function: an iterator that ends during that call waits for it, and the call for the
    # end, for ever. `SleepDataset` holds a lock meanwhile that its end needs too.
    numbers = tf.data.Dataset.range(tf.int64.max)
    variant = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(numbers),
        sleep_microseconds=tf.constant(round(seconds * 1e6), tf.int64),
        output_types=[numbers.element_spec.dtype],
        output_shapes=[numbers.element_spec.shape],
    )
    return tf.data.experimental.from_variant(variant, numbers.element_spec)
