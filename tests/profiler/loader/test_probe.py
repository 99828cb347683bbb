"""The sampler of a process: what it must not do to the process."""

import gc
import json
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from tfpipe.profiler.loader.probe import Probe, _list_frames, end_probes, timing_records, watching_processes


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_python_lists_frames(monkeypatch, enabled: bool) -> None:
    """Python 3.10 and 3.11 can deadlock otherwise. Whoever had switched the collector off finds it off."""
    seen, list_frames = [], sys._current_frames
    monkeypatch.setattr(sys, "_current_frames", lambda: (seen.append(gc.isenabled()), list_frames())[1])
    was_enabled = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        assert threading.get_ident() in _list_frames()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
    assert seen == [False]


def test_threads_of_the_loader_and_collections_of_garbage_are_noted(tmp_path: Path) -> None:
    done = threading.Event()
    strangers = [threading.Thread(target=done.wait, name=name) for name in ("service", "logger")]
    for thread in strangers:
        thread.start()
    probe = Probe(tmp_path, strangers[:1])
    probe.start()
    kept = [{"number": number} for number in range(100_000)]
    gc.collect()
    time.sleep(0.3)
    probe.stop()
    gc.collect()  # which nobody notes any more
    done.set()
    for thread in strangers:
        thread.join()
    lines = [json.loads(line) for line in (tmp_path / f"{os.getpid()}.jsonl").read_text().splitlines()]
    seen = {native for line in lines for native, *_ in line["counts"]}
    assert [thread.native_id in seen for thread in (*strangers, threading.main_thread())] == [False, True, True]
    assert {line["main"] for line in lines} == {threading.main_thread().native_id}
    assert (len(kept), lines[-1]["collecting"]) == (100_000, probe._collecting_s)
    assert 0.001 < lines[-1]["collecting"] < 5


class Numbers:
    def __getitem__(self, key: int) -> int:
        return key


def test_probes_end_in_all_processes_and_leave_them_as_they_were(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    worker, later = spawn.Process(target=time.sleep, args=(60,)), spawn.Process(target=(tmp_path / "ran").touch)
    old, probe, numbers = (sys.getswitchinterval(), gc.callbacks[:]), Probe(tmp_path), Numbers()
    probe.start()
    assert sys.getswitchinterval() == pytest.approx(0.0002)
    with watching_processes(tmp_path), timing_records(numbers, probe):
        worker.start()
        path = tmp_path / f"{worker.pid}.jsonl"
        while not path.exists():
            time.sleep(0.01)
        assert numbers[7] == 7
        end_probes(tmp_path)
        probe.stop()
        assert (probe.is_done, sys.getswitchinterval(), gc.callbacks) == (True, *old)
        assert numbers[8] == 8
        later.start()
    later.join()
    assert ((tmp_path / "ran").exists(), (tmp_path / f"{later.pid}.jsonl").exists()) == (True, False)
    size = -1
    for _ in range(20):  # a probe that goes on writes a line each 0.25 s
        if size == (size := path.stat().st_size):
            break
        time.sleep(0.6)
    else:
        pytest.fail("The probe of the worker goes on.")
    worker.kill()
    worker.join()
    own = [json.loads(line) for line in (tmp_path / f"{os.getpid()}.jsonl").read_text().splitlines()]
    assert [name for line in own for _, name in line["records"]] == ["7"]
