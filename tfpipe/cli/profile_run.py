"""What `tfpipe profile` does between its options and its output: measure, and try the fixes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tfpipe.cli.shared.inputs import hide_gpus, load_stages, open_data, quiet_start
from tfpipe.cli.shared.outputs import check_target
from tfpipe.cli.shared.requirements import require_tensorflow
from tfpipe.cli.shared.status import status_line

if TYPE_CHECKING:
    from tfpipe.format.manifest import Manifest
    from tfpipe.pipeline.config.pipeline_config import PipelineConfig
    from tfpipe.pipeline.plan.source import Source
    from tfpipe.profiler.measure.simulated_accelerator import Accelerator
    from tfpipe.profiler.types import Report
    from tfpipe.tuning.trials import PipelineJob


@dataclass(frozen=True)
class Wish:
    """What the command line asks for."""

    dataset: str
    split: str | None
    config: "PipelineConfig"
    accelerator: "Accelerator"
    seconds: float
    stages: str | None
    """`module:function`."""
    price_per_hour: float | None
    apply: str | None
    """File for the options that are left when the fixes were tried."""


def run(wish: Wish) -> "Report":
    """Measures, and tries the fixes if that is wished for.

    Raises:
        ConfigError: The pipeline cannot be built, or the file for the options cannot be written.
        DataError: The data cannot be read.
    """
    require_tensorflow("profile")
    data, split = open_data(wish.dataset, wish.split)
    customize = load_stages(wish.stages)
    if wish.apply is not None:
        _check_notes(wish.apply, data, split)
        hide_gpus()  # here and in the processes that are started from here
    with quiet_start():
        from tfpipe.profiler.measure.profile import profile_pipeline
        from tfpipe.profiler.report.text_json import make_report
        from tfpipe.tuning.trials import PipelineJob
    with _progress(wish.seconds) as watch:
        profile = profile_pipeline(
            data, split, wish.config, wish.accelerator, wish.seconds, watch=watch, customize=customize
        )
    report = make_report(profile, wish.price_per_hour)
    if wish.apply is None:
        return report
    return _try_fixes(report, PipelineJob(data, split, wish.accelerator, customize), wish.config, wish.apply)


def _check_notes(path: str, data: "Manifest | Source", split: str | None) -> None:
    from tfpipe.tuning import tuned_file

    check_target(path)
    tuned_file.check_path(path, tuned_file.get_place(data, split))


def _try_fixes(report: "Report", job: "PipelineJob", config: "PipelineConfig", path: str) -> "Report":
    """The report with what the fixes gave; what is left of the options goes to the file."""
    from tfpipe.tuning import tuned_file
    from tfpipe.tuning.paired_benchmark import get_rate
    from tfpipe.tuning.trials import Trials, try_fixes

    with status_line("Trying the fixes") as status, Trials(job, config) as trials:
        fixes = try_fixes(trials, report.fixes, status)
        before = after = report.profile.images_per_second
        if trials.config != config:
            status.phase("Measuring all that was kept against the beginning")
            turns = trials.confirm()
            if trials.config != config:
                before, after = get_rate(turns.best), get_rate(turns.candidate)
    result = {"images_per_second_before": before, "images_per_second": after}
    tuned_file.write(path, trials.config, tuned_file.get_place(job.data, job.split), result)
    return replace(report, fixes=fixes, after_images_per_second=after)


@contextmanager
def _progress(seconds: float) -> Iterator[Callable[[str, float], None]]:
    with status_line("Building the pipeline") as status:

        def watch(phase: str, passed: float) -> None:
            what = "Warming up" if phase == "warm-up" else f"Measuring for {seconds:g} s"
            status.phase(f"{what}: {passed:.0f} s")

        yield watch
