"""`tfpipe profile`: why the accelerator waits, and what to change."""

import json
import os
import tempfile
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from tfpipe.cli.shared.command import HelpOption, command, help_option, require_tensorflow
from tfpipe.cli.shared.config_option import PERCENT, build, config_options, pipeline_options
from tfpipe.cli.shared.console import Display, echo
from tfpipe.cli.shared.inputs import load_function, load_loader, load_stages, open_data, quiet_start, read_config
from tfpipe.cli.shared.outputs import check_target, write_file
from tfpipe.engine.config import toml_json
from tfpipe.errors import ConfigError, naming
from tfpipe.system.extras import check_installed
from tfpipe.system.options import Choice, Number, Text, check_options, option

if TYPE_CHECKING:
    from tfpipe.profiler.types import Report

_DATA, _OWN, _ACCELERATOR, _MEASURING = "Data", "A loader of your own", "Accelerator", "Measuring"
_OF_THE_PIPELINE = ("dataset", "trainer", "html")
_FUNCTION = "MODULE:FUNCTION"
_MAX_IDLE = "Exit code 1 if the accelerator is idle for more of the time, such as 5 or 5%."

TrainerKind = Literal["loop", "fit"]


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """The options of `tfpipe profile` but those of the pipeline.

    Attributes:
        transform: The function for each image that your reader gets as its transform, called with a Pillow image and a
            random generator; batches are then made without TensorFlow. Default: None.
        batch_transform: The function for each batch that your reader gets, likewise. Default: None.
        loader: A loader of yours to profile in place of DATASET: a PyTorch DataLoader, a Grain loader, a Keras
            PyDataset, or any iterable of batches, or a function that returns one, as `apply` needs it; FILE.py:NAME
            works too. Default: None.
        step_ms: The milliseconds that the accelerator computes on a batch. Above 0 and below 86,400,000. Default: None.
        images_per_second: The images that the accelerator consumes per second, in place of `step_ms`. At least
            0.001. Default: None.
        trainer: The trainer for which idle time is measured: a plain loop, which takes a batch and then computes, or
            Keras' fit on a GPU or TPU, which takes the next batch while the device computes. "loop" or "fit".
            Default: "loop".
        train: The function of yours that trains on a batch, with `loader` and in place of `step_ms`. Default: None.
        seconds: The seconds to measure, at least. Above 0. Default: 3.0.
        price_per_hour: The price of the accelerator; the report then says what its idle time costs a day. At least 0.
            Default: None.
        apply: The file for the options that help: each fix is tried in turns with the pipeline as it is. With `loader`
            a new file, which is written if a fix helps. Default: None.
    """

    transform: str | None = option(Text(), None, group=_DATA, metavar=_FUNCTION)
    batch_transform: str | None = option(Text(), None, group=_DATA, metavar=_FUNCTION)
    loader: str | None = option(Text(), None, group=_OWN, metavar="MODULE:NAME")
    step_ms: float | None = option(Number(above=0, below=86_400_000), None, group=_ACCELERATOR, metavar="MS")
    images_per_second: float | None = option(Number(at_least=0.001), None, group=_ACCELERATOR, metavar="RATE")
    trainer: TrainerKind = option(Choice(get_args(TrainerKind)), "loop", group=_ACCELERATOR)
    train: str | None = option(Text(), None, group=_OWN, metavar="MODULE:STEP")
    seconds: float = option(Number(above=0), 3.0, group=_MEASURING, metavar="S")
    price_per_hour: float | None = option(Number(at_least=0), None, group=_ACCELERATOR, metavar="P")
    apply: str | None = option(Text(), None, group=_MEASURING, metavar="FILE")

    def __post_init__(self) -> None:
        check_options(self)


@command(example="tfpipe profile flowers --step-ms 30 --batch-size 256")
@click.argument("dataset", required=False)
@pipeline_options
@config_options(ProfileOptions)
@help_option("--max-idle", group=_MEASURING, type=PERCENT, metavar="PERCENT", help=_MAX_IDLE)
@click.option("--html", metavar="FILE", help="Also write the report as a page with charts.")
def profile(
    as_json: bool, dataset: str | None = None, max_idle: float | None = None, html: str | None = None, **given: Any
) -> None:
    """Run the pipeline of DATASET with a simulated accelerator, and say what limits its speed.

    DATASET is the directory or URL of a finished dataset, or a pattern such as "/data/train-*" of TFRecords that
    another tool wrote. --step-ms or --images-per-second gives the accelerator's speed; without it batches are taken as
    fast as they come. No real accelerator is used.

    --loader profiles a loader of your own instead, and changes nothing of it.
    """
    options = build(ProfileOptions, given)
    _check(dataset, options, max_idle)
    if html is not None:  # before anything is measured
        check_installed("jinja2", "`tfpipe profile --html`", "Jinja2", "tfpipe[report]")
        check_target(html)
    if options.apply is not None:
        check_target(options.apply)
        if html is not None and os.path.realpath(html) == os.path.realpath(options.apply):
            raise ConfigError(f"--html and --apply must name two files, got {html} for both. Name another for one.")
    report = make_loader_report(options) if dataset is None else make_report(dataset, options, **given)
    from tfpipe.profiler.report.text_json import to_json, to_text

    if html is not None:  # before anything is printed, which may fail
        from tfpipe.profiler.report.html import render

        write_file(html, render(report).encode())
    click.echo(json.dumps(to_json(report), allow_nan=False) if as_json else to_text(report), nl=as_json)
    if options.apply is not None:
        is_written = dataset is not None or any(fix.kept for fix in report.fixes)
        echo(f"Wrote {options.apply}." if is_written else f"No fix helped: {options.apply} is not written.", err=True)
    if html is not None:
        echo(f"Wrote {html}.", err=True)
    if max_idle is not None and report.idle_after_fixes > max_idle:
        echo(f"The accelerator is idle for {report.idle_after_fixes:.1%}, more than {max_idle:.1%}.", err=True)
        raise SystemExit(1)


