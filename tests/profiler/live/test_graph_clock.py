"""The clock inside the graph: it tells the consumer's wait, and changes nothing else."""

import time

import pytest
import tensorflow as tf

from tests.profiler.live.conftest import MakeBatches
from tfpipe.profiler.live.graph_clock import GraphClock


def test_watching_changes_nothing_that_a_trainer_sees() -> None:
    dataset = tf.data.Dataset.range(7).map(lambda i: {"image": tf.fill([2, 3], i), "text": tf.as_string(i)})
    watched = GraphClock().watch(dataset)
    assert watched.element_spec == dataset.element_spec
    assert int(watched.cardinality()) == 7
    assert [int(element["image"][0, 0]) for element in watched] == list(range(7))
    assert int(GraphClock().watch(dataset.repeat()).cardinality()) == tf.data.INFINITE_CARDINALITY
    assert int(GraphClock().watch(dataset.filter(lambda _: True)).cardinality()) == tf.data.UNKNOWN_CARDINALITY


def test_the_clock_tells_the_consumers_wait(make_batches: MakeBatches) -> None:
    clock = GraphClock()
    iterator = iter(clock.watch(make_batches(0.01)))
    host_s = 0.0
    for i in range(10):
        asked_at = time.perf_counter()
        next(iterator)
        host_s += time.perf_counter() - asked_at if i else 0  # the first one starts the iterator
        time.sleep(0.02)
    deliveries = clock.take()
    assert [delivery.index for delivery in deliveries] == list(range(10))
    assert {delivery.images for delivery in deliveries} == {8}
    assert sum(delivery.got_at - delivery.asked_at for delivery in deliveries[1:]) == pytest.approx(host_s, rel=0.25)
    assert clock.take() == []


def test_the_prefetch_that_tf_data_adds_does_not_hide_the_trainer(make_batches: MakeBatches) -> None:
    # Left alone, tf.data puts a prefetch behind the clock, which waits all the time.
    dataset = make_batches(0.01).with_options(tf.data.Options())
    options = tf.data.Options()
    options.autotune.enabled = True
    clock = GraphClock()
    iterator = iter(clock.watch(dataset.with_options(options)))
    begin = time.time()
    for _ in range(15):
        next(iterator)
        time.sleep(0.02)
    waited_s = sum(delivery.got_at - delivery.asked_at for delivery in clock.take()[2:])
    assert waited_s / (time.time() - begin) < 0.2


def test_the_clock_is_a_plain_variable_inside_a_strategy_too(make_batches: MakeBatches) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    with strategy.scope():
        clock = GraphClock()
    dataset = strategy.distribute_datasets_from_function(lambda _: clock.watch(make_batches(count=5)))
    assert len(list(dataset)) == 5
    assert len(clock.take()) == 5
