"""For `tfpipe inspect`: the facts about a dataset as JSON values, and on one screen, 80 columns wide or more.

Names come out of files, so they are shown as `Text`, which knows no markup, without control characters.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tfpipe.cli.shared.console import clean_line, new_console
from tfpipe.cli.shared.dataset_facts import list_columns, read_quarantined
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.order import mixing_score
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.source import Source
from tfpipe.errors import TfpipeError
from tfpipe.format import file_names
from tfpipe.format.manifest import FORMAT_VERSION, Manifest, SplitInfo
from tfpipe.format.manifest_json import stats_to_json
from tfpipe.storage.file_io import read_start
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_MAX_CLASSES = 12
_MAX_NAMES = 20  # of classes in one line
_MAX_NAME_WIDTH = 28
_BAR_WIDTH = 20
_HEAD_BYTES = 1 << 16  # read of the list of quarantined images, enough for the first few
_SPLIT_WIDTH = 20  # of one column in the table of splits
_BATCH_SIZE = 256
_MAX_MIXED_RECORDS = 2**30  # a manifest may claim any number, and the score looks at each group of records


def compute_mixing(manifest: Manifest, split: SplitInfo) -> dict[str, float] | None:
    """Computes how well the default order mixes a split.

    The batch has 256 images, or the largest power of two that the split fills. See `tfpipe.engine.order.mixing_score`.

    Returns:
        The score, from 0 to 1, the batch size in images, and the adjacent records that the order reads at once. None if
        the split is empty or too large to be looked at, if its records cannot be found by their number, or if a view
        weighs them.
    """
    is_weighted = split.chosen is not None and split.chosen.weights is not None
    if not 0 < split.records <= _MAX_MIXED_RECORDS or manifest.compression or is_weighted:
        return None
    batch_size = min(_BATCH_SIZE, 1 << split.records.bit_length() - 1)
    plan = plan_batches(Source.from_manifest(manifest, split.name), PipelineConfig(batch_size=batch_size))
    score = mixing_score(plan.order, split.records_per_shard)
    return {"score": score, "batch_size": batch_size, "block_records": plan.order.block_records}


def make_document(dataset: str, manifest: Manifest, splits: Mapping[str, SplitInfo]) -> dict[str, Any]:
    """Returns what the manifest says of these splits, and of the whole dataset, as JSON values."""
    foreign = {} if manifest.foreign is None else {"foreign": asdict(manifest.foreign)}
    return {
        "dataset": dataset,
        "name": manifest.name,
        "format_version": FORMAT_VERSION,
        "tool_version": manifest.tool_version,
        **foreign,
        "splits": {name: _describe_split(manifest, split) for name, split in splits.items()},
        "labels": list(manifest.label_names),
        "changed": dict(manifest.changed),
        "noticed": dict(manifest.noticed),
        "skipped": dict(manifest.skipped),
        "quarantined": manifest.quarantined,
        "duplicates": asdict(manifest.duplicates),
        "image": dict(manifest.image),
        "seed": manifest.seed,
        "schema": manifest.full_schema.to_json(),
        **({"columns": {each.name: _describe_added(each) for each in manifest.columns}} if manifest.columns else {}),
        **({"layer": manifest.layer, "hidden": _count_hidden(manifest)} if manifest.layer > 1 else {}),
    }


def _count_hidden(manifest: Manifest) -> dict[str, int]:
    """Returns the number of records of each split that are hidden, or that a view leaves out."""
    return {name: split.stored_records - split.records for name, split in manifest.splits.items()}


def _describe_split(manifest: Manifest, split: SplitInfo) -> dict[str, Any]:
    added = [column.splits[split.name] for column in manifest.columns]
    tensors = {name: stats for info in (split, *added) for name, stats in info.tensors.items()}
    label_counts = {name: counts for info in (split, *added) for name, counts in info.label_counts.items()}
    return {
        "records": split.records,
        "shards": split.num_shards,
        "bytes": split.bytes,
        "formats": dict(split.formats),
        "seekable": split.seekable,
        "seekable_jpegs": split.seekable_jpegs,
        "sizes": asdict(split.sizes),
        **stats_to_json(split, tensors, label_counts),
        "class_counts": list(split.class_counts),
        "mixing": compute_mixing(manifest, split),
    }


def _describe_added(column: Manifest) -> dict[str, Any]:
    num_bytes = sum(split.bytes for split in column.splits.values())
    return {"features": list(column.schema.names), "bytes": num_bytes}


def print_summary(document: Mapping[str, Any], manifest: Manifest) -> None:
    """Prints the document; the manifest is that of the dataset."""
    from rich.text import Text

    console = new_console()
    origin = f"from {manifest.name}" if manifest.foreign is None else "written by another tool, indexed"
    version = f"{origin} by tfpipe {manifest.tool_version}, format {document['format_version']}"
    console.print(Text(clean_line(document["dataset"]), "bold"))
    console.print(Text(clean_line(version), "dim"))
    console.print(Text(clean_line(_describe_content(manifest))))
    if any(split.chosen is not None for split in manifest.splits.values()):
        console.print("Records, size and classes are those that are read; the rest is that of all stored records.")
    for part in (
        *_split_tables(document["splits"], manifest, console.width),
        *_class_tables(document["splits"], manifest),
        *_tensor_tables(document["splits"], manifest),
        *_mask_tables(document["splits"]),
        _facts(document, manifest),
    ):
        console.print()
        console.print(part)


def _describe_content(manifest: Manifest) -> str:
    """Describes the images, or says that there are none, and how shards of another tool are read."""
    if manifest.foreign is None:
        return _describe_images(manifest.image) if manifest.image_key is not None else "Records without images"
    text = "Records without images" if manifest.image_key is None else f"Images: {manifest.image_key!r} as stored"
    if manifest.label_key is not None:
        text += f"; labels: {manifest.label_key!r}, stored from {manifest.label_base}"
    if manifest.shard_directory(manifest.directory) != manifest.directory:
        text += f"; shards in {manifest.shard_directory(manifest.directory)}"
    if manifest.compression:
        text += f"; {manifest.compression} compressed, so no random access and no exact order"
    return text


def _describe_images(image: Mapping[str, object]) -> str:
    """Describes the options that shaped the images."""
    forms = {"raw": "raw uint8 pixels", "jpeg": f"all JPEG, quality {image.get('quality')} where re-encoded"}
    kept = f"JPEG and PNG as in the source, quality {image.get('quality')} where re-encoded"
    text = f"Images: {forms.get(str(image.get('encoding')), kept)}"
    if image.get("square"):
        text += f", resized to {image['square']} × {image['square']}; the sizes below are those before resizing"
    if image.get("resize_short"):
        text += f", short side at most {image['resize_short']} px"
    if image.get("seekable"):
        text += "; JPEGs are seekable, by restart markers"
    return f"{text}; made from: {image['made_from']}" if image.get("made_from") else text


def _new_table(title: str, *columns: str, style: str = "") -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(Text(clean_line(title)), no_wrap=True, overflow="ellipsis", max_width=_MAX_NAME_WIDTH)
    for column in columns:
        table.add_column(Text(clean_line(column), style), overflow="fold")
    return table


def _add_row(table: "Table", *cells: str) -> None:
    from rich.text import Text

    table.add_row(*(Text(clean_line(cell)) for cell in cells))


def _split_tables(splits: Mapping[str, Any], manifest: Manifest, width: int) -> Iterator["Table"]:
    """Yields tables with a column for each split, as many as it takes for all columns to fit."""
    columns = {name: _describe_column(split, manifest.image_key is not None) for name, split in splits.items()}
    names, at_once = list(columns), max(1, (width - 18) // _SPLIT_WIDTH)
    for k in range(0, len(names), at_once):
        some = names[k : k + at_once]
        table = _new_table("Split", *some, style="bold cyan")
        for fact in dict.fromkeys(fact for name in some for fact in columns[name]):
            _add_row(table, fact, *(columns[name].get(fact, "no") for name in some))
        yield table


def _describe_column(split: Mapping[str, Any], has_images: bool) -> dict[str, str]:
    facts = {"Records": f"{split['records']:,}", "Shards": f"{split['shards']:,}", "Size": human_bytes(split["bytes"])}
    if several := split.get("images_per_record"):
        facts["Images per record"] = _span(several["min"], several["max"])
    if has_images:
        sizes, formats = split["sizes"], split["formats"]
        for side in ("width", "height"):
            span = _span(sizes[f"min_{side}"], sizes[f"max_{side}"])
            facts[f"{side.capitalize()}, px"] = f"{span}, mean {sizes[f'mean_{side}']:,.0f}"
        facts["Formats"] = ", ".join(f"{count:,} {kind}" for kind, count in formats.items() if count) or "none"
        if split["seekable"]:
            facts["Seekable"] = "all JPEG"
        elif split["seekable_jpegs"]:
            facts["Seekable"] = f"{split['seekable_jpegs']:,} of {formats['JPEG']:,} JPEG"
    if split["class_counts"]:
        facts["Classes"] = _describe_balance(split["class_counts"])
    if (mixing := split["mixing"]) is not None:
        facts["Mixing, 0 to 1"] = f"{mixing['score']:.2f} at batch {mixing['batch_size']}"
    return facts


def _describe_balance(counts: Sequence[int]) -> str:
    """Describes how even the classes are."""
    empty = sum(not count for count in counts)
    return f"{len(counts):,}, " + (f"{empty:,} empty" if empty else f"imbalance {max(counts) / min(counts):,.1f}:1")


def _class_tables(splits: Mapping[str, Any], manifest: Manifest) -> Iterator["Table"]:
    """Yields a table of the largest classes for the class of a record, and for each list of classes."""
    counts = {name: split["class_counts"] for name, split in splits.items() if split["class_counts"]}
    if counts:
        yield _class_table("Class", manifest.label_names, counts)
    for spec in manifest.full_schema.class_lists:
        found = {name: split.get("label_counts", {}).get(spec.name) for name, split in splits.items()}
        padded = {name: [*some, *[0] * (len(spec.names) - len(some))] for name, some in found.items() if some}
        if padded:
            yield _class_table(spec.name, spec.names, padded)


def _class_table(title: str, names: Sequence[str], counts: Mapping[str, Sequence[int]]) -> "Table":
    """Draws the largest classes of the first split with a bar each, beside their counts in the others."""
    first, *others = counts.values()
    order = sorted(range(len(names)), key=lambda k: -first[k])
    table, most = _new_table(title, *counts, style="bold cyan"), max(1, *first)
    width = len(f"{most:,}")
    for k in order[:_MAX_CLASSES]:
        bar = "▇" * max(round(_BAR_WIDTH * first[k] / most), min(first[k], 1))
        _add_row(table, names[k], f"{first[k]:>{width},}  {bar}", *(f"{other[k]:,}" for other in others))
    if len(order) > _MAX_CLASSES:
        _add_row(table, f"and {len(order) - _MAX_CLASSES:,} more", f"down to {first[order[-1]]:,}")
    return table


def _tensor_tables(splits: Mapping[str, Any], manifest: Manifest) -> Iterator["Table"]:
    """Yields a table for each split that holds tensors: their types, their ranges, and the share that is NaN."""
    kinds = {spec.name: spec.tensor for spec in manifest.full_schema.tensors if spec.tensor is not None}
    for name, split in splits.items():
        if "tensors" in split:
            table = _new_table(f"Tensors of {name}", "Type", "Range", "NaN")
            for feature, kind in kinds.items():
                if (stats := split["tensors"].get(feature)) is not None:
                    spans = map(_span, stats["min_sizes"], stats["max_sizes"])
                    shape = ", ".join([*spans, *map(str, kind.shape[kind.num_unknown :])])
                    _add_row(table, feature, f"{kind.dtype} [{shape}]", describe_range(stats), _describe_nan(stats))
            yield table


def _mask_tables(splits: Mapping[str, Any]) -> Iterator["Table"]:
    """Yields a table for each split that holds masks: the share of each class of the pixels, and its images."""
    for name, split in splits.items():
        for feature, stats in split.get("masks", {}).items():
            table = _new_table(f"{feature} of {name}", "Pixels", "Images")
            pixels, total = stats["pixels"], max(sum(stats["pixels"]) + stats["higher"], 1)
            shown = [number for number, count in enumerate(pixels) if count]
            for number in shown[:_MAX_CLASSES]:
                _add_row(table, f"class {number}", f"{pixels[number] / total:.2%}", f"{stats['images'][number]:,}")
            if rest := sum(pixels[number] for number in shown[_MAX_CLASSES:]) + stats["higher"]:
                _add_row(table, "higher classes", f"{rest / total:.2%}")
            yield table


def describe_range(stats: Mapping[str, Any]) -> str:
    """Describes the finite values of tensors by their `low`, `high` and `infinite`."""
    if stats["low"] is None:
        return "no finite value"
    text = f"{stats['low']:.4g} to {stats['high']:.4g}"
    return f"{text}, {stats['infinite']:,} infinite" if stats["infinite"] else text


def _describe_nan(stats: Mapping[str, Any]) -> str:
    """Describes how many values are NaN, and in how many records."""
    if not stats["nan"]:
        return "none"
    records = "record" if stats["nan_records"] == 1 else "records"
    return f"{stats['nan'] / stats['values']:.2g} of the values, in {stats['nan_records']:,} {records}"


def _span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _facts(document: Mapping[str, Any], manifest: Manifest) -> "RenderableType":
    """Lists what is true of the whole dataset; what there is none of is left out."""
    from rich.table import Table
    from rich.text import Text

    facts = {
        "Labels": _list_names(manifest.label_names),
        **{clean_line(spec.name): _list_names(spec.names) for spec in manifest.full_schema.features if spec.names},
        "Columns": ", ".join(map(clean_line, list_columns(manifest))),
        "Added": ", ".join(_name_column(name, column) for name, column in document.get("columns", {}).items()),
        **{name.capitalize(): _list_counts(document[name]) for name in ("changed", "noticed", "skipped")},
        "Layer": _describe_layer(document),
        "Quarantined": _describe_quarantine(document["dataset"], document["quarantined"]),
        "Duplicates": _describe_duplicates(document["duplicates"]),
        "Seed": str(document["seed"]),
    }
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts.items():
        if text or name == "Labels":
            table.add_row(name, Text(text or "none", "yellow" if name == "Quarantined" else ""))
    return table


def _describe_layer(document: Mapping[str, Any]) -> str:
    if "layer" not in document:
        return ""
    hidden = sum(document["hidden"].values())
    return f"{document['layer']}, with {human_count(hidden, 'hidden record')}" if hidden else str(document["layer"])


def _name_column(name: str, column: Mapping[str, Any]) -> str:
    return f"{clean_line(name)} ({human_count(len(column['features']), 'feature')}, {human_bytes(column['bytes'])})"


def _list_names(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    listed = ", ".join(map(clean_line, names[:_MAX_NAMES])) + (f" and {more:,} more" if more > 0 else "")
    return f"{len(names):,}: {listed}" if names else ""


def _list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {clean_line(kind)}" for kind, count in counts.items() if count)


def _describe_quarantine(directory: str, count: int) -> str:
    if not count:
        return ""
    head = b""
    with suppress(TfpipeError):
        head = read_start(f"{directory}/{file_names.QUARANTINE}", _HEAD_BYTES)
    lines = [f"{row['path']}: {row['reason']}" for row in read_quarantined(head)][:count]
    more = f"and {count - len(lines):,} more, " if lines else ""
    rest = [f"{more}listed in {file_names.QUARANTINE}"] if count > len(lines) else []
    return "\n".join([f"{count:,} that could not be repaired", *map(clean_line, lines), *rest])


def _describe_duplicates(duplicates: Mapping[str, Any]) -> str:
    counts = {f"within {clean_line(name)}": count for name, count in duplicates["within"].items()}
    counts["dropped"] = duplicates["dropped"]
    across = duplicates["across"]
    warning = "in more than one split: evaluation images are among the training images; see duplicates.jsonl"
    return "\n".join(filter(None, [_list_counts(counts), f"{across:,} {warning}" if across else ""]))
