"""Searches for faster options within a time budget, and is never worse than where it began.

It is a local search that starts well: first everything that only concerns speed goes back to its default at once, which
mends a config that somebody spoiled by hand; then come the profiler's fixes, then single steps from where one is. Each
change must beat the best so far in a duel (`turns.duel`), and what is left at the end must beat the beginning, both
started anew, or the beginning is the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from tfpipe.errors import ConfigError, DataError
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.profiler.measure.profile import profile_pipeline
from tfpipe.profiler.report.text_json import make_report
from tfpipe.system import host_limits
from tfpipe.tuning.candidates import Changes, all_defaults, changed, is_mechanical, neighbours
from tfpipe.tuning.paired_benchmark import MIN_ROUNDS, Interval, rate
from tfpipe.tuning.pipeline_process import Tick
from tfpipe.tuning.trials import Job, TimeIsUpError, Trial, Trials, Watch

VERSION = 1
MIN_S = 45.0
"""Less is over before one change was tried and confirmed."""
_PROFILE_S, _ADVICE_S = 3.0, 15.0
"""How long to measure for the profiler's fixes, and how long it takes to have them."""
_FED = 0.99
"""Of what the accelerator consumes: more is not to be had."""
_SLACK = 1.2
"""By how much the starts and turns at the end may take longer than the ones before."""


@dataclass(frozen=True)
class Tuned:
    """What a search found."""

    config: PipelineConfig
    before_images_per_second: float
    after_images_per_second: float
    gain: Interval
    """Of everything together, from a duel at the end; 1 where nothing helped."""
    trials: tuple[Trial, ...]
    seconds: float
    finished: bool
    """Whether there was nothing left to try."""


Advise = Callable[[PipelineConfig], Sequence[Changes]]
"""Changes that should help a config, best first."""


def tune(
    job: Job, config: PipelineConfig, seconds: float, input_may_change: bool, watch: Watch, tick: Tick | None = None
) -> Tuned:
    """Looks for faster options.

    Args:
        job: What is measured; an accelerator that is busy for next to nothing shows all that the pipeline can give.
        config: Where to begin.
        seconds: The whole search takes no longer, but for turns that have begun; at least 45.
        input_may_change: Also try what the training step must know of: another dtype, augmentation on the device,
            images decoded once, another order.
        watch: Told what is being tried.
        tick: Called while one waits.

    Raises:
        ConfigError: There is too little time, or the pipeline runs in a service.
        DataError: The first pipeline does not run.
    """
    _check(config, seconds)
    started = time.monotonic()
    until = started + seconds
    watch("Starting the pipeline")
    with _first(job, config, until, tick) as trials:
        first = trials.images_per_second

        def advise(best: PipelineConfig) -> Sequence[Changes]:
            if time.monotonic() + _ADVICE_S > until - _confirm_s(trials):
                return ()
            watch(f"{_best(trials)}; profiling")
            return _advice(job, best)

        finished = True
        for changes in _candidates(trials, advise, input_may_change):
            if trials.images_per_second >= _FED * job.accelerator_of(trials.config).images_per_second:
                break
            last = until - _confirm_s(trials)
            if time.monotonic() + trials.start_s + _duel_s(trials) > last:
                finished = False
                break
            watch(f"{_best(trials)}; trying {describe(changes)}")
            trials.attempt(changes, last)
        gain, rates = Interval(1.0, 1.0, 1.0), (first, first)
        if trials.config == config and trials.trials:
            rates = (trials.images_per_second,) * 2
        elif trials.config != config:
            watch(f"{_best(trials)}; measuring it against where it began")
            gain, rates = _confirmed(trials, until)
        passed = time.monotonic() - started
        return Tuned(trials.config, *rates, gain, tuple(trials.trials), passed, finished)


def to_json(tuned: Tuned, first: PipelineConfig) -> dict[str, Any]:
    """Plain values, with the version of their form."""
    names = [one.name for one in fields(first) if getattr(first, one.name) != getattr(tuned.config, one.name)]
    return {
        "version": VERSION,
        **notes_of(tuned),
        "changes": {name: getattr(tuned.config, name) for name in names},
        "trials": [asdict(trial) for trial in tuned.trials],
        "seconds": tuned.seconds,
        "finished": tuned.finished,
    }


def notes_of(tuned: Tuned) -> dict[str, Any]:
    """What stands beside the options in their file."""
    return {
        "images_per_second_before": tuned.before_images_per_second,
        "images_per_second": tuned.after_images_per_second,
        "gain": asdict(tuned.gain),
    }


def describe(changes: Changes) -> str:
    """`cache = 'bytes', cycle_length = 16`."""
    return ", ".join(f"{name} = {'auto' if value is None else repr(value)}" for name, value in changes.items())


def _check(config: PipelineConfig, seconds: float) -> None:
    if seconds < MIN_S:
        raise ConfigError(f"A search needs at least {MIN_S:.0f} s, got {seconds:g}.")
    if config.service is not None:
        raise ConfigError("`service` must be left out to tune: its workers go on while this host's pipeline is halted.")


def _first(job: Job, config: PipelineConfig, until: float, tick: Tick | None) -> Trials:
    """The beginning; it must leave time for something else."""

    def in_time() -> None:
        if tick:
            tick()
        if waiting and time.monotonic() > until:
            raise TimeIsUpError

    waiting = True
    try:
        return Trials(job, config, in_time)
    except TimeIsUpError:
        raise DataError(
            "The pipeline was not warm when the time was up: its storage is slow, or its cache large. Give more "
            "`seconds`, or begin without a cache."
        ) from None
    finally:
        waiting = False


def _advice(job: Job, config: PipelineConfig) -> Sequence[Changes]:
    try:
        profile = profile_pipeline(job.data, job.split, config, job.accelerator_of(config), _PROFILE_S)
    except Exception:  # it runs in a process of its own; the search can do without advice
        return ()
    return [fix.changes for fix in make_report(profile).fixes]


def _candidates(trials: Trials, advise: Advise, input_may_change: bool) -> Iterator[Changes]:
    """What to try next, each time from where the search is by then; no config twice."""
    tried = {trials.config}

    def fresh(changes: Changes) -> bool:
        made = changed(trials.config, changes)
        if made is None or made in tried or not (input_may_change or is_mechanical(changes)):
            return False
        tried.add(made)
        return True

    if fresh(changes := all_defaults(trials.config)):
        yield changes
    yield from filter(fresh, advise(trials.config))
    while True:
        kept = trials.config
        yield from filter(fresh, neighbours(kept, host_limits.usable_cpus(), input_may_change))
        if trials.config == kept:  # nothing helps any more
            return


def _confirmed(trials: Trials, until: float) -> tuple[Interval, tuple[float, float]]:
    """The gain, and the rates before and after."""
    best, found = trials.images_per_second, trials.config
    now, before, gain = trials.confirm(until)
    if trials.config == found:
        return gain, (rate(before), rate(now))
    kept = rate(before) if before else best
    return Interval(1.0, 1.0, 1.0), (kept, kept)


def _duel_s(trials: Trials) -> float:
    return 2 * MIN_ROUNDS * trials.turn_s


def _confirm_s(trials: Trials) -> float:
    """Of two starts, and a duel that is soon clear."""
    return _SLACK * (trials.first_start_s + trials.start_s + _duel_s(trials))


def _best(trials: Trials) -> str:
    return f"Best so far {trials.images_per_second:,.0f} images/s"
