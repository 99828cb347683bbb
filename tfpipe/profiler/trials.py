"""Tries changes one at a time, in turns with the best so far, and keeps those that help, by the median gain."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tfpipe.errors import DataError
from tfpipe.profiler.types import Fix, Report, Spread
from tfpipe.system.progress import Observer

ROUNDS, MIN_GAIN = 3, 1.03

Changes = Mapping[str, Any]
Run = Callable[[Changes], float]
"""Runs with other values of some options, and returns the rate; a DataError says why nothing can run with them."""


def try_fixes(
    report: Report, run: Run, observer: Observer, enough: float = float("inf")
) -> tuple[Report, dict[str, Any]]:
    """Tries the fixes that change options up to a rate that is enough, and returns the changes that were kept.

    Each is tried on top of those kept before, if these left its options alone.
    """
    rate, kept, fixes = report.profile.images_per_second, dict[str, Any](), list[Fix]()
    for fix in report.fixes:
        fixes.append(fix)
        if not fix.changes or rate >= enough or any(option in kept for option in fix.changes):
            continue
        observer.phase(f"Trying {fix.name}")
        try:
            gain, with_fix = compare(run, kept, {**kept, **fix.changes})
        except DataError as error:
            observer.note(f"Not tried: {fix.name}. {error}")
            continue
        is_kept = gain.median >= MIN_GAIN
        fixes[-1] = replace(fix, measured_images_per_second=with_fix, measured_gain=gain, kept=is_kept)
        if is_kept:
            kept, rate = {**kept, **fix.changes}, with_fix
    return replace(report, fixes=tuple(fixes), after_images_per_second=rate), kept


def compare(run: Run, best: Changes, changed: Changes) -> tuple[Spread, float]:
    """Runs in turns with two sets of changes; returns the second's gains by pairs of turns, and its median rate."""
    befores, afters = list[float](), list[float]()
    for number in range(ROUNDS):
        turns = [(changed, afters), (best, befores)]
        for options, rates in turns if number % 2 == 0 else reversed(turns):
            rates.append(run(options))
    gains = [after / before for after, before in zip(afters, befores, strict=True)]
    return Spread.from_values(gains), statistics.median(afters)
