"""The sampler of a process: what it must not do to the process."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from tfpipe.profiler.loader.probe import Probe, _list_frames


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_python_lists_frames(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
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


def test_threads_that_were_there_before_the_loader_are_not_its_own(tmp_path: Path) -> None:
    done = threading.Event()
    strangers = [threading.Thread(target=done.wait, name=name) for name in ("service", "logger")]
    for thread in strangers:
        thread.start()
    probe = Probe(tmp_path, strangers[:1])
    probe.start()
    time.sleep(0.3)
    probe.stop()
    done.set()
    for thread in strangers:
        thread.join()
    lines = [json.loads(line) for line in (tmp_path / f"{os.getpid()}.jsonl").read_text().splitlines()]
    seen = {name for line in lines for name, *_ in line["counts"]}
    assert ("service" in seen, "logger" in seen, "main/" in seen) == (False, True, True)


def test_the_time_in_which_python_looks_for_garbage_is_noted(tmp_path: Path) -> None:
    probe = Probe(tmp_path)
    probe.start()
    kept = [{"number": number} for number in range(100_000)]
    gc.collect()
    probe.stop()
    gc.collect()
    last = json.loads((tmp_path / f"{os.getpid()}.jsonl").read_text().splitlines()[-1])
    assert (len(kept), last["collecting"]) == (100_000, probe._collecting_s)
    assert 0.001 < last["collecting"] < 5
