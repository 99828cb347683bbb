"""`tfpipe diff`: what two datasets, layers or views have different."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from tfpipe.layers.diff import Diff

_SHOWN = 3


@command("Compare two datasets, layers or views.")
@click.argument("a")
@click.argument("b")
def diff(a: str, b: str, as_json: bool) -> None:
    """Say what A and B have different: datasets, layers such as flowers@1, or views such as flowers@large.

    Records of one name are compared: their bytes, their class and their split. So are features, classes and sizes.
    """
    from tfpipe.layers.diff import compare

    found = compare(a, b)
    show({"a": a, "b": b, "equal": found.is_empty, **asdict(found)}, _format(a, b, found), as_json)


def _format(a: str, b: str, found: "Diff") -> Iterator[str]:
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
