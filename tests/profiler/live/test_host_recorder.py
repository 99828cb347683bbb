"""The record of a host: its file, and two monitors of steps that wait for each other."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.profiler.live.conftest import MakeBatches
from tfpipe.errors import ConfigError
from tfpipe.profiler.hosts.compare import compare_hosts
from tfpipe.profiler.hosts.read import parse_host, read_hosts
from tfpipe.profiler.hosts.types import HostCall, HostRecord
from tfpipe.profiler.live.host_recorder import HostRecorder
from tfpipe.profiler.live.idle_monitor import IdleMonitor
from tfpipe.profiler.live.step_ledger import TrainCall


def make_call(step: int) -> TrainCall:
    return TrainCall(begin=step, asks=step, last_step=step, end=step + 0.5, wait_s=0.25, images=8)


def read_record(recorder: HostRecorder) -> HostRecord:
    record = parse_host(Path(recorder.path).read_bytes(), recorder.path)
    assert isinstance(record, HostRecord)
    return record


def test_the_record_holds_the_last_steps(tmp_path: Path) -> None:
    recorder = HostRecorder(str(tmp_path / "run" / "hosts"), 3, 16)
    recorder.write(None)
    assert not list(tmp_path.iterdir())  # nothing was recorded yet
    for step in range(1, 2003):
        recorder.add(make_call(step))
    recorder.write(0.125)
    record = read_record(recorder)
    assert recorder.path == str(tmp_path / "run" / "hosts" / "host-00003.json")
    assert (record.index, record.num_hosts, record.name) == (3, 16, socket.gethostname())
    assert (record.compute_s, len(record.calls)) == (0.125, 2000)
    assert record.calls[0] == HostCall(3, 1, 8, 0.5, 0.25)
    assert record.usage.cores >= 1


def test_the_file_is_written_again_only_after_a_while_or_at_once(tmp_path: Path) -> None:
    recorder = HostRecorder(str(tmp_path), 0, 2)
    for step in (1, 2, 3):
        recorder.add(make_call(step))
        recorder.write(None, at_once=step == 3)
        assert len(read_record(recorder).calls) == {1: 1, 2: 1, 3: 3}[step]


def test_a_training_goes_on_if_the_record_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "hosts").write_text("a file")
    recorder = HostRecorder(str(tmp_path / "hosts"), 0, 2)
    recorder.add(make_call(1))
    with caplog.at_level(logging.WARNING):
        recorder.write(None)
        recorder.write(None, at_once=True)
    assert [record.getMessage() for record in caplog.records] == [
        f"{recorder.path} cannot be written, so this host is not in the comparison: "
        f"[Errno 17] File exists: '{tmp_path / 'hosts'}'"
    ]


class NotedBatches:
    """Batches, and the moments at which each was asked for and came. On a busy machine a sleep takes longer."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self.asked: list[float] = []
        self.came: list[float] = []

    def __iter__(self) -> Iterator[Any]:
        iterator, end = iter(self._batches), object()
        while True:
            self.asked.append(time.perf_counter())
            batch = next(iterator, end)
            if batch is end:
                return
            self.came.append(time.perf_counter())
            yield batch

    def waits(self, warm_up: int) -> list[float]:
        return [came - asked for asked, came in zip(self.asked, self.came, strict=False)][warm_up:]


def test_two_monitors_find_the_host_that_is_late(make_batches: MakeBatches, tmp_path: Path) -> None:
    barrier = threading.Barrier(2)
    hosts = [NotedBatches(make_batches(wait_s, count=32)) for wait_s in (0.0, 0.03)]

    def train(index: int) -> None:
        monitor = IdleMonitor(every_steps=5, warm_up=2, hosts_dir=tmp_path, host=(index, 2))
        for _ in monitor.iterate(hosts[index]):
            with monitor.step():
                barrier.wait()  # as a step of synchronous training does
                time.sleep(0.01)
        monitor.result()

    late = threading.Thread(target=train, args=(1,))
    late.start()
    train(0)
    late.join()
    report = compare_hosts(*read_hosts([str(tmp_path)]))
    assert (report.late, report.steps) == ((1,), 30)
    waits = [host.waits(2) for host in hosts]
    wall_s = hosts[0].asked[-1] - hosts[0].asked[2]
    lost_s = sum(max(0.0, second - first) for first, second in zip(*waits, strict=True))
    assert report.lost_fraction == pytest.approx(lost_s / wall_s, abs=0.1)
    assert report.hosts[0].waits_for_others_fraction == pytest.approx(report.lost_fraction)  # all of it is this host's
    assert report.hosts[1].input_wait_fraction == pytest.approx(sum(waits[1]) / wall_s, abs=0.1)


def test_a_host_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        IdleMonitor(host=(2, 2))
    assert str(error.value) == "`host` must be the number of a host, from 0, and how many there are, got (2, 2)."
