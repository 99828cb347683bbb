"""The common part of `shard`, `reshard` and `merge`: options, the run of the job, and its output."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from beam_jobs.config import ShardConfig
from tfpipe.cli.estimate_output import estimate_json, price_options, print_estimate
from tfpipe.cli.shared.command_line import format_command
from tfpipe.cli.shared.config_option import config_option
from tfpipe.cli.shared.console import clean_line
from tfpipe.cli.shared.params import Command, CountOrShare, Size, all_options, debug_option, json_option
from tfpipe.cli.shared.progress import ShardDisplay
from tfpipe.cli.shared.runner_options import RunArgs, runner_options
from tfpipe.format.image_form import ImageForm
from tfpipe.system.interrupts import restore_interrupts
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from beam_jobs.plan.plan import Plan
    from beam_jobs.shard_job import ShardResult

_MAX_CLASSES_SHOWN = 12


def layout_options(unshuffled: str) -> Callable[[Command], Command]:
    """Adds the options for the layout of shards; `unshuffled` describes --no-shuffle."""
    return all_options(
        config_option(ShardConfig, "num_shards", "Number of shards of each split.", default="from --shard-size"),
        click.option(
            *("--shard-size", "shard_size_bytes"),
            type=Size(),
            help=f"Approximate size of a shard.  [default: {ShardConfig.shard_size_bytes >> 20}MiB]",
        ),
        config_option(ShardConfig, "shuffle", f"Shuffle all images of a split, or {unshuffled}."),
        config_option(ShardConfig, "seed", "Seed of the shuffle."),
    )


max_bad_option = click.option(
    "--max-bad",
    type=CountOrShare(),
    metavar="N|SHARE",
    help="Fail if more images than this are bad: a count such as 25, or a share such as 1%.  "
    "[default: 1%, or up to 10 images, a third at most]",
)
seekable_option = config_option(
    ImageForm,
    "seekable",
    "Give every JPEG restart markers, without loss, so that a crop is decoded faster. Needs the native library.",
)
drop_features_option = click.option(
    "--drop-feature",
    "drop_features",
    multiple=True,
    metavar="NAME",
    help="Leave this feature out of the records. Repeat it for several. The image and its class always stay.",
)
refuse_nan_option = config_option(ShardConfig, "refuse_nan", "Fail if a tensor of a record holds NaN.")
drop_duplicates_option = config_option(ShardConfig, "drop_duplicates", "Of images with equal bytes, keep only one.")


def run_options(command: Command) -> Command:
    """Adds the options for the run of the job and for its output."""
    options = all_options(
        config_option(ShardConfig, "overwrite", "Replace the dataset that is in OUTPUT, once the new one is complete."),
        config_option(ShardConfig, "workers", "Number of worker processes.", metavar="N", default="one per core"),
        runner_options,
        click.option(
            "--dry-run",
            is_flag=True,
            help="Write nothing. Print the plan, and estimate size and time from a sample of the images.",
        ),
        price_options,
        json_option,
        debug_option,
    )
    return options(command)


def run_job(config: ShardConfig, run_args: RunArgs) -> None:
    """Runs the job, or only plans or prints it, and prints the result."""
    if run_args.print_command:
        click.echo(format_command(config, run_args.beam_args))
        return
    if run_args.dry_run:
        _dry_run(config, run_args)
        return
    from beam_jobs import process_pool

    process_pool.start_early()  # before Beam, whose import takes a second
    with ShardDisplay() as display:
        from beam_jobs import shard_job
        from beam_jobs.runners.base import GraphWritten

        try:
            with restore_interrupts():
                result = shard_job.run(config, run_args.beam_args, display)
        except GraphWritten as written:
            facts = {"dataset": config.output, "message": str(written)}
            return click.echo(json.dumps(facts) if run_args.as_json else facts["message"])
        except KeyboardInterrupt:
            display.interrupted()
            raise
    if run_args.as_json:
        click.echo(json.dumps(_result_json(config, result)))
    else:
        _print_result(config, result)


def _dry_run(config: ShardConfig, run_args: RunArgs) -> None:
    """Prints the plan, and an estimate from a small part of the job in a temporary folder."""
    from beam_jobs import process_pool

    process_pool.start_early()
    from beam_jobs.estimate import estimate_job, infer_parallelism
    from beam_jobs.make_plan import make_plan

    with ShardDisplay() as display:
        started = time.monotonic()
        with make_plan(config, run_args.beam_args, display) as plan:
            planned_s = time.monotonic() - started
            estimate = estimate_job(config, plan, planned_s, infer_parallelism(config, run_args.beam_args))
        choice = display.choice
    assert choice is not None
    has_choice = not config.datasets  # finished datasets are always planned here
    if run_args.as_json:
        planner = {"planner": "engine" if choice.is_engine else "launcher", "planner_reason": choice.reason}
        facts = {**_plan_json(plan), **(planner if has_choice else {})}
        click.echo(json.dumps({**facts, "estimate": estimate_json(estimate, run_args.prices)}))
    else:
        _print_plan(config, plan)
        if has_choice:
            click.echo(str(choice))
        print_estimate(estimate, run_args.prices)


def _result_json(config: ShardConfig, result: "ShardResult") -> dict[str, Any]:
    from tfpipe.cli.shared.shard_summary import summarize

    manifest = result.manifest
    return {
        "dataset": config.output,
        "splits": {
            name: {"records": split.records, "shards": split.num_shards, "bytes": split.bytes}
            for name, split in manifest.splits.items()
        },
        **summarize(config, manifest),
        "quarantined": manifest.quarantined,
        "changed": dict(manifest.changed),
        "duplicates": asdict(manifest.duplicates),
        "images_per_second": round(result.images_per_second, 1),
        "seconds": round(result.seconds, 3),
    }


def _print_result(config: ShardConfig, result: "ShardResult") -> None:
    from tfpipe.cli.shared.shard_summary import format_classes, format_quarantined

    manifest = result.manifest
    for name, split in manifest.splits.items():
        shards = human_count(split.num_shards, "shard")
        click.echo(f"{name}: {human_count(split.records, 'record')}, {shards}, {human_bytes(split.bytes)}")
    for line in format_classes(config, manifest):
        click.echo(line)
    for kind, count in manifest.changed.items():
        click.echo(f"changed: {count:,} {kind}")
    duplicates = manifest.duplicates
    if duplicates.within or duplicates.across:
        found = {"within a split": sum(duplicates.within.values()), "across splits": duplicates.across}
        counts = ", ".join(f"{count:,} {where}" for where, count in found.items() if count)
        click.echo(f"duplicates: {counts}, listed in duplicates.jsonl")
    if duplicates.dropped:
        click.echo(f"duplicates: {duplicates.dropped:,} dropped")
    for line in format_quarantined(config, manifest):
        click.echo(line)
    for reason, count in sorted(manifest.skipped.items()):
        click.echo(f"skipped: {count:,} {reason}")
    kept = f", {human_count(result.kept_shards, 'shard')} finished before" if result.kept_shards else ""
    click.echo(f"{config.output} is complete: {result.seconds:.1f} s, {result.images_per_second:,.0f} images/s{kept}")


def _plan_json(plan: "Plan") -> dict[str, Any]:
    total = {"images": plan.num_images, "bytes": plan.num_bytes, "shards": len(plan.shards)}
    more = {"skipped": dict(plan.listing.skipped or {}), "dropped": plan.listing.dropped}
    return {**total, "splits": _splits(plan), **more}


def _splits(plan: "Plan") -> dict[str, dict[str, Any]]:
    splits: dict[str, dict[str, Any]] = {}
    for shard, num_bytes in zip(plan.shards, plan.shard_bytes, strict=True):
        split = splits.setdefault(shard.split, {"images": 0, "bytes": 0, "shards": 0, "classes": {}})
        split["images"] += shard.images
        split["bytes"] += num_bytes
        split["shards"] += 1
    for name, split in splits.items():
        split["classes"] = dict(zip(plan.listing.label_names, plan.class_counts[name], strict=True))
    return splits


def _print_plan(config: ShardConfig, plan: "Plan") -> None:
    from tfpipe.cli.shared.shard_summary import explain_no_classes

    click.echo(f"{human_count(plan.num_images, 'image')}, {human_bytes(plan.num_bytes)}, nothing written")
    for name, split in _splits(plan).items():
        shards = human_count(split["shards"], "shard")
        click.echo(f"{name}: {human_count(split['images'], 'image')}, {human_bytes(split['bytes'])}, {shards}")
        _print_classes(split["classes"])
    reason = explain_no_classes(config, plan.listing.make_schema(), has_classes=bool(plan.listing.label_names))
    if reason:
        click.echo(f"no classes: {clean_line(reason)}")
    for reason, count in sorted((plan.listing.skipped or {}).items()):
        click.echo(f"skipped: {count:,} {reason}")
    if plan.listing.dropped:
        click.echo(f"duplicates: {plan.listing.dropped:,} dropped")


def _print_classes(classes: dict[str, int]) -> None:
    """Prints the largest classes with a bar each, and the number of records of the smallest."""
    if not classes:
        return
    width = max(len(clean_line(name)) for name in classes)
    most = max(classes.values()) or 1
    ordered = sorted(classes.items(), key=lambda item: -item[1])
    for name, count in ordered[:_MAX_CLASSES_SHOWN]:
        click.echo(f"  {clean_line(name):{width}}  {count:>9,}  {'█' * round(30 * count / most)}")
    if len(ordered) > _MAX_CLASSES_SHOWN:
        click.echo(f"  and {len(ordered) - _MAX_CLASSES_SHOWN:,} more classes, the smallest {ordered[-1][1]:,}")
