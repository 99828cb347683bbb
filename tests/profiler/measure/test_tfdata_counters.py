"""Samples of a running pipeline, and the time in which Python's lock was held between them."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from tfpipe.profiler.measure.tfdata_counters import Sampler, make_sample


def make_parameter(name: str, value: float, maximum: float, tunable: bool) -> SimpleNamespace:
    return SimpleNamespace(name=name, value=value, max=maximum, tunable=tunable)


def make_node(*parameters: SimpleNamespace, inputs: tuple[int, ...] = ()) -> SimpleNamespace:
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


def test_a_sample_has_the_counters_and_limits_of_each_node() -> None:
    nodes = {
        0: make_node(inputs=(1, 9)),
        1: make_node(make_parameter("parallelism", 2.0, 8.0, True), inputs=(2,)),
        2: make_node(make_parameter("parallelism", 3.0, 8.0, False), make_parameter("buffer_size", 4.0, 4.0, False)),
    }
    sample = make_sample(SimpleNamespace(nodes=nodes, output=0), 1.0, 2.0, 3.0, 0.5)
    assert sample.list_chain() == [0, 1, 2]  # node 9 no longer exists
    assert [sample.nodes[i].max_parallelism for i in range(3)] == [
        None,
        8.0,
        3.0,
    ]  # a parallelism that was given is a limit
    assert (sample.nodes[0].busy_s, sample.nodes[2].parameters) == (2.0, {"parallelism": 3.0, "buffer_size": 4.0})
    assert sample.lock_fraction == 0.5


def test_a_zip_is_followed_to_what_has_most_behind_it() -> None:
    """`enumerate` makes such a zip of a counter and the pipeline."""
    zipped = make_node(inputs=(1, 2))
    zipped.name = "Zip"
    sample = make_sample(
        SimpleNamespace(nodes={0: zipped, 1: make_node(), 2: make_node(inputs=(3,)), 3: make_node()}, output=0), 0, 0, 0
    )
    assert sample.list_chain() == [0, 2, 3]
    assert sample.list_side_inputs(0, 2) == [1]


@pytest.mark.parametrize(("python", "share"), [(True, (0.5, 1.0)), (False, (0.0, 0.4))])
def test_lock_time_is_the_time_in_which_python_runs(python: bool, share: tuple[float, float]) -> None:
    """A thread either computes in Python or sleeps."""
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
    lock_fraction = sum(sample.lock_fraction for sample in sampler.samples) / len(sampler.samples)
    assert share[0] <= lock_fraction <= share[1]
