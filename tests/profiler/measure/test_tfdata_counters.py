"""Looks at a running pipeline, and how long Python's lock was held between them."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from tfpipe.profiler.measure.tfdata_counters import Sampler, sample_of


def parameter(name: str, value: float, most: float, tunable: bool) -> SimpleNamespace:
    return SimpleNamespace(name=name, value=value, max=most, tunable=tunable)


def node(*parameters: SimpleNamespace, inputs: tuple[int, ...] = ()) -> SimpleNamespace:
    return SimpleNamespace(
        name="Map",
        inputs=inputs,
        num_elements=3,
        processing_time=2_000_000_000,
        bytes_consumed=5,
        bytes_produced=6,
        buffered_elements=1,
        parameters=parameters,
    )


def test_a_look() -> None:
    nodes = {
        0: node(inputs=(1, 9)),
        1: node(parameter("parallelism", 2.0, 8.0, True), inputs=(2,)),
        2: node(parameter("parallelism", 3.0, 8.0, False), parameter("buffer_size", 4.0, 4.0, False)),
    }
    sample = sample_of(SimpleNamespace(nodes=nodes, output=0), 1.0, 2.0, 3.0, 0.5)
    assert sample.chain() == [0, 1, 2]  # 9 has gone
    assert [sample.nodes[i].max_parallelism for i in range(3)] == [None, 8.0, 3.0]  # what was given is a limit
    assert (sample.nodes[0].busy_s, sample.nodes[2].parameters) == (2.0, {"parallelism": 3.0, "buffer_size": 4.0})
    assert sample.lock_fraction == 0.5


def test_a_zip_is_followed_to_what_has_most_behind_it() -> None:
    """As `enumerate` makes it: a counter, and the pipeline."""
    zipped = node(inputs=(1, 2))
    zipped.name = "Zip"
    sample = sample_of(
        SimpleNamespace(nodes={0: zipped, 1: node(), 2: node(inputs=(3,)), 3: node()}, output=0), 0, 0, 0
    )
    assert sample.chain() == [0, 2, 3]
    assert sample.beside(0, 2) == [1]


@pytest.mark.parametrize(("python", "share"), [(True, (0.5, 1.0)), (False, (0.0, 0.4))])
def test_the_time_in_which_python_runs(python: bool, share: tuple[float, float]) -> None:
    """A thread that computes in Python against one that sleeps."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            if python:
                sum(range(1000))
            else:
                time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    with Sampler(lambda: SimpleNamespace(nodes={}, output=0), every_s=0.1) as sampler:
        until = time.monotonic() + 20
        while len(sampler.samples) < 5 and time.monotonic() < until:
            time.sleep(0.05)
    stop.set()
    thread.join()
    assert len(sampler.samples) >= 5
    found = sum(sample.lock_fraction for sample in sampler.samples) / len(sampler.samples)
    assert share[0] <= found <= share[1]
