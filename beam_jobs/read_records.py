"""`ReadRecords`: the start of a user's own Beam pipeline, whose elements are the records of a dataset.

A worker lists blocks of adjacent records, and Beam distributes them. So the graph is small for datasets of any size.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from beam_jobs import job_stores
from beam_jobs.write_records import find_file_options
from tfpipe.dataset.load import load_if_path, load_manifest
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.example import Feature
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import CLASS_TEXT, FeatureSpec
from tfpipe.storage import file_io

_BLOCK_RECORDS, _BLOCK_BYTES = 256, 16 << 20
_RECORDS = Metrics.counter("tfpipe", "records_read")


class ReadRecords(beam.PTransform):
    """The start of a Beam pipeline of your own: the records of a dataset as dictionaries, in any order.

    It is applied to the pipeline itself: `pipeline | ReadRecords("flowers", "train")`. Hidden records are left out, and
    a view, as in "flowers@large", gives its own records only. Workers get blocks of up to 256 adjacent records or
    16 MiB, so that many of them read one shard. They load no TensorFlow, and must reach the dataset by the same
    name.

    A record has, by name:

    - image: The stored bytes, a file or raw pixels; a list of them for several images. Only if records have images.
    - label: The class, an int from 0; None without one. Only if the dataset has classes.
    - other features: As the schema says, those of added columns too: str for text, a NumPy array for a tensor, the
      bytes of a PNG for a mask, int, float or bytes for one value; else an array int64 or float32 [values], or a list
      of bytes.

    To write records by `WriteRecords`, choose by `features` the values that its schema names.

    Args:
        dataset: A dataset's directory or URL, perhaps with a view, or a manifest from `load_manifest`.
        split: The name of a split.
        features: The names that a record has. None: all.

    Raises:
        ConfigError: There is no such split or feature, or the shards are compressed.
        DataError: The directory does not hold a finished dataset. In the pipeline: a file cannot be read, or the
            dataset was changed since the pipeline was built.
        FormatError: The manifest cannot be used. In the pipeline: a record or a file is damaged.
    """

    def __init__(
        self, dataset: Manifest | str | os.PathLike[str], split: str, *, features: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        manifest = load_if_path(dataset, Manifest)
        if not manifest.directory:
            raise ConfigError("The manifest must come from `load_manifest`, so that it says where its shards lie.")
        # A worker of another working directory opens the same layer, also after the dataset has grown.
        directory = file_io.make_absolute(manifest.directory)
        manifest = replace(manifest, directory=directory, view=manifest.view or str(manifest.layer))
        RecordReader(manifest.directory, manifest, split)  # raises an error if there is no such split
        names = tuple(_list_specs(manifest))
        for name in () if features is None else features:
            if name not in names:
                raise ConfigError(f"`features` must be among {', '.join(names)}, got {name!r}.")
        root = None if manifest.foreign is None else manifest.foreign.root
        self._source = _Source(manifest.address, root, split, manifest.splits[split].fingerprint)
        self._names = names if features is None else tuple(features)

    def expand(self, begin: Any) -> Any:
        """Adds the steps to the pipeline."""
        source = replace(self._source, file_options=find_file_options(begin.pipeline.options))
        return (
            begin
            | "Start" >> beam.Create([None], reshuffle=False)
            | "List blocks" >> beam.FlatMap(partial(_list_blocks, source)).with_output_types(tuple[int, int])
            | "Deal out" >> beam.Reshuffle()
            | "Read" >> beam.FlatMap(partial(_read_block, source, self._names)).with_output_types(dict[str, Any])
        )


@dataclass(frozen=True)
class _Source:
    """The address of a split, which each worker opens by itself, so that the graph does not hold record numbers."""

    address: str
    root: str | None  # of shards that another program wrote
    split: str
    fingerprint: str
    file_options: tuple[str, ...] = ()  # Beam's arguments for the file systems


@lru_cache(maxsize=8)
def _open(source: _Source) -> RecordReader:
    """Opens the records of a split, once in each process."""
    job_stores.adopt(source.file_options)
    manifest = load_manifest(source.address, root=source.root)
    info = manifest.splits.get(source.split)
    if info is None or info.fingerprint != source.fingerprint:
        raise DataError(
            f"{source.address} must stay as it was when the pipeline was built, and split {source.split!r} has other "
            "records now. Build the pipeline again."
        )
    return RecordReader(manifest.directory, manifest, source.split)


def _list_blocks(source: _Source, _: None) -> Iterator[tuple[int, int]]:
    """Yields each block of adjacent records as its first number and the number after its last."""
    reader = _open(source)
    records, size = len(reader), reader.manifest.splits[reader.split].bytes
    count = max(min(_BLOCK_RECORDS, _BLOCK_BYTES * records // max(size, 1)), 1)
    for first in range(0, records, count):
        yield first, min(first + count, records)


def _read_block(source: _Source, names: tuple[str, ...], block: tuple[int, int]) -> Iterator[dict[str, Any]]:
    reader = _open(source)
    specs, base = _list_specs(reader.manifest), reader.manifest.label_base
    for number, features in enumerate(reader.iterate(range(*block)), block[0]):
        try:
            record = {name: _get_value(specs[name], features) for name in names}
        except FormatError as error:
            raise FormatError(f"Record {number} of {reader.split!r}: {error}") from None
        if isinstance(label := record.get("label"), int):
            record["label"] = label - base if label >= base else None
        _RECORDS.inc()
        yield record


def _list_specs(manifest: Manifest) -> dict[str, FeatureSpec]:
    """Returns the feature of each value of a record, by the value's name in the dictionary, such as `image`."""
    schema, specs = manifest.full_schema, dict[str, FeatureSpec]()
    if manifest.image_key is not None:
        specs["image"] = FeatureSpec(manifest.image_key, "bytes", None if manifest.has_several_images else ())
    if manifest.label_key is not None:
        specs["label"] = FeatureSpec(manifest.label_key, "int64", ())
    left_out = {spec.name for spec in specs.values()} | schema.sizes_keys
    if manifest.foreign is None:
        left_out |= {CLASS_TEXT}  # the manifest has the names of the classes
    return {**specs, **{name: schema[name] for name in schema.names if name not in left_out}}


def _get_value(spec: FeatureSpec, features: Mapping[str, Feature]) -> Any:
    """Returns the values of a feature, or its only value in place of a list if the schema allows no other number."""
    value = spec.decode(features)
    if spec.kind != "values" or spec.shape != () or value is None or len(value) != 1:
        return value
    return value[0] if isinstance(value, list) else value[0].item()
