"""For `tfpipe inspect`: a summary of a dataset as JSON values, and as text on one screen.

Names that come from files are printed without markup and without control characters.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tfpipe.cli.shared.console import clean_line, new_console
from tfpipe.format import file_names
from tfpipe.format.json_reader import to_json
from tfpipe.format.manifest import FORMAT_VERSION, Manifest, SplitInfo
from tfpipe.format.manifest_json import stats_to_json
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from rich.console import Console

_MAX_CLASSES = 12
_MAX_NAMES = 20  # class names in one line
_MAX_NAME_WIDTH = 28


def make_document(dataset: str, manifest: Manifest, splits: Mapping[str, SplitInfo]) -> dict[str, Any]:
    """Returns what the manifest says of these splits, and of the whole dataset, as JSON values."""
    foreign = {} if manifest.foreign is None else {"foreign": to_json(manifest.foreign)}
    columns = {
        each.name: {"features": list(each.schema.names), "bytes": sum(split.bytes for split in each.splits.values())}
        for each in manifest.columns
    }
    hidden = {name: split.stored_records - split.records for name, split in manifest.splits.items()}  # or not in a view
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
        **({"columns": columns} if columns else {}),
        **({"layer": manifest.layer, "hidden": hidden} if manifest.layer > 1 else {}),
    }


def _describe_split(manifest: Manifest, split: SplitInfo) -> dict[str, Any]:
    added = [column.splits[split.name] for column in manifest.columns]
    tensors = {name: stats for info in (split, *added) for name, stats in info.tensors.items()}
    label_counts = {name: counts for info in (split, *added) for name, counts in info.label_counts.items()}
    return {
        **describe_files(split),
        "seekable": split.seekable,
        "seekable_jpegs": split.seekable_jpegs,
        **stats_to_json(split, tensors, label_counts),
        "class_counts": list(split.class_counts),
    }


def describe_files(split: SplitInfo) -> dict[str, Any]:
    """Returns the counts of a split, and the formats and sizes of its images."""
    counts = {"records": split.records, "shards": split.num_shards, "bytes": split.bytes}
    return {**counts, "formats": dict(split.formats), "sizes": asdict(split.sizes)}


_Rows = list[Sequence[str]]


def print_summary(document: Mapping[str, Any], manifest: Manifest) -> None:
    """Prints a document of `make_document`; `manifest` is that of the dataset."""
    from rich import box
    from rich.table import Table

    console, splits = new_console(), document["splits"]
    origin = f"from {manifest.name}" if manifest.foreign is None else "written by another tool, indexed"
    console.print(clean_line(document["dataset"]))
    console.print(clean_line(f"{origin} by tfpipe {manifest.tool_version}, format {document['format_version']}"))
    console.print(clean_line(_describe_content(manifest)))
    if any(split.chosen is not None for split in manifest.splits.values()):
        console.print("Records, size and classes are those that are read; the rest is that of all stored records.")
    columns = [_describe_column(split, manifest.image_key is not None) for split in splits.values()]
    titles = dict.fromkeys(title for column in columns for title in column)
    by_split: _Rows = [[title, *(column.get(title, "no") for column in columns)] for title in titles]
    for header, rows in (
        (["Split", *splits], by_split),
        *_class_tables(splits, manifest),
        *_tensor_tables(splits, manifest),
        *_mask_tables(splits),
    ):
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column(clean_line(header[0]), no_wrap=True, overflow="ellipsis", max_width=_MAX_NAME_WIDTH)
        for name in header[1:]:
            table.add_column(clean_line(name), overflow="fold")
        for row in rows:
            table.add_row(*map(clean_line, row))
        console.print()
        console.print(table)
    console.print()
    print_values(console, _list_details(document, manifest))


def print_values(console: "Console", values: Mapping[str, str]) -> None:
    """Prints one name and its value per line; long values are wrapped."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in values.items():
        table.add_row(clean_line(name), text)
    console.print(table)


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
        text += f"; {manifest.compression} compressed, "
        text += "each record on its own" if manifest.random_access else "so no random access and no exact order"
    return text


def _describe_images(image: Mapping[str, object]) -> str:
    """Describes the options with which the images were stored: encoding, size and source."""
    again = f"quality {image.get('quality')} where re-encoded"
    kinds = {"raw": "raw uint8 pixels", "jpeg": f"all JPEG, {again}"}
    text = f"Images: {kinds.get(str(image.get('encoding')), f'JPEG and PNG as in the source, {again}')}"
    if image.get("square"):
        text += f", resized to {image['square']} × {image['square']}; the sizes below are those before resizing"
    if image.get("resize_short"):
        text += f", short side at most {image['resize_short']} px"
    if image.get("seekable"):
        text += "; JPEGs are seekable, by restart markers"
    return f"{text}; made from: {image['made_from']}" if image.get("made_from") else text


def _describe_column(split: Mapping[str, Any], has_images: bool) -> dict[str, str]:
    values = {"Records": f"{split['records']:,}", "Shards": f"{split['shards']:,}", "Size": human_bytes(split["bytes"])}
    if several := split.get("images_per_record"):
        values["Images per record"] = _span(several["min"], several["max"])
    if has_images:
        sizes, formats = split["sizes"], split["formats"]
        for side in ("width", "height"):
            span = _span(sizes[f"min_{side}"], sizes[f"max_{side}"])
            values[f"{side.capitalize()}, px"] = f"{span}, mean {sizes[f'mean_{side}']:,.0f}"
        values["Formats"] = _list_counts(formats) or "none"
        if split["seekable"]:
            values["Seekable"] = "all JPEG"
        elif split["seekable_jpegs"]:
            values["Seekable"] = f"{split['seekable_jpegs']:,} of {formats['JPEG']:,} JPEG"
    if counts := split["class_counts"]:
        empty = counts.count(0)
        balance = f"{empty:,} empty" if empty else f"imbalance {max(counts) / min(counts):,.1f}:1"
        values["Classes"] = f"{len(counts):,}, {balance}"
    return values


