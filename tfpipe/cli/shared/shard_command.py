"""The common part of `shard`, `reshard` and `merge`: options, the run of the job, and its output."""

import json
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NoReturn

import click

from beam_jobs.config import ShardConfig
from beam_jobs.runners.base import RunnerConfig
from tfpipe.cli.shared.command import require_beam, show
from tfpipe.cli.shared.config_option import all_options, build, config_options, drop_missing, get_flag
from tfpipe.cli.shared.console import echo
from tfpipe.cli.shared.help_groups import help_option
from tfpipe.cli.shared.progress import ScanDisplay, ShardDisplay
from tfpipe.cli.shared.shard_output import describe_plan, describe_result, format_part, format_plan, format_result
from tfpipe.errors import ConfigError
from tfpipe.system.interrupts import restore_interrupts
from tfpipe.system.options import list_changes
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from beam_jobs.append_job import Append
    from beam_jobs.plan.plan import Plan

_Result = tuple[dict[str, Any], Iterable[str]]  # the facts, and the same in words
_PART = re.compile(r"(?:([0-9]+)|auto)(?:/([1-9][0-9]*))?")
_NUMBERS = re.compile(r"(?<=-)[0-9]{5,9}(?=-of-|\.tfrecord)")  # of a shard
_BAD_PART = "must be K/N, with K from 0 to N - 1, as in 3/8; or auto, or auto/N"


