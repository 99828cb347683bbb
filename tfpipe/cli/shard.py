"""`tfpipe shard`, `append`, `reshard` and `merge`: the jobs that write shards."""

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

import click

from beam_jobs.config import ShardConfig, TableColumns
from beam_jobs.runners.base import RunnerConfig
from tfpipe.cli.shard_output import describe_plan, describe_result, format_part, format_plan, format_result
from tfpipe.cli.shared.command import command, show
from tfpipe.cli.shared.config_option import all_options, build, config_option, config_options, take
from tfpipe.cli.shared.console import echo
from tfpipe.cli.shared.inputs import refuse_records
from tfpipe.cli.shared.progress import ScanDisplay, ShardDisplay
from tfpipe.errors import ConfigError
from tfpipe.format.image_form import ImageForm
from tfpipe.system.extras import check_installed
from tfpipe.system.interrupts import restore_interrupts
from tfpipe.system.options import Choice, Flag, Text, Unchecked, check_options, option
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from beam_jobs.append_job import Append
    from beam_jobs.plan.plan import Plan

_Result = tuple[dict[str, Any], Iterable[str]]  # a summary, and the same in words
_BEAM = "Options after -- go to Beam."
_beam_argument = click.argument("beam_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- BEAM OPTIONS]")
_RECORDS = "Opaque records"
_PART = re.compile(r"(?:([0-9]+)|auto)(?:/([1-9][0-9]*))?")
_NOT_IN_THE_PLAN = ("input", "dataset", "output", "workers")
_NUMBERS = re.compile(r"(?<=-)[0-9]{5,9}(?=-of-|\.tfrecord)")  # the number in the name of a shard


@dataclass(frozen=True, kw_only=True)
class RunArgs:
    """The options of a command that decide how its job is run.

    Attributes:
        dry_run: Whether to write nothing, but print the plan, and estimate size and time from a sample of the images.
            Default: False.
        plan_only: Whether to write the plan into OUTPUT and stop; then `part` writes the shards. Default: False.
        part: The share of the shards of the plan in OUTPUT to write, as one of N processes on any machines, where K
            counts from 0; auto takes both from a Slurm array, auto/N from an indexed Job of Kubernetes. Of a complete
            dataset only the name of the input is compared. Default: None.
        beam_args: The arguments for Beam, those of the runner first. Default: ().
        as_json: Whether to print the result as JSON. Default: False.
    """

    dry_run: bool = option(Flag(), False, group="Running")
    plan_only: bool = option(Flag(), False, group="Running", rare=True)
    part: tuple[int, int] | None = option(Unchecked(), None, group="Running", rare=True, metavar="K/N")
    beam_args: tuple[str, ...] = ()
    as_json: bool = False

    @classmethod
    def take(cls, options: dict[str, Any], paths: str = "", advice: str = "") -> "RunArgs":
        """Takes the options of this class out of a command's options, and refuses those that exclude each other.

        `paths` names the two path arguments of the command, in the error about a third one.
        """
        runner, given = build(RunnerConfig, options), take(cls, options)
        beam_args = given.pop("beam_args", ())
        _refuse_path(beam_args, paths, advice)
        named = next((arg for arg in beam_args if arg.split("=")[0] == "--runner"), None)
        if runner.runner != RunnerConfig.runner and named is not None:
            _exclude(f"--runner {runner.runner}", f"{named} after --")
        if "part" in given:
            given["part"] = _read_part(given["part"])
        args = cls(beam_args=(*runner.beam_args(), *beam_args), **given)
        modes = {
            "--plan-only": args.plan_only,
            "--part": args.part is not None,
            "--dry-run": args.dry_run,
            "a runner": bool(args.beam_args),
        }
        chosen = [mode for mode, is_chosen in modes.items() if is_chosen]
        if len(chosen) > 1 and chosen != ["--dry-run", "a runner"]:
            _exclude(*chosen[:2])
        _refuse_two_sizes(options)
        decided = [name for name in options if name not in _NOT_IN_THE_PLAN]
        if args.part is not None and decided:
            raise ConfigError(f"The plan in OUTPUT decides `{decided[0]}`. Leave it out; it goes with --plan-only.")
        return args


job_options = all_options(
    config_options(RunnerConfig), config_options(ShardConfig, "Running"), config_option(RunArgs, "dry_run")
)
"""The options for the run of a job, for commands that choose the output themselves."""

run_options = all_options(job_options, config_option(RunArgs, "plan_only"), config_option(RunArgs, "part"))
"""The options for the run of a job."""


