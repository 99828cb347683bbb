"""`tfpipe profile`: why the accelerator waits, and what to change."""

import json
from typing import TYPE_CHECKING

import click

from tfpipe.cli.profile_run import ProfileArgs, run
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.inputs import read_config
from tfpipe.cli.shared.outputs import check_target, write_file
from tfpipe.cli.shared.params import (
    CountOrShare,
    HostPlace,
    batch_option,
    budget_option,
    config_file_option,
    debug_option,
    json_option,
    split_option,
    stages_option,
)
from tfpipe.errors import ConfigError
from tfpipe.system.extras import check_installed

if TYPE_CHECKING:
    from tfpipe.profiler.types import Report, Trainer

_WITH_LOADER = {
    *("loader", "step_ms", "images_per_second", "train", "seconds", "price_per_hour", "max_idle", "as_json", "apply"),
}


@click.command(cls=GroupedCommand, short_help="Say why the accelerator waits, and what to change.")
@click.argument("dataset", required=False)
@click.option(
    "--loader",
    metavar="MODULE:FUNCTION",
    help="Profile a loader of yours in place of DATASET: a function that returns a PyTorch DataLoader, a Grain "
    "loader, a Keras PyDataset, or any iterable of batches.",
)
@split_option
@click.option("--step-ms", type=float, metavar="MS", help="Milliseconds that the accelerator computes on a batch.")
@click.option(
    "--images-per-second",
    type=float,
    metavar="RATE",
    help="In place of --step-ms: images that the accelerator consumes per second.",
)
@click.option(
    "--trainer",
    type=click.Choice(["loop", "fit"]),
    default="loop",
    show_default=True,
    help="Trainer for which idle time is measured: a plain loop, which takes a batch and then computes, or Keras' fit "
    "on a GPU or TPU, which takes the next batch while the device computes.",
)
@click.option(
    "--train",
    metavar="MODULE:STEP",
    help="With --loader, in place of --step-ms: a function of yours that trains on a batch.",
)
@batch_option
@budget_option
@config_file_option
@stages_option
@click.option(
    "--transform",
    metavar="MODULE:FUNCTION",
    help="Function for each image that your reader gets as `transform`. Batches are then made without TensorFlow.",
)
@click.option(
    "--batch-transform",
    metavar="MODULE:FUNCTION",
    help="Function for each batch that your reader gets as `batch_transform`, likewise.",
)
@click.option(
    "--seconds", type=float, metavar="S", default=3.0, show_default=True, help="Seconds to measure, at least."
)
@click.option(
    "--price-per-hour",
    type=float,
    metavar="P",
    help="Price of the accelerator. The report then says what its idle time costs a day.",
)
@click.option(
    "--max-idle",
    type=CountOrShare(),
    metavar="SHARE",
    help="Exit code 1 if the accelerator is idle for a larger share of the time, such as 5%.",
)
@json_option
@click.option(
    "--apply",
    metavar="FILE",
    help="Try each fix in turns with the pipeline as it is, keep those that help, and write the options to this file.",
)
@click.option("--html", metavar="FILE", help="Also write the report as a page with charts.")
@click.option(
    "--host",
    type=HostPlace(),
    metavar="INDEX/COUNT",
    help="Read the share of one of several hosts, such as 2/16; the first is 0. --hosts compares their --json.",
)
@click.option(
    "--hosts",
    multiple=True,
    metavar="PATH",
    help="Compare the hosts of a training and measure nothing: the folder of a run, or files of hosts. Repeatable. "
    "Takes no DATASET.",
)
@debug_option
def profile(
    dataset: str | None,
    loader: str | None,
    split: str | None,
    step_ms: float | None,
    images_per_second: float | None,
    trainer: "Trainer",
    train: str | None,
    batch_size: int | None,
    cpu_budget: float | None,
    config: str | None,
    stages: str | None,
    transform: str | None,
    batch_transform: str | None,
    seconds: float,
    price_per_hour: float | None,
    max_idle: float | None,
    as_json: bool,
    apply: str | None,
    html: str | None,
    host: tuple[int, int] | None,
    hosts: tuple[str, ...],
) -> None:
    """Run the pipeline of DATASET with a simulated accelerator, and say what limits its speed.

    DATASET is the directory or URL of a finished dataset, or a pattern such as "/data/train-*" of TFRecords that
    another tool wrote. --step-ms or --images-per-second gives the accelerator's speed. No real accelerator is used.

    --loader profiles a loader of your own instead, and changes nothing of it.
    """
    _check_max_idle(max_idle)
    if loader is not None:
        from tfpipe.cli import profile_loader

        _check_goes_with("--loader profiles a loader as its code makes it.", _WITH_LOADER)
        _check_step(train, step_ms, images_per_second, seconds, needed=(max_idle, price_per_hour) != (None, None))
        args = profile_loader.LoaderArgs(loader, step_ms, images_per_second, train, seconds, price_per_hour, apply)
        return _fail_above(max_idle, profile_loader.show_loader(args, as_json))
    if train is not None:
        raise ConfigError("--train goes with --loader. Name the function that makes the loader, or leave --train out.")
    if html is not None:
        _check_page(html)
    if hosts:
        from tfpipe.cli import profile_hosts

        _check_goes_with("--hosts reads an earlier measurement.", {"hosts", "html", "max_idle", "as_json"})
        return _fail_above(max_idle, profile_hosts.show_hosts(hosts, as_json, html))
    if dataset is None:
        raise ConfigError("Name the DATASET to measure, or a loader of yours with --loader MODULE:FUNCTION.")
    _check_speed(step_ms, images_per_second, seconds)
    if host is not None and apply is not None:
        raise ConfigError("--apply tries the fixes with all records, got --host too. Leave one of them out.")
    options = read_config(config, batch_size, given={"cpu_budget": cpu_budget})
    batch = options.batch_size
    if host is not None:
        batch = max(batch // host[1], 1)  # what the hosts cannot share equally is refused when the pipeline is built
    step_s = step_ms / 1e3 if step_ms is not None else batch / (images_per_second or 1.0)
    if apply is not None and (transform or batch_transform):
        raise ConfigError("--apply tries fixes of pipelines in TensorFlow, got a function of other readers too.")
    functions = (stages, transform, batch_transform)
    report = run(
        ProfileArgs(dataset, split, options, step_s, batch, trainer, seconds, functions, price_per_hour, host, apply)
    )
    _print(report, as_json)
    if apply is not None:
        click.echo(f"Wrote {apply}.", err=True)
    if html is not None:
        _write_page(report, html)
    _fail_above(max_idle, report.idle_after_fixes)


def _check_goes_with(why: str, goes_with: set[str]) -> None:
    """Checks that no option stands beside one that makes it pointless.

    Args:
        why: A sentence about that option.
        goes_with: The names of the parameters that may stand beside it.

    Raises:
        ConfigError: Another one does.
    """
    context = click.get_current_context()
    given = [
        param.opts[-1] if isinstance(param, click.Option) else "DATASET"
        for param in context.command.params
        if param.name not in goes_with
        and context.get_parameter_source(str(param.name)) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise ConfigError(f"{why} Leave out {', '.join(given)}.")


def _check_max_idle(max_idle: float | None) -> None:
    if max_idle is not None and not 0 <= max_idle <= 1:
        raise ConfigError(f"--max-idle must be a share from 0% to 100%, got {max_idle:g}.")


def _check_speed(step_ms: float | None, images_per_second: float | None, seconds: float) -> None:
    if (step_ms is None) == (images_per_second is None):
        raise ConfigError("Say how fast the accelerator is: either --step-ms or --images-per-second.")
    _check_above_0(step_ms, images_per_second, seconds)


def _check_step(
    train: str | None, step_ms: float | None, images_per_second: float | None, seconds: float, needed: bool
) -> None:
    """Checks what gives the step behind a loader.

    Raises:
        ConfigError: There are two of the options, none where one is needed, or a value is not above 0.
    """
    given = [value for value in (train, step_ms, images_per_second) if value is not None]
    if len(given) > 1:
        raise ConfigError("A loader has one trainer. Give one of --step-ms, --images-per-second and --train.")
    if needed and not given:
        raise ConfigError(
            "Without a step there is no idle time. Give --step-ms, --images-per-second or --train, or leave out "
            "--max-idle and --price-per-hour."
        )
    _check_above_0(step_ms, images_per_second, seconds)


def _check_above_0(step_ms: float | None, images_per_second: float | None, seconds: float) -> None:
    for name, value in (("--step-ms", step_ms), ("--images-per-second", images_per_second), ("--seconds", seconds)):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} must be above 0, got {value:g}.")


def _check_page(path: str) -> None:
    """Checks, before anything is measured, that the page can be made and written.

    Raises:
        ConfigError: The page cannot be written there.
        MissingDependencyError: A library that makes it is not installed.
    """
    check_installed("jinja2", "`tfpipe profile --html`", "Jinja2", "tfpipe[report]")
    check_target(path)


def _print(report: "Report", as_json: bool) -> None:
    from tfpipe.profiler.report.text_json import to_json, to_text

    if as_json:
        click.echo(json.dumps(to_json(report), allow_nan=False))
    else:
        click.echo(to_text(report), nl=False)


def _write_page(report: "Report", path: str) -> None:
    from tfpipe.profiler.report.html import render

    write_file(path, render(report).encode())
    click.echo(f"Wrote {path}.", err=True)


def _fail_above(max_idle: float | None, idle: float) -> None:
    """Exits with code 1 if the accelerator is idle for more than the limit."""
    if max_idle is not None and idle > max_idle:
        click.echo(f"The accelerator is idle for {idle:.1%}, more than {max_idle:.1%}.", err=True)
        raise SystemExit(1)
