"""The run behind `tfpipe profile --loader`: any loader of batches, as its user made it."""

import json
from dataclasses import dataclass, replace

import click

from tfpipe.cli.shared.load_function import load_function
from tfpipe.cli.shared.outputs import check_target
from tfpipe.cli.shared.status import status_line
from tfpipe.engine.config import toml_json


@dataclass(frozen=True)
class LoaderArgs:
    """The arguments of the command line.

    Attributes:
        loader: The user's function that makes the loader, as `module:function`.
        step_ms: The milliseconds of a step; None if not given.
        images_per_second: The images that the accelerator takes per second; None if not given.
        train: The user's step, as `module:step`; None if not given.
        seconds: The seconds to measure, at least.
        price_per_hour: The accelerator's price; None leaves the price of idle time out.
        apply: The file for the options that are left when the fixes were tried; None does not try them.
    """

    loader: str
    step_ms: float | None
    images_per_second: float | None
    train: str | None
    seconds: float
    price_per_hour: float | None
    apply: str | None


def show_loader(args: LoaderArgs, as_json: bool) -> float:
    """Profiles a loader, prints the report, and writes the options that were kept.

    Returns:
        The idle fraction, after the fixes that were kept.

    Raises:
        ConfigError: An option cannot be used, or the user's function or step raises an error.
        DataError: The loader gives nothing, or raises an error.
    """
    if args.apply is not None:
        check_target(args.apply)
        toml_json.check_suffix(args.apply)
    make = load_function(args.loader, "--loader")
    with status_line("Making the loader") as observer:
        from tfpipe.profiler.diagnose.diagnosis import HOURS_PER_DAY
        from tfpipe.profiler.loader.loaders import LoaderSource
        from tfpipe.profiler.loader.measure import Trainer
        from tfpipe.profiler.loader.report import to_json, to_text
        from tfpipe.profiler.loader.run import profile_loader

        train = None if args.train is None else load_function(args.train, "--train")
        trainer = Trainer(None if args.step_ms is None else args.step_ms / 1e3, args.images_per_second, train)
        source, applies = LoaderSource(make, args.loader), args.apply is not None
        report, kept = profile_loader(source, trainer, args.seconds, applies, observer)
        if args.price_per_hour is not None:
            price = args.price_per_hour * HOURS_PER_DAY * report.profile.idle_fraction
            report = replace(report, price_per_day=price)
    click.echo(json.dumps(to_json(report), allow_nan=False) if as_json else to_text(report), nl=as_json)
    if args.apply is not None:
        toml_json.write(args.apply, kept)
        click.echo(f"Wrote {args.apply}.", err=True)
    return report.idle_after_fixes
