"""The output of `shard`, `reshard` and `merge`: a summary as JSON values, and the same as text."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from beam_jobs.config import ShardConfig
from tfpipe.cli.shared.progress import format_duration
from tfpipe.format import file_names
from tfpipe.format import schema as keys
from tfpipe.format.schema import Schema
from tfpipe.storage import file_io
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from beam_jobs.estimate import Estimate
    from beam_jobs.plan.plan import Plan
    from beam_jobs.shard_job import ShardResult

_MAX_CLASSES = 5  # in one line
_HEAD_BYTES = 1 << 16

_MAX_REASONS = 3


def describe_result(config: ShardConfig, result: "ShardResult") -> dict[str, Any]:
    """Returns a summary of a finished job as JSON values."""
    manifest, classes = result.manifest, Counter[str]()  # a record with several classes counts for each
    for info in manifest.splits.values():
        classes.update(dict(zip(manifest.label_names, info.class_counts, strict=True)))
        for spec in manifest.schema.class_lists:
            found = info.label_counts.get(spec.name, ())
            classes.update(dict(zip(spec.names, chain(found, repeat(0)), strict=False)))
    return {
        "dataset": config.output,
        "splits": {
            name: {"records": split.records, "shards": split.num_shards, "bytes": split.bytes}
            for name, split in manifest.splits.items()
        },
        "classes": dict(classes),
        "no_classes": _explain_no_classes(config, manifest.schema, has_classes=bool(classes)),
        "columns": manifest.full_schema.further_names,
        "changed": dict(manifest.changed),
        "duplicates": asdict(manifest.duplicates),
        "quarantined": manifest.quarantined,
        "first_quarantined": _read_first_quarantined(config) if manifest.quarantined else [],
        "skipped": dict(sorted(manifest.skipped.items())),
        "kept_shards": result.kept_shards,
        "images_per_second": round(result.images_per_second, 1),
        "seconds": round(result.seconds, 3),
    }


def format_result(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines that say what `describe_result` returns."""
    for name, split in summary["splits"].items():
        records, shards = human_count(split["records"], "record"), human_count(split["shards"], "shard")
        yield f"{name}: {records}, {shards}, {human_bytes(split['bytes'])}"
    yield from _format_classes(summary["classes"])
    if summary["no_classes"]:
        yield f"no classes: {summary['no_classes']}"
    if summary["columns"]:
        yield f"columns: {', '.join(summary['columns'])}"
    yield from _format_counts("changed", summary["changed"])
    duplicates = summary["duplicates"]
    found = {"within a split": sum(duplicates["within"].values()), "across splits": duplicates["across"]}
    if any(found.values()):
        counts = ", ".join(f"{count:,} {where}" for where, count in found.items() if count)
        yield f"duplicates: {counts}, listed in duplicates.jsonl"
    if duplicates["dropped"]:
        yield f"duplicates: {duplicates['dropped']:,} dropped"
    if summary["quarantined"]:
        yield f"quarantined: {summary['quarantined']:,}, listed in {file_names.QUARANTINE}"
        yield from (f"  {row['path']}: {row['reason']}" for row in summary["first_quarantined"])
    yield from _format_counts("skipped", summary["skipped"])
    kept = f", {human_count(summary['kept_shards'], 'shard')} finished before" if summary["kept_shards"] else ""
    rate = f"{summary['images_per_second']:,.0f} images/s"
    yield f"{summary['dataset']} is complete: {summary['seconds']:.1f} s, {rate}{kept}"
    if "layer" in summary:  # records were appended
        if summary["new_classes"]:
            yield f"new classes: {', '.join(summary['new_classes'])}, behind those that there were"
        appended = human_count(sum(split["records"] for split in summary["splits"].values()), "record")
        yield f"{summary['appended_to']} is at layer {summary['layer']}: {appended} appended"


def format_part(summary: Mapping[str, Any]) -> str:
    """Returns the line that says what a part of a job has done, from its summary as JSON values."""
    written = f"part {summary['part']} wrote {human_count(summary['written'], 'shard')} in {summary['seconds']:.1f} s"
    if summary["is_complete"]:
        return f"{written}; {summary['dataset']} is complete"
    done = f"{summary['finished']:,} of {human_count(summary['num_shards'], 'shard')} are finished"
    return f"{written}; {done}, and other parts have begun the rest. Start a part that was killed again."


