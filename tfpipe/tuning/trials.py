"""Tries changes of a pipeline's options: each in a duel with the best so far, which it replaces if it is better.

trials = Trials(Job(manifest, "train", accelerator), config)
with trials: trials.attempt({"cache": "bytes"})
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

from tfpipe.errors import ConfigError, DataError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.source import Source, get_source
from tfpipe.pipeline.stage import Customize
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.profiler.types import Fix, Spread
from tfpipe.system import host_limits
from tfpipe.system.units import human_bytes
from tfpipe.tuning.candidates import Changes
from tfpipe.tuning.paired_benchmark import Interval, Turn, duel, is_better, rate
from tfpipe.tuning.pipeline_process import Contestant, Tick, WarmUp, pipeline_of

TURN_S = 0.5
_STEPS_PER_TURN = 3
_FED = 0.99
"""Of what an accelerator consumes: with so much it is not idle, as `analysis.NO_IDLE` has it."""
MAX_WARM_UP_S = 5.0
_MAX_FILL_S, _MAX_FILL_SHARE = 120.0, 0.3
"""A cache that takes longer to fill is not tried: in seconds, and as a share of the time that is left."""

Watch = Callable[[str], None]
"""Told what is being tried."""


class TimeIsUpError(Exception):
    """What one waited for was given up."""


@dataclass(frozen=True)
class Job:
    """What is measured: the data, and what takes the batches of a pipeline."""

    data: Manifest | Source
    split: str | None
    accelerator: Accelerator
    """For batches of the size that it says; with another size it computes in proportion."""
    customize: Customize | None = None
    """Changes the stages of every pipeline; at the top of a module, so that other processes find it."""

    def accelerator_of(self, config: PipelineConfig) -> Accelerator:
        """The accelerator for a config's batches."""
        own = self.accelerator
        batch = config.global_batch_size or config.per_replica_batch_size or own.images_per_step
        return Accelerator(own.step_s * batch / own.images_per_step, batch)

    def contestant(self, config: PipelineConfig, tick: Tick | None = None) -> Contestant:
        """The pipeline in a process of its own, its cache full, warm and halted."""
        make = partial(pipeline_of, self.data, self.split, config, self.customize)
        return Contestant(make, self.accelerator_of(config), WarmUp(MAX_WARM_UP_S, self.steps_to_fill(config)), tick)

    def steps_to_fill(self, config: PipelineConfig) -> int:
        """Steps until a cache in memory holds every record; 0 where nobody knows how many there are.

        A cache in files is filled when the pipeline is built.
        """
        if config.cache == "none" or config.cache_dir is not None:
            return 0
        records = get_source(self.data, self.split).num_records or 0
        return math.ceil(records / self.accelerator_of(config).images_per_step)


@dataclass(frozen=True)
class Trial:
    """One change, and what it gave."""

    changes: Changes
    images_per_second: float | None
    """With it, and with all that was kept before; None where it could not be tried."""
    gain: Interval | None
    """Its rate by that of the best before it."""
    kept: bool
    note: str = ""
    """Why it could not be tried."""


