"""The record info of a shard, such as name and label, as a Parquet file beside the shard's index.

The conditions of views read them. They are written with a shard if PyArrow is installed, else by the first view. The
file holds its shard's checksum, so that a file of an earlier shard is noticed and made again.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe._version import __version__
from tfpipe.errors import DataError, first_line
from tfpipe.format import file_names
from tfpipe.format.digest_groups import DIGEST_BYTES
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import CLASS_TEXT, IMAGE_SHA256, FeatureSpec, Schema
from tfpipe.storage import file_io
from tfpipe.system.extras import importing
from tfpipe.system.units import human_text

NAME, LABEL, LABEL_ID, DIGEST = "name", "label", "label_id", "digest"
"""The file that the image came from; the name of the class, and its number from 0; and the SHA-256 of the original
file, or of the stored image where the dataset does not say it, as hexadecimal digits."""

_STANDARD = (NAME, LABEL, LABEL_ID, "bytes", DIGEST, "format", "height", "width", "channels", "colorspace")
_OF_QUERIES = ("split", "duplicate", "filename", "file_row_number", "row_number_", "shard_")  # beside those of files
_SHARD_KEY = b"tfpipe.shard"
_ROWS_AT_ONCE = 1024
_PREFIX = "image/"
_LISTS, _TEXTS = (list, np.ndarray), (str, bytes)  # tuples: a union would be made anew for each value
_ARROW_TYPES = {"int64": "int64", "float": "float32", "bytes": "string"}


class RecordInfo:
    """The table of record info of one shard, filled record by record."""

    def __init__(self, manifest: Manifest) -> None:
        import pyarrow as pa

        columns = list_columns(manifest)
        self._readers = {name: read for name, (_, read) in columns.items()}
        self._schema = pa.schema([(name, getattr(pa, kind)()) for name, (kind, _) in columns.items()])
        self._rows: list[dict[str, Any]] = []
        self._batches: list[Any] = []

    @classmethod
    def of_new_shard(cls, schema: Schema, label_names: Sequence[str]) -> RecordInfo | None:
        """Returns an empty table of record info for a shard that is about to be written; None without PyArrow."""
        if importlib.util.find_spec("pyarrow") is None:
            return None
        return cls(
            Manifest(name="", splits={}, label_names=tuple(label_names), schema=schema, tool_version=__version__)
        )

    def add(self, features: Mapping[str, Any]) -> None:
        """Adds the next record, whose features were decoded or are about to be encoded."""
        self._rows.append({name: read(features) for name, read in self._readers.items()})
        if len(self._rows) == _ROWS_AT_ONCE:
            self._pack()

    def encode(self, sha256: str) -> bytes:
        """Returns the bytes of the Parquet file, for a shard with this checksum."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._pack()
        table = pa.Table.from_batches(self._batches, self._schema).replace_schema_metadata({_SHARD_KEY: sha256})
        out = pa.BufferOutputStream()
        # Pages have checksums. Minima and maxima in the footer have none, and a wrong one would hide records.
        pq.write_table(table, out, compression="zstd", write_page_checksum=True, write_statistics=False)
        data: bytes = out.getvalue().to_pybytes()
        return data

    def find_fault(self, data: bytes, sha256: str, records: int) -> str:
        """Returns the fault of a Parquet file for a shard of this checksum and number of records; empty: none."""
        import pyarrow as pa

        try:
            table, found = _read_table(data)
        except (OSError, pa.ArrowException) as error:
            return f"it cannot be read: {first_line(error)}"
        if not table.schema.equals(self._schema):
            return f"it must have the columns {', '.join(self._schema.names)}"
        return "" if _fits(found, self._schema.names, sha256, records) else "it was made for another shard"

    def is_of_shard(self, path: str, sha256: str, records: int) -> bool:
        """Returns whether a file on this machine is this table for the shard with this checksum."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return _fits(pq.read_metadata(path), self._schema.names, sha256, records)
        except (OSError, pa.ArrowInvalid):
            return False

    def _pack(self) -> None:
        import pyarrow as pa

        self._batches.append(pa.RecordBatch.from_pylist(self._rows, self._schema))
        self._rows = []


def read_digests(manifest: Manifest) -> NDArray[np.uint8]:
    """Reads the distinct digests of a dataset's visible records without reading its shards: uint8 [n, 32]."""
    with importing("A search for duplicates", "PyArrow", "tfpipe[views]"):
        import pyarrow  # noqa: F401
    found = [np.empty((0, DIGEST_BYTES), np.uint8)]
    for split in manifest.splits if DIGEST in list_columns(manifest) else ():
        for values in _read_digests(manifest, split):
            digests = bytes.fromhex("".join(filter(None, values)))
            found.append(np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES))
    return np.unique(np.concatenate(found), axis=0)


