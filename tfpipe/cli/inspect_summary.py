"""For `tfpipe inspect`: a dataset on one screen, 80 columns wide or more.

Names come out of files, so they are shown as `Text`, which knows no markup, without control characters.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tfpipe.cli.shared.console import clean_line, new_console
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.order import mixing_score
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.source import Source
from tfpipe.format import file_names
from tfpipe.format.manifest import FORMAT_VERSION, Manifest, SplitInfo
from tfpipe.format.schema import FeatureSpec
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.storage.file_io import open_file
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_MAX_CLASSES_SHOWN = 12
_MAX_NAME_WIDTH = 28
_MAX_REASONS_SHOWN = 3
_REASON_BYTES = 1 << 16  # read of the list of quarantined images, enough for the first few
_MAX_LABEL_TEXT = 240  # about three lines
_SPLIT_WIDTH = 24  # of one column in the table of splits
_CHART_WIDTH = 37  # at least: two charts beside each other on 80 columns
_MAX_CHART_WIDTH = 76
_GAP = 3
_BATCH_SIZE = 256
_MAX_MIXED_RECORDS = 2**30  # a manifest may claim any number, and the score looks at each group of records
_NO_IMAGES = "Records without images"
_MIXING = (
    "Mixing: how well the pipeline's shuffle mixes records that are neighbors on disk, from 0 to 1 (perfectly). "
    "A split that was shuffled when it was written does not need 1.00."
)


def print_summary(directory: str, manifest: Manifest, splits: Mapping[str, SplitInfo]) -> None:
    """Prints what the manifest says of these splits, and of the whole dataset."""
    from rich.text import Text

    console = new_console()
    console.print(
        Text.assemble(
            (clean_line(manifest.name), "bold"),
            (f"  {_origin(manifest)} by tfpipe {clean_line(manifest.tool_version)}", "dim"),
            (f", format {FORMAT_VERSION}", "dim"),
        )
    )
    console.print(Text(_describe_content(manifest)))
    for table in _split_tables(manifest, splits, console.width):
        console.print()
        console.print(table)
    for table in (*_tensor_tables(manifest, splits), *_mask_tables(splits)):
        console.print()
        console.print(table)
    console.print()
    console.print(Text(_MIXING, "dim"))
    for row in _charts(manifest, splits, console.width):
        console.print()
        console.print(row)
    console.print()
    console.print(_facts(directory, manifest))


class Mixing(NamedTuple):
    """The score of the default order, which says how it mixes a split.

    Attributes:
        score: The mixing score, from 0 to 1.
        batch_size: The batch size of the score, in images.
        block_records: The adjacent records that the order reads at once.
    """

    score: float
    batch_size: int
    block_records: int


def mixing(manifest: Manifest, split: SplitInfo) -> Mixing | None:
    """Computes how well the default order mixes a split.

    The batch has 256 images, or the largest power of two that the split fills. See `tfpipe.engine.order.mixing_score`.

    Returns:
        None if the split is empty or too large to be looked at, or if its records cannot be found by their number.
    """
    if not 0 < split.records <= _MAX_MIXED_RECORDS or manifest.compression:
        return None
    batch_size = min(_BATCH_SIZE, 1 << split.records.bit_length() - 1)
    plan = plan_batches(Source.from_manifest(manifest, split.name), PipelineConfig(batch_size=batch_size))
    score = mixing_score(plan.order, tuple(shard.records for shard in split.shards))
    return Mixing(score, batch_size, plan.order.block_records)


def _origin(manifest: Manifest) -> str:
    return "written" if manifest.foreign is None else "written by another tool, indexed"


def _describe_content(manifest: Manifest) -> str:
    """Describes the images, or says that there are none, and how shards of another tool are read."""
    if manifest.foreign is not None:
        return _foreign_form(manifest)
    return _image_form(manifest.image) if manifest.image_key is not None else _NO_IMAGES


def _foreign_form(manifest: Manifest) -> str:
    """Describes shards that another tool wrote, and how they are read."""
    text = _NO_IMAGES if manifest.image_key is None else f"Images: {manifest.image_key!r} as stored"
    if manifest.label_key is not None:
        text += f"; labels: {manifest.label_key!r}, stored from {manifest.label_base}"
    if manifest.shard_directory(manifest.directory) != manifest.directory:
        text += f"; shards in {manifest.shard_directory(manifest.directory)}"
    if manifest.compression:
        text += f"; {manifest.compression} compressed, so no random access and no exact order"
    return clean_line(text)


def _image_form(image: Mapping[str, object]) -> str:
    """Describes the options that shaped the images."""
    encoding = image.get("encoding")
    if encoding == "raw":
        text = "Images: raw uint8 pixels"
    elif encoding == "jpeg":
        text = f"Images: all JPEG, quality {image.get('quality')} where re-encoded"
    else:
        text = f"Images: JPEG and PNG as in the source, quality {image.get('quality')} where re-encoded"
    if image.get("square"):
        text += f", resized to {image['square']} × {image['square']}; the sizes below are those before resizing"
    if image.get("resize_short"):
        text += f", short side at most {image['resize_short']} px"
    if image.get("seekable"):
        text += "; JPEGs are seekable, by restart markers"
    if image.get("made_from"):
        text += f"; made from: {image['made_from']}"
    return clean_line(text)


def _split_tables(manifest: Manifest, splits: Mapping[str, SplitInfo], width: int) -> Iterator["Table"]:
    """Yields tables with a column for each split, as many as it takes for all columns to fit."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns = {name: _split_column(manifest, split) for name, split in splits.items()}
    if any(split.seekable_jpegs for split in splits.values()):
        for name, split in splits.items():
            columns[name]["Seekable"] = _count_seekable(split)
    names = list(columns)
    at_once = max(1, (width - 18) // (_SPLIT_WIDTH - 4))
    for k in range(0, len(names), at_once):
        some = names[k : k + at_once]
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column("Split", style="dim")
        for name in some:
            table.add_column(Text(name), header_style="bold cyan", overflow="fold")
        for fact in columns[some[0]]:
            table.add_row(fact, *(Text(columns[name][fact]) for name in some))
        yield table


def _split_column(manifest: Manifest, split: SplitInfo) -> dict[str, str]:
    per_shard = [shard.records for shard in split.shards] or [0]
    sizes = split.sizes
    mixed, unmixed = mixing(manifest, split), "not computed" if split.records else "none"
    formats = ", ".join(f"{count:,} {clean_line(name)}" for name, count in split.formats.items() if count)
    several = split.images_per_record
    images = {
        **({} if several is None else {"Images per record": _span(several.smallest, several.largest)}),
        "Width, px": f"{_span(sizes.min_width, sizes.max_width)}, mean {sizes.mean_width:,.0f}",
        "Height, px": f"{_span(sizes.min_height, sizes.max_height)}, mean {sizes.mean_height:,.0f}",
        "Formats": formats or "none",
    }
    return {
        "Records": f"{split.records:,}",
        "Shards": f"{split.num_shards:,}",
        "Size": human_bytes(split.bytes),
        "Records per shard": _span(min(per_shard), max(per_shard)),
        **(images if manifest.image_key is not None else {}),
        "Read at once": unmixed if mixed is None else human_count(mixed.block_records, "record"),
        "Mixing": unmixed if mixed is None else f"{mixed.score:.2f} at batch {mixed.batch_size}",
    }


def _tensor_tables(manifest: Manifest, splits: Mapping[str, SplitInfo]) -> Iterator["Table"]:
    """Yields a table for each split that holds tensors: their types, their ranges, and the share that is NaN."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    for name, split in splits.items():
        if not split.tensors:
            continue
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column(Text(f"Tensors of {name}"), overflow="fold")
        for column in ("Type", "Range", "NaN"):
            table.add_column(column, overflow="fold")
        for spec in manifest.schema.tensors:
            stats = split.tensors.get(spec.name)
            if stats is not None:
                kind = describe_type(spec, stats)
                table.add_row(*map(Text, (clean_line(spec.name), kind, describe_range(stats), describe_nan(stats))))
        yield table


def _mask_tables(splits: Mapping[str, SplitInfo]) -> Iterator["Table"]:
    """Yields a table for each split that holds masks: the share of each class of the pixels, and its images."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    for name, split in splits.items():
        for feature, stats in split.masks.items():
            table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
            table.add_column(Text(f"{clean_line(feature)} of {name}"), overflow="fold")
            for column in ("Pixels", "Images"):
                table.add_column(column, justify="right")
            total = max(sum(stats.pixels) + stats.higher, 1)
            shown = [number for number, pixels in enumerate(stats.pixels) if pixels]
            for number in shown[:_MAX_CLASSES_SHOWN]:
                table.add_row(f"class {number}", f"{stats.pixels[number] / total:.2%}", f"{stats.images[number]:,}")
            rest = sum(stats.pixels[number] for number in shown[_MAX_CLASSES_SHOWN:]) + stats.higher
            if rest:
                table.add_row("higher classes", f"{rest / total:.2%}", "")
            yield table


def describe_type(spec: FeatureSpec, stats: TensorStats) -> str:
    """Describes dtype and shape; the sizes of an axis that differ are given as a range."""
    assert spec.tensor is not None
    spans = [_span(low, high) for low, high in zip(stats.min_sizes, stats.max_sizes, strict=True)]
    known = [str(size) for size in spec.tensor.shape[spec.tensor.num_unknown :]]
    return f"{spec.tensor.dtype} [{', '.join([*spans, *known])}]"


def describe_range(stats: TensorStats) -> str:
    """Describes the finite values."""
    if stats.low is None or stats.high is None:
        return "no finite value"
    text = f"{stats.low:.4g} to {stats.high:.4g}"
    return f"{text}, {stats.infinite:,} infinite" if stats.infinite else text


def describe_nan(stats: TensorStats) -> str:
    """Describes how many values are NaN, and in how many records."""
    if not stats.nan:
        return "none"
    records = "record" if stats.nan_records == 1 else "records"
    return f"{stats.nan / stats.values:.2g} of the values, in {stats.nan_records:,} {records}"


def _count_seekable(split: SplitInfo) -> str:
    """Describes how many JPEGs have restart markers from which a crop can be decoded."""
    if split.seekable:
        return "all JPEG"
    return f"{split.seekable_jpegs:,} of {split.formats['JPEG']:,} JPEG" if split.seekable_jpegs else "no"


def _span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _charts(manifest: Manifest, splits: Mapping[str, SplitInfo], width: int) -> Iterator["Table"]:
    """Yields rows with the balance of the classes of each split, side by side as far as they fit."""
    from rich.table import Table

    shown = [(name, manifest.label_names, split.class_counts) for name, split in splits.items() if split.class_counts]
    for spec in manifest.schema.class_lists:
        for name, split in splits.items():
            counts = split.label_counts.get(spec.name, ())
            padded = (*counts, *[0] * (len(spec.names) - len(counts)))
            shown += [(f"{clean_line(spec.name)} of {name}", spec.names, padded)] if counts else []
    if not shown:
        return
    at_once = max(1, min(len(shown), (width + _GAP) // (_CHART_WIDTH + _GAP)))
    each = min(_MAX_CHART_WIDTH, (width + _GAP) // at_once - _GAP)
    for k in range(0, len(shown), at_once):
        row, cells = Table.grid(), list["Text | str"]()
        for title, names, counts in shown[k : k + at_once]:
            if cells:  # a column of its own, because versions of Rich differ in whether `width` has room for padding
                row.add_column(width=_GAP)
                cells.append("")
            row.add_column(width=each)
            cells.append(_chart(title, names, counts, each))
        row.add_row(*cells)
        yield row


def _chart(title: str, names: Sequence[str], counts: Sequence[int], width: int) -> "Text":
    """Draws the largest classes of a split with a bar each, and the balance of all."""
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    ordered = sorted(zip(names, counts, strict=True), key=lambda item: -item[1])
    shown = [(clean_line(name), count) for name, count in ordered[:_MAX_CLASSES_SHOWN]]
    most = max(1, ordered[0][1])
    count_width = len(f"{most:,}")
    longest = min(_MAX_NAME_WIDTH, width - count_width - 14)
    name_width = min(longest, max(cell_len(name) for name, _ in shown))
    bar_width = width - name_width - count_width - 4
    text = Text.assemble((title, "bold cyan"), (f": {_balance(ordered)}\n", "dim"))
    for name, count in shown:
        fitted = name if cell_len(name) <= name_width else set_cell_size(name, name_width - 1).rstrip() + "…"
        text.append(set_cell_size(fitted, name_width) + f"  {count:>{count_width},}  ")
        text.append("▇" * max(round(bar_width * count / most), min(count, 1)) + "\n", "green")
    if len(ordered) > len(shown):
        text.append(f"and {len(ordered) - len(shown):,} more, down to {ordered[-1][1]:,}\n", "dim")
    text.rstrip()
    return text


def _balance(ordered: Sequence[tuple[str, int]]) -> str:
    """Describes how even the classes are, which come largest first."""
    most, least = ordered[0][1], ordered[-1][1]
    empty = sum(not count for _, count in ordered)
    classes = "1 class" if len(ordered) == 1 else f"{len(ordered):,} classes"
    return f"{classes}, {empty:,} with no image" if empty else f"{classes}, imbalance {most / least:,.1f}:1"


def _facts(directory: str, manifest: Manifest) -> "Table":
    from rich.table import Table
    from rich.text import Text

    facts: list[tuple[str, str | Text]] = [
        ("Labels", _labels(manifest.label_names)),
        *((clean_line(spec.name), _labels(spec.names)) for spec in manifest.schema.features if spec.names),
        ("Changed", _counts(manifest.changed)),
        ("Noticed", _counts(manifest.noticed)),
        ("Skipped", _counts(manifest.skipped)),
        ("Quarantined", _quarantine(directory, manifest.quarantined)),
        ("Duplicates", _duplicates(manifest)),
        ("Seed", str(manifest.seed)),
    ]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(value) if isinstance(value, str) else value)
    return table


def _labels(names: Sequence[str]) -> str:
    if not names:
        return "none"
    text = f"{len(names):,}: "
    for k, name in enumerate(names):
        part = ("" if k == 0 else ", ") + clean_line(name)
        if len(text) + len(part) > _MAX_LABEL_TEXT:
            return f"{text}{'' if k == 0 else ' '}and {len(names) - k:,} more"
        text += part
    return text


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {clean_line(kind)}" for kind, count in counts.items() if count) or "none"


def _quarantine(directory: str, count: int) -> "str | Text":
    from rich.text import Text

    if not count:
        return "none"
    lines = [f"{clean_line(path)}: {clean_line(reason)}" for path, reason in _first_reasons(directory)][:count]
    text = Text(f"{count:,} that could not be repaired", "yellow")
    for line in lines:
        text.append(f"\n{line}", "default")
    more = count - len(lines)
    if more:
        rest = f"and {more:,} more, " if lines else ""
        text.append(f"\n{rest}listed in {file_names.QUARANTINE}", "dim")
    return text


def _first_reasons(directory: str) -> list[tuple[str, str]]:
    """Reads the path and reason of the first quarantined images; none if the list is missing or damaged."""
    try:
        with open_file(f"{directory}/{file_names.QUARANTINE}") as file:
            lines = file.read(_REASON_BYTES).splitlines()[:_MAX_REASONS_SHOWN]
    except (OSError, ValueError):
        return []
    return list(_reasons(lines))


def _reasons(lines: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    for line in lines:
        try:
            found: Any = json.loads(line)
            yield str(found["path"]), str(found["reason"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue


def _duplicates(manifest: Manifest) -> "str | Text":
    from rich.text import Text

    duplicates = manifest.duplicates
    parts = [f"{count:,} within {clean_line(name)}" for name, count in duplicates.within.items() if count]
    if duplicates.dropped:
        parts.append(f"{duplicates.dropped:,} dropped")
    text = Text(", ".join(parts))
    if duplicates.across:
        text.append("\n" if parts else "")
        text.append(
            f"{duplicates.across:,} in more than one split: evaluation images are among the training images; "
            f"see {file_names.DUPLICATES}",
            "bold yellow",
        )
    return text if text.plain else "none"
