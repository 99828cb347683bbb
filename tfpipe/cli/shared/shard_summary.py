"""The summary of a finished job: its classes, the columns that were kept, and what was set aside, with the reasons.

classes: 3 (bird 8, fish 8, tool 7)
columns: price, caption
quarantined: 1, listed in quarantine/quarantined.jsonl
a/17.jpg: cannot be decoded: image file is truncated
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from typing import Any

from beam_jobs.config import ShardConfig
from beam_jobs.storage import filesystem
from tfpipe.cli.shared.console import clean_line
from tfpipe.format import file_names
from tfpipe.format import schema as keys
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import Schema

_MAX_CLASSES = 5
_MAX_REASONS = 3
_HEAD_BYTES = 1 << 16
_OURS = frozenset((*keys.IMAGE_KEYS, *keys.class_schema().names, *keys.BOX_COLUMNS, keys.BBOX_TEXT, keys.IMAGE_MASK))


def summarize(config: ShardConfig, manifest: Manifest) -> dict[str, Any]:
    """Returns the facts of the summary as JSON values.

    Args:
        config: The options of the job.
        manifest: The manifest of its dataset.
    """
    classes = _count_classes(manifest)
    return {
        "classes": classes,
        "no_classes": explain_no_classes(config, manifest.schema, has_classes=bool(classes)),
        "columns": _list_columns(manifest),
        "first_quarantined": _read_quarantined(config, manifest),
    }


def format_classes(config: ShardConfig, manifest: Manifest) -> Iterator[str]:
    """Yields the lines about classes and columns."""
    classes = _count_classes(manifest)
    if classes:
        yield f"classes: {len(classes):,} ({_shorten(classes)})"
    else:
        reason = explain_no_classes(config, manifest.schema, has_classes=False)
        yield from [f"no classes: {clean_line(reason)}"] if reason else []
    columns = _list_columns(manifest)
    if columns:
        yield f"columns: {clean_line(', '.join(columns))}"


def format_quarantined(config: ShardConfig, manifest: Manifest) -> Iterator[str]:
    """Yields the lines about the images that were set aside, with the reasons of the first."""
    if not manifest.quarantined:
        return
    yield f"quarantined: {manifest.quarantined:,}, listed in {file_names.QUARANTINE}"
    for line in _read_quarantined(config, manifest):
        yield clean_line(f"  {line['path']}: {line['reason']}")


def _count_classes(manifest: Manifest) -> dict[str, int]:
    """Returns the records of each class in all splits. A record with several classes counts for each."""
    counts = Counter[str]()
    for split in manifest.splits.values():
        counts.update(dict(zip(manifest.label_names, split.class_counts, strict=True)))
        for spec in manifest.schema.class_lists:
            found = split.label_counts.get(spec.name, ())
            counts.update(dict(zip(spec.names, chain(found, repeat(0)), strict=False)))
    return dict(counts)


def _shorten(classes: Mapping[str, int]) -> str:
    shown = [f"{clean_line(name)} {count:,}" for name, count in list(classes.items())[:_MAX_CLASSES]]
    more = len(classes) - len(shown)
    return ", ".join([*shown, *([f"and {more:,} more"] if more else [])])


def explain_no_classes(config: ShardConfig, schema: Schema, *, has_classes: bool) -> str | None:
    """Returns why the records have no classes, as a part of a sentence; None if they have some, or need none.

    Args:
        config: The options of the job.
        schema: The features of the records.
        has_classes: Whether a record has one class.
    """
    if config.datasets or has_classes or schema.class_lists or keys.BBOX_XMIN in schema:
        return None
    from beam_jobs.inputs.recognize import recognize

    return recognize(config).explain_no_classes()


def _list_columns(manifest: Manifest) -> list[str]:
    return [name for name in manifest.schema.names if name not in _OURS | manifest.schema.sizes_keys]


def _read_quarantined(config: ShardConfig, manifest: Manifest) -> list[dict[str, str]]:
    """Returns the first images that were set aside, each with its path and the reason."""
    if not manifest.quarantined:
        return []
    path = filesystem.join(filesystem.resolve_links(config.output), file_names.QUARANTINE)
    lines = filesystem.read_range(path, 0, _HEAD_BYTES).split(b"\n")[:-1]  # the last one may be cut off
    rows = [json.loads(line) for line in lines[:_MAX_REASONS]]
    return [{"path": row["path"], "reason": row["reason"]} for row in rows]
