"""The facts about each record of a dataset that conditions ask for, as Parquet files beside the indexes.

```
flowers/index/train-00003-of-00008.parquet      a row for each record of the shard, in its order

name       label  label_id  bytes   digest   format  height  width   and all other features with one value
"a/1.jpg"  cat    0         109531  1f8e...  JPEG    375     500
```

A file is made from its shard when it is first needed. It says which shard it stands for, by its checksum, so one that
is left over from another shard is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tfpipe.engine.record_reader import RecordReader
from tfpipe.format import file_names
from tfpipe.format.example import Feature
from tfpipe.format.manifest import Manifest, ShardInfo
from tfpipe.format.schema import CLASS_TEXT, IMAGE_SHA256, FeatureSpec
from tfpipe.readers.record_lookup import find_name_key, get_label
from tfpipe.storage import file_io
from tfpipe.system.extras import importing

NAME, LABEL, LABEL_ID, DIGEST = "name", "label", "label_id", "digest"
"""The file that the image came from; the name of the class, and its number from 0; and the SHA-256 of the original
file, or of the stored image where the dataset does not say it, as hexadecimal digits."""

_ROWS_AT_ONCE = 256
_SHARD_KEY = b"tfpipe.shard"
_PREFIX = "image/"
_ARROW_TYPES = {"int64": "int64", "float": "float32", "bytes": "string"}


@contextlib.contextmanager
def _importing_parquet() -> Iterator[None]:
    with importing("A view", "DuckDB and PyArrow", "tfpipe[views]"):
        yield


def facts_name(shard_file: str) -> str:
    """Returns the name of the facts of a shard, relative to the dataset: `index/train-00003-of-00008.parquet`."""
    return file_names.index_name(shard_file).removesuffix(".idx") + ".parquet"


def list_columns(manifest: Manifest) -> tuple[str, ...]:
    """Lists the columns of the facts. A feature such as `image/height` has a column `height`."""
    return tuple(_list_columns(manifest))


def find_facts(manifest: Manifest, split: str, folder: str, threads: int = 1) -> list[str]:
    """Returns the file with the facts of each shard of a split, and makes those that are missing.

    Args:
        manifest: The manifest of a dataset on this machine.
        split: The name of the split.
        folder: A folder for facts that cannot be written beside the indexes.
        threads: The number of shards that are read at once.

    Raises:
        ConfigError: The shards are compressed.
        FormatError: A shard is damaged.
        DataError: A shard cannot be read.
        MissingDependencyError: PyArrow is not installed.
    """
    with _importing_parquet():
        import pyarrow.parquet  # noqa: F401
    reader = RecordReader(manifest.directory, manifest.choose(split, None).keep_columns(()), split)
    shards = manifest.splits[split].shards
    starts = np.concatenate([[0], np.cumsum([shard.records for shard in shards])]).tolist()
    with ThreadPoolExecutor(threads) as pool:
        make = partial(_find_shard_facts, reader, folder)
        return list(pool.map(make, shards, starts[:-1]))


def _find_shard_facts(reader: RecordReader, folder: str, shard: ShardInfo, start: int) -> str:
    path = file_io.join(reader.directory, facts_name(shard.file))
    if _is_of_shard(path, shard):
        return path
    table = make_facts(reader, range(start, start + shard.records)).replace_schema_metadata({_SHARD_KEY: shard.sha256})
    try:
        _write(table, path)
    except OSError:  # of a dataset that may only be read
        path = os.path.join(folder, facts_name(shard.file).replace("/", "-"))
        _write(table, path)
    return path


def _is_of_shard(path: str, shard: ShardInfo) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.read_metadata(path)
        return found.num_rows == shard.records and (found.metadata or {}).get(_SHARD_KEY) == shard.sha256.encode()
    except (OSError, pa.ArrowInvalid):
        return False


def _write(table: Any, path: str) -> None:
    import pyarrow.parquet as pq

    with file_io.create(path) as file:
        pq.write_table(table, file, compression="zstd")


def list_left_out(manifest: Manifest) -> Any:
    """Returns the records that are not chosen: a `pyarrow.Table` with their `split` and their `row_number_`."""
    import pyarrow as pa

    schema = pa.schema([("split", pa.string()), ("row_number_", pa.int64())])
    tables = []
    for name, info in manifest.splits.items():
        left_out = np.ones(info.stored_records, np.bool_)
        left_out[slice(None) if info.chosen is None else info.chosen.numbers] = False
        numbers = pa.array(np.flatnonzero(left_out))
        tables.append(pa.table([pa.array([name] * len(numbers), pa.string()), numbers], schema))
    return pa.concat_tables(tables)


def make_facts(reader: RecordReader, numbers: range) -> Any:
    """Reads records and returns their facts: a `pyarrow.Table` with the columns of `list_columns`."""
    import pyarrow as pa

    columns = _list_columns(reader.manifest)
    schema = pa.schema([(name, getattr(pa, column.kind)()) for name, column in columns.items()])
    batches = []
    for begin in range(numbers.start, numbers.stop, _ROWS_AT_ONCE):
        chosen = np.arange(begin, min(begin + _ROWS_AT_ONCE, numbers.stop))
        rows = [{name: column.read(example) for name, column in columns.items()} for example in reader.iterate(chosen)]
        batches.append(pa.RecordBatch.from_pylist(rows, schema))
    return pa.Table.from_batches(batches, schema)


class _Column(NamedTuple):
    """A column of the facts.

    Attributes:
        kind: The type, by PyArrow's name.
        read: A function that returns its value from the features of a record; None where it has none.
    """

    kind: str
    read: Callable[[Mapping[str, Feature]], Any]


def _list_columns(manifest: Manifest) -> dict[str, _Column]:
    schema, columns = manifest.schema, {}
    name_key, image_key = find_name_key(schema), manifest.image_key
    if name_key is not None:
        columns[NAME] = _read_feature(schema[name_key])
    if manifest.label_key is not None:
        columns[LABEL] = _Column("string", partial(_name_label, manifest))
        columns[LABEL_ID] = _Column("int64", partial(get_label, manifest=manifest))
    if image_key is not None:
        columns["bytes"] = _Column("int64", lambda example: len(_get_image(example, image_key)))
        columns[DIGEST] = _Column("string", lambda example: hashlib.sha256(_get_image(example, image_key)).hexdigest())
    if IMAGE_SHA256 in schema:
        columns[DIGEST] = _read_feature(schema[IMAGE_SHA256])
    for spec in schema.features:
        is_scalar = spec.shape == () and spec.kind in ("values", "text")
        if is_scalar and spec.name not in (name_key, manifest.label_key, image_key, IMAGE_SHA256, CLASS_TEXT):
            short = spec.name.removeprefix(_PREFIX)
            columns[spec.name if short in columns else short] = _read_feature(spec)
    return columns


def _read_feature(spec: FeatureSpec) -> _Column:
    return _Column(_ARROW_TYPES[spec.dtype], lambda example: _get_one(example.get(spec.name)))


def _name_label(manifest: Manifest, example: Mapping[str, Feature]) -> str | None:
    label = get_label(example, manifest)
    return manifest.label_names[label] if label is not None and 0 <= label < len(manifest.label_names) else None


def _get_image(example: Mapping[str, Feature], key: str) -> bytes:
    """Returns the stored image, or the first of several; empty if there is none."""
    image = example.get(key)
    return image[0] if isinstance(image, list) and image else b""


def _get_one(feature: Feature | None) -> Any:
    if feature is None or len(feature) != 1:
        return None
    return feature[0].decode(errors="replace") if isinstance(feature, list) else feature[0].item()
