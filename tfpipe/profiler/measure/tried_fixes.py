"""Tries a report's fixes on the pipeline. A turn runs as the profile did: a new start, a warm-up, its accelerator."""

from __future__ import annotations

from dataclasses import replace

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.stage import Customize
from tfpipe.profiler.diagnose.bottleneck import NO_IDLE
from tfpipe.profiler.diagnose.diagnosis import add_measured
from tfpipe.profiler.measure.profile import ProfileConfig, measure_rate
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.profiler.report.text_json import name_fix
from tfpipe.profiler.trials import Changes, Trial, try_changes
from tfpipe.profiler.types import Fix, Report, Spread
from tfpipe.system.options import replace_options
from tfpipe.system.progress import Observer

_MAX_FILL_S = 40.0  # the seconds in which a turn may fill a cache that a fix proposes: two minutes in all turns


def try_fixes(
    report: Report,
    data: Manifest | Source,
    split: str | None,
    config: PipelineConfig,
    accelerator: Accelerator,
    seconds: float,
    observer: Observer,
    customize: Customize | None = None,
) -> tuple[Report, PipelineConfig]:
    """Tries the fixes that change options in turns, and returns the options with all that were kept."""
    run_config = ProfileConfig(seconds, max_fill_s=_MAX_FILL_S)

    def run(changes: Changes) -> float:
        try:
            changed: PipelineConfig = replace_options(config, changes)
            rate, fill_s = measure_rate(data, split, changed, _scale(accelerator, changed), run_config, customize)
        except ConfigError as error:
            raise DataError(str(error)) from error
        if fill_s and changed.cache != config.cache:
            raise DataError(
                f"The cache takes about {fill_s:,.0f} s to fill, and a turn has {_MAX_FILL_S:.0f} s for it."
            )
        return rate

    enough = (1 - NO_IDLE) * accelerator.images_per_second
    is_busy = report.profile.images_per_second >= enough
    candidates = [(name_fix(fix), {} if is_busy else fix.changes) for fix in report.fixes]
    trials, kept = try_changes(run, candidates, observer, enough)
    fixes = [_add_trial(fix, trial) for fix, trial in zip(report.fixes, trials, strict=True)]
    rates = [trial.rate for trial in trials if trial is not None and trial.kept]
    after = rates[-1] if rates else report.profile.images_per_second
    return add_measured(report, fixes, after), replace_options(config, kept)


def _add_trial(fix: Fix, trial: Trial | None) -> Fix:
    if trial is None:
        return fix
    gain = Spread.from_values(trial.gains)
    return replace(fix, measured_images_per_second=trial.rate, measured_gain=gain, kept=trial.kept)


def _scale(accelerator: Accelerator, config: PipelineConfig) -> Accelerator:
    """Returns the accelerator for a config's batches, which take time in proportion to their size."""
    factor = config.batch_size / accelerator.images_per_step
    return replace(accelerator, step_s=accelerator.step_s * factor, images_per_step=config.batch_size)