def _class_tables(splits: Mapping[str, Any], manifest: Manifest) -> Iterator[tuple[Sequence[str], _Rows]]:
    """Yields tables of class counts by split, for labels and each list of classes; the first split sets the order."""
    tables = [("Class", manifest.label_names, {name: split["class_counts"] for name, split in splits.items()})]
    for spec in manifest.full_schema.class_lists:
        lists = {name: split.get("label_counts", {}).get(spec.name) for name, split in splits.items()}
        tables.append((spec.name, spec.names, lists))
    for title, names, found in tables:
        # A split that was written before a class was added has fewer counts.
        counts = {name: [*some, *[0] * (len(names) - len(some))] for name, some in found.items() if some}
        if counts:
            first = next(iter(counts.values()))
            order = sorted(range(len(names)), key=first.__getitem__, reverse=True)
            rows: _Rows = [[names[k], *(f"{some[k]:,}" for some in counts.values())] for k in order[:_MAX_CLASSES]]
            if len(order) > _MAX_CLASSES:
                rows.append([f"and {len(order) - _MAX_CLASSES:,} more", f"down to {first[order[-1]]:,}"])
            yield [title, *counts], rows


def _tensor_tables(splits: Mapping[str, Any], manifest: Manifest) -> Iterator[tuple[Sequence[str], _Rows]]:
    """Yields a table for each split that holds tensors: their types, their ranges, and the share that is NaN."""
    kinds = {spec.name: spec.tensor for spec in manifest.full_schema.tensors if spec.tensor is not None}
    for name, split in splits.items():
        rows: _Rows = []
        for feature, stats in split.get("tensors", {}).items():
            if (kind := kinds.get(feature)) is not None:
                spans = map(_span, stats["min_sizes"], stats["max_sizes"])
                shape = ", ".join([*spans, *map(str, kind.shape[kind.num_unknown :])])
                records = human_count(stats["nan_records"], "record")
                nan = f"{stats['nan'] / stats['values']:.2g} of the values, in {records}" if stats["nan"] else "none"
                rows.append([feature, f"{kind.dtype} [{shape}]", describe_range(stats), nan])
        if rows:
            yield [f"Tensors of {name}", "Type", "Range", "NaN"], rows


def _mask_tables(splits: Mapping[str, Any]) -> Iterator[tuple[Sequence[str], _Rows]]:
    """Yields a table for each mask feature of each split: the share of pixels and the images of each class."""
    for name, split in splits.items():
        for feature, stats in split.get("masks", {}).items():
            pixels, total = stats["pixels"], max(sum(stats["pixels"]) + stats["higher"], 1)
            shown = [number for number, count in enumerate(pixels) if count]
            rows: _Rows = [
                [f"class {number}", f"{pixels[number] / total:.2%}", f"{stats['images'][number]:,}"]
                for number in shown[:_MAX_CLASSES]
            ]
            if rest := sum(pixels[number] for number in shown[_MAX_CLASSES:]) + stats["higher"]:
                rows.append(["higher classes", f"{rest / total:.2%}"])
            yield [f"{feature} of {name}", "Pixels", "Images"], rows


def describe_range(stats: Mapping[str, Any]) -> str:
    """Describes the range of the finite values of tensors, and how many values are infinite."""
    if stats["low"] is None:
        return "no finite value"
    text = f"{stats['low']:.4g} to {stats['high']:.4g}"
    return f"{text}, {stats['infinite']:,} infinite" if stats["infinite"] else text


def _span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _list_details(document: Mapping[str, Any], manifest: Manifest) -> dict[str, str]:
    """Returns the facts about the whole dataset by title, without those that are empty."""
    duplicates, across = document["duplicates"], document["duplicates"]["across"]
    repeated = {f"within {name}": count for name, count in duplicates["within"].items()}
    warning = f"{across:,} in more than one split: evaluation images are among the training images"
    hidden = sum(document.get("hidden", {}).values())
    added = (
        f"{clean_line(name)} ({human_count(len(column['features']), 'feature')}, {human_bytes(column['bytes'])})"
        for name, column in document.get("columns", {}).items()
    )
    values = {
        "Labels": _list_names(manifest.label_names) or "none",
        **{spec.name: _list_names(spec.names) for spec in manifest.full_schema.features if spec.names},
        "Columns": ", ".join(map(clean_line, manifest.full_schema.further_names)),
        "Added": ", ".join(added),
        **{name.capitalize(): _list_counts(document[name]) for name in ("changed", "noticed", "skipped")},
        "Layer": str(document.get("layer", "")) + (f", with {human_count(hidden, 'hidden record')}" if hidden else ""),
        "Quarantined": _list_counts({f"that could not be repaired; see {file_names.QUARANTINE}": manifest.quarantined}),
        "Duplicates": _list_counts({**repeated, "dropped": duplicates["dropped"]}),
        "Leaks": f"{warning}; see {file_names.DUPLICATES}" if across else "",
        "Seed": str(document["seed"]),
    }
    return {name: text for name, text in values.items() if text}


def _list_names(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    listed = ", ".join(map(clean_line, names[:_MAX_NAMES])) + (f" and {more:,} more" if more > 0 else "")
    return f"{len(names):,}: {listed}" if names else ""


def _list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {clean_line(kind)}" for kind, count in counts.items() if count)