def _read_digests(manifest: Manifest, split: str) -> Iterator[list[Any]]:
    """Yields for each shard of a split the digests of its visible records, as hexadecimal texts or None."""
    import pyarrow as pa

    info, first, names = manifest.splits[split], 0, list(list_columns(manifest))
    for shard in info.shards:
        path = file_io.join(manifest.directory, file_names.info_name(shard.file))
        try:
            table, found = _read_table(file_io.read_whole(path), [DIGEST])
            digests = table[DIGEST]
            if not _fits(found, names, shard.sha256, shard.records):
                raise LookupError("it is of another shard")
        except (OSError, pa.ArrowException, LookupError) as error:
            raise DataError(
                f"{path} must say which images {manifest.directory} has, and is missing or of another shard. Make "
                f"it by `tfpipe view {manifest.directory} 'bytes > 0' --name all`, or leave `drop_duplicates` out."
            ) from error
        if info.chosen is not None:
            digests = digests.take(info.chosen.list_rows(first, shard.records))
        first += shard.records
        yield digests.to_pylist()


def _read_table(data: bytes, columns: list[str] | None = None) -> tuple[Any, Any]:
    """Reads a file of record info, and its metadata, without threads of Arrow.

    A thread of Arrow that frees a buffer of Python while the interpreter ends would abort the process.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)  # reads no pages ahead
    return file.read(columns, use_threads=False), file.metadata


def _fits(found: Any, names: list[str], sha256: str, records: int) -> bool:
    """Returns whether the metadata of a file has these columns, and a shard's checksum and number of records."""
    rows = found.num_rows if found.num_columns else records  # without columns a file has no rows
    return found.schema.names == names and rows == records and (found.metadata or {}).get(_SHARD_KEY) == sha256.encode()


_Column: TypeAlias = tuple[str, Callable[[Mapping[str, Any]], Any]]
"""A column of the record info: PyArrow's name of its type, and the function that reads its value from the features of a
record, None where it has none."""


def list_columns(manifest: Manifest) -> dict[str, _Column]:
    """Returns the columns of record info by name; that of a feature such as `image/height` is called `height`."""
    schema, columns = manifest.schema, dict[str, _Column]()
    name_key, image_key, label_key = schema.name_key, manifest.image_key, manifest.label_key
    if name_key is not None:
        columns[NAME] = _read_feature(schema[name_key])
    if label_key is not None:
        columns[LABEL] = "string", partial(_name_label, manifest, label_key)
        columns[LABEL_ID] = "int64", partial(_get_label, manifest, label_key)
    if image_key is not None:
        columns["bytes"] = "int64", lambda features: len(_get_image(features, image_key))
        columns[DIGEST] = "string", lambda row: hashlib.sha256(_get_image(row, image_key)).hexdigest()
    if IMAGE_SHA256 in schema:
        columns[DIGEST] = _read_feature(schema[IMAGE_SHA256])
    names, specs = list(columns), []
    for spec in schema.features:
        is_scalar = spec.shape == () and spec.kind in ("values", "text")
        if is_scalar and spec.name not in (name_key, label_key, image_key, IMAGE_SHA256, CLASS_TEXT):
            short = spec.name.removeprefix(_PREFIX)
            names.append(spec.name if short in names else short)
            specs.append(spec)
    return columns | dict(zip(spell(names)[len(columns) :], map(_read_feature, specs), strict=True))


def spell(names: Sequence[str]) -> list[str]:
    """Returns names that SQL, which ignores case, tells apart: of those that meet only a standard one stays."""
    lower = [*map(str.lower, names), *_OF_QUERIES]
    counts, taken, spelled = Counter(lower), set(lower), list[str]()
    for name in names:
        if counts[name.lower()] > 1 and (name not in _STANDARD or name in spelled):
            while name.lower() in taken:
                name += "_"
            taken.add(name.lower())
        spelled.append(name)
    return spelled


def _read_feature(spec: FeatureSpec) -> _Column:
    return _ARROW_TYPES[spec.dtype], lambda features: _get_one(features.get(spec.name))


def _get_label(manifest: Manifest, key: str, features: Mapping[str, Any]) -> int | None:
    """Returns the class of a record, counted from 0; None if it has none, or several."""
    label = _get_one(features.get(key))
    return max(label - manifest.label_base, -(2**63) + 1) if isinstance(label, int) else None


def _name_label(manifest: Manifest, key: str, features: Mapping[str, Any]) -> Any:
    """Returns the name of a record's class; None if it has none, or several."""
    label = _get_label(manifest, key, features)
    if label is None or not 0 <= label < len(manifest.label_names):
        return None
    return _get_one(manifest.label_names[label])


def _get_image(features: Mapping[str, Any], key: str) -> bytes:
    """Returns the stored image, or the first of several; empty if there is none."""
    image = features.get(key)
    if isinstance(image, list) and image:
        image = image[0]
    return image if isinstance(image, bytes) else b""


def _get_one(value: Any) -> Any:
    """Returns the only value of a feature as Python's own type; None if it has none, or several."""
    if type(value) is int:
        return value
    if isinstance(value, _LISTS):
        if len(value) != 1:
            return None
        value = value[0]
    if isinstance(value, _TEXTS):
        return human_text(value)
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, bool) else value
