"""The machine's own counters."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tfpipe.profiler.measure import host_usage
from tfpipe.profiler.measure.host_usage import HostTime
from tfpipe.profiler.measure.tfdata_counters import thread_seconds


def test_shares_of_the_cores() -> None:
    before, after = HostTime(0.0, 1.0, 10.0), HostTime(10.0, 11.0, 25.0)
    assert after.fractions_since(before, 2) == (0.5, 0.25)
    assert HostTime(10.0, 11.0, None).fractions_since(before, 2) == (0.5, 0.0)


def test_now() -> None:
    before = HostTime.now()
    started = time.process_time()
    while time.process_time() - started < 0.05:
        pass
    own, others = HostTime.now().fractions_since(before, 1)
    assert own > 0
    assert 0 <= others <= 1
    assert host_usage.peak_memory_bytes() > 2**20


def test_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 10 40 500 50 0 0 50 7 0\ncpu0 1 2 3\n")
    monkeypatch.setattr("tfpipe.system.host_limits.usable_cpus", lambda: 3)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert host_usage._machine_s(stat) == pytest.approx(200 / host_usage.os.sysconf("SC_CLK_TCK"))
    assert host_usage._machine_s(tmp_path / "none") is None
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert host_usage._machine_s(stat) is None


def test_storage(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(bytes(2**20))
    large.write_bytes(bytes(17 * 2**20))
    assert host_usage.storage_rate([str(small)]) is None
    assert (host_usage.storage_rate([str(small), str(large)]) or 0) > 10**6
    assert host_usage.storage_rate(["gs://bucket/file"]) is None


def test_threads(tmp_path: Path) -> None:
    for thread, text in (("1", "2000000000 500000000 7"), ("2", "1000000000 0 9")):
        (tmp_path / "task" / thread).mkdir(parents=True)
        (tmp_path / "task" / thread / "schedstat").write_text(text)
    (tmp_path / "task" / "3").mkdir()  # it has just ended
    assert thread_seconds(str(tmp_path)) == (3.0, 0.5)
    assert thread_seconds(str(tmp_path / "none"))[1] == 0.0
