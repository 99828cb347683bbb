"""The counters of the machine and of this process."""

import threading
import time
from pathlib import Path

import pytest

from tfpipe.profiler.measure import clocks
from tfpipe.profiler.measure.clocks import HostTime, read_queue_s, read_threads


def test_processor_time_is_shared_with_other_processes() -> None:
    before, after = HostTime(0.0, 1.0, 10.0), HostTime(10.0, 11.0, 25.0)
    assert after.compute_fractions(before, 2) == (0.5, 0.25)
    assert HostTime(10.0, 11.0, None).compute_fractions(before, 2) == (0.5, 0.0)


def test_a_busy_process_uses_its_core() -> None:
    before = HostTime.now()
    started = time.process_time()
    while time.process_time() - started < 0.05:
        pass
    process, others = HostTime.now().compute_fractions(before, 1)
    assert process > 0
    assert 0 <= others <= 1


@pytest.mark.parametrize(("states", "ready"), [("SS", False), ("SR", True), ("DS", True), ("", False)])
def test_a_thread_that_waits_for_a_core_is_ready(states: str, ready: bool, tmp_path: Path) -> None:
    for number, state in enumerate(states):
        (tmp_path / f"task/{number}").mkdir(parents=True)
        (tmp_path / f"task/{number}/stat").write_text(f"{number} (a) R (b) {state} 1 2 3")
    own = tmp_path / f"task/{threading.get_native_id()}"
    own.mkdir(parents=True)
    (own / "stat").write_text("7 (python) R 1 2 3")
    (tmp_path / "task/9").mkdir()  # it has ended
    assert clocks.has_ready_thread(str(tmp_path)) is ready
    assert not clocks.has_ready_thread(str(tmp_path / "none"))


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


def test_thread_seconds_leave_out_threads_that_ended(tmp_path: Path) -> None:
    for thread, text in (("1", "2000000000 500000000 7"), ("2", "1000000000 0 9")):
        (tmp_path / "task" / thread).mkdir(parents=True)
        (tmp_path / "task" / thread / "schedstat").write_text(text)
    (tmp_path / "task" / "3").mkdir()  # it has just ended
    assert read_threads(str(tmp_path)) == {"1": (2.0, 0.5), "2": (1.0, 0.0)}
    assert read_queue_s(str(tmp_path)) == 0.5
    assert (read_threads(str(tmp_path / "none")), read_queue_s(str(tmp_path / "none"))) == ({}, 0)
