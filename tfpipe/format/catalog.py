"""The catalog of a dataset: a small file that lists the appended and deleted records, the columns and the views.

A file or folder that no entry names is ignored: an interrupted change left it. Layer 1 is the dataset as first written;
each append or delete makes the next. The file is a line of JSON, then the deleted records, compressed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import DataError
from tfpipe.format.file_names import CATALOG, COLUMNS_DIR, LAYERS_DIR, is_column_name
from tfpipe.format.json_reader import Rule, join, matching, read, refuse, wrong
from tfpipe.format.view import (
    HIDDEN,
    VIEW_SUFFIX,
    VIEWS_DIR,
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
_JOB = matching(r"[0-9a-f]{64}", "a SHA-256 in hexadecimal digits")
_JOB_DIGITS = 12  # digits of `job` in the name of a file or folder


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One change of a dataset: appended or deleted records, an added column, or a view."""

    kind: Kind
    job: Annotated[str, _JOB]  # the SHA-256 of the request, by which a repeated one is recognized
    number: int = 0  # the layer made, from 2; for a column the layer of its records, from 1; for a view 0
    name: str = ""  # of a column or view
    below: Mapping[str, str] = field(default_factory=dict)  # each split's `stored_fingerprint` before the change
    made: Mapping[str, str] = field(default_factory=dict)  # the `stored_fingerprint` of each split written
    records: Mapping[str, int] = field(default_factory=dict)  # appended or hidden, of each split
    hidden: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # of `HIDDEN`, numbered as in the layer before

    @property
    def path(self) -> str:
        """The folder or file that the change wrote, relative to the dataset; for `delete` the catalog itself."""
        return CATALOG if self.kind == "delete" else get_path(self.kind, self.name or str(self.number), self.job)


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """All entries of a dataset, in the order of their changes."""

    entries: tuple[Entry, ...] = ()

    @property
    def layers(self) -> tuple[Entry, ...]:
        """The entries that made layers 2, 3, ...: those of `append` and `delete`."""
        return tuple(entry for entry in self.entries if entry.kind in ("append", "delete"))

    def list_names(self, kind: Kind) -> list[str]:
        """Lists the names of the columns or of the views, sorted."""
        return sorted({entry.name for entry in self.entries if entry.kind == kind})

    def find(self, kind: Kind, name: str, number: int = 0) -> Entry | None:
        """Finds the entry of a view, or of a column for the records of layer `number`; None if there is none."""
        fits = (entry for entry in self.entries if (entry.kind, entry.name, entry.number) == (kind, name, number))
        return next(fits, None)

    def cut(self, directory: str, newest: int) -> Catalog:
        """Returns the catalog without the layers after `newest` and the columns of their records."""
        count = len(self.layers) + 1
        if not 1 <= newest <= count:
            raise DataError(f"{directory} has no layer {newest}; its layers are 1 to {count}.")
        return Catalog(tuple(entry for entry in self.entries if entry.number <= newest))

    def change(self, new: Sequence[Entry]) -> Catalog:
        """Returns the catalog with new entries; each replaces an entry of the same kind, name and number."""
        taken = {(entry.kind, entry.name, entry.number) for entry in new}
        kept = (entry for entry in self.entries if (entry.kind, entry.name, entry.number) not in taken)
        return Catalog((*kept, *new))

    def encode(self) -> bytes:
        """Encodes the catalog as the bytes of its file."""
        lines, blocks = [], []
        for entry in self.entries:
            hidden = {}
            for split, records in entry.hidden.items():
                arrays = np.diff(records["number"], prepend=0), records["label"], records["size"]
                packed = [zlib.compress(array.tobytes()) for array in arrays]
                hidden[split] = {"records": len(records), "packed_bytes": [len(block) for block in packed]}
                blocks += packed
            lines.append(asdict(replace(entry, hidden={})) | {"hidden": hidden})
        return encode_headed(_MAGIC, {"entries": lines}, blocks)


def get_path(kind: Kind, name: str, job: str) -> str:
    """Returns the folder or file that a change writes, relative to the dataset: `columns/captions-90ab34cd12ef`."""
    folder = {"append": LAYERS_DIR, "column": COLUMNS_DIR, "view": VIEWS_DIR}[kind]
    return f"{folder}/{name}-{job[:_JOB_DIGITS]}{VIEW_SUFFIX if kind == 'view' else ''}"


@dataclass
class _HiddenHeader:
    records: int
    packed_bytes: Annotated[list[int], Rule("a list of 3 sizes", lambda sizes: len(sizes) == 3)]


def decode_catalog(data: bytes, where: str, count: Callable[[Catalog], Mapping[str, int]]) -> Catalog:
    """Decodes a catalog; `count` of the entries so far gives each split's records, a bound for the hidden ones."""
    document, body = decode_headed(data, where, _MAGIC, "Copy it again from the dataset.")
    entries, start, layers = list[Entry](), 0, 1
    for i, header in enumerate(read(document.get("entries"), list[dict[str, Any]], where, "entries")):
        at = f"entries[{i}]"
        entry = read(header | {"hidden": {}}, Entry, where, at)
        if not {"column": is_column_name, "view": is_view_name}.get(entry.kind, "".__eq__)(entry.name):
            must = f"the name of a {entry.kind}" if entry.kind in ("column", "view") else "empty for a layer"
            raise wrong(where, f"{at}.name", must, entry.name)
        lowest, highest = {"column": (1, layers), "view": (0, 0)}.get(entry.kind, (layers + 1, layers + 1))
        if not lowest <= entry.number <= highest:
            must = f"a whole number of at least {lowest} and at most {highest}"
            raise wrong(where, f"{at}.number", must, entry.number)
        layers += entry.kind in ("append", "delete")
        hidden = dict[str, NDArray[Any]]()
        if entry.kind == "delete":
            most = count(Catalog(tuple(entries)))
            for name, split in read(header.get("hidden"), dict[str, _HiddenHeader], where, f"{at}.hidden").items():
                check_records(split.records, where, name, most, "Copy it again from the dataset.")
                ends = list(accumulate(split.packed_bytes, initial=start))
                try:
                    hidden[name] = _decode_hidden(split.records, [body[a:b] for a, b in pairwise(ends)])
                except (ValueError, zlib.error) as error:
                    raise refuse(where, join(f"{at}.hidden", name), f"it is damaged: {error}.") from None
                start = ends[-1]
        entries.append(replace(entry, hidden=hidden))
    return Catalog(tuple(entries))


def _decode_hidden(records: int, blocks: Sequence[bytes]) -> NDArray[Any]:
    """Decodes the hidden records of a split. Raises ValueError or zlib.error if their blocks are damaged."""
    hidden = np.empty(records, HIDDEN)
    for name, block in zip(("number", "label", "size"), blocks, strict=True):
        hidden[name] = np.frombuffer(inflate(block, records * HIDDEN[name].itemsize), HIDDEN[name])
    hidden["number"] = np.cumsum(hidden["number"])
    return hidden
