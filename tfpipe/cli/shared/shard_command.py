"""The common part of `shard`, `reshard` and `merge`: options, the run of the job, and its output."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from beam_jobs.config import ShardConfig
from beam_jobs.runners.base import RunnerConfig
from tfpipe.cli.shared.command import require_beam, show
from tfpipe.cli.shared.config_option import Command, CountOrShare, Size, all_options, config_option, take
from tfpipe.cli.shared.progress import ShardDisplay
from tfpipe.cli.shared.shard_output import describe_plan, describe_result, format_plan, format_result
from tfpipe.errors import ConfigError
from tfpipe.format.image_form import ImageForm
from tfpipe.system.interrupts import restore_interrupts

if TYPE_CHECKING:
    from beam_jobs.append_job import Append
    from beam_jobs.plan.plan import Plan

# Every other option has the name of its field.
_OPTIONS = {"shard_size_bytes": "shard_size", "drop_features": "drop_feature"}
_NOT_OPTIONS = ("input", "output", "datasets", "form", "form_changes", "known_labels", "known_images")

runner_options = all_options(
    config_option(RunnerConfig, "runner", "Where the job runs; local means this machine, direct Beam on it."),
    config_option(RunnerConfig, "project", metavar="ID"),
    config_option(RunnerConfig, "region", metavar="NAME"),
    config_option(RunnerConfig, "max_workers", metavar="N", default="the service decides"),
    config_option(RunnerConfig, "machine_type", metavar="TYPE"),
    config_option(RunnerConfig, "service_account", metavar="EMAIL"),
    config_option(RunnerConfig, "network", metavar="NAME"),
    config_option(RunnerConfig, "subnetwork", metavar="PATH"),
    config_option(RunnerConfig, "temp_location", metavar="URL", default="in OUTPUT"),
)
"""Adds the options to a command."""

print_command_option = click.option(
    "--print-command", is_flag=True, help="Print the job as one command line, for a scheduler to run, and stop."
)


@dataclass(frozen=True)
class RunArgs:
    """The options of a command for the run of its job.

    Attributes:
        beam_args: All arguments for Beam, those of the runner first.
        dry_run: Whether to plan only.
        print_command: Whether to print the job as a command only.
        as_json: Whether to print one JSON object.
    """

    beam_args: tuple[str, ...]
    dry_run: bool
    print_command: bool
    as_json: bool

    @classmethod
    def take(cls, options: dict[str, Any], beam_args: Sequence[str]) -> "RunArgs":
        """Removes its options from a command's options.

        Raises:
            ConfigError: Options do not go together.
        """
        runner = RunnerConfig(**take(RunnerConfig, options))
        named = next((arg for arg in beam_args if arg.split("=")[0] == "--runner"), None)
        if runner.runner != RunnerConfig.runner and named is not None:
            raise ConfigError(
                f"--runner {runner.runner} and {named} after -- exclude each other. Leave one of them out."
            )
        flags = {name: options.pop(name, False) for name in ("dry_run", "print_command", "as_json")}
        if options["num_shards"] is not None and options["shard_size_bytes"] is not None:
            raise ConfigError("--num-shards and --shard-size exclude each other. Leave one of them out.")
        if flags["print_command"] and (flags["dry_run"] or flags["as_json"]):
            raise ConfigError("--print-command prints one line and stops. Leave out --dry-run and --json.")
        return cls((*runner.beam_args(), *beam_args), **flags)


def layout_options(unshuffled: str) -> Callable[[Command], Command]:
    """Adds the options for the layout of shards; `unshuffled` describes --no-shuffle."""
    return all_options(
        config_option(ShardConfig, "num_shards", metavar="N", default="from --shard-size"),
        config_option(
            ShardConfig,
            "shard_size_bytes",
            "The approximate size of a shard.",
            flag="--shard-size",
            kind=Size(),
            default=f"{ShardConfig.shard_size_bytes >> 20}MiB",
        ),
        config_option(ShardConfig, "shuffle", f"Shuffle all images of a split, or {unshuffled}."),
        config_option(ShardConfig, "seed", metavar="N"),
    )


max_bad_option = config_option(
    ShardConfig,
    "max_bad",
    "Fail if more images than this are bad: a count such as 25, or a share such as 1%.",
    kind=CountOrShare(),
    metavar="N|SHARE",
    default="1%, or up to 10 images, a third at most",
)
seekable_option = config_option(
    ImageForm,
    "seekable",
    "Give every JPEG restart markers, without loss, so that a crop is decoded faster.",
)
drop_features_option = config_option(
    ShardConfig,
    "drop_features",
    "Leave this feature out of the records. Repeat it for several. The image and its class always stay.",
    flag="--drop-feature",
    metavar="NAME",
)
refuse_nan_option = config_option(ShardConfig, "refuse_nan", "Fail if a tensor of a record holds NaN.")
drop_duplicates_option = config_option(ShardConfig, "drop_duplicates", "Of images with equal bytes, keep only one.")


def run_options(command: Command) -> Command:
    """Adds the options for the run of the job and for its output."""
    overwrite = "Replace the dataset that is in OUTPUT, once the new one is complete."
    return all_options(config_option(ShardConfig, "overwrite", overwrite), print_command_option, job_options)(command)


def job_options(command: Command) -> Command:
    """Adds the options for the run of a job whose output a command finds by itself."""
    options = all_options(
        config_option(ShardConfig, "workers", metavar="N", default="one per core"),
        runner_options,
        click.option(
            "--dry-run",
            is_flag=True,
            help="Write nothing. Print the plan, and estimate size and time from a sample of the images.",
        ),
    )
    return options(command)


def run_job(config: ShardConfig, run_args: RunArgs, append: "Append | None" = None) -> None:
    """Runs the job, or only plans or prints it, and prints the result.

    Args:
        config: The options of the job.
        run_args: The options for its run.
        append: The dataset that the records are appended to; None for a dataset of their own.
    """
    if run_args.print_command:
        click.echo(format_command(config, run_args.beam_args))
        return
    if run_args.beam_args:
        require_beam("A runner other than `local`")
    if run_args.dry_run:
        _dry_run(config, run_args, append)
        return
    from beam_jobs import process_pool

    process_pool.start_early()  # before this process imports what it needs
    with ShardDisplay() as display:
        from beam_jobs import shard_job
        from beam_jobs.append_job import AppendedBefore
        from beam_jobs.runners.base import GraphWritten

        try:
            with restore_interrupts():

                def check(plan: "Plan") -> None:
                    if append is not None:
                        append.check(plan)
                        _tell_splits(append, plan)

                result = shard_job.run(config, run_args.beam_args, display, check)
        except GraphWritten as written:
            return show({"dataset": config.output, "message": str(written)}, [str(written)], run_args.as_json)
        except AppendedBefore as before:
            facts = {**asdict(before.result), "message": str(before)}
            return show(facts, [str(before)], run_args.as_json)
        except KeyboardInterrupt:
            display.interrupted()
            raise
    facts = describe_result(config, result)
    if append is not None:
        facts |= asdict(append.finish(result))
    show(facts, format_result(facts), run_args.as_json)


def _tell_splits(append: "Append", plan: "Plan") -> None:
    """Says which splits get no image because nobody chose one."""
    shares = append.find_left_out(plan)
    first, *others = sorted(shares, key=lambda name: name != "train") or [""]
    if others:
        given = ",".join(f"{name}={shares[name]:g}" for name in (first, *others))
        click.echo(
            f"All images go into {first}, none into {' or '.join(others)}. Unless the input names their splits, "
            f"--splits {given} shares them out as the records of {append.dataset} are.",
            err=True,
        )


def _dry_run(config: ShardConfig, run_args: RunArgs, append: "Append | None") -> None:
    """Prints the plan, and an estimate from a small part of the job in a temporary folder."""
    from beam_jobs import process_pool

    process_pool.start_early()
    from beam_jobs.estimate import estimate_job
    from beam_jobs.make_plan import plan_shards

    with ShardDisplay() as display:
        started = time.monotonic()
        plan = plan_shards(config, run_args.beam_args, display)
        planned_s = time.monotonic() - started
        if append is not None:
            _tell_splits(append, plan)
        estimate = estimate_job(config, plan, planned_s, run_args.beam_args)
    facts = describe_plan(config, plan, estimate)
    show(facts, format_plan(facts), run_args.as_json)


def format_command(config: ShardConfig, beam_args: Sequence[str]) -> str:
    """Returns the command that runs a job; options that have their default are left out."""
    if len(config.datasets) > 1:
        words = ["merge", *config.datasets, config.output]
    elif config.datasets:
        words = ["reshard", *config.datasets, config.output]
    else:
        words = ["shard", config.input, config.output]
    values = _changed_fields(config, ShardConfig(config.input, config.output))
    form_values = _changed_fields(config.form, ImageForm()) | dict(config.form_changes)
    options = [
        _format_option(name, value)
        for name, given in {**values, **form_values}.items()
        for value in (given if isinstance(given, tuple) else (given,))
    ]
    return shlex.join(["python", "-m", "beam_jobs", *words, *options, *(["--", *beam_args] if beam_args else [])])


def _changed_fields(config: Any, default: Any) -> dict[str, Any]:
    names = [field.name for field in fields(config) if field.name not in _NOT_OPTIONS]
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(default, name)}


def _format_option(name: str, value: Any) -> str:
    option = _OPTIONS.get(name, name).replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={share}" for key, share in value.items())
    return f"--{option}={value}"


def refuse_path(beam_args: Sequence[str], expected: str, advice: str = "") -> None:
    """Refuses a path among the arguments for Beam.

    Args:
        beam_args: The arguments behind the paths of a command.
        expected: The begin of a sentence, as in "INPUT and OUTPUT must be two paths, got a third".
        advice: A further sentence.

    Raises:
        ConfigError: There is a path.
    """
    if beam_args and not beam_args[0].startswith("-"):
        text = f"{expected}, {beam_args[0]!r}. Write options for Beam after --. {advice}"
        raise ConfigError(text.rstrip())
