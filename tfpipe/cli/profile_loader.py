"""The run behind `tfpipe profile --loader`: any loader of batches, as its user made it."""

import threading
from dataclasses import replace
from types import SimpleNamespace

from tfpipe.cli.profile_run import Output
from tfpipe.cli.shared.console import status_line
from tfpipe.cli.shared.inputs import load_function
from tfpipe.cli.shared.outputs import check_target
from tfpipe.engine.config import toml_json


def run_loader(args: SimpleNamespace) -> Output:
    """Profiles a loader, and writes the options that were kept. The idle share is that after the fixes.

    Raises:
        ConfigError: An option cannot be used, or the user's function or step raises an error.
        DataError: The loader gives nothing, or raises an error.
    """
    if args.apply is not None:
        check_target(args.apply)
        toml_json.check_suffix(args.apply)
    strangers = threading.enumerate()
    make = load_function(args.loader or "", "--loader")
    with status_line("Making the loader") as observer:
        from tfpipe.profiler.diagnose.diagnosis import HOURS_PER_DAY
        from tfpipe.profiler.loader.loaders import LoaderSource
        from tfpipe.profiler.loader.measure import Trainer
        from tfpipe.profiler.loader.report import to_json, to_text
        from tfpipe.profiler.loader.run import profile_loader

        train = None if args.train is None else load_function(args.train, "--train")
        trainer = Trainer(None if args.step_ms is None else args.step_ms / 1e3, args.images_per_second, train)
        source, applies = LoaderSource(make, args.loader or "", strangers), args.apply is not None
        report, kept = profile_loader(source, trainer, args.seconds, applies, observer)
        if args.price_per_hour is not None:
            price = args.price_per_hour * HOURS_PER_DAY * report.profile.idle_fraction
            report = replace(report, price_per_day=price)
    if args.apply is not None:
        toml_json.write(args.apply, kept)
    return Output(to_text(report), to_json(report), str, report.idle_after_fixes)
