"""The limit on the wait for a batch: any structure passes, and silence ends with a sentence."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from tfpipe.errors import explain_pipeline_error
from tfpipe.pipeline.service_limit import get_tick_s, limit_wait, tick


def explain(count: tf.Tensor) -> tf.Tensor:
    return tf.strings.join(["Nothing came behind batch ", tf.strings.as_string(count), ": ask again."])


def make_batch(number: tf.Tensor) -> Any:
    ragged = tf.RaggedTensor.from_row_lengths(tf.range(number), tf.reshape(number, [1]))
    return {"plain": number, "nested": (tf.fill([2, 3], "a"), ragged)}


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [make_batch, lambda number: number, lambda number: (number,)])
def test_batches_of_any_structure_pass_and_end(wrap: Any) -> None:
    batches = tf.data.Dataset.range(5).map(wrap)
    limited = limit_wait(batches, 300, explain)
    assert limited.element_spec == batches.element_spec
    for batch, expected in zip(limited, batches, strict=True):
        assert tf.nest.flatten(tf.nest.map_structure(lambda part: str(part.numpy()), batch)) == tf.nest.flatten(
            tf.nest.map_structure(lambda part: str(part.numpy()), expected)
        )


def test_silence_ends_with_a_sentence() -> None:
    never = tick(600)
    batches = iter(limit_wait(tf.data.Dataset.range(3).concatenate(never), 1, explain))
    assert [int(next(batches)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        next(batches)
    assert str(explain_pipeline_error(caught.value)) == ("The pipeline failed: Nothing came behind batch 3: ask again.")


def test_an_error_of_the_batches_passes() -> None:
    batches = tf.data.Dataset.range(3).map(
        lambda number: tf.debugging.check_numerics(1 / tf.cast(number, tf.float32), "x")
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="Inf"):
        list(limit_wait(batches, 300, explain))


def test_the_clock_looks_often_enough() -> None:
    assert (get_tick_s(300), get_tick_s(4)) == (1.0, 0.2)


def test_a_clock_ends_at_any_moment() -> None:
    """A clock of numbers from `counter()` hung here at once."""
    fast = tick(1e-5).prefetch(1000)

    def begin_and_end() -> None:
        for _ in range(100):
            next(iter(fast))

    thread = threading.Thread(target=begin_and_end, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