def _check(dataset: str | None, options: ProfileOptions, max_idle: float | None) -> None:
    """Refuses options that do not go together."""
    if options.loader is not None:
        context = click.get_current_context()
        set_too = [  # the options that would have no effect
            param.opts[-1] if isinstance(param, click.Option) else "DATASET"
            for param in context.command.params
            if param.name in context.params
            and (param.name in _OF_THE_PIPELINE or (isinstance(param, HelpOption) and param.group == _DATA))
        ]
        if set_too:
            raise ConfigError(f"--loader profiles a loader as its code makes it. Leave out {', '.join(set_too)}.")
    elif options.train is not None:
        raise ConfigError("--train goes with --loader. Name the function that makes the loader, or leave --train out.")
    elif dataset is None:
        raise ConfigError("Name the DATASET to measure, or a loader of yours with --loader MODULE:FUNCTION.")
    elif options.apply is not None and (options.transform or options.batch_transform):
        raise ConfigError("--apply tries fixes of pipelines in TensorFlow, got a function of other readers too.")
    speeds = {"--step-ms": options.step_ms, "--images-per-second": options.images_per_second, "--train": options.train}
    given = [flag for flag, value in speeds.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"An accelerator has one speed. Give one of {' and '.join(given)}.")
    if not given and (max_idle, options.price_per_hour, options.trainer) != (None, None, "loop"):
        advice = "Give --step-ms, or leave out --max-idle, --price-per-hour and --trainer."
        raise ConfigError(f"Without a step there is no idle time. {advice}")


def make_report(
    dataset: str, options: ProfileOptions, split: str | None = None, stages: str | None = None, **given: Any
) -> "Report":
    """Profiles a pipeline and returns the report; with `apply`, tries its fixes and writes those that helped."""
    file = given.pop("config", None)
    config = read_config(file, given)
    batch = config.batch_size
    step_s = batch / options.images_per_second if options.images_per_second else (options.step_ms or 0.0) / 1e3
    require_tensorflow("profile")
    data, split = open_data(dataset, split)
    if options.apply is not None:
        from tfpipe.profiler import tuned_file

        environment = tuned_file.describe_environment(data, split)
        tuned_file.check_path(options.apply, environment)
    customize = load_stages(stages)
    with quiet_start():
        from tfpipe.profiler.diagnose import diagnosis
        from tfpipe.profiler.measure.profile import ProfileConfig, make_trial, profile_pipeline
        from tfpipe.profiler.measure.simulated_accelerator import Accelerator
        from tfpipe.profiler.model import NO_IDLE
        from tfpipe.profiler.trials import try_fixes
    paths = {"--transform": options.transform, "--batch-transform": options.batch_transform}
    functions = {
        flag[2:].replace("-", "_"): naming(f"{flag}: {path}")(load_function(path, flag))
        for flag, path in paths.items()
        if path
    }
    accelerator = Accelerator(step_s, batch, options.trainer if step_s else "none")
    with Display("Building the pipeline") as observer:
        run_config = ProfileConfig(options.seconds)
        profile = profile_pipeline(data, split, config, accelerator, run_config, observer, customize, functions)
        report = diagnosis.make_report(profile, options.price_per_hour)
        if options.apply is None:
            return report
        trial = make_trial(data, split, config, accelerator, options.seconds / 2, customize)
        enough = (1 - NO_IDLE) * profile.step.required_rate
        report, kept = try_fixes(report, trial, observer, enough)
    rates = {"images_per_second_before": profile.images_per_second, "images_per_second": report.after_images_per_second}
    asked = {} if file is None else toml_json.read(file)
    asked |= {**given, "batch_size": batch}
    tuned_file.write(options.apply, asked, kept, environment, rates)
    return report


def make_loader_report(options: ProfileOptions) -> "Report":
    """Profiles a loader and returns the report; with `apply`, writes the options that helped to that file."""
    if options.apply is not None:
        toml_json.check_suffix(options.apply)
        if os.path.lexists(options.apply):  # nothing in it would tell who wrote it
            raise ConfigError(f"{options.apply} is there already. Move it away, or name another file.")
    name, strangers = options.loader or "", threading.enumerate()
    make = load_loader(name)
    with Display("Making the loader") as observer, tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
        from tfpipe.profiler.diagnose import diagnosis
        from tfpipe.profiler.loader.measure import LoaderSource, Trainer, measure_loader, run_trial
        from tfpipe.profiler.trials import try_fixes

        train = None if options.train is None else load_function(options.train, "--train")
        step_s = None if options.step_ms is None else options.step_ms / 1e3
        source, trainer = LoaderSource(make, name), Trainer(step_s, options.images_per_second, train)
        observer.phase("Measuring the loader")
        profile = measure_loader(source.make(), trainer, options.seconds, Path(folder), strangers)
        report = diagnosis.make_report(profile, options.price_per_hour)
        if options.apply is not None:
            report, kept = try_fixes(report, partial(run_trial, source, trainer, options.seconds / 2), observer)
            if kept:
                toml_json.write(options.apply, kept)
    return report
