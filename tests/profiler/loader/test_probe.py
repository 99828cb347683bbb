"""The sampler of a process: what it must not do to the process."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

from tfpipe.profiler.loader.probe import _list_frames


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
