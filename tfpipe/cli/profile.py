"""`tfpipe profile`: why the accelerator waits, and what to change."""

import json
from types import SimpleNamespace
from typing import Any

import click

from tfpipe.cli import profile_run
from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.config_option import (
    Percent,
    batch_option,
    budget_option,
    config_file_option,
    size_option,
    split_option,
    stages_option,
)
from tfpipe.cli.shared.console import echo
from tfpipe.cli.shared.help_groups import HelpOption, help_option
from tfpipe.cli.shared.outputs import check_target, write_file
from tfpipe.errors import ConfigError
from tfpipe.system.extras import check_installed

_DATA, _OWN, _ACCELERATOR, _MEASURING = "Data", "A loader of your own", "Accelerator", "Measuring"
_OF_THE_PIPELINE = ("dataset", "trainer", "html")


@command(
    example="tfpipe profile flowers --step-ms 30 --batch-size 256",
)
@click.argument("dataset", required=False)
@split_option
@batch_option
@size_option
@budget_option
@config_file_option
@stages_option
@help_option(
    "--transform",
    group=_DATA,
    metavar="MODULE:FUNCTION",
    help="Function for each image that your reader gets as `transform`. Batches are then made without TensorFlow.",
)
@help_option(
    "--batch-transform",
    group=_DATA,
    metavar="MODULE:FUNCTION",
    help="Function for each batch that your reader gets as `batch_transform`, likewise.",
)
@help_option(
    "--loader",
    group=_OWN,
    metavar="MODULE:NAME",
    help="Profile a loader of yours in place of DATASET: a PyTorch DataLoader, a Grain loader, a Keras PyDataset, or "
    "any iterable of batches, or a function that returns one, as --apply needs it. FILE.py:NAME works too.",
)
@help_option(
    "--step-ms",
    group=_ACCELERATOR,
    type=float,
    metavar="MS",
    help="Milliseconds that the accelerator computes on a batch.",
)
@help_option(
    "--images-per-second",
    group=_ACCELERATOR,
    type=float,
    metavar="RATE",
    help="In place of --step-ms: images that the accelerator consumes per second.",
)
@help_option(
    "--trainer",
    group=_ACCELERATOR,
    type=click.Choice(["loop", "fit"]),
    default="loop",
    show_default=True,
    help="Trainer for which idle time is measured: a plain loop, which takes a batch and then computes, or Keras' fit "
    "on a GPU or TPU, which takes the next batch while the device computes.",
)
@help_option(
    "--train",
    group=_OWN,
    metavar="MODULE:STEP",
    help="With --loader, in place of --step-ms: a function of yours that trains on a batch.",
)
@help_option(
    "--seconds",
    group=_MEASURING,
    type=float,
    metavar="S",
    default=3.0,
    show_default=True,
    help="Seconds to measure, at least.",
)
@help_option(
    "--price-per-hour",
    group=_ACCELERATOR,
    type=float,
    metavar="P",
    help="Price of the accelerator. The report then says what its idle time costs a day.",
)
@help_option(
    "--max-idle",
    group=_MEASURING,
    type=Percent(),
    metavar="PERCENT",
    help="Exit code 1 if the accelerator is idle for more of the time, such as 5 or 5%.",
)
@help_option(
    "--apply",
    group=_MEASURING,
    metavar="FILE",
    help="Try each fix in turns with the pipeline as it is, keep those that help, and write the options to this file.",
)
@click.option("--html", metavar="FILE", help="Also write the report as a page with charts.")
def profile(**given: Any) -> None:
    """Run the pipeline of DATASET with a simulated accelerator, and say what limits its speed.

    DATASET is the directory or URL of a finished dataset, or a pattern such as "/data/train-*" of TFRecords that
    another tool wrote. --step-ms or --images-per-second gives the accelerator's speed; without it batches are taken as
    fast as they come. No real accelerator is used.

    --loader profiles a loader of your own instead, and changes nothing of it.
    """
    args = SimpleNamespace(**given)
    if args.loader is not None:
        _check_goes_with_loader()
        _check_loader(args)
    else:
        _check_pipeline(args)
    if args.html is not None:  # before anything is measured
        check_installed("jinja2", "`tfpipe profile --html`", "Jinja2", "tfpipe[report]")
        check_target(args.html)
    report = profile_run.make_report(args) if args.loader is None else profile_run.make_loader_report(args)
    from tfpipe.profiler.report.text_json import to_json, to_text

    click.echo(json.dumps(to_json(report), allow_nan=False) if args.as_json else to_text(report), nl=args.as_json)
    if args.apply is not None:
        echo(f"Wrote {args.apply}.", err=True)
    if args.html is not None:
        from tfpipe.profiler.report.html import render

        write_file(args.html, render(report).encode())
        echo(f"Wrote {args.html}.", err=True)
    if args.max_idle is not None and report.idle_after_fixes > args.max_idle:
        echo(f"The accelerator is idle for {report.idle_after_fixes:.1%}, more than {args.max_idle:.1%}.", err=True)
        raise SystemExit(1)


def _check_goes_with_loader() -> None:
    """Checks that no option stands beside `--loader` that would have no effect."""
    context = click.get_current_context()
    given = [
        param.opts[-1] if isinstance(param, click.Option) else "DATASET"
        for param in context.command.params
        if (param.name in _OF_THE_PIPELINE or (isinstance(param, HelpOption) and param.group == _DATA))
        and context.get_parameter_source(str(param.name)) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise ConfigError(f"--loader profiles a loader as its code makes it. Leave out {', '.join(given)}.")


def _check_pipeline(args: SimpleNamespace) -> None:
    """Checks the arguments of a run of a pipeline."""
    if args.train is not None:
        raise ConfigError("--train goes with --loader. Name the function that makes the loader, or leave --train out.")
    if args.dataset is None:
        raise ConfigError("Name the DATASET to measure, or a loader of yours with --loader MODULE:FUNCTION.")
    given = [value for value in (args.step_ms, args.images_per_second) if value is not None]
    if len(given) > 1:
        raise ConfigError("An accelerator has one speed. Give one of --step-ms and --images-per-second.")
    if not given and (args.max_idle, args.price_per_hour, args.trainer) != (None, None, "loop"):
        raise ConfigError(
            "Without a step there is no idle time. Give --step-ms or --images-per-second, or leave out --max-idle, "
            "--price-per-hour and --trainer."
        )
    _check_above_0(args)
    if args.apply is not None and (args.transform or args.batch_transform):
        raise ConfigError("--apply tries fixes of pipelines in TensorFlow, got a function of other readers too.")


def _check_loader(args: SimpleNamespace) -> None:
    """Checks what gives the step behind a loader."""
    given = [value for value in (args.train, args.step_ms, args.images_per_second) if value is not None]
    if len(given) > 1:
        raise ConfigError("A loader has one trainer. Give one of --step-ms, --images-per-second and --train.")
    if not given and (args.max_idle, args.price_per_hour) != (None, None):
        raise ConfigError(
            "Without a step there is no idle time. Give --step-ms, --images-per-second or --train, or leave out "
            "--max-idle and --price-per-hour."
        )
    _check_above_0(args)


def _check_above_0(args: SimpleNamespace) -> None:
    for name in ("step_ms", "images_per_second", "seconds"):
        value = getattr(args, name)
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"--{name.replace('_', '-')} must be above 0, got {value:g}.")
