"""The differences of two datasets, layers or views: of records by name, and of features, classes and sizes.

```
diff = compare("/data/flowers@1", "/data/flowers")
diff.only_in_b.count, diff.only_in_b.names
```

DuckDB compares the facts about the records, so that memory does not grow with the datasets.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Any

from tfpipe.dataset.load import load_manifest
from tfpipe.dataset.parts import check_local
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.system.extras import importing
from tfpipe.views.choose import open_facts
from tfpipe.writer import record_facts as facts

_SHOWN = 10

_QUERIES = {
    "only_in_a": "b.key IS NULL",
    "only_in_b": "a.key IS NULL",
    "other_bytes": "a.digest <> b.digest",
    "other_label": "a.label IS DISTINCT FROM b.label AND a.key IS NOT NULL AND b.key IS NOT NULL",
    "other_split": "a.split <> b.split",
}


@dataclass(frozen=True)
class Records:
    """Some records of a comparison.

    Attributes:
        count: The number of records.
        names: The first names of them, in the order of the alphabet.
    """

    count: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Diff:
    """The differences of two datasets, A and B.

    Attributes:
        only_in_a: The records that B lacks.
        only_in_b: The records that A lacks.
        other_bytes: The records of one name whose originals have other bytes.
        other_label: The records of one name that have another class, by its name.
        other_split: The records of one name that are in another split.
        features: The features that only A has, and those that only B has or has in another type.
        classes: The names of the classes that only A has, and those that only B has.
        records: The number of records of each split, of A and of B.
        bytes: The size of the records of each split, of A and of B.
    """

    only_in_a: Records
    only_in_b: Records
    other_bytes: Records
    other_label: Records
    other_split: Records
    features: tuple[tuple[str, ...], tuple[str, ...]]
    classes: tuple[tuple[str, ...], tuple[str, ...]]
    records: dict[str, tuple[int, int]]
    bytes: dict[str, tuple[int, int]]

    @property
    def is_empty(self) -> bool:
        """Whether both have the same records, features and classes."""
        counts = (getattr(self, name).count for name in _QUERIES)
        return not any(counts) and not any((*self.features, *self.classes))


def compare(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Diff:
    """Compares two datasets, layers or views. Records of one name are compared, or of one digest without names.

    Args:
        a: The address of one, as in `/data/flowers@1`.
        b: The address of the other.

    Raises:
        ConfigError: One of them lies elsewhere, or the records have nothing in common to compare them by.
        DataError: There is no such dataset, layer or view.
        FormatError: A file is damaged.
        MissingDependencyError: DuckDB or PyArrow is not installed.
    """
    with importing("A comparison", "DuckDB and PyArrow", "tfpipe[views]"):
        import duckdb
    manifests = [load_manifest(address) for address in (a, b)]
    for manifest in manifests:
        check_local(manifest.directory)
    with tempfile.TemporaryDirectory(prefix="tfpipe-diff-") as folder, duckdb.connect() as connection:
        key = _choose_key(manifests, os.fspath(a), os.fspath(b))
        for name, manifest in zip("ab", manifests, strict=True):
            path = os.path.join(folder, f"{name}.parquet")
            _write_facts(manifest, key, path)
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')")
        found = {name: _find(connection, condition) for name, condition in _QUERIES.items()}
    first, second = manifests
    splits = sorted({*first.splits, *second.splits})
    return Diff(
        **found,
        features=(_list_features(first, second), _list_features(second, first)),
        classes=(_subtract(first.label_names, second.label_names), _subtract(second.label_names, first.label_names)),
        records={name: _pair(manifests, name, "records") for name in splits},
        bytes={name: _pair(manifests, name, "bytes") for name in splits},
    )


def _choose_key(manifests: list[Manifest], a: str, b: str) -> str:
    columns = [set(facts.list_columns(manifest)) for manifest in manifests]
    for key in (facts.NAME, facts.DIGEST):
        if all(key in names for names in columns):
            return key
    raise ConfigError(f"The records of {a} and {b} have neither names nor digests in common, by which to compare them.")


def _write_facts(manifest: Manifest, key: str, path: str) -> None:
    """Writes the facts that are compared. Of records with one key the first is compared with the first, and so on."""
    with open_facts(manifest.keep_columns(())) as table:
        digest, label = (name if name in table.columns else "NULL" for name in (facts.DIGEST, facts.LABEL))
        table.connection.execute(
            f"COPY (SELECT {key} AS key, row_number() OVER (PARTITION BY {key} ORDER BY shard_, row_number_) AS turn, "
            f"split, CAST({digest} AS VARCHAR) AS digest, CAST({label} AS VARCHAR) AS label FROM numbered) "
            f"TO '{path}' (FORMAT parquet)"
        )


def _find(connection: Any, condition: str) -> Records:
    rows = f"FROM a FULL JOIN b ON a.key = b.key AND a.turn = b.turn WHERE {condition}"
    count = connection.execute(f"SELECT count(*) {rows}").fetchone()[0]
    names = connection.execute(f"SELECT coalesce(a.key, b.key) AS name {rows} ORDER BY name LIMIT {_SHOWN}").fetchall()
    return Records(count, tuple(name for (name,) in names))


def _list_features(manifest: Manifest, other: Manifest) -> tuple[str, ...]:
    mine, theirs = ({spec.name: _describe(spec) for spec in one.full_schema.features} for one in (manifest, other))
    return tuple(name for name, kind in mine.items() if theirs.get(name) != kind)


def _describe(spec: Any) -> tuple[Any, ...]:
    return spec.dtype, spec.kind, spec.shape, spec.tensor


def _subtract(names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in set(others))


def _pair(manifests: list[Manifest], split: str, field: str) -> tuple[int, int]:
    first, second = (getattr(each.splits[split], field) if split in each.splits else 0 for each in manifests)
    return first, second
