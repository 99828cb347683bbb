"""Everything that is tried, is tried briefly."""

import gc

import pytest

from tfpipe.profiler.measure import clocks, textbook


@pytest.fixture(autouse=True)
def _hurry(monkeypatch) -> None:
    """Measures briefly, and ends what earlier tests left: the clock of stock operations counts all threads."""
    monkeypatch.setattr(textbook, "SECONDS", 0.01)
    monkeypatch.setattr(clocks, "SECONDS", 0.05)
    monkeypatch.setattr(clocks, "_COST_S", 0.01)
    monkeypatch.setattr(clocks, "_MIN_ROUNDS", 2)
    monkeypatch.setattr(clocks, "_MAX_REST_S", 0.1)
    gc.collect()
