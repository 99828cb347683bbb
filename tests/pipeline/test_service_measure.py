"""Rates of datasets that are read side by side, the worker that is late, and the sizes of batches."""

from __future__ import annotations

import os
import threading
import time

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from tfpipe.errors import TfpipeError
from tfpipe.pipeline import service_measure
from tfpipe.pipeline.service_measure import (
    count_bytes,
    find_late_worker,
    measure_compression,
    measure_intervals,
    measure_rates,
)


def test_rates_are_measured_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_measure, "_MEASURE_S", 0.5)
    pairs = {
        name: tf.data.Dataset.counter().map(lambda i, s=seconds: wait(i, s))
        for name, seconds in (("fast", 0.02), ("slow", 0.06))
    }
    rates = measure_rates(pairs, 60)
    assert rates["fast"] == pytest.approx(3 * rates["slow"], rel=0.5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="broken"):
        measure_rates({"fast": pairs["fast"], "broken": tf.data.Dataset.range(9).map(fail)}, 60)
    monkeypatch.setattr(service_measure, "_MEASURE_S", 0.3)
    intervals = measure_intervals({"slow": pairs["slow"]}, 60)
    assert sum(intervals) / len(intervals) > 0.03  # single ones follow a late one early


def wait(number: tf.Tensor, seconds: float) -> tf.Tensor:
    return tf.numpy_function(lambda i: (time.sleep(seconds), i)[1], [number], tf.int64)


def fail(number: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.Assert(number < 5, ["broken"])]):
        return tf.identity(number)


def test_a_worker_that_gives_nothing_is_named_after_a_while() -> None:
    release = threading.Event()

    def hang(number: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(lambda i: (release.wait(60), i)[1], [number], tf.int64)

    names = service_measure.name_workers({"a:1": tf.data.Dataset.range(9).map(hang)})
    with pytest.raises(TfpipeError) as caught:
        measure_rates(names, 0.1)
    release.set()
    assert str(caught.value) == (
        "The worker a:1 of the tf.data service must give a batch within 0.1 s (`service_timeout_s`), and did not. "
        "Start it again under its address, then run the same command."
    )


def test_a_worker_far_below_the_others_is_late() -> None:
    assert find_late_worker({"a:1": 1000.0, "b:1": 200.0, "c:1": 1100.0}) == "b:1"
    assert find_late_worker({"a:1": 900.0, "b:1": 1000.0}) is None
    assert find_late_worker({"a:1": 1.0}) is None
    assert find_late_worker({}) is None


def test_compression_is_measured_on_batches() -> None:
    batch = {"image": tf.zeros([4, 100, 100, 3], tf.uint8), "id": tf.constant(["a", "bcd"])}
    assert count_bytes(batch) == 120_004
    found = measure_compression(tf.data.Dataset.from_tensors(batch))
    assert found.batch_bytes == 120_004
    assert 0 < found.compressed_fraction < 0.2
    assert found.compress_s >= 0 <= found.uncompress_s
