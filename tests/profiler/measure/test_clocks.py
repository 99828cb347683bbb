"""The clocks of this process, the storage's rate, and ways to make a batch that take turns."""

import itertools
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfpipe.profiler.measure import clocks
from tfpipe.profiler.measure.clocks import (
    CallTimes,
    HostTime,
    Rest,
    Run,
    judge,
    measure_costs_us,
    measure_late_s,
    read_queue_s,
)


def test_processor_time_is_shared_with_other_processes() -> None:
    before, after = HostTime(0.0, 1.0, 10.0), HostTime(10.0, 11.0, 25.0)
    assert after.compute_fractions(before, 2) == (0.5, 0.25)
    assert HostTime(10.0, 11.0, None).compute_fractions(before, 2) == (0.5, 0.0)


def test_threads_that_wait_for_a_core_are_ready_and_their_waits_add_up(tmp_path: Path) -> None:
    def write(thread: int, state: str, ran_and_waited: str) -> None:
        (tmp_path / f"task/{thread}").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"task/{thread}/stat").write_text(f"{thread} (a) R (b) {state} 1 2 3")
        (tmp_path / f"task/{thread}/schedstat").write_text(ran_and_waited)

    write(threading.get_native_id(), "R", "2000000000 300000000 7")
    (tmp_path / "task/9").mkdir()  # it has just ended
    assert not clocks.has_ready_thread(str(tmp_path))
    for state, ready in (("S", False), ("R", True), ("D", True)):
        write(1, state, "1000000000 200000000 9")
        assert clocks.has_ready_thread(str(tmp_path)) is ready
    assert read_queue_s(str(tmp_path)) == 0.5
    assert (read_queue_s(str(tmp_path / "none")), clocks.has_ready_thread(str(tmp_path / "none"))) == (0, False)


def test_the_machine_counts_only_where_all_its_cores_are_usable(tmp_path: Path, monkeypatch):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 10 40 500 50 0 0 50 7 0\ncpu0 1 2 3\n")
    monkeypatch.setattr("tfpipe.system.host_limits.usable_cpus", lambda: 3)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert clocks._read_machine_s(stat) == pytest.approx(200 / clocks.os.sysconf("SC_CLK_TCK"))
    assert clocks._read_machine_s(tmp_path / "none") is None
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert clocks._read_machine_s(stat) is None


def test_the_storage_rate_needs_enough_local_bytes(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(bytes(2**20))
    large.write_bytes(bytes(17 * 2**20))
    assert clocks.measure_storage_rate([str(small)]) is None
    assert (clocks.measure_storage_rate([str(small), str(large)]) or 0) > 10**6
    assert clocks.measure_storage_rate(["gs://bucket/file"]) is None


def test_the_median_round_of_each_way_counts(monkeypatch) -> None:
    """A batch of 4 images takes 8 ms one way and 20 ms the other, and once 400 ms; a turn lasts at least 15 ms."""
    now_s, made = 0.0, []

    def make(name: str, seconds: float) -> None:
        nonlocal now_s
        now_s += 0.4 if len(made) == 15 else seconds
        made.append(name)

    monkeypatch.setattr(clocks, "_COST_S", 0.12)
    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: now_s))
    ways = {"one": lambda: make("one", 0.008), "other": lambda: make("other", 0.02)}
    assert measure_costs_us(ways, 4, lambda: now_s) == pytest.approx({"one": 2_000.0, "other": 5_000.0})
    assert made[:6] == 2 * ["one", "one", "other"]  # the first turn of each is not counted


