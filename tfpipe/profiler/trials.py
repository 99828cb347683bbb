"""Tries fixes one by one, in alternating runs with the best options so far, and keeps those that gain enough."""

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
"""A function that runs with changed options and returns the rate, or raises a DataError if it cannot run with them."""


def try_fixes(
    report: Report, run: Run, observer: Observer, enough: float = float("inf")
) -> tuple[Report, dict[str, Any]]:
    """Tries the fixes that change options until the rate is `enough`; returns the report and the changes that it kept.

    Each fix is tried on top of the changes kept before, unless they have changed its options already.
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
    """Runs two sets of changes in turns; returns the gain of the second in each pair of turns, and its median rate."""
    befores, afters = list[float](), list[float]()
    for number in range(ROUNDS):
        pair = [(changed, afters), (best, befores)]
        for options, rates in pair if number % 2 == 0 else reversed(pair):
            rates.append(run(options))
    gains = [after / before for after, before in zip(afters, befores, strict=True)]
    return Spread.from_values(gains), statistics.median(afters)
