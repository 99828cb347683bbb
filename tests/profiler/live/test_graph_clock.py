"""The clock inside the graph: it tells the consumer's wait, and changes nothing else."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.profiler.live.conftest import MakeBatches
from tfpipe.profiler.live.graph_clock import Delivery, GraphClock


def take_all(clock: GraphClock) -> list[Delivery]:
    clock.read(1, replicas=1)
    return [one for _ in clock._deliveries.copy() for one in clock.take(1, None) or ()]


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
    deliveries = take_all(clock)
    assert [delivery.number for delivery in deliveries] == list(range(10))
    assert {delivery.images for delivery in deliveries} == {8}
    assert sum(delivery.got_at - delivery.asked_at for delivery in deliveries[1:]) == pytest.approx(host_s, rel=0.25)
    assert take_all(clock) == []


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
    waited_s = sum(delivery.got_at - delivery.asked_at for delivery in take_all(clock)[2:])
    assert waited_s / (time.time() - begin) < 0.2


def test_the_clock_is_a_plain_variable_inside_a_strategy_too(make_batches: MakeBatches) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    with strategy.scope():
        clock = GraphClock()
    assert len(list(strategy.distribute_datasets_from_function(lambda _: clock.watch(make_batches(count=5))))) == 5
    assert len(take_all(clock)) == 5


def write_clock(*deliveries: Delivery) -> GraphClock:
    clock = GraphClock()
    clock._rows = SimpleNamespace(numpy=lambda: np.array([[0, 0, 0, 0], *deliveries]))  # type: ignore[assignment]
    return clock


def test_an_epoch_begins_a_new_iterator_or_goes_on_with_the_old_one() -> None:
    # The first element was taken to build the model.
    rows = [Delivery(0, 0, 0.5, 1), Delivery(0, 1, 1.5, 1), Delivery(1, 2, 2.5, 1), Delivery(2, 2.5, 4, 1)]
    clock = write_clock(*rows)
    clock.read(2, replicas=1)
    assert clock.take(2, resumed_at=1) == rows[1:3]
    assert clock.take(1, resumed_at=3) == rows[3:]
    late, again = Delivery(3, 4, 6.5, 1), Delivery(0, 6.75, 7, 1)
    clock._rows = write_clock(*rows, late, again)._rows
    clock.read(1, replicas=1)
    assert clock.take(1, resumed_at=6.6) == [again]
    assert clock.take(1, None) is None


@pytest.mark.parametrize("per_step", [1, 2])
def test_replicas_take_a_batch_each_or_one_together(per_step: int) -> None:
    deliveries = [Delivery(k, k, k + 0.25, 4) for k in range(8 * per_step + 2)]
    clock = write_clock(*deliveries)
    clock.read(7, replicas=2)
    assert clock.take(1, None) is None  # too few steps to tell
    clock.read(8, replicas=2)
    assert clock.take(2, None) == deliveries[: 2 * per_step]


def test_deliveries_of_steps_that_are_given_up_are_dropped() -> None:
    clock = write_clock(*(Delivery(k, k, k + 0.5, 1) for k in range(3)))
    clock.read(3, replicas=1)
    clock.forget(2, replicas=1)
    assert clock.take(1, None) == [Delivery(2, 2, 2.5, 1)]
