"""Tries changes one at a time, in turns with the best so far, and keeps those that help, by the median gain."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tfpipe.errors import DataError
from tfpipe.profiler.types import Fix, Report, Spread
from tfpipe.system.progress import Observer

ROUNDS, MIN_GAIN = 3, 1.03

Changes = Mapping[str, Any]
Run = Callable[[Changes], float]
"""Runs with other values of some options, and returns the rate; a DataError says why nothing can run with them."""


@dataclass(frozen=True)
class Trial:
    """The result of one change."""

    gains: tuple[float, ...]  # the rate with the change by that without it, of each pair of turns
    rate: float  # the median with the change

    @property
    def gain(self) -> float:
        """The median of the gains."""
        return statistics.median(self.gains)

    @property
    def kept(self) -> bool:
        """Whether the gain is above the noise."""
        return self.gain >= MIN_GAIN


def try_fixes(
    report: Report, run: Run, observer: Observer, enough: float = float("inf")
) -> tuple[Report, dict[str, Any]]:
    """Tries the fixes that change options up to a rate that is enough, and returns the changes that were kept."""
    is_enough = report.profile.images_per_second >= enough
    candidates = [(fix.name, {} if is_enough else fix.changes) for fix in report.fixes]
    trials, kept = try_changes(run, candidates, observer, enough)
    fixes = [_add_trial(fix, trial) for fix, trial in zip(report.fixes, trials, strict=True)]
    rates = [trial.rate for trial in trials if trial is not None and trial.kept]
    after = rates[-1] if rates else report.profile.images_per_second
    return replace(report, fixes=tuple(fixes), after_images_per_second=after), kept


def _add_trial(fix: Fix, trial: Trial | None) -> Fix:
    if trial is None:
        return fix
    gain = Spread.from_values(trial.gains)
    return replace(fix, measured_images_per_second=trial.rate, measured_gain=gain, kept=trial.kept)


def try_changes(
    run: Run, candidates: Iterable[tuple[str, Changes]], observer: Observer, enough: float = float("inf")
) -> tuple[list[Trial | None], dict[str, Any]]:
    """Tries named changes on top of those kept, if these left its options alone; None stands for one not tried."""
    kept: dict[str, Any] = {}
    rate = 0.0
    trials: list[Trial | None] = []
    for name, changes in candidates:
        trial = None
        if changes and rate < enough and not any(option in kept for option in changes):
            observer.phase(f"Trying {name}")
            try:
                trial = compare(run, kept, {**kept, **changes})
            except DataError as error:
                observer.note(f"Not tried: {name}. {error}")
        if trial is not None and trial.kept:
            kept, rate = {**kept, **changes}, trial.rate
        trials.append(trial)
    return trials, kept


def compare(run: Run, best: Changes, changed: Changes) -> Trial:
    """Runs in turns with two sets of changes."""
    befores, afters = list[float](), list[float]()
    for number in range(ROUNDS):
        turns = [(changed, afters), (best, befores)]
        for options, rates in turns if number % 2 == 0 else reversed(turns):
            rates.append(run(options))
    gains = tuple(after / before for after, before in zip(afters, befores, strict=True))
    return Trial(gains, statistics.median(afters))