def describe_plan(config: ShardConfig, plan: "Plan", estimate: "Estimate | None") -> dict[str, Any]:
    """Returns a summary of a job that was only planned, as JSON values."""
    listing, splits = plan.listing, dict[str, dict[str, Any]]()
    for shard, num_bytes in zip(plan.shards, plan.shard_bytes, strict=True):
        split = splits.setdefault(shard.split, {"images": 0, "bytes": 0, "shards": 0, "classes": {}})
        split["images"] += shard.images
        split["bytes"] += num_bytes
        split["shards"] += 1
    for name, split in splits.items():
        split["classes"] = dict(zip(listing.label_names, plan.class_counts[name], strict=True))
    return {
        "images": plan.num_images,
        "bytes": plan.num_bytes,
        "shards": len(plan.shards),
        "splits": splits,
        "no_classes": _explain_no_classes(config, listing.make_schema(), has_classes=bool(listing.label_names)),
        "skipped": dict(sorted(listing.skipped.items())),
        "dropped": listing.dropped,
        "estimate": None if estimate is None else asdict(estimate),
    }


def format_plan(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines that say what `describe_plan` returns."""
    yield f"{human_count(summary['images'], 'image')}, {human_bytes(summary['bytes'])}, nothing written"
    for name, split in summary["splits"].items():
        images, shards = human_count(split["images"], "image"), human_count(split["shards"], "shard")
        yield f"{name}: {images}, {human_bytes(split['bytes'])}, {shards}"
        yield from _format_classes(dict(sorted(split["classes"].items(), key=lambda item: -item[1])))
    if summary["no_classes"]:
        yield f"no classes: {summary['no_classes']}"
    yield from _format_counts("skipped", summary["skipped"])
    if summary["dropped"]:
        yield f"duplicates: {summary['dropped']:,} dropped"
    if (estimate := summary["estimate"]) is None:
        yield "no estimate: the input is compressed as a whole, so no sample of its images can be read alone"
        return
    workers = human_count(estimate["workers"], "worker")
    bad = f", {estimate['bad']:,} of them bad" if estimate["bad"] else ""
    yield f"estimate from {human_count(estimate['sampled'], 'image')} of {summary['images']:,}{bad}:"
    yield f"  output  {human_bytes(estimate['output_bytes'])}"
    yield f"  time    {format_duration(estimate['wall_s'])} with {workers}"


def _format_counts(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    if counts:
        yield f"{title}: {', '.join(f'{count:,} {kind}' for kind, count in counts.items())}"


def _format_classes(classes: Mapping[str, int]) -> Iterator[str]:
    """Yields the line about classes, if there are any."""
    if classes:
        shown = [f"{name} {count:,}" for name, count in list(classes.items())[:_MAX_CLASSES]]
        if len(classes) > len(shown):
            shown.append(f"and {len(classes) - len(shown):,} more, the smallest {min(classes.values()):,}")
        yield f"classes: {len(classes):,} ({', '.join(shown)})"


def _explain_no_classes(config: ShardConfig, schema: Schema, *, has_classes: bool) -> str | None:
    """Returns why the records have no classes, as a part of a sentence; None if they have some, or need none."""
    if config.datasets or has_classes or schema.class_lists or keys.BBOX_XMIN in schema:
        return None
    from beam_jobs.inputs.recognize import explain_no_classes

    return explain_no_classes(config)


def _read_first_quarantined(config: ShardConfig) -> list[dict[str, str]]:
    """Returns the first quarantined image for each of the first few reasons, with its path and the reason."""
    path = file_io.join(file_io.resolve_links(config.output), file_names.QUARANTINE)
    rows: dict[str, dict[str, str]] = {}
    for line in file_io.read_range(path, 0, _HEAD_BYTES).split(b"\n"):
        with suppress(ValueError, KeyError, TypeError, RecursionError):  # the line may be damaged or cut off
            row = json.loads(line)
            image, reason = str(row["path"]), str(row["reason"])
            rows.setdefault(reason, {"path": image, "reason": reason})
    return list(rows.values())[:_MAX_REASONS]
