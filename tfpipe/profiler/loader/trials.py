"""Tries fixes in turns with the loader as it is, and keeps those that help.

as it is, as it is + fix, as it is + fix, as it is, ...   each with workers of its own; the medians are compared
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfpipe.profiler.loader.loaders import LoaderSource
from tfpipe.profiler.loader.measure import Batches, Trainer, drive
from tfpipe.profiler.loader.types import LoaderFix
from tfpipe.system.progress import Observer

_ROUNDS, _MIN_GAIN = 3, 1.03


def try_fixes(
    source: LoaderSource, trainer: Trainer, fixes: Sequence[LoaderFix], seconds: float, observer: Observer
) -> tuple[tuple[LoaderFix, ...], dict[str, Any]]:
    """Tries the fixes that change options, one after another, each on top of those that were kept.

    Args:
        source: The user's function.
        trainer: The consumer of the batches.
        fixes: The fixes, the most useful first.
        seconds: The length of a turn, at least.
        observer: An object that is told which fix is tried.

    Returns:
        The fixes with what was measured, and the options that were kept.
    """
    kept: dict[str, Any] = {}
    tried = []
    for fix in fixes:
        if fix.changes and not any(name in kept for name in fix.changes):
            observer.phase(f"Trying {fix.name}")
            gains, changes = [], {**kept, **fix.changes}
            for number in range(_ROUNDS):
                order = (kept, changes) if number % 2 == 0 else (changes, kept)
                rates = [run_turn(source, trainer, options, seconds) for options in order]
                gains.append(rates[1] / rates[0] if number % 2 == 0 else rates[0] / rates[1])
            gain = statistics.median(gains)
            fix = replace(fix, measured_gain=gain, kept=gain >= _MIN_GAIN)
            kept = changes if fix.kept else kept
        tried.append(fix)
    return tuple(tried), kept


def run_turn(source: LoaderSource, trainer: Trainer, changes: Mapping[str, Any], seconds: float) -> float:
    """Returns the batches per second of the loader with some options changed, after its queues ran empty."""
    batches = Batches(source.make(changes))
    try:
        step, _ = trainer.make_step(batches.warm_up())
        done = drive(batches, step, seconds)
    finally:
        batches.close()
    return done.batches / done.wall_s
