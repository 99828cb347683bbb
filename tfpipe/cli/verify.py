"""`tfpipe verify` and `repair`: checks every byte of a dataset, and writes its undamaged records as a clean one."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.cli.shared.config_option import config_option, config_options
from tfpipe.cli.shared.progress import ScanDisplay
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.integrity.repair import RepairResult
from tfpipe.integrity.repair import repair as run_repair
from tfpipe.integrity.verify import VerifyConfig, VerifyReport
from tfpipe.integrity.verify import verify as run_verify
from tfpipe.system.units import human_bytes, human_count

JSON_VERSION = 1
_MAX_SHOWN = 50


@command(example="tfpipe verify flowers --quick", json_help="Print one JSON object, with all damages.")
@click.argument("target", metavar="DATASET")
@config_options(VerifyConfig)
def verify(target: str, as_json: bool, **options: Any) -> None:
    """Check whether DATASET is intact, and print the file, record, byte and kind of each damage.

    DATASET is the directory of a finished dataset, a file, or a pattern such as "/data/train-*" of TFRecords that
    another tool wrote. Exit code 1 if anything is damaged.
    """
    with ScanDisplay("Verifying") as display:
        report = run_verify(target, VerifyConfig(**options), display)
    kinds, damaged = _count_kinds(report.damaged), [damage.to_json() for damage in report.damaged]
    sums = {"files": report.files, "records": report.records, "bytes": report.bytes, "kinds": kinds}
    summary = {"version": JSON_VERSION, "dataset": target, **sums, "damaged": damaged, "notes": report.notes}
    show(summary, _format(target, report), as_json)
    raise SystemExit(1 if report.damaged else 0)


def list_damages(damages: list[Damage]) -> Iterator[str]:
    """Yields one line for each damage, up to a limit."""
    for damage in damages[:_MAX_SHOWN]:
        record = "" if damage.record is None else f", record {damage.record:,}"
        offset = "" if damage.offset is None else f" at byte {damage.offset:,}"
        key = f" ({damage.key})" if damage.key else ""
        yield f"{damage.file}{record}{offset}{key}: {damage.kind}: {damage.detail}"
    if len(damages) > _MAX_SHOWN:
        yield f"and {len(damages) - _MAX_SHOWN:,} more (--json lists all)"


def _count_kinds(damages: list[Damage]) -> Counter[str]:
    return Counter(damage.kind for damage in damages)


def _list_kinds(damages: list[Damage]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in _count_kinds(damages).items())


def _format(target: str, report: VerifyReport) -> Iterator[str]:
    files, records = human_count(report.files, "file"), human_count(report.records, "intact record")
    seen = f"{files}, {records}, {human_bytes(report.bytes)}"
    state = f"damaged: {_list_kinds(report.damaged)};" if report.damaged else "intact:"
    yield f"{target} is {state} {seen}"
    yield from list_damages(report.damaged)
    yield from report.notes
    in_records = {damage.kind for damage in report.damaged if damage.record is not None}
    if in_records - {"duplicate"} and Path(target).is_dir():
        yield f"`tfpipe repair {target} OUTPUT` writes the intact records as a new dataset."
    if "duplicate" in in_records:
        yield "--allow-duplicates accepts images that occur in two splits."


@command(example="tfpipe repair flowers clean-flowers", json_help="Print one JSON object, with all lost records.")
@click.argument("dataset")
@click.argument("output")
@click.option(
    "--quick", is_flag=True, help="Do not decode images: keep each record that fits its checksums and the schema."
)
@config_option(VerifyConfig, "workers")
def repair(dataset: str, output: str, quick: bool, as_json: bool, workers: int | None = None) -> None:
    """Write every undamaged record of DATASET into the new directory OUTPUT, and list what was lost.

    DATASET is only read. OUTPUT appears when it is complete. Its file repair.json lists the lost records. The lists of
    quarantined and of equal images stay in DATASET. Run the same command again after an interruption.
    """
    with ScanDisplay("Repairing") as display:
        result = run_repair(dataset, output, quick=quick, workers=workers, observer=display)
    counts = {"records": result.records, "shards": result.shards, "manifest_inferred": result.inferred}
    lost = [damage.to_json() for damage in result.lost]
    summary = {"version": JSON_VERSION, "dataset": dataset, "output": output, **counts, "lost": lost}
    show(summary, _format_result(output, result), as_json)


def _format_result(output: str, result: RepairResult) -> Iterator[str]:
    yield from list_damages(result.lost)
    if result.inferred:
        yield "The manifest could not be used: schema and class names were taken from the records."
    if result.lost:
        yield f"lost: {_list_kinds(result.lost)}, listed in repair.json"
    written = f"{human_count(result.records, 'record')}, {human_count(result.shards, 'shard')}"
    yield f"{output} is complete: {written}"