def _read_part(text: str) -> tuple[int, int]:
    """Parses `3/8`; `auto` takes the part from the environment that Slurm or Kubernetes gives to a task."""
    match = _PART.fullmatch(text)
    if match is None or (match[1] and not (match[2] and int(match[1]) < int(match[2]))):
        expected = "K/N, with K from 0 to N - 1, as in 3/8; or auto, or auto/N"
        raise ConfigError(f"--part must be {expected}, got {text!r}.")
    if match[1]:
        return int(match[1]), int(match[2])
    number = os.environ.get("SLURM_ARRAY_TASK_ID") or os.environ.get("JOB_COMPLETION_INDEX", "")
    count = match[2] or os.environ.get("SLURM_ARRAY_TASK_COUNT", "")
    if not (number.isdecimal() and count.isdecimal() and int(count)):
        slurm, pods = "SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT", "JOB_COMPLETION_INDEX"
        raise ConfigError(f"--part auto needs {slurm} in the environment, or {pods} and their number, as auto/8.")
    return int(number), int(count)


def _refuse_path(beam_args: Sequence[str], paths: str, advice: str) -> None:
    if beam_args and not beam_args[0].startswith("-"):
        text = f"{paths} must be two paths, got a third, {beam_args[0]!r}. Write options for Beam after --."
        raise ConfigError(f"{text} {advice}".rstrip())


def _refuse_two_sizes(options: Mapping[str, Any]) -> None:
    if "num_shards" in options and "shard_size_bytes" in options:
        _exclude("--num-shards", "--shard-size")


def _exclude(one: str, other: str) -> NoReturn:
    raise ConfigError(f"{one} and {other} exclude each other. Leave one of them out.")


def run_job(config: ShardConfig, run_args: RunArgs, append: "Append | None" = None) -> None:
    """Runs the job, or a part of it, or only plans it, and prints the result."""
    if run_args.beam_args:
        check_installed("apache_beam", "A runner other than `local`", "Apache Beam", "tfpipe[beam]")
    run = _run_whole
    if run_args.dry_run:
        run = _dry_run
    elif run_args.plan_only or run_args.part is not None:
        run = _run_in_parts
    from beam_jobs import process_pool

    if run is not _run_whole or run_args.beam_args or config.workers or not process_pool.holds_little(config.input):
        process_pool.start_early()  # before this process imports what it needs
    with ShardDisplay() as display, restore_interrupts():
        summary, lines = run(config, run_args, append, display)
    show(summary, lines, run_args.as_json)


_OPAQUE = ("num_shards", "shard_size_bytes", "shuffle", "seed", "workers")  # the options of an opaque job
_Compression = Literal["none", "gzip"]


@dataclass(frozen=True, kw_only=True)
class OpaqueOptions:
    """The options of `reshard --opaque` alone.

    Attributes:
        opaque: Whether to shuffle any TFRecords byte for byte: DATASET is a file, a folder or a pattern in quotes,
            packed or not. Default: False.
        compression: The packing with `opaque`: gzip packs each record on its own, so that it can be read at random.
            "none" or "gzip". Default: "none".
        split: The split with `opaque`. Default: "train".
    """

    opaque: bool = option(Flag(), False, group=_RECORDS)
    compression: _Compression = option(Choice(get_args(_Compression)), "none", group=_RECORDS)
    split: str = option(Text(), "train", group=_RECORDS, metavar="NAME")

    def __post_init__(self) -> None:
        check_options(self)
        for name in () if self.opaque else ("compression", "split"):
            if getattr(self, name) != getattr(OpaqueOptions, name):
                raise ConfigError(f"`{name}` goes with `opaque`. Leave it out, or add --opaque.")


def run_opaque(options: dict[str, Any], opaque: OpaqueOptions) -> None:
    """Runs `reshard --opaque`, and prints the result; refuses every option of `reshard` that it does not support."""
    from beam_jobs import opaque_job, process_pool
    from tfpipe.integrity.foreign.index import IndexConfig, index

    beam_args = options.pop("beam_args", ())
    pattern, output, as_json = (options.pop(name) for name in ("dataset", "output", "as_json"))
    _refuse_path(beam_args, "DATASET and OUTPUT", "Put a pattern in quotes.")
    known = {name: options.pop(name) for name in _OPAQUE if name in options}
    given = [name for name, value in options.items() if value != RunnerConfig.runner]
    if given or beam_args:
        what = f"--{given[0].replace('_', '-')}" if given else beam_args[0]
        raise ConfigError(f"--opaque copies records as they are, on this machine, so {what} does not go with it.")
    _refuse_two_sizes(known)
    process_pool.start_early()
    config = ShardConfig(pattern, output, split=opaque.split, **known)
    with ScanDisplay("Indexing") as display:
        result = opaque_job.run(
            config,
            "GZIP" if opaque.compression == "gzip" else "",
            lambda shards: index(IndexConfig(shards, split=opaque.split), display).manifest,
        )
    summary = {"dataset": output, **asdict(result)}
    show(summary, _format_opaque(summary), as_json)


