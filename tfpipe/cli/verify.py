"""`tfpipe verify` and `repair`: checks every byte of a dataset, and writes its undamaged records as a clean one."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.cli.shared.progress import ScanDisplay
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from tfpipe.integrity.damage_kinds import Damage
    from tfpipe.integrity.repair import RepairResult
    from tfpipe.integrity.verify import VerifyReport

JSON_VERSION = 1
_MAX_SHOWN = 50
_workers_option = click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Number of worker processes.  [default: one per core]"
)


@command(
    example="tfpipe verify flowers --quick",
    json_help="Print one JSON object, with all damages.",
)
@click.argument("target", metavar="DATASET")
@click.option("--quick", is_flag=True, help="Check only framing, checksums, sizes and the index. Decode no images.")
@click.option("--allow-duplicates", is_flag=True, help="Accept images that occur in two splits.")
@_workers_option
def verify(target: str, quick: bool, allow_duplicates: bool, workers: int | None, as_json: bool) -> None:
    """Check whether DATASET is intact, and print the file, record, byte and kind of each damage.

    DATASET is the directory of a finished dataset, a file, or a pattern such as "/data/train-*" of TFRecords that
    another tool wrote. Exit code 1 if anything is damaged.
    """
    from tfpipe.integrity.verify import VerifyConfig
    from tfpipe.integrity.verify import verify as run

    with ScanDisplay("Verifying") as display:
        report = run(target, VerifyConfig(quick, allow_duplicates, workers), display)
    show(_report_json(target, report), _format(target, report), as_json)
    raise SystemExit(1 if report.damaged else 0)


def list_damages(damages: "list[Damage]") -> Iterator[str]:
    """Yields one line for each damage, up to a limit."""
    for damage in damages[:_MAX_SHOWN]:
        record = "" if damage.record is None else f", record {damage.record:,}"
        offset = "" if damage.offset is None else f" at byte {damage.offset:,}"
        key = f" ({damage.key})" if damage.key else ""
        yield f"{damage.file}{record}{offset}{key}: {damage.kind}: {damage.detail}"
    if len(damages) > _MAX_SHOWN:
        yield f"and {len(damages) - _MAX_SHOWN:,} more (--json lists all)"


def count_kinds(damages: "list[Damage]") -> str:
    """Returns the number of damages of each kind."""
    return ", ".join(f"{count:,} {kind}" for kind, count in Counter(damage.kind for damage in damages).items())


def _report_json(target: str, report: "VerifyReport") -> dict[str, Any]:
    return {
        "version": JSON_VERSION,
        "dataset": target,
        "files": report.files,
        "records": report.records,
        "bytes": report.bytes,
        "kinds": dict(Counter(damage.kind for damage in report.damaged)),
        "damaged": [damage.to_json() for damage in report.damaged],
        "notes": report.notes,
    }


def _format(target: str, report: "VerifyReport") -> Iterator[str]:
    yield from list_damages(report.damaged)
    yield from report.notes
    files, records = human_count(report.files, "file"), human_count(report.records, "intact record")
    seen = f"{files}, {records}, {human_bytes(report.bytes)}"
    state = f"damaged: {count_kinds(report.damaged)};" if report.damaged else "intact:"
    yield f"{target} is {state} {seen}"


@command(
    example="tfpipe repair flowers clean-flowers",
    json_help="Print one JSON object, with all lost records.",
)
@click.argument("dataset")
@click.argument("output")
@click.option(
    "--quick", is_flag=True, help="Do not decode images: keep each record that fits its checksums and the schema."
)
@_workers_option
def repair(dataset: str, output: str, quick: bool, workers: int | None, as_json: bool) -> None:
    """Write every undamaged record of DATASET into the new directory OUTPUT, and list what was lost.

    DATASET is only read. OUTPUT appears when it is complete. Its file repair.json lists the lost records. Run the same
    command again after an interruption.
    """
    from tfpipe.integrity.repair import repair as run

    with ScanDisplay("Repairing") as display:
        result = run(dataset, output, quick=quick, workers=workers, observer=display)
    show(_result_json(dataset, output, result), _format_result(output, result), as_json)


def _result_json(dataset: str, output: str, result: "RepairResult") -> dict[str, Any]:
    return {
        "version": JSON_VERSION,
        "dataset": dataset,
        "output": output,
        "records": result.records,
        "shards": result.shards,
        "manifest_inferred": result.inferred,
        "lost": [damage.to_json() for damage in result.lost],
    }


def _format_result(output: str, result: "RepairResult") -> Iterator[str]:
    yield from list_damages(result.lost)
    if result.inferred:
        yield "The manifest could not be used: schema and class names were taken from the records."
    if result.lost:
        yield f"lost: {count_kinds(result.lost)}, listed in repair.json"
    written = f"{human_count(result.records, 'record')}, {human_count(result.shards, 'shard')}"
    yield f"{output} is complete: {written}"
