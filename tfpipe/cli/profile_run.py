"""The runs behind `tfpipe profile`: measure the pipeline or a loader as its user made it, and try the fixes."""

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tfpipe.cli.shared.command import require_tensorflow
from tfpipe.cli.shared.console import status_line
from tfpipe.cli.shared.inputs import load_function, load_loader, load_stages, open_data, quiet_start, read_config
from tfpipe.cli.shared.outputs import check_target
from tfpipe.engine.config import toml_json

if TYPE_CHECKING:
    from tfpipe.profiler.types import Report


def make_report(args: SimpleNamespace) -> "Report":
    """Returns the report on a pipeline, and tries its fixes if a file for them is named."""
    asked = {"image_size": args.image_size, "cpu_budget": args.cpu_budget}
    config = read_config(args.config, args.batch_size, given=asked)
    batch = config.batch_size
    step_s = batch / args.images_per_second if args.images_per_second else (args.step_ms or 0.0) / 1e3
    require_tensorflow("profile")
    data, split = open_data(args.dataset or "", args.split)
    if args.apply is not None:
        from tfpipe.profiler import tuned_file

        check_target(args.apply)
        place = tuned_file.describe_place(data, split)
        tuned_file.check_path(args.apply, place)
    customize = load_stages(args.stages)
    with quiet_start():
        from tfpipe.profiler.diagnose import diagnosis
        from tfpipe.profiler.measure.profile import ProfileConfig, make_turn, profile_pipeline
        from tfpipe.profiler.measure.simulated_accelerator import Accelerator
        from tfpipe.profiler.model import NO_IDLE
        from tfpipe.profiler.trials import try_fixes
    given_functions = {"transform": args.transform, "batch_transform": args.batch_transform}
    functions = {
        name: load_function(path, f"--{name.replace('_', '-')}") for name, path in given_functions.items() if path
    }
    accelerator = Accelerator(step_s, batch, args.trainer if step_s else "none")
    with status_line("Building the pipeline") as observer:
        run_config = ProfileConfig(args.seconds)
        profile = profile_pipeline(data, split, config, accelerator, run_config, observer, customize, functions)
        report = diagnosis.make_report(profile, args.price_per_hour)
        if args.apply is None:
            return report
        turn = make_turn(data, split, config, accelerator, args.seconds / 2, customize)
        enough = (1 - NO_IDLE) * accelerator.images_per_second
        report, kept = try_fixes(report, turn, observer, enough)
    rates = {"images_per_second_before": profile.images_per_second, "images_per_second": report.after_images_per_second}
    given = {} if args.config is None else toml_json.read(args.config)
    given |= {name: value for name, value in asked.items() if value is not None} | {"batch_size": batch}
    tuned_file.write(args.apply, given, kept, place, rates)
    return report


def make_loader_report(args: SimpleNamespace) -> "Report":
    """Returns the report on a loader, and writes the options that were kept."""
    if args.apply is not None:
        check_target(args.apply)
        toml_json.check_suffix(args.apply)
    strangers = threading.enumerate()
    make = load_loader(args.loader or "")
    with status_line("Making the loader") as observer:
        from tfpipe.profiler.loader.measure import LoaderSource, Trainer, profile_loader

        train = None if args.train is None else load_function(args.train, "--train")
        trainer = Trainer(None if args.step_ms is None else args.step_ms / 1e3, args.images_per_second, train)
        source, applies = LoaderSource(make, args.loader or "", strangers), args.apply is not None
        report, kept = profile_loader(source, trainer, args.seconds, applies, observer, args.price_per_hour)
    if args.apply is not None:
        toml_json.write(args.apply, kept)
    return report
