"""Changes whose rates are known, tried in turns."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.observers import Recorder
from tfpipe.errors import DataError
from tfpipe.profiler.trials import Trial, compare, try_changes

RATES = {"slow": 0.5, "fast": 2.0, "same": 1.02}
"""The factors by which the rate changes."""


class Machine:
    """Runs at known rates, and notes the order of the runs."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, ...]] = []

    def run(self, changes: Mapping[str, Any]) -> float:
        self.runs.append(tuple(changes))
        if "broken" in changes:
            raise DataError("It does not run.")
        rate = 100.0
        for name in changes:
            rate *= RATES[name]
        return rate


def test_what_helps_is_kept_and_tried_with_the_rest() -> None:
    machine, observer = Machine(), Recorder()
    names = ("slow", "fast", "", "broken", "same")
    trials, kept = try_changes(machine.run, [(name, {name: 1} if name else {}) for name in names], observer)
    assert kept == {"fast": 1}
    assert trials == [Trial((0.5,) * 3, 50), Trial((2.0,) * 3, 200), None, None, Trial((1.02,) * 3, 204)]
    assert [trial.kept for trial in trials if trial] == [False, True, False]
    assert observer.phases == ["Trying slow", "Trying fast", "Trying broken", "Trying same"]
    assert observer.notes == ["Not tried: broken. It does not run."]
    assert machine.runs[:6] == [("slow",), (), (), ("slow",), ("slow",), ()]  # a drift that is even cancels out


def test_nothing_more_is_tried_with_a_rate_that_is_enough() -> None:
    machine = Machine()
    trials, kept = try_changes(machine.run, [("fast", {"fast": 1}), ("same", {"same": 1})], Recorder(), enough=195)
    assert (trials[1], kept, len(machine.runs)) == (None, {"fast": 1}, 6)


def test_one_spoiled_turn_changes_nothing() -> None:
    rates: Iterator[float] = iter((120.0, 100.0, 100.0, 12.0, 120.0, 100.0))  # other work took the fourth
    trial = compare(lambda _: next(rates), {}, {"fast": 1})
    assert (trial.gain, trial.rate, trial.kept) == (pytest.approx(1.2), 120, True)
