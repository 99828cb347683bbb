"""`tfpipe delete`, `compact`, `rollback`, `log` and `diff`: the layers of a dataset, changed and compared."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.errors import DataError
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from tfpipe.layers.compact import Compacted
    from tfpipe.layers.delete import Deleted
    from tfpipe.layers.diff import Diff
    from tfpipe.layers.log import LogRow

_SIGNS = {"append": "+", "delete": "-"}
_SHOWN = 3


@command("Hide records of a dataset by their names.")
@click.argument("dataset")
@click.argument("names", metavar="NAMES.txt")
def delete(dataset: str, names: str, as_json: bool) -> None:
    """Hide the records of DATASET whose names NAMES.txt has, one in each line.

    No reader, view or command gives them from then on. The shards are not changed: tfpipe compact DATASET removes the
    bytes. A name that no record has is an error, and nothing is hidden. tfpipe rollback takes it back before that.
    """
    from tfpipe.layers.delete import delete_records

    deleted = delete_records(dataset, _read_names(names))
    facts = {"dataset": dataset, "layer": deleted.layer, "hidden": deleted.records, "before": deleted.before}
    show(facts, _format_deleted(dataset, deleted), as_json)


def _format_deleted(dataset: str, deleted: "Deleted") -> Iterator[str]:
    if deleted.before:
        yield f"{human_count(deleted.before, 'record')} with these names were hidden before"
    for split, count in deleted.records.items():
        yield f"{split}: {human_count(count, 'record')} hidden"
    if deleted.records:
        yield f"{dataset} is at layer {deleted.layer}; tfpipe compact {dataset} removes the bytes"
    else:
        yield f"There is nothing to hide in {dataset}"


def _read_names(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not a text in UTF-8" if isinstance(error, ValueError) else error.strerror
        raise DataError(f"{path} cannot be read: {reason}.") from None


@command("Remove the bytes of hidden records, and older layers.")
@click.argument("dataset")
def compact(dataset: str, as_json: bool) -> None:
    """Write DATASET as one layer, without the bytes of records that are hidden. Older layers are gone then.

    Shards without a hidden record keep their bytes and take no new space. The new dataset takes the place of the old
    one at one moment; run the same command again after an interruption. A training that began before cannot go on.
    """
    from tfpipe.layers.compact import compact as run

    done = run(dataset)
    facts = {"dataset": dataset, "compacted": done is not None, **(asdict(done) if done else {})}
    show(facts, _format_compacted(dataset, done), as_json)


def _format_compacted(dataset: str, done: "Compacted | None") -> Iterator[str]:
    if done is None:
        yield f"{dataset} has one layer, so there is nothing to do"
        return
    for split, count in done.records.items():
        yield f"{split}: {human_count(count, 'record')}"
    shards = f"{human_count(done.kept_shards, 'shard')} kept, {done.written_shards:,} written anew"
    yield f"{human_count(done.removed, 'hidden record')} removed; {shards}"
    if done.dropped_views:
        names = ", ".join(done.dropped_views)
        yield f"removed, as none of their records is left or a rollback took some: the views {names}"
    yield f"{dataset} is complete"


@command("Go back to an older layer of a dataset.")
@click.argument("dataset")
@click.option("--to", type=int, required=True, metavar="N", help="The number of the layer, as tfpipe log shows it.")
def rollback(dataset: str, to: int, as_json: bool) -> None:
    """Give DATASET the state that it had at layer N, by a new layer. Nothing is removed.

    Records that were appended later are read no longer, and those that were hidden later are read again.
    """
    from tfpipe.layers.rollback import roll_back

    done = roll_back(dataset, to)
    lines = [f"{human_count(done.gone, 'record')} gone"] if done.gone else []
    if done.back:
        unhidden = f", {done.unhidden:,} of them hidden until now" if done.unhidden else ""
        lines.append(f"{human_count(done.back, 'record')} back{unhidden}")
    lines.append(f"{dataset} is at layer {done.layer}, with the records of layer {to}")
    show({"dataset": dataset, **asdict(done)}, lines, as_json)


@command("List the layers of a dataset.")
@click.argument("dataset")
def log(dataset: str, as_json: bool) -> None:
    """List the layers of DATASET: what was appended, hidden or taken back, and what each layer has.

    DATASET@N is the dataset as it was at layer N.
    """
    from tfpipe.dataset.history import load_history
    from tfpipe.layers.log import list_rows

    rows = list_rows(load_history(dataset.rstrip("/")))
    table = [("layer", "when", "what", "records", "bytes"), *map(_format_row, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in table)
    show({"dataset": dataset, "layers": [row.to_json() for row in rows]}, lines, as_json)


def _format_row(row: "LogRow") -> tuple[str, ...]:
    sign = _SIGNS.get(row.what, "")
    change = ", ".join(f"{sign}{count:,} {split}" for split, count in row.change.items() if sign and count)
    what = f"{row.what} to {row.to}" if row.to else f"{row.what} {change}".rstrip()
    records = ", ".join(f"{count:,} {split}" for split, count in row.records.items())
    return str(row.layer), row.when or "", what, records, human_bytes(row.bytes)


@command("Compare two datasets, layers or views.")
@click.argument("a")
@click.argument("b")
def diff(a: str, b: str, as_json: bool) -> None:
    """Say what A and B have different: datasets, layers such as flowers@1, or views such as flowers@large.

    Records of one name are compared: their bytes, their class and their split. So are features, classes and sizes.
    """
    from tfpipe.layers.diff import compare

    found = compare(a, b)
    show({"a": a, "b": b, "equal": found.is_empty, **asdict(found)}, _format_diff(a, b, found), as_json)


def _format_diff(a: str, b: str, found: "Diff") -> Iterator[str]:
    for split, (before, after) in found.records.items():
        sizes = " and ".join(map(human_bytes, found.bytes[split]))
        yield f"{split}: {before:,} and {after:,} records, {sizes}"
    texts = {
        f"only in {a}": found.only_in_a,
        f"only in {b}": found.only_in_b,
        "other bytes": found.other_bytes,
        "other class": found.other_label,
        "other split": found.other_split,
    }
    for text, records in texts.items():
        if records.count:
            yield f"{text}: {human_count(records.count, 'record')}, such as {', '.join(records.names[:_SHOWN])}"
    for what, (only_a, only_b) in (("features", found.features), ("classes", found.classes)):
        for address, names in ((a, only_a), (b, only_b)):
            if names:
                yield f"{what} only in {address}: {', '.join(names)}"
    if found.is_empty:
        yield f"{a} and {b} have the same records, features and classes"
