"""The run behind `tfpipe profile`: measure the pipeline, and try the fixes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfpipe.cli.shared.inputs import hide_gpus, load_stages, open_data, quiet_start
from tfpipe.cli.shared.load_function import load_function
from tfpipe.cli.shared.outputs import check_target
from tfpipe.cli.shared.requirements import require_tensorflow
from tfpipe.cli.shared.status import status_line

if TYPE_CHECKING:
    from tfpipe.engine.config.pipeline_config import PipelineConfig
    from tfpipe.engine.source import Source
    from tfpipe.format.manifest import Manifest
    from tfpipe.profiler.types import Report, Trainer
    from tfpipe.tuning.trials import PipelineJob


@dataclass(frozen=True)
class ProfileArgs:
    """The arguments of the command line.

    Attributes:
        dataset: A dataset's directory or URL, or a pattern of foreign files.
        split: A split of the dataset; None for the default one.
        config: The pipeline's options.
        step_s: The accelerator's compute of a step, in seconds.
        images_per_step: The images in the batch of a step.
        trainer: The trainer that takes the batches.
        seconds: The seconds to measure.
        functions: The user's functions that change the stages, an image and a batch, each as `module:function` or None.
        price_per_hour: The accelerator's price; None leaves the price of idle time out.
        host: The number of the host whose share is read, and the number of hosts; None for all records.
        apply: The file for the options that are left when the fixes were tried; None does not try them.
    """

    dataset: str
    split: str | None
    config: "PipelineConfig"
    step_s: float
    images_per_step: int
    trainer: "Trainer"
    seconds: float
    functions: tuple[str | None, str | None, str | None]
    price_per_hour: float | None
    host: tuple[int, int] | None
    apply: str | None


def run(args: ProfileArgs) -> "Report":
    """Measures the pipeline, tries the fixes if a file for them is named, and returns the report.

    Raises:
        ConfigError: The pipeline cannot be built, or the file for the options cannot be written.
        DataError: The data cannot be read.
    """
    require_tensorflow("profile")
    data, split = open_data(args.dataset, args.split)
    if args.apply is not None:
        _check_options_file(args.apply, data, split)
        hide_gpus()  # here and in the processes that are started from here
    stages, transform, batch_transform = args.functions
    customize = load_stages(stages)
    with quiet_start():
        from tfpipe.profiler.diagnose.diagnosis import make_report
        from tfpipe.profiler.measure.pipelines import Functions
        from tfpipe.profiler.measure.profile import ProfileConfig, profile_pipeline
        from tfpipe.profiler.measure.simulated_accelerator import Accelerator
        from tfpipe.tuning.trials import PipelineJob
    functions = Functions(
        None if transform is None else load_function(transform, "--transform"),
        None if batch_transform is None else load_function(batch_transform, "--batch-transform"),
    )
    job = PipelineJob(data, split, Accelerator(args.step_s, args.images_per_step, args.trainer), customize)
    with status_line("Building the pipeline") as observer:
        run_config = ProfileConfig(args.seconds, host=args.host)
        profile = profile_pipeline(
            data, split, args.config, job.accelerator, run_config, observer, customize, functions
        )
    report = make_report(profile, args.price_per_hour)
    return report if args.apply is None else _try_fixes(report, job, args.config, args.apply)


def _check_options_file(path: str, data: "Manifest | Source", split: str | None) -> None:
    """Checks the file for the options before anything is measured."""
    from tfpipe.tuning import tuned_file

    check_target(path)
    tuned_file.check_path(path, tuned_file.get_place(data, split))


def _try_fixes(report: "Report", job: "PipelineJob", config: "PipelineConfig", path: str) -> "Report":
    """Tries the fixes, writes the options that are left to a file, and returns the report with what was measured."""
    from tfpipe.profiler.diagnose.diagnosis import add_measured
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
    return add_measured(report, fixes, after)
