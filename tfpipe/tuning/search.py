"""Searches for faster options within a time budget, and is never worse than the options it began with.

It is a local search that starts well. First everything that only concerns speed goes back to its default at once, which
repairs a config that somebody spoiled by hand. Then come the profiler's fixes for the best config so far, and again for
the one that they led to, until none helps. Each change must beat the best in turns (`compare_with_best`). The config at
the end must also beat the first one, both started anew, or the first one is the result.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, DataError
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.measure.profile import ProfileConfig, profile_pipeline
from tfpipe.system import host_limits
from tfpipe.system.options import list_changes
from tfpipe.system.progress import Observer
from tfpipe.tuning.candidates import (
    CACHES,
    Changes,
    apply_changes,
    describe_changes,
    is_mechanical,
    reset_to_defaults,
)
from tfpipe.tuning.paired_benchmark import MIN_PAIRS, Interval
from tfpipe.tuning.pipeline_process import TimeIsUpError
from tfpipe.tuning.trials import BUSY_SHARE, NO_GAIN, Confirmed, PipelineJob, Trial, Trials

VERSION = 1

MIN_S = 45.0
"""A shorter search is over before one change was tried and confirmed."""

# How long to measure for the profiler's fixes, and how long it takes to have them.
_PROFILE_S, _ADVICE_S = 3.0, 15.0

# By how much the starts and turns at the end may take longer than those before.
_SLACK = 1.2


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    Attributes:
        config: The best options.
        before_images_per_second: The rate of the options that the search began with.
        after_images_per_second: The rate of the best options.
        gain: The gain of all changes together, measured at the end; 1 if nothing helped.
        trials: The trials, in order.
        seconds: The seconds that the search took.
        finished: Whether there was nothing left to try.
    """

    config: PipelineConfig
    before_images_per_second: float
    after_images_per_second: float
    gain: Interval
    trials: tuple[Trial, ...]
    seconds: float
    finished: bool


def tune(job: PipelineJob, config: PipelineConfig, seconds: float, input_may_change: bool, observer: Observer) -> Tuned:
    """Looks for faster options.

    Args:
        job: The data and the accelerator. An accelerator with a step time near 0 shows the pipeline's full rate.
        config: The options to begin with.
        seconds: The length of the search, at least 45. Turns that have begun are finished.
        input_may_change: Whether to try changes that the training step must know of, too: another dtype, augmentation
            on the device, images decoded once.
        observer: The observer of the trials.

    Raises:
        ConfigError: There is too little time, or the pipeline runs in a service.
        DataError: The first pipeline does not run.
    """
    _check(config, seconds)
    started = time.monotonic()
    until = started + seconds
    observer.phase("Starting the pipeline")
    with _start_trials(job, config, until) as trials:
        finished = _try_candidates(trials, until, input_may_change, observer)
        done = Confirmed(NO_GAIN, trials.images_per_second, trials.images_per_second)
        if trials.config != config:
            observer.phase(f"{_describe_best(trials)}; measuring it against where it began")
            done = trials.confirm(until)
        passed_s, (gain, before, after) = time.monotonic() - started, done
        return Tuned(trials.config, before, after, gain, tuple(trials.trials), passed_s, finished)


def to_json(tuned: Tuned, first: PipelineConfig) -> dict[str, Any]:
    """Returns plain values, with the version of their form.

    Args:
        tuned: The result.
        first: The options that the search began with.
    """
    return {
        "version": VERSION,
        **summarize(tuned),
        "changes": list_changes(first, tuned.config),
        "trials": [asdict(trial) for trial in tuned.trials],
        "seconds": tuned.seconds,
        "finished": tuned.finished,
    }


def summarize(tuned: Tuned) -> dict[str, Any]:
    """Returns the figures that stand beside the options in their file."""
    return {
        "images_per_second_before": tuned.before_images_per_second,
        "images_per_second": tuned.after_images_per_second,
        "gain": asdict(tuned.gain),
    }


def _check(config: PipelineConfig, seconds: float) -> None:
    if seconds < MIN_S:
        raise ConfigError(f"A search needs at least {MIN_S:.0f} s, got {seconds:g}.")
    if config.service.workers:
        raise ConfigError("`service` must be left out to tune: its workers go on while this host's pipeline is halted.")


def _start_trials(job: PipelineJob, config: PipelineConfig, until: float) -> Trials:
    try:
        return Trials(job, config, until)
    except TimeIsUpError:
        raise DataError(
            "The pipeline was not warm when the time was up: its storage is slow, or its cache large. Give more "
            "`seconds`, or begin without a cache."
        ) from None


def _try_candidates(trials: Trials, until: float, input_may_change: bool, observer: Observer) -> bool:
    """Tries changes until nothing helps, the accelerator is busy or the time is up; returns whether it finished.

    Each is a change of the config that is the best by then. No config comes twice.
    """
    seen, advised, waiting = {trials.config}, None, deque([reset_to_defaults(trials.config)])
    # Once, or the same cache would be tried again with another size.
    free_bytes = host_limits.available_memory_bytes()
    while True:
        trials_until = until - _estimate_confirm_s(trials)
        if not waiting:
            if trials.config == advised:  # nothing helps any more
                return True
            if time.monotonic() + _ADVICE_S > trials_until:
                return False
            observer.phase(f"{_describe_best(trials)}; profiling")
            advised = trials.config
            waiting.extend(_get_advice(trials.job, advised, input_may_change))
            continue
        changes = _limit_cache(trials, waiting.popleft(), free_bytes)
        config = apply_changes(trials.config, changes)
        if config is None or config in seen or not (input_may_change or is_mechanical(changes)):
            continue
        seen.add(config)
        if trials.images_per_second >= BUSY_SHARE * trials.job.get_accelerator(trials.config).images_per_second:
            return True
        if time.monotonic() + trials.start_s + _estimate_turns_s(trials) > trials_until:
            return False
        observer.phase(f"{_describe_best(trials)}; trying {describe_changes(changes)}")
        trials.attempt(changes, trials_until)


def _get_advice(job: PipelineJob, config: PipelineConfig, input_may_change: bool) -> Sequence[Changes]:
    """Returns the changes that the profiler proposes for a config, best first."""
    try:
        profile = profile_pipeline(
            job.data, job.split, config, job.get_accelerator(config), ProfileConfig(_PROFILE_S), customize=job.customize
        )
    except Exception:  # whatever the pipeline raised: the search can do without advice
        return ()
    return [fix.changes for fix in make_report(profile).fixes if fix.keeps_values or input_may_change]


def _limit_cache(trials: Trials, changes: Changes, free_bytes: int) -> Changes:
    """Returns the changes, with a cache of what fits if they ask for more."""
    config = apply_changes(trials.config, changes)
    if config is None or not set(changes) & set(CACHES):
        return changes
    cache_bytes = trials.job.find_cache_bytes(config, free_bytes)
    return changes if cache_bytes is None else {**changes, "cache_bytes": cache_bytes}


def _estimate_turns_s(trials: Trials) -> float:
    return 2 * MIN_PAIRS * trials.turn_s


def _estimate_confirm_s(trials: Trials) -> float:
    """Returns the seconds of two starts, and of turns that are soon clear."""
    return _SLACK * (trials.first_start_s + trials.start_s + _estimate_turns_s(trials))


def _describe_best(trials: Trials) -> str:
    return f"Best so far {trials.images_per_second:,.0f} images/s"