class Clock:
    """The module `time`, where time passes in sleeps only; `computes` is the processor's share of each."""

    def __init__(self, computes: Iterable[float]) -> None:
        self.now_s = self.spent_s = self.thread_s = 0.0
        self.computes = iter(computes)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.spent_s += seconds * next(self.computes)

    def perf_counter(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return self.spent_s

    def thread_time(self) -> float:
        return self.thread_s


def test_a_thread_that_never_rests_is_waited_for_once(monkeypatch) -> None:
    clock = Clock(itertools.repeat(1.0))
    monkeypatch.setattr(clocks, "time", clock)
    rest, waited_s = Rest(), []
    for _ in range(3):
        began_s = clock.now_s
        rest.wait()
        waited_s.append(clock.now_s - began_s)
    assert waited_s == pytest.approx([clocks._MAX_REST_S, *2 * [clocks._SHORT_REST_S]], abs=clocks._REST_S)


def test_a_process_does_not_rest_while_a_thread_waits_for_a_core(monkeypatch) -> None:
    """It computes in the second pause, a thread waits for a core in the third, and the fourth is a rest.

    To look for such threads takes 1 ms each time, which is not counted.
    """
    clock, waits = Clock([0, 1, 0, 0, 0]), [True, True, False, False]

    def look() -> bool:
        clock.spent_s += 0.001
        clock.thread_s += 0.001
        return waits.pop(0)

    monkeypatch.setattr(clocks, "time", clock)
    monkeypatch.setattr(clocks, "has_ready_thread", look)
    assert Rest().wait() == pytest.approx(clocks._REST_S)
    assert (list(clock.computes), waits) == ([0], [False])


def make_rounds(one_s: float, two_s: float, cpu_s: float, queue_s: float = 0.0) -> list[tuple[Run, Run]]:
    """Returns three rounds of calls that take this much with one thread and with two."""
    return [(Run(10, one_s, cpu_s, queue_s), Run(20, two_s, cpu_s, queue_s))] * 3


COMPUTES, BLOCKED, WAITS = make_rounds(1e-3, 0.5e-3, 1e-3), make_rounds(1e-3, 1e-3, 1e-3), make_rounds(8e-3, 4e-3, 1e-4)
FAST, SLOW, DELAYED = Run(10, 1e-3, 1e-3, 0.0), Run(10, 1.6e-3, 1e-3, 0.0), Run(10, 1.6e-3, 1e-3, 0.6e-3)
ROUNDS = {
    "computes": (COMPUTES, 2, CallTimes(1e-3, 0.0)),
    "a lock": (BLOCKED, 2, CallTimes(1e-3, 0.0, 1e-3)),
    "one core cannot tell": (BLOCKED, 1, CallTimes(1e-3, 0.0)),
    "three threads share two cores": ([(FAST, Run(20, 0.75e-3, 1e-3, 0.5e-3))] * 3, 2, CallTimes(1e-3, 0.0)),
    "nobody knows the waits for a core": ([(FAST, SLOW), (SLOW, FAST), (FAST, FAST)], 2, CallTimes(1e-3, 0.0)),
    "a lock beside programs": ([(FAST, DELAYED), (DELAYED, FAST), (DELAYED, DELAYED)], 2, CallTimes(1e-3, 0.0, 1e-3)),
    "two threads wait for one core": ([(FAST, Run(10, 1e-3, 1e-3, 1e-3))] * 3, 2, CallTimes(1e-3, 0.0)),
    "waits side by side": (WAITS, 1, CallTimes(1e-4, pytest.approx(7.9e-3))),
    "waits in line": (make_rounds(8e-3, 8e-3, 1e-4), 1, CallTimes(1e-4, pytest.approx(7.9e-3), 8e-3)),
    "a disturbed round": ([*COMPUTES, (Run(10, 9e-3, 1e-3, 0.0),) * 2], 2, CallTimes(1e-3, 0.0)),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_waiting_computing_and_a_lock_are_told_apart(name: str) -> None:
    rounds, cores, times = ROUNDS[name]
    assert judge(rounds, cores) == times


@pytest.mark.parametrize(
    ("call_s", "late_s", "pythons"),
    [
        *((2e-3, late_s, late_s > 3e-4) for late_s in (1e-4, 2.9e-4, 4e-4, 5e-3)),  # it lets go within each call
        *((20e-3, late_s, late_s > 1e-3) for late_s in (5e-4, 2e-3, 5e-3)),  # or every 5 ms
        *((0.2e-3, late_s, late_s > 3e-4) for late_s in (1e-4, 5e-4)),  # late as a machine may wake threads up
    ],
)
def test_the_lock_of_python_is_told_from_one_of_the_function(call_s: float, late_s: float, pythons: bool) -> None:
    assert judge(make_rounds(call_s, call_s, call_s), 2, late_s) == CallTimes(call_s, 0.0, call_s, pythons)
    assert not judge(make_rounds(8e-3, 8e-3, 0.1e-3), 2, 5e-3).is_pythons  # a call that waits lets go of it


def test_a_loop_in_python_is_seen_by_a_thread_that_waits_for_the_lock() -> None:
    def compute() -> None:
        until = time.perf_counter() + 0.2
        while time.perf_counter() < until:
            sum(range(100))

    assert measure_late_s(lambda: time.sleep(0.02)) < 1e-3 < measure_late_s(compute)
