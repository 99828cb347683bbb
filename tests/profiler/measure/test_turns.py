"""Ways to make a batch that take turns: a made-up clock, and threads that never rest."""

import time
from types import SimpleNamespace

import pytest

from tfpipe.profiler.measure import clocks
from tfpipe.profiler.measure.clocks import Rest, measure_costs_us


def test_the_median_turn_of_each_way_counts(monkeypatch) -> None:
    """A batch of 4 images takes 8 ms one way and 20 ms the other, and once 400 ms; a turn lasts at least 15 ms."""
    now_s, made = 0.0, []

    def make(name: str, seconds: float) -> None:
        nonlocal now_s
        now_s += 0.4 if len(made) == 15 else seconds
        made.append(name)

    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: now_s))
    ways = {"one": lambda: make("one", 0.008), "other": lambda: make("other", 0.02)}
    assert measure_costs_us(ways, 4, lambda: now_s) == pytest.approx({"one": 2_000.0, "other": 5_000.0})
    assert made[:6] == 2 * ["one", "one", "other"]  # the first turn of each is not counted


def test_work_of_the_calling_thread_is_measured() -> None:
    def compute() -> None:
        until = time.thread_time() + 0.004
        while time.thread_time() < until:
            pass

    costs_us = measure_costs_us({"compute": compute, "sleep": lambda: time.sleep(0.004)}, 2, time.thread_time)
    assert costs_us["compute"] == pytest.approx(2_000, rel=0.2)
    assert costs_us["sleep"] < 200


def test_a_thread_that_never_rests_is_waited_for_once(monkeypatch) -> None:
    """The clock goes on while the test sleeps, and all of its time is processor time."""
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    clock = SimpleNamespace(perf_counter=lambda: now_s, process_time=lambda: now_s, sleep=sleep)
    monkeypatch.setattr(clocks, "time", clock)
    rest, waited_s = Rest(), []
    for _ in range(3):
        began_s = now_s
        rest.wait()
        waited_s.append(now_s - began_s)
    assert waited_s == pytest.approx([clocks._MAX_REST_S, *2 * [clocks._SHORT_REST_S]], abs=clocks._REST_S)


def test_a_process_does_not_rest_while_a_thread_waits_for_a_core(monkeypatch) -> None:
    """It computes in the second pause, a thread waits for a core in the third, and the fourth is a rest."""
    now_s, spent_s, computes, waits = 0.0, 0.0, [0, 1, 0, 0, 0], [True, True, False, False]

    def sleep(seconds: float) -> None:
        nonlocal now_s, spent_s
        now_s, spent_s = now_s + seconds, spent_s + seconds * computes.pop(0)

    clock = SimpleNamespace(
        perf_counter=lambda: now_s, process_time=lambda: spent_s, thread_time=lambda: 0.0, sleep=sleep
    )
    monkeypatch.setattr(clocks, "time", clock)
    monkeypatch.setattr(clocks, "has_ready_thread", lambda: waits.pop(0))
    assert Rest().wait() == pytest.approx(clocks._REST_S)
    assert (computes, waits) == ([0], [False])


def test_looking_at_threads_is_never_counted(monkeypatch) -> None:
    """Each look takes 1 ms of the processor, and nothing else does."""
    now_s, spent_s = 0.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def look() -> bool:
        nonlocal spent_s
        spent_s += 0.001
        return False

    clock = SimpleNamespace(
        perf_counter=lambda: now_s, process_time=lambda: spent_s, thread_time=lambda: spent_s, sleep=sleep
    )
    monkeypatch.setattr(clocks, "time", clock)
    monkeypatch.setattr(clocks, "has_ready_thread", look)
    rest = Rest()
    assert [rest.wait() for _ in range(3)] == pytest.approx([0.0, 0.0, 0.0])
