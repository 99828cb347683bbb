"""The catalog of a dataset: one small file that lists what was appended, hidden, added as a column or named as a view.

What no entry names is not there: a change that was cut off left it. A layer has the number of the state that it made. A
line of JSON comes first, then the hidden records, compressed.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import DataError
from tfpipe.format.file_names import CATALOG, COLUMNS_DIR, LAYERS_DIR, is_column_name
from tfpipe.format.json_reader import Node
from tfpipe.format.view import (
    VIEW_SUFFIX,
    VIEWS_DIR,
    Hidden,
    check_records,
    decode_headed,
    encode_headed,
    inflate,
    is_view_name,
)

Kind = Literal["append", "delete", "column", "view"]
"""The change that made an entry."""

MAX_CATALOG_BYTES = 1 << 32

_MAGIC = "tfpipe catalog 1"
_JOB = re.compile(r"[0-9a-f]{64}")
_JOB_DIGITS = 12  # in the name of a file or folder
_DTYPES = ("<i8", "<i4", "<i8")  # of the numbers, the labels and the sizes of hidden records


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One change of a dataset."""

    kind: Kind
    job: str  # the SHA-256 of all that was asked for, by which a repetition is recognized
    number: int = 0  # of the layer made, from 2; of that whose records a column is for, from 1; 0 for a view
    name: str = ""  # of a column or view
    below: Mapping[str, str] = field(default_factory=dict)  # the `stored_fingerprint` of each split below
    made: Mapping[str, str] = field(default_factory=dict)  # of each split that it wrote
    records: Mapping[str, int] = field(default_factory=dict)  # appended or hidden, of each split
    hidden: Mapping[str, Hidden] = field(default_factory=dict)  # numbered as the state below has them

    @property
    def path(self) -> str:
        """The folder or file of the change, relative to the dataset; of `delete` the catalog itself."""
        return CATALOG if self.kind == "delete" else get_path(self.kind, self.name or str(self.number), self.job)


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """All entries of a dataset, in the order of their changes."""

    entries: tuple[Entry, ...] = ()

    @property
    def layers(self) -> tuple[Entry, ...]:
        """The entries of layers, from layer 2 on."""
        return tuple(entry for entry in self.entries if entry.kind in ("append", "delete"))

    def list_names(self, kind: Kind) -> list[str]:
        """Lists the names of the columns or of the views, sorted."""
        return sorted({entry.name for entry in self.entries if entry.kind == kind})

    def find(self, kind: Kind, name: str, number: int = 0) -> Entry | None:
        """Finds the entry of a view, or of a column for the records of a layer; None if there is none."""
        fits = (entry for entry in self.entries if (entry.kind, entry.name, entry.number) == (kind, name, number))
        return next(fits, None)

    def cut(self, directory: str, newest: int) -> Catalog:
        """Returns the catalog with the layers up to one."""
        count = len(self.layers) + 1
        if not 1 <= newest <= count:
            raise DataError(f"{directory} has no layer {newest}; its layers are 1 to {count}.")
        return Catalog(tuple(entry for entry in self.entries if entry.number <= newest))

    def change(self, new: Sequence[Entry]) -> Catalog:
        """Returns the catalog with new entries, each in the place of the one of its kind and name that was there."""
        taken = {(entry.kind, entry.name, entry.number) for entry in new}
        kept = (entry for entry in self.entries if (entry.kind, entry.name, entry.number) not in taken)
        return Catalog((*kept, *new))

    def encode(self) -> bytes:
        """Returns the bytes of the file."""
        lines, blocks = [], []
        for entry in self.entries:
            hidden = {}
            for split, records in entry.hidden.items():
                arrays: list[NDArray[Any]] = [np.diff(records.numbers, prepend=0), records.labels, records.sizes]
                packed = [zlib.compress(one.astype(kind).tobytes()) for one, kind in zip(arrays, _DTYPES, strict=True)]
                hidden[split] = {"records": records.records, "packed_bytes": [len(block) for block in packed]}
                blocks += packed
            facts: dict[str, object] = {name: getattr(entry, name) for name in _FACTS}
            facts |= {name: dict(getattr(entry, name)) for name in _BY_SPLIT}
            lines.append(facts | {"hidden": hidden})
        return encode_headed(_MAGIC, {"entries": lines}, blocks)


_FACTS = ("kind", "job", "number", "name")
_BY_SPLIT = ("below", "made", "records")


def get_path(kind: Kind, name: str, job: str) -> str:
    """Returns the folder or file of a change, relative to the dataset: `columns/captions-90ab34cd12ef`."""
    folder = {"append": LAYERS_DIR, "column": COLUMNS_DIR, "view": VIEWS_DIR}[kind]
    return f"{folder}/{name}-{job[:_JOB_DIGITS]}{VIEW_SUFFIX if kind == 'view' else ''}"


def decode_catalog(data: bytes, where: str, count: Callable[[Catalog], Mapping[str, int]]) -> Catalog:
    """Reads what `Catalog.encode` wrote; an entry must fit `count` of the splits before hidden records take memory."""
    node, body = decode_headed(data, where, _MAGIC, "Copy it again from the dataset.")
    entries, at, layers = list[Entry](), 0, 1
    for one in node.field("entries").elements():
        entry = _decode_entry(one)
        is_layer = entry.kind in ("append", "delete")
        lowest, highest = {"column": (1, layers), "view": (0, 0)}.get(entry.kind, (layers + 1, layers + 1))
        one.field("number").count(lowest, highest)
        layers += is_layer
        hidden = dict[str, Hidden]()
        if entry.kind == "delete":
            hidden, at = _decode_hidden(one.field("hidden"), body, at, where, count(Catalog(tuple(entries))))
        entries.append(replace(entry, hidden=hidden))
    return Catalog(tuple(entries))


def _decode_entry(node: Node) -> Entry:
    kind: Kind = node.field("kind").choice(get_args(Kind))
    name, job = node.field("name").text(), node.field("job").text()
    fits = {"column": is_column_name, "view": is_view_name}.get(kind, "".__eq__)
    if not fits(name):
        raise node.field("name").error(f"the name of a {kind}" if kind in ("column", "view") else "empty for a layer")
    if not _JOB.fullmatch(job):
        raise node.field("job").error("a SHA-256 in hexadecimal digits")
    return Entry(
        kind,
        job,
        node.field("number").count(),
        name,
        node.field("below").mapping(Node.text),
        node.field("made").mapping(Node.text),
        node.field("records").counts(),
    )


def _decode_hidden(
    node: Node, body: bytes, at: int, where: str, most: Mapping[str, int]
) -> tuple[dict[str, Hidden], int]:
    """Returns the hidden records of an entry, whose blocks begin at a byte, and where those of the next one begin."""
    splits = {}
    for name, split in node.items():
        records = check_records(split, "records", where, name, most, "Copy it again from the dataset.")
        arrays = []
        for size, kind in zip(split.field("packed_bytes").elements(), _DTYPES, strict=False):
            block, at = body[at : at + size.count()], at + size.count()
            try:
                arrays.append(np.frombuffer(inflate(block, records * np.dtype(kind).itemsize), kind))
            except (ValueError, zlib.error) as error:
                raise split.refuse(f"it is damaged: {error}.") from None
        if len(arrays) != len(_DTYPES):
            raise split.field("packed_bytes").error(f"a list of {len(_DTYPES)} sizes")
        splits[name] = Hidden(np.cumsum(arrays[0]), arrays[1].astype(np.int32), arrays[2].astype(np.int64))
    return splits, at
