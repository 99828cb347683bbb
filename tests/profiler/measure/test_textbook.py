"""Stages of tf.data that run alone on recorded elements."""

import contextlib
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.profiler.measure import textbook
from tfpipe.profiler.measure.profile import find_late_caches
from tfpipe.profiler.measure.textbook import BuiltStage

IMAGE = np.zeros((8, 8, 3), np.uint8)


@pytest.fixture(scope="module")
def elements() -> list[Any]:
    numbers = tf.data.Dataset.range(100).map(lambda i: {"image": tf.constant(IMAGE), "label": i, "text": "four"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textbook, "_RECORD_S", 60.0)  # on a busy machine half a second is too short
        return textbook.record(numbers)[0]


def test_the_first_elements_are_recorded_and_played_again_and_again(elements: list[Any]) -> None:
    assert len(elements) == 32
    assert [int(element["label"]) for element in textbook.play(elements).take(64)] == [*range(32), *range(32)]
    assert textbook.count_bytes(elements[0]) == 8 * 8 * 3 + 8 + 4
    sizes = tf.data.Dataset.range(1, 5).map(lambda i: tf.zeros([i, 2], tf.uint8))  # of any sizes
    assert [element.shape[0] for element in textbook.play(textbook.record(sizes)[0]).take(5)] == [1, 2, 3, 4, 1]


@pytest.mark.parametrize(
    ("build", "group", "ratio"),
    [
        (lambda dataset: dataset.map(lambda x: tf.cast(x["image"], tf.float64)), 1, 1.0),
        (lambda dataset: dataset.filter(lambda x: x["label"] % 4 == 0), 1, 0.25),
        (lambda dataset: dataset.batch(8, drop_remainder=True), 8, 1 / 8),
        (lambda dataset: dataset.take(10).cache().repeat(), 1, 1.0),
        (lambda dataset: dataset.filter(lambda x: x["label"] < 0), 1, 0.0),
    ],
)
def test_a_stage_gives_so_many_elements(elements: list[Any], build: Any, group: int, ratio: float) -> None:
    assert textbook.count_given(build, elements, group)[0] == pytest.approx(ratio, rel=0.15)


def compute(image: Any, times: int) -> Any:
    for _ in range(times):
        image = tf.math.erfinv(image / 4)
    return image


def test_prefixes_tell_what_each_stage_costs(elements: list[Any]) -> None:
    prefixes = textbook.Prefixes(elements)
    images = prefixes.add("grow", lambda dataset: dataset.map(lambda x: tf.ones([5, 1000]) * 0.1), 1.0)
    assert (len(images), images[0].shape) == (32, [5, 1000])
    prefixes.add("cheap", lambda dataset: dataset.map(lambda x: compute(x, 2)), 1.0)
    prefixes.add("dear", lambda dataset: dataset.map(lambda x: compute(x, 60)), 1.0)
    assert len(prefixes.add("half", lambda dataset: dataset.batch(2), 0.5)) == 2
    prefixes.begin_with(images)
    prefixes.add("apart", lambda dataset: dataset.map(lambda x: x), 1.0)
    assert prefixes.add("none", lambda dataset: dataset.filter(lambda _: False), 1.0) == []
    costs = prefixes.measure()
    assert list(costs) == ["grow", "cheap", "dear", "half", "apart"]  # one that gives nothing is in no prefix
    assert costs["dear"] > 4 * costs["apart"]
    assert costs["dear"] > max(4 * costs["cheap"], costs["half"])


LOCK = threading.Lock()
WAIT_S = 0.08  # far longer than a busy machine keeps a thread waiting


def ask(label: Any, lock: Any = None) -> Any:
    with lock or contextlib.nullcontext():
        time.sleep(WAIT_S)
    return label


@pytest.mark.parametrize(("function", "locked"), [(partial(ask, lock=LOCK), True), (ask, False)])
def test_a_map_that_waits_is_told_from_one_behind_a_lock(elements, function: Any, locked: bool, monkeypatch) -> None:
    monkeypatch.setattr(textbook, "_COUNTED", 8)  # of these long calls; of fewer, one that ran ahead tips the scales
    played = textbook.play(elements)
    mapped = played.map(lambda x: tf.numpy_function(function, [x["label"]], tf.int64), num_parallel_calls=-1)
    call = BuiltStage("ask", played, mapped).get_map()
    assert call is not None
    times = textbook.run_map(call, elements)
    assert times.wait_s > times.cpu_s
    assert (times.locked_s > 0) is locked


def build(dataset: Any, *stages: tuple[str, Any]) -> list[BuiltStage]:
    built = []
    for name, apply in stages:
        built.append(BuiltStage(name, dataset, apply(dataset)))
        dataset = built[-1].dataset
    return built


def test_what_a_stage_is_made_of() -> None:
    source = tf.data.Dataset.range(100)
    stages = build(
        source,
        ("augment", lambda dataset: dataset.map(lambda x: x + 1)),
        ("noise", lambda dataset: dataset.map(lambda x: tf.random.uniform([]), num_parallel_calls=3)),
        ("ask", lambda dataset: dataset.map(lambda x: tf.numpy_function(ask, [x], tf.float32))),
        ("mix", lambda dataset: dataset.shuffle(50)),
        ("kept", lambda dataset: dataset.take(10).cache().repeat()),
        ("fives", lambda dataset: dataset.batch(5)),
        ("views", lambda dataset: dataset.flat_map(tf.data.Dataset.from_tensors)),
        ("sorted", lambda dataset: dataset.unbatch().filter(lambda x: x > 0).batch(4)),
    )
    plain, noise, python, mix, _, fives, views, unbatched = stages
    assert [stage.count_threads(8, autotunes=True) for stage in (plain, noise, python, mix)] == [8, 3, 1, 1]
    assert plain.count_threads(8, autotunes=False) == 1
    assert [stage.calls_python for stage in (plain, python)] == [False, True]
    assert (mix.count_buffered(), fives.count_grouped()) == (50, 5)
    assert [stage.get_ratio() for stage in (plain, noise, fives, mix, views)] == [1.0, 1.0, 0.2, None, None]
    assert mix.get_map() is None
    assert [stage.name for stage in stages if stage.can_drop] == ["views", "sorted"]
    assert find_late_caches(stages) == ("kept",)
    assert find_late_caches(stages[1:]) == ()
    assert (plain.is_own, views.is_own) == (False, True)
    assert {"Batch", "Filter", "Unbatch"} < unbatched.kinds
