"""Tries changes of a pipeline's options: each runs in turns with the best so far, and replaces it if it is better.

trials = Trials(PipelineJob(manifest, "train", accelerator), config)
with trials: trials.attempt({"cache": "bytes"})
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import NamedTuple

from tfpipe.engine.cache import MAX_CACHE_SHARE, estimate_cache_bytes
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.source import Source, get_source
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import check_stages
from tfpipe.pipeline.stage import Customize, prefer_textbook
from tfpipe.pipeline.textbook_choice import is_by_engine
from tfpipe.profiler.diagnose.bottleneck import NO_IDLE
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.profiler.types import Fix, Spread
from tfpipe.system import host_limits
from tfpipe.system.options import replace_options
from tfpipe.system.progress import Observer
from tfpipe.system.units import format_mebibytes, human_bytes
from tfpipe.tuning.candidates import Changes
from tfpipe.tuning.paired_benchmark import (
    Interval,
    PairedTurns,
    choose_turn_s,
    compare_with_best,
    get_rate,
    is_better,
)
from tfpipe.tuning.pipeline_process import PipelineProcess, TimeIsUpError, build_endless_dataset

# A pipeline that gives this share of the accelerator's rate practically never leaves it idle.
BUSY_SHARE = 1 - NO_IDLE

# A cache that takes longer to fill is not tried: in seconds, and as a share of the time that is left.
_MAX_FILL_S, _MAX_FILL_SHARE = 120.0, 0.3

_PART_SHARE = 0.4
"""The share of the free memory for a cache of what fits: two pipelines run side by side, and both may have one."""

NO_GAIN = Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class PipelineJob:
    """The data of a pipeline, and the accelerator that takes its batches: everything in a measurement but the options.

    Attributes:
        data: A manifest, or the source of files that something else wrote.
        split: The name of a split; None for foreign files.
        accelerator: The accelerator for batches of the size that it names. Other sizes take time in proportion.
        customize: A function that changes the stages of every pipeline; None leaves them as they are. Other processes
            must find it, so it must be a module's function.
    """

    data: Manifest | Source
    split: str | None
    accelerator: Accelerator
    customize: Customize | None = None

    def get_accelerator(self, config: PipelineConfig) -> Accelerator:
        """Returns the accelerator for a config's batches."""
        images = self.accelerator.images_per_step
        batch = config.batch_size
        return Accelerator(self.accelerator.step_s * batch / images, batch, self.accelerator.trainer)

    def check(self, config: PipelineConfig) -> None:
        """Refuses options that do not fit the data or this host, before any process is started.

        Raises:
            ConfigError: An option cannot be used.
            DataError: There are no records, or an index cannot be read.
            FormatError: An index is damaged.
        """
        check_stages(self.data, self.split, config, self.customize)

    def start_process(self, config: PipelineConfig, deadline: float = math.inf) -> PipelineProcess:
        """Starts the pipeline in a new process, and returns it halted, warm and with a full cache.

        Args:
            config: The options.
            deadline: A time of `time.monotonic`. The wait ends then with `TimeIsUpError`.
        """
        make_dataset = partial(build_endless_dataset, self.data, self.split, config, self.customize)
        steps = self.count_steps_to_fill(config)
        return PipelineProcess(make_dataset, self.get_accelerator(config), steps, deadline)

    def find_cache_bytes(self, config: PipelineConfig, free_bytes: int) -> str | None:
        """Finds the `cache_bytes` of a cache in memory that does not fit as a whole; None for any other config.

        Args:
            config: The options.
            free_bytes: The memory that is free.
        """
        if config.cache == "none" or config.cache_dir is not None or config.cache_bytes is not None:
            return None
        source = get_source(self.data, self.split)
        needed = estimate_cache_bytes(plan_batches(source, config))
        fits = needed is None or needed <= MAX_CACHE_SHARE * free_bytes
        by_engine = is_by_engine(source, prefer_textbook(config, self.customize))  # tf.data caches all or nothing
        return None if fits or not by_engine else format_mebibytes(_PART_SHARE * free_bytes)

    def count_steps_to_fill(self, config: PipelineConfig) -> int:
        """Counts the steps until a cache in memory holds every record; 0 if the number of records is unknown.

        A cache in files is filled when the pipeline is built.
        """
        if config.cache == "none" or config.cache_dir is not None:
            return 0
        records = get_source(self.data, self.split).num_records or 0
        return math.ceil(records / self.get_accelerator(config).images_per_step)


@dataclass(frozen=True)
class Trial:
    """One change and its result.

    Attributes:
        changes: The values by name of the option.
        images_per_second: The rate with the change, on top of all changes kept before; None if it was not tried.
        gain: The rate with the change divided by that of the best before it; None if it was not tried.
        kept: Whether the change is in the best config from then on.
        note: The reason why it was not tried.
    """

    changes: Changes
    images_per_second: float | None
    gain: Interval | None
    kept: bool
    note: str = ""


class Confirmed(NamedTuple):
    """The gain of all changes that were kept, and the rates without and with them; both are one if the gain is 1."""

    gain: Interval
    before_images_per_second: float
    after_images_per_second: float


