"""The run behind `tfpipe profile`: measure the pipeline, and try the fixes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tfpipe.cli.shared.inputs import hide_gpus, load_stages, open_data, quiet_start, read_config
from tfpipe.cli.shared.load_function import load_function
from tfpipe.cli.shared.outputs import check_target
from tfpipe.cli.shared.requirements import require_tensorflow
from tfpipe.cli.shared.status import status_line

if TYPE_CHECKING:
    from tfpipe.engine.config.pipeline_config import PipelineConfig
    from tfpipe.profiler.types import Report, Trainer
    from tfpipe.tuning.trials import PipelineJob


class ProfileArgs(NamedTuple):
    """The arguments of `tfpipe profile`, as its help describes them."""

    dataset: str | None
    loader: str | None
    split: str | None
    step_ms: float | None
    images_per_second: float | None
    trainer: "Trainer"
    train: str | None
    batch_size: int | None
    image_size: int | None
    cpu_budget: float | None
    config: str | None
    stages: str | None
    transform: str | None
    batch_transform: str | None
    seconds: float
    price_per_hour: float | None
    max_idle: float | None
    as_json: bool
    apply: str | None
    html: str | None


class Output(NamedTuple):
    """A report in the forms in which it is shown, and the share of time in which the accelerator is idle."""

    text: str
    document: dict[str, Any]
    render: Callable[[], str]
    idle: float


def run(args: ProfileArgs) -> Output:
    """Measures the pipeline, and tries the fixes if a file for them is named.

    Raises:
        ConfigError: The pipeline cannot be built, or the file for the options cannot be written.
        DataError: The data cannot be read.
    """
    report = make_report(args)
    from tfpipe.profiler.report.text_json import to_json, to_text

    def render() -> str:
        from tfpipe.profiler.report.html import render

        return render(report)

    return Output(to_text(report), to_json(report), render, report.idle_after_fixes)


def make_report(args: ProfileArgs) -> "Report":
    """Returns the report; errors as with `run`."""
    config = read_config(
        args.config, args.batch_size, given={"image_size": args.image_size, "cpu_budget": args.cpu_budget}
    )
    batch = config.batch_size
    step_s = args.step_ms / 1e3 if args.step_ms is not None else batch / (args.images_per_second or 1.0)
    require_tensorflow("profile")
    data, split = open_data(args.dataset or "", args.split)
    if args.apply is not None:
        from tfpipe.tuning import tuned_file

        check_target(args.apply)
        tuned_file.check_path(args.apply, tuned_file.get_place(data, split))
        hide_gpus()  # here and in the processes that are started from here
    customize = load_stages(args.stages)
    with quiet_start():
        from tfpipe.profiler.diagnose import diagnosis
        from tfpipe.profiler.measure.pipelines import Functions
        from tfpipe.profiler.measure.profile import ProfileConfig, profile_pipeline
        from tfpipe.profiler.measure.simulated_accelerator import Accelerator
        from tfpipe.tuning.trials import PipelineJob
    functions = Functions(
        None if args.transform is None else load_function(args.transform, "--transform"),
        None if args.batch_transform is None else load_function(args.batch_transform, "--batch-transform"),
    )
    job = PipelineJob(data, split, Accelerator(step_s, batch, args.trainer), customize)
    with status_line("Building the pipeline") as observer:
        run_config = ProfileConfig(args.seconds)
        profile = profile_pipeline(data, split, config, job.accelerator, run_config, observer, customize, functions)
    report = diagnosis.make_report(profile, args.price_per_hour)
    return report if args.apply is None else _try_fixes(report, job, config, args.apply)


def _try_fixes(report: "Report", job: "PipelineJob", config: "PipelineConfig", path: str) -> "Report":
    """Tries the fixes, writes the options that are left to a file, and returns the report with what was measured."""
    from tfpipe.profiler.diagnose.diagnosis import add_measured
    from tfpipe.tuning import tuned_file
    from tfpipe.tuning.trials import Trials, try_fixes

    with status_line("Trying the fixes") as status, Trials(job, config) as trials:
        fixes = try_fixes(trials, report.fixes, status)
        before = after = report.profile.images_per_second
        if trials.config != config:
            status.phase("Measuring all that was kept against the beginning")
            confirmed = trials.confirm()
            if trials.config != config:
                _, before, after = confirmed
    result = {"images_per_second_before": before, "images_per_second": after}
    tuned_file.write(path, trials.config, tuned_file.get_place(job.data, job.split), result)
    return add_measured(report, fixes, after)