def _format_opaque(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines that report a finished opaque job."""
    records, files = human_count(summary["records"], "record"), human_count(summary["files"], "file")
    shards, size = human_count(len(summary["shards"]), "shard"), human_bytes(summary["bytes"])
    yield f"{records} of {files}, {shards}, {size}"
    if summary["unindexed"] is not None:
        yield f"No manifest, so no exact order: {summary['unindexed']}"
    rate = summary["records"] / summary["seconds"]
    yield f"{summary['dataset']} is complete: {summary['seconds']:.1f} s, {rate:,.0f} records/s"
    pattern = _NUMBERS.sub("?????", summary["shards"][0])
    yield f"tfrecord_path: {json.dumps(os.path.join(os.path.abspath(summary['dataset']), pattern))}"
    yield f"num_examples: {summary['records']}"


def _run_whole(config: ShardConfig, run_args: RunArgs, append: "Append | None", display: ShardDisplay) -> _Result:
    from beam_jobs import shard_job
    from beam_jobs.append_job import AppendedBefore
    from beam_jobs.runners.base import GraphWritten

    def check(plan: "Plan") -> None:
        if append is not None:
            append.check(plan)
            _tell_splits(append, plan)

    try:
        result = shard_job.run(config, run_args.beam_args, display, check)
    except GraphWritten as written:
        return {"dataset": config.output, "message": str(written)}, [str(written)]
    except AppendedBefore as before:
        return {**asdict(before.result), "message": str(before)}, [str(before)]
    summary = describe_result(config, result)
    if append is not None:
        summary |= asdict(append.finish(result))
    return summary, format_result(summary)


def _run_in_parts(config: ShardConfig, run_args: RunArgs, append: "Append | None", display: ShardDisplay) -> _Result:
    """Writes the plan of a job, or runs a part of the job."""
    from beam_jobs.part_job import plan_parts, run_part

    if run_args.part is None:
        plan = plan_parts(config, display)
        summary = {"dataset": config.output, "images": plan.num_images, "shards": len(plan.shards)}
        return summary, [f"The plan is written; --part K/N writes its {human_count(len(plan.shards), 'shard')}."]
    result = run_part(config, run_args.part, display)
    summary = {"dataset": config.output, "part": "/".join(map(str, run_args.part)), **asdict(result)}
    return summary, [format_part(summary)]


def _dry_run(config: ShardConfig, run_args: RunArgs, append: "Append | None", display: ShardDisplay) -> _Result:
    """Makes the plan, and estimates the job from a small part of it in a temporary folder."""
    from beam_jobs.estimate import estimate_job
    from beam_jobs.shard_job import plan_shards

    started = time.monotonic()
    plan = plan_shards(config, run_args.beam_args, display)
    planned_s = time.monotonic() - started
    if append is not None:
        _tell_splits(append, plan)
    summary = describe_plan(config, plan, estimate_job(config, plan, planned_s, run_args.beam_args))
    return summary, format_plan(summary)


def _tell_splits(append: "Append", plan: "Plan") -> None:
    """Tells the user which splits of the dataset get no appended image because --splits was not given."""
    shares = append.find_left_out(plan)
    first, *others = sorted(shares, key=lambda name: name != "train") or [""]
    if others:
        given = ",".join(f"{name}={shares[name]:g}" for name in (first, *others))
        echo(
            f"All images go into {first}, none into {' or '.join(others)}. Unless the input names their splits, "
            f"--splits {given} shares them out as the records of {append.dataset} are.",
            err=True,
        )


@command(
    example="tfpipe shard photos flowers --splits train=0.9,validation=0.1",
    epilog="Options after -- go to Beam: tfpipe shard IN OUT -- --direct_running_mode=multi_threading",
)
@click.argument("input")
@click.argument("output")
@_beam_argument
@config_options(TableColumns)
@config_options(ShardConfig, "Input", "Splits")
@config_options(ImageForm)
@config_options(ShardConfig, "Records", "Output", without=("drop_features",))
@run_options
def shard(**options: Any) -> None:
    """Write the images in INPUT as TFRecord shards into the directory OUTPUT.

    INPUT is a folder with one folder per class (train/, validation/, test/ may stand above them), a .csv, .tsv,
    .jsonl or .parquet table with the columns image and label, a .tar, .tar.gz or .zip archive, or a folder of
    archives. Tars may hold images beside their captions, as WebDataset's do, and Parquet files the images themselves,
    as Hugging Face's do. Parquet files without images may hold tensors, such as latents. Boxes may lie beside a
    folder, as COCO's and Pascal VOC's do. A table may be many files: a folder such as photos.parquet, or a pattern
    such as 'photos-*.csv'.

    Run the same command again after an interruption: finished shards are kept.
    """
    run_args = RunArgs.take(options, "INPUT and OUTPUT")
    refuse_records("shard", options["input"])
    form, columns = build(ImageForm, options), build(TableColumns, options)
    run_job(ShardConfig(form=form, columns=columns, **options), run_args)


@command(example="tfpipe append flowers more-photos", epilog=_BEAM)
@click.argument("dataset")
@click.argument("input")
@_beam_argument
@config_options(TableColumns)
@config_options(ShardConfig, "Input", "Splits", "Records", "Output", without=("drop_features", "overwrite"))
@job_options
def append(dataset: str, **options: Any) -> None:
    """Write the images in INPUT as a new layer of DATASET. No shard is changed, and its records keep their numbers.

    INPUT is what tfpipe shard takes. The images get the form of those in DATASET, and must have the same features.
    Classes keep their numbers, and new ones follow. A run that is training goes on with the layer that it began with.

    Run the same command again after an interruption: finished shards are kept.
    """
    run_args = RunArgs.take(options, "DATASET and INPUT")
    refuse_records("append", options["input"])
    from beam_jobs import process_pool

    if options.get("workers") or not process_pool.holds_little(options["input"]):
        process_pool.start_early()  # before the next line imports the job
    from beam_jobs.append_job import open_append

    columns = build(TableColumns, options)
    with open_append(dataset, ShardConfig(output=dataset, columns=columns, **options)) as job:
        run_job(job.config, run_args, job)


@command(example="tfpipe reshard flowers small-flowers --resize-short 256", epilog=_BEAM)
@click.argument("dataset")
@click.argument("output")
@_beam_argument
@config_options(ImageForm, without=("max_pixels",), default="that of DATASET")
@config_options(ShardConfig, "Records", "Output", without=("keep_quarantined", "drop_duplicates"))
@config_options(OpaqueOptions)
@run_options
def reshard(**options: Any) -> None:
    """Rewrite the records of the finished DATASET into the directory OUTPUT, in more, fewer, larger or smaller shards.

    Splits, labels, boxes, other columns, file names and digests stay the same. So do the bytes of the images, unless
    --encoding, --resize-short, --square, --reencode-progressive or --seekable changes them.

    DATASET may also be TFRecords that another tool wrote, once `tfpipe index` has described them. Their images, classes
    and other features become a dataset of tfpipe, compressed or not.

    With --opaque no record is decoded: any TFRecords, of any content, are shuffled into shards with equal bytes.

    Run the same command again after an interruption: finished shards are kept.
    """
    opaque = build(OpaqueOptions, options)
    if opaque.opaque:
        run_opaque(options, opaque)
        return
    run_args = RunArgs.take(options, "DATASET and OUTPUT", "To join several datasets, use `tfpipe merge`.")
    form, dataset = take(ImageForm, options), options.pop("dataset")
    run_job(ShardConfig(input=dataset, datasets=(dataset,), form_changes=form, **options), run_args)


@command(example="tfpipe merge flowers more-flowers all-flowers", epilog=_BEAM)
@click.argument("paths", nargs=-1, type=click.UNPROCESSED, metavar="DATASET DATASET... OUTPUT [-- BEAM OPTIONS]")
@config_options(ShardConfig, "Records", "Output", without=("keep_quarantined",))
@run_options
def merge(**options: Any) -> None:
    """Write the records of two or more finished datasets into the directory OUTPUT.

    Splits and labels of the same name are joined. The labels of the first dataset keep their numbers. All datasets
    must have the same features, and images in the same form. The bytes of the images stay the same. Images that occur
    twice are reported. A dataset may be TFRecords that another tool wrote and `tfpipe index` described.

    Run the same command again after an interruption: finished shards are kept.
    """
    arguments: tuple[str, ...] = options.pop("paths", ())
    paths = tuple(takewhile(lambda argument: not argument.startswith("-"), arguments))
    options["beam_args"] = arguments[len(paths) :]
    run_args = RunArgs.take(options)
    *datasets, output = paths or ("",)
    if len(datasets) < 2:
        raise ConfigError(f"`tfpipe merge` needs at least two datasets and OUTPUT, got {len(paths)} of these paths.")
    config = ShardConfig(input=", ".join(datasets), output=output, datasets=tuple(datasets), **options)
    run_job(config, run_args)