class PartNumber(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A part of a job: `3/8` becomes (3, 8). `auto` takes the number from the environment of a scheduler's task."""

    name = "part"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Implements `click.ParamType.convert`."""
        match = _PART.fullmatch(value)
        if match is None or (match[1] and not (match[2] and int(match[1]) < int(match[2]))):
            self.fail(f"{_BAD_PART}, got {value!r}.", param, ctx)
        if match[1]:
            return int(match[1]), int(match[2])
        number, count = os.environ.get("SLURM_ARRAY_TASK_ID"), match[2] or os.environ.get("SLURM_ARRAY_TASK_COUNT")
        number = number or os.environ.get("JOB_COMPLETION_INDEX")
        if not (number and count and number.isdecimal() and count.isdecimal() and int(count)):
            self.fail(
                "auto needs SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT in the environment, or JOB_COMPLETION_INDEX "
                "and the number of pods, as auto/8.",
                param,
                ctx,
            )
        return int(number), int(count)


job_options = all_options(
    config_options(RunnerConfig),
    config_options(ShardConfig, "Running"),
    help_option(
        "--dry-run",
        is_flag=True,
        group="Running",
        help="Write nothing. Print the plan, and estimate size and time from a sample of the images.",
    ),
)
"""The options for the run of a job whose output a command finds by itself."""

run_options = all_options(
    help_option(
        "--print-command",
        is_flag=True,
        group="Clouds",
        rare=True,
        help="Print the job as one command line, for a scheduler to run, and stop.",
    ),
    job_options,
    help_option(
        "--plan-only",
        is_flag=True,
        group="Running",
        rare=True,
        help="Write the plan into OUTPUT and stop. Then --part writes the shards.",
    ),
    help_option(
        "--part",
        type=PartNumber(),
        metavar="K/N",
        group="Running",
        rare=True,
        help="Write a share of the shards of the plan in OUTPUT, as one of N processes on any machines; K counts from "
        "0. auto takes both from a Slurm array, auto/N from an indexed Job of Kubernetes.",
    ),
)
"""The options for the run of a job."""


@dataclass(frozen=True)
class RunArgs:
    """The options of a command for the run of its job."""

    beam_args: tuple[str, ...]  # those of the runner first
    dry_run: bool
    print_command: bool
    as_json: bool
    plan_only: bool = False
    part: tuple[int, int] | None = None  # its number and how many there are; None for the whole job

    @classmethod
    def take(cls, options: dict[str, Any], paths: str = "", advice: str = "") -> "RunArgs":
        """Removes its options from a command's options, and refuses those that exclude each other.

        `paths` names the two paths of the command, behind which only options for Beam may follow.
        """
        beam_args = options.pop("beam_args")
        _refuse_path(beam_args, paths, advice)
        runner = build(RunnerConfig, options)
        named = next((arg for arg in beam_args if arg.split("=")[0] == "--runner"), None)
        if runner.runner != RunnerConfig.runner and named is not None:
            _exclude(f"--runner {runner.runner}", f"{named} after --")
        flags = {name: options.pop(name, False) for name in ("dry_run", "print_command", "as_json", "plan_only")}
        args = cls((*runner.beam_args(), *beam_args), part=options.pop("part", None), **flags)
        given = {
            "--num-shards": options["num_shards"] is not None,
            "--shard-size": options["shard_size_bytes"] is not None,
            "--part": args.part is not None,
            "a runner": bool(args.beam_args),
            "--json": args.as_json,
            **{f"--{name.replace('_', '-')}": value for name, value in flags.items()},
        }
        for one, other in _EXCLUDED:
            if given[one] and given[other]:
                _exclude(one, other)
        return args


_EXCLUDED = (
    ("--num-shards", "--shard-size"),
    ("--plan-only", "--part"),
    *product(("--print-command",), ("--dry-run", "--json")),
    *product(("--plan-only", "--part"), ("--dry-run", "--print-command", "a runner")),
)


def _refuse_path(beam_args: Sequence[str], paths: str, advice: str) -> None:
    if beam_args and not beam_args[0].startswith("-"):
        text = f"{paths} must be two paths, got a third, {beam_args[0]!r}. Write options for Beam after --."
        raise ConfigError(f"{text} {advice}".rstrip())


def _exclude(one: str, other: str) -> NoReturn:
    raise ConfigError(f"{one} and {other} exclude each other. Leave one of them out.")


def run_job(config: ShardConfig, run_args: RunArgs, append: "Append | None" = None) -> None:
    """Runs the job, or a part of it, or only plans or prints it, and prints the result."""
    if run_args.print_command:
        click.echo(format_command(config, run_args.beam_args))
        return
    if run_args.beam_args:
        require_beam("A runner other than `local`")
    run = _run_whole
    if run_args.dry_run:
        run = _dry_run
    elif run_args.plan_only or run_args.part is not None:
        run = _run_in_parts
    if run_args.part is not None:
        _check_part(config)
    from beam_jobs import process_pool

    if run is not _run_whole or run_args.beam_args or config.workers or not process_pool.holds_little(config.input):
        process_pool.start_early()  # before this process imports what it needs
    with ShardDisplay() as display:
        facts, lines = run(config, run_args, append, display)
    show(facts, lines, run_args.as_json)


_OPAQUE = ("num_shards", "shard_size_bytes", "shuffle", "seed", "workers")  # the options of an opaque job


def run_opaque(options: dict[str, Any], compression: str | None, split: str | None) -> None:
    """Runs `reshard --opaque`, and prints the result; refuses every option that it does not have."""
    from beam_jobs import opaque_job, process_pool
    from tfpipe.integrity.foreign.index import IndexConfig, index

    beam_args, pattern, output, as_json = (options.pop(name) for name in ("beam_args", "dataset", "output", "as_json"))
    _refuse_path(beam_args, "DATASET and OUTPUT", "Put a pattern in quotes.")
    known = {name: options.pop(name) for name in _OPAQUE}
    given = [name for name, value in options.items() if value not in (None, False, (), RunnerConfig.runner)]
    if given or beam_args:
        what = f"--{given[0].replace('_', '-')}" if given else beam_args[0]
        raise ConfigError(f"--opaque copies records as they are, on this machine, so {what} does not go with it.")
    if known["num_shards"] is not None and known["shard_size_bytes"] is not None:
        _exclude("--num-shards", "--shard-size")
    process_pool.start_early()
    config = ShardConfig(pattern, output, split=split, **drop_missing(known))
    with ScanDisplay("Indexing") as display:
        result = opaque_job.run(
            config,
            "GZIP" if compression == "gzip" else "",
            lambda shards: index(IndexConfig(shards, split=split or "train"), display).manifest,
        )
    facts = {"dataset": output, **asdict(result)}
    show(facts, _format_opaque(facts), as_json)


def _format_opaque(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines about an opaque job."""
    records, files = human_count(facts["records"], "record"), human_count(facts["files"], "file")
    shards, size = human_count(len(facts["shards"]), "shard"), human_bytes(facts["bytes"])
    yield f"{records} of {files}, {shards}, {size}"
    if facts["unindexed"] is not None:
        yield f"No manifest, so no exact order: {facts['unindexed']}"
    rate = facts["records"] / facts["seconds"]
    yield f"{facts['dataset']} is complete: {facts['seconds']:.1f} s, {rate:,.0f} records/s"
    first = facts["shards"][0]
    yield f"tfrecord_path: {json.dumps(os.path.join(os.path.abspath(facts['dataset']), _NUMBERS.sub('?????', first)))}"
    yield f"num_examples: {facts['records']}"


@contextmanager
def _telling_interrupts(display: ShardDisplay) -> Iterator[None]:
    """Lets an interrupt end the block, and says how to go on."""
    try:
        with restore_interrupts():
            yield
    except KeyboardInterrupt:
        display.interrupted()
        raise


def _run_whole(config: ShardConfig, run_args: RunArgs, append: "Append | None", display: ShardDisplay) -> _Result:
    from beam_jobs import shard_job
    from beam_jobs.append_job import AppendedBefore
    from beam_jobs.runners.base import GraphWritten

    def check(plan: "Plan") -> None:
        if append is not None:
            append.check(plan)
            _tell_splits(append, plan)

    try:
        with _telling_interrupts(display):
            result = shard_job.run(config, run_args.beam_args, display, check)
    except GraphWritten as written:
        return {"dataset": config.output, "message": str(written)}, [str(written)]
    except AppendedBefore as before:
        return {**asdict(before.result), "message": str(before)}, [str(before)]
    facts = describe_result(config, result)
    if append is not None:
        facts |= asdict(append.finish(result))
    return facts, format_result(facts)


def _run_in_parts(config: ShardConfig, run_args: RunArgs, append: "Append | None", display: ShardDisplay) -> _Result:
    """Writes the plan of a job, or runs a part of the job."""
    from beam_jobs.part_job import Part, plan_parts, run_part

    with _telling_interrupts(display):
        if run_args.part is None:
            plan = plan_parts(config, display)
            facts = {"dataset": config.output, "images": plan.num_images, "shards": len(plan.shards)}
            return facts, [f"The plan is written; --part K/N writes its {human_count(len(plan.shards), 'shard')}."]
        result = run_part(config, Part(*run_args.part), display)
    facts = {"dataset": config.output, "part": "/".join(map(str, run_args.part)), **asdict(result)}
    return facts, [format_part(facts)]


def _dry_run(config: ShardConfig, run_args: RunArgs, append: "Append | None", display: ShardDisplay) -> _Result:
    """Makes the plan, and estimates the job from a small part of it in a temporary folder."""
    from beam_jobs.estimate import estimate_job
    from beam_jobs.make_plan import plan_shards

    started = time.monotonic()
    plan = plan_shards(config, run_args.beam_args, display)
    planned_s = time.monotonic() - started
    if append is not None:
        _tell_splits(append, plan)
    facts = describe_plan(config, plan, estimate_job(config, plan, planned_s, run_args.beam_args))
    return facts, format_plan(facts)


def _check_part(config: ShardConfig) -> None:
    """Checks that no option is given that the plan decides."""
    flags = [flag for flag in _list_given(config) if flag != "--workers"]
    if flags:
        raise ConfigError(f"The plan in OUTPUT decides {flags[0]}. Leave it out; it goes with --plan-only.")


def _tell_splits(append: "Append", plan: "Plan") -> None:
    """Says which splits get no image because nobody chose one."""
    shares = append.find_left_out(plan)
    first, *others = sorted(shares, key=lambda name: name != "train") or [""]
    if others:
        given = ",".join(f"{name}={shares[name]:g}" for name in (first, *others))
        echo(
            f"All images go into {first}, none into {' or '.join(others)}. Unless the input names their splits, "
            f"--splits {given} shares them out as the records of {append.dataset} are.",
            err=True,
        )


def format_command(config: ShardConfig, beam_args: Sequence[str]) -> str:
    """Returns the command that runs a job; options that have their default are left out."""
    if len(config.datasets) > 1:
        words = ["merge", *config.datasets, config.output]
    elif config.datasets:
        words = ["reshard", *config.datasets, config.output]
    else:
        words = ["shard", config.input, config.output]
    options = [
        _format_option(flag, one)
        for flag, value in _list_given(config).items()
        for one in (value if isinstance(value, tuple) else (value,))
    ]
    return shlex.join(["python", "-m", "beam_jobs", *words, *options, *(["--", *beam_args] if beam_args else [])])


def _list_given(config: ShardConfig) -> dict[str, Any]:
    """Returns the options of a job that do not have their default, by their flags."""
    changes = list_changes(ShardConfig(config.input, config.output), config)
    changes |= {f"form.{name}": value for name, value in config.form_changes.items()}
    return {get_flag(ShardConfig, name): value for name, value in changes.items()}


def _format_option(flag: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag if value else flag.replace("--", "--no-", 1)
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={share}" for key, share in value.items())
    return f"{flag}={value}"