class Trials:
    """A search's best pipeline, which every change must beat.

    Use it in a `with` block: it holds processes, two at most.

    Args:
        job: The data and the accelerator.
        config: The options to begin with.
        deadline: A time of `time.monotonic`. The wait for the first pipeline ends then with `TimeIsUpError`.

    Attributes:
        job: The argument.
        first: The argument `config`.
        config: The best config.
        images_per_second: The rate of the best pipeline when it was last measured.
        first_start_s: The seconds until the first pipeline was warm.
        trials: The trials, in order.

    Raises:
        DataError: The first pipeline does not run.
        TimeIsUpError: The deadline has passed.
    """

    def __init__(self, job: PipelineJob, config: PipelineConfig, deadline: float = math.inf) -> None:
        self.job, self.first, self.config = job, config, config
        self.trials: list[Trial] = []
        self._stack = ExitStack()
        self._replace_best(job.start_process(config, deadline))
        self.images_per_second = self._best.start.images_per_second
        self.first_start_s = self.start_s
        self._peak_bytes = 0

    @property
    def start_s(self) -> float:
        """The seconds until the best pipeline was warm."""
        return self._best.start_s

    @property
    def turn_s(self) -> float:
        """The length of a turn in seconds."""
        return choose_turn_s(self.job.get_accelerator(self.config), self.images_per_second)

    def attempt(self, changes: Changes, until: float = math.inf) -> Trial:
        """Tries a change on top of all changes kept so far, and keeps it if it is better beyond noise.

        Args:
            changes: The values by name of the option.
            until: The time of `time.monotonic` at which the trial is given up.

        Raises:
            DataError: The best pipeline itself no longer runs.
        """
        try:
            trial = self._attempt(changes, until)
        except (ConfigError, DataError) as error:
            trial = Trial(changes, None, None, False, str(error))
        except TimeIsUpError:
            trial = Trial(changes, None, None, False, "There was no time left.")
        self.trials.append(trial)
        if not self._best.is_alive:  # most often memory ran out, with two pipelines in it
            self._replace_best(self.job.start_process(self.config))
        return trial

    def confirm(self, until: float = math.inf) -> Confirmed:
        """Measures the best pipeline once more, against the first one; the gain is that of all changes kept.

        Both run in new processes: the best one was the best of many, and a part of that was luck, which stays with a
        process. If the gain is not above 1 beyond noise, the first config is the best again: each change was better
        than the config before it, but together they must be better too. Nothing can be tried afterwards.

        Args:
            until: A time of `time.monotonic`. A gain that is not clear by then does not count.
        """
        if self.config == self.first:
            raise ConfigError("There is no change to confirm: none was kept.")
        self._stack.close()
        deadline, turns = self._get_deadline(until), PairedTurns()
        try:
            with (
                self.job.start_process(self.config, deadline) as candidate,
                self.job.start_process(self.first, deadline) as first,
            ):
                turns = compare_with_best(candidate, first, self.turn_s, lambda: time.monotonic() > until)
        except (DataError, TimeIsUpError):
            pass
        before = get_rate(turns.best) if turns.best else self.images_per_second
        if turns.gain is None or turns.gain.low <= 1:
            self.config = self.first
            return Confirmed(NO_GAIN, before, before)
        return Confirmed(turns.gain, before, get_rate(turns.candidate))

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stack.close()

    def _replace_best(self, process: PipelineProcess) -> None:
        self._stack.close()
        self._best = self._stack.enter_context(process)
        self._best.deadline = math.inf

    def _attempt(self, changes: Changes, until: float) -> Trial:
        config: PipelineConfig = replace_options(self.config, changes)
        self._check_fill(config, until)
        free = host_limits.available_memory_bytes()
        if free < self._peak_bytes:
            raise DataError(
                f"The best so far takes {human_bytes(self._peak_bytes)}; for a second one {human_bytes(free)} are free."
            )
        with ExitStack() as stack:
            candidate = stack.enter_context(self.job.start_process(config, self._get_deadline(until)))
            turns = compare_with_best(candidate, self._best, self.turn_s, lambda: time.monotonic() > until)
            if turns.gain is None:
                raise TimeIsUpError
            kept = is_better(turns.gain)
            best_turns = turns.candidate if kept else turns.best
            self.images_per_second = get_rate(best_turns)
            self._peak_bytes = best_turns[-1].peak_memory_bytes
            if kept:
                stack.pop_all()
                self._replace_best(candidate)
                self.config = config
        return Trial(changes, get_rate(turns.candidate), turns.gain, kept)

    def _check_fill(self, config: PipelineConfig, until: float) -> None:
        """Refuses a cache that takes longer to fill than it can be worth, by the rate of the best pipeline."""
        images = self.job.count_steps_to_fill(config) * self.job.get_accelerator(config).images_per_step
        fill_s = images / self.images_per_second
        max_s = min(_MAX_FILL_S, _MAX_FILL_SHARE * (until - time.monotonic()))
        if fill_s > max_s and config.cache != self.config.cache:
            raise DataError(
                f"The cache takes about {fill_s:,.0f} s to fill, and {max(max_s, 0):,.0f} s are left for it."
            )

    def _get_deadline(self, until: float) -> float:
        """Returns the time at which a process is given up, which leaves time for a pair of turns that has begun."""
        return until + 3 * self.turn_s


def try_fixes(trials: Trials, fixes: Sequence[Fix], observer: Observer) -> tuple[Fix, ...]:
    """Tries the fixes that change the config, in order, until the accelerator is busy.

    A fix of the data or the machine is not tried, nor one with which a stage's values were found to differ.

    Args:
        trials: The trials, with the config that the fixes are for.
        fixes: The profiler's fixes.
        observer: The observer of the trials.

    Returns:
        The same fixes, each with its measured gain if it was tried.
    """
    measured_fixes = []
    for fix in fixes:
        is_busy = trials.images_per_second >= BUSY_SHARE * trials.job.accelerator.images_per_second
        if fix.changes and fix.keeps_values and not is_busy:
            observer.phase(fix.reason)
            trial = trials.attempt(fix.changes)
            gain = None if trial.gain is None else Spread(trial.gain.ratio, trial.gain.low, trial.gain.high)
            fix = replace(fix, measured_images_per_second=trial.images_per_second, measured_gain=gain, kept=trial.kept)
        measured_fixes.append(fix)
    return tuple(measured_fixes)
