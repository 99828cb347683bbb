"""Tries fixes in turns with the loader as it is, and keeps those that help.

as it is, as it is + fix, as it is + fix, as it is, ...   each with workers of its own; the medians are compared
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfpipe.profiler.loader.loaders import LoaderSource
from tfpipe.profiler.loader.measure import Batches, Trainer, drive, make_step, warm_up
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
        if not fix.changes or any(name in kept for name in fix.changes):
            tried.append(fix)
            continue
        observer.phase(f"Trying {name_changes(fix.changes)}")
        gain = _compare(source, trainer, kept, {**kept, **fix.changes}, seconds)
        helps = gain >= _MIN_GAIN
        if helps:
            kept |= fix.changes
        tried.append(replace(fix, measured_gain=gain, kept=helps))
    return tuple(tried), kept


def name_changes(changes: Mapping[str, Any]) -> str:
    """Returns option values as `num_workers=4, persistent_workers=True`."""
    return ", ".join(f"{name}={value!r}" for name, value in changes.items())


def _compare(
    source: LoaderSource, trainer: Trainer, before: Mapping[str, Any], after: Mapping[str, Any], seconds: float
) -> float:
    """Returns the median gain of the turns with the options `after` over those with `before`."""
    gains = []
    for number in range(_ROUNDS):
        order = (before, after) if number % 2 == 0 else (after, before)
        rates = {id(changes): run_turn(source, trainer, changes, seconds) for changes in order}
        gains.append(rates[id(after)] / rates[id(before)])
    return statistics.median(gains)


def run_turn(
    source: LoaderSource,
    trainer: Trainer,
    changes: Mapping[str, Any],
    seconds: float,
    step: Callable[[Any], Any] | None = None,
) -> float:
    """Returns the batches per second of the loader with some options changed, after its queues ran empty."""
    loader = source.make(changes)
    batches = Batches(loader)
    try:
        batch, _ = batches.fetch()
        if step is None:
            step, _ = make_step(trainer, batch)
        warm_up(batches, loader)
        done = drive(batches, step, seconds)
    finally:
        batches.close()
    return done.batches / done.wall_s
