"""A function that computes, that waits, and that a lock lets through one call at a time."""

import threading
import time

import pytest

from tfpipe.profiler.measure import functions
from tfpipe.profiler.measure.functions import CallTimes, PythonLockWatch, Run, judge, run_function


def make_turns(one_s: float, two_s: float, cpu_s: float, queue_s: float = 0.0) -> list[tuple[Run, Run]]:
    """Returns three turns of calls that take this much with one thread and with two."""
    return [(Run(10, one_s, cpu_s, queue_s), Run(20, two_s, cpu_s, queue_s))] * 3


def test_computing_is_twice_as_fast_with_two_threads() -> None:
    assert judge(make_turns(1e-3, 0.5e-3, 1e-3), 2) == CallTimes(1e-3, 0.0, None)


def test_a_computing_function_that_gains_nothing_is_locked() -> None:
    assert judge(make_turns(1e-3, 1e-3, 1e-3), 2) == CallTimes(1e-3, 0.0, 1e-3)
    assert judge(make_turns(1e-3, 1e-3, 1e-3), 1).hold_s is None  # one core cannot tell


def test_a_function_that_gains_a_third_beside_another_program_is_not_locked() -> None:
    """Three threads share two cores: one alone has a core, and two have a third more."""
    assert judge([(Run(10, 1e-3, 1e-3, 0.0), Run(20, 0.75e-3, 1e-3, 0.5e-3))] * 3, 2) == CallTimes(1e-3, 0.0, None)


def test_turns_that_differ_show_no_lock_where_nobody_knows_the_waits_for_a_core() -> None:
    slow, fast = (Run(10, wall_s, 1e-3, 0.0) for wall_s in (1.6e-3, 1e-3))
    assert judge([(fast, slow), (slow, fast), (fast, fast)], 2).hold_s is None


def test_a_lock_is_seen_beside_programs_that_take_half_of_the_cores() -> None:
    """Each thread waits for the other one, which runs for 1 ms and waits for a core for up to 0.6 ms."""
    slow, fast = Run(10, 1.6e-3, 1e-3, 0.6e-3), Run(10, 1e-3, 1e-3, 0.0)
    assert judge([(fast, slow), (slow, fast), (slow, slow)], 2) == CallTimes(1e-3, 0.0, 1e-3)


def test_two_threads_that_wait_for_one_core_are_not_locked() -> None:
    assert judge([(Run(10, 1e-3, 1e-3, 0.0), Run(10, 1e-3, 1e-3, 1e-3))] * 3, 2).hold_s is None


def test_waiting_side_by_side_needs_threads_and_waiting_in_line_does_not_gain_by_them() -> None:
    assert judge(make_turns(8e-3, 4e-3, 0.1e-3), 1) == CallTimes(0.1e-3, pytest.approx(7.9e-3), None)
    assert judge(make_turns(8e-3, 8e-3, 0.1e-3), 1) == CallTimes(0.1e-3, pytest.approx(7.9e-3), 8e-3)


def test_a_disturbed_turn_does_not_count() -> None:
    disturbed = (Run(10, 9e-3, 1e-3, 0.0), Run(20, 9e-3, 1e-3, 0.0))
    assert judge([*make_turns(1e-3, 0.5e-3, 1e-3), disturbed], 2).hold_s is None


@pytest.mark.parametrize("locked", [True, False])
def test_a_real_function_that_waits_is_told_from_one_behind_a_lock(locked: bool, monkeypatch):
    """Waiting takes no core, and far longer than a busy machine lets a thread wait."""
    monkeypatch.setattr(functions, "SECONDS", 0.1)
    lock = threading.Lock()

    def ask(number: int) -> int:
        if not locked:
            time.sleep(0.02)
            return number
        with lock:
            time.sleep(0.02)
        return number

    times = run_function(ask)
    assert times.wait_s > times.cpu_s
    assert (times.hold_s is not None) is locked


@pytest.mark.parametrize(
    ("call_s", "late_s", "pythons"),
    [
        *((2e-3, late_s, late_s > 3e-4) for late_s in (1e-4, 2.9e-4, 4e-4, 5e-3)),  # it lets go within each call
        *((20e-3, late_s, late_s > 1e-3) for late_s in (5e-4, 2e-3, 5e-3)),  # or every 5 ms
        *((0.2e-3, late_s, late_s > 3e-4) for late_s in (1e-4, 5e-4)),  # late as a machine may wake threads up
    ],
)
def test_the_lock_of_python_is_told_from_one_of_the_function(call_s: float, late_s: float, pythons: bool) -> None:
    assert judge(make_turns(call_s, call_s, call_s), 2, late_s) == CallTimes(call_s, 0.0, call_s, pythons)
    assert not judge(make_turns(8e-3, 8e-3, 0.1e-3), 2, 5e-3).is_pythons  # a call that waits lets go of it


def test_a_loop_in_python_is_seen_by_a_thread_that_waits_for_the_lock() -> None:
    begun, done = threading.Event(), threading.Event()

    def compute() -> None:
        begun.set()
        while not done.is_set():
            sum(range(100))

    worker = threading.Thread(target=compute)
    with PythonLockWatch() as free:
        time.sleep(0.02)
    worker.start()
    begun.wait()
    with PythonLockWatch() as held:
        time.sleep(0.2)
    done.set()
    worker.join()
    assert free.late_s < 1e-3 < held.late_s