class Trials:
    """A champion, which every change must beat. Use it in a `with` block: it holds processes, two at most.

    Args:
        job: What is measured.
        config: The first champion.
        tick: Called while one waits.

    Attributes:
        config: The champion's.
        images_per_second: The champion's, when it was last measured.
        start_s: How long the champion took until it was warm; `first_start_s`: the first one.

    Raises:
        DataError: The first pipeline does not run.
    """

    def __init__(self, job: Job, config: PipelineConfig, tick: Tick | None = None) -> None:
        self.job, self.first, self.config = job, config, config
        self.trials: list[Trial] = []
        self._tick = tick
        self._stack = ExitStack()
        self._enter(job.contestant(config, tick))
        self.images_per_second = self._champion.start.images_per_second
        self.first_start_s = self.start_s
        self._peak_bytes = 0

    @property
    def start_s(self) -> float:
        """How long the champion took."""
        return self._champion.start_s

    @property
    def turn_s(self) -> float:
        """Of the duels."""
        return turn_s(self.job.accelerator_of(self.config), self.images_per_second)

    def attempt(self, changes: Changes, until: float = math.inf) -> Trial:
        """Tries a change on top of all that was kept, and keeps it if it is better beyond noise.

        Args:
            changes: Of the champion's config.
            until: When to give it up, by `time.monotonic`.

        Raises:
            DataError: The champion itself runs no longer.
        """
        try:
            trial = self._attempt(changes, until)
        except (ConfigError, DataError) as error:
            trial = Trial(changes, None, None, False, str(error))
        except TimeIsUpError:
            trial = Trial(changes, None, None, False, "There was no time left.")
        self.trials.append(trial)
        if not self._champion.is_alive:  # most often memory ran out, with two pipelines in it
            self._enter(self.job.contestant(self.config, self._tick))
        return trial

    def confirm(self, until: float = math.inf) -> tuple[Sequence[Turn], Sequence[Turn], Interval]:
        """The champion once more, against the first one: turns of both, and the gain of all that was kept.

        Both in new processes: the champion was the best of many, and a part of that was luck, which stays with a
        process. Where the gain is not above 1 beyond noise, the first one is the champion again: each change was
        better than what was there before, but together they must be so too. Nothing can be tried afterwards.

        Args:
            until: When to be done, by `time.monotonic`; what is not clear by then is no gain.
        """
        if self.config == self.first:
            raise ConfigError("There is no change to confirm: none was kept.")
        self._stack.close()
        found, gain = self.config, None
        now: Sequence[Turn] = ()
        before: Sequence[Turn] = ()
        try:
            with (
                self.job.contestant(found, self._until(until)) as challenger,
                self.job.contestant(self.first, self._until(until)) as champion,
            ):
                now, before, gain = duel(challenger, champion, self.turn_s, lambda: time.monotonic() > until)
        except (DataError, TimeIsUpError):
            pass
        if gain is None or gain.low <= 1:
            self.config = self.first
        return now, before, gain or Interval(1.0, 1.0, 1.0)

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stack.close()

    def _enter(self, champion: Contestant) -> None:
        self._stack.close()
        self._champion = self._stack.enter_context(champion)

    def _attempt(self, changes: Changes, until: float) -> Trial:
        config = replace(self.config, **changes)
        self._check_fill(config, until)
        free = host_limits.available_memory_bytes()
        if free < self._peak_bytes:
            raise DataError(
                f"The best so far takes {human_bytes(self._peak_bytes)}; for a second one {human_bytes(free)} are free."
            )
        with ExitStack() as stack:
            challenger = stack.enter_context(self.job.contestant(config, self._until(until)))
            own, others, gain = duel(challenger, self._champion, self.turn_s, lambda: time.monotonic() > until)
            if gain is None:
                raise TimeIsUpError
            kept = is_better(gain)
            self.images_per_second = rate(own if kept else others)
            self._peak_bytes = (own if kept else others)[-1].peak_memory_bytes
            if kept:
                stack.pop_all()
                self._enter(challenger)
                self.config = config
        return Trial(changes, rate(own), gain, kept)

    def _check_fill(self, config: PipelineConfig, until: float) -> None:
        """No more time for a cache than it can be worth; how fast it fills is known from the champion."""
        images = self.job.steps_to_fill(config) * self.job.accelerator_of(config).images_per_step
        seconds = images / self.images_per_second
        most = min(_MAX_FILL_S, _MAX_FILL_SHARE * (until - time.monotonic()))
        if seconds > most and config.cache != self.config.cache:
            raise DataError(
                f"The cache takes about {seconds:,.0f} s to fill, and {max(most, 0):,.0f} s are left for it."
            )

    def _until(self, until: float) -> Tick:
        """Ends the waiting then, but for a round of a duel that has begun."""
        late = until + 3 * self.turn_s

        def tick() -> None:
            if self._tick:
                self._tick()
            if time.monotonic() > late:
                raise TimeIsUpError

        return tick


def turn_s(accelerator: Accelerator, images_per_second: float) -> float:
    """How long a turn takes: three steps at least, or it says little."""
    return max(TURN_S, _STEPS_PER_TURN * accelerator.images_per_step / images_per_second)


def try_fixes(trials: Trials, fixes: Sequence[Fix], watch: Watch) -> tuple[Fix, ...]:
    """Tries in turn what can be changed in the config, until the accelerator is fed.

    What the data or the machine needs stays untried.

    Returns:
        The fixes as they came, with what was measured.
    """
    done = []
    for fix in fixes:
        fed = trials.images_per_second >= _FED * trials.job.accelerator.images_per_second
        if fix.changes and not fed:
            watch(fix.reason)
            trial = trials.attempt(fix.changes)
            gain = None if trial.gain is None else Spread(trial.gain.ratio, trial.gain.low, trial.gain.high)
            fix = replace(fix, measured_images_per_second=trial.images_per_second, measured_gain=gain, kept=trial.kept)
        done.append(fix)
    return tuple(done)
