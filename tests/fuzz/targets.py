"""Every parser of `tfpipe.format`, TFDS metadata and columns, as functions of bytes; and inputs changed at random."""

import io
import json
import math
import os
import random
import resource
import signal
import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from tests.fuzz import mutate, seeds
from tfpipe.dataset.dataset_files import list_fingerprints, load_column, load_own_manifest, use_columns
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format import file_names, manifest_json, tfds_metadata
from tfpipe.format.catalog import Entry, decode_catalog
from tfpipe.format.compressed import detect_compression, scan_compressed
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.format.json_reader import parse_json, read
from tfpipe.format.manifest import Manifest
from tfpipe.format.record_index import decode_index, encode_index
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.recovery.resync import Gap
from tfpipe.format.recovery.scan import Intact, scan
from tfpipe.format.schema import Schema
from tfpipe.format.tensors.tensor_type import TensorType, read_tensor_proto
from tfpipe.format.tfrecord import FRAME_BYTES, read_record, scan_records
from tfpipe.format.view import decode_view, encode_headed
from tfpipe.integrity.foreign.metadata_files import read_metadata

_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


class Target(NamedTuple):
    """A parser, inputs that it takes, and how they are changed: a name that `mutate.change` knows."""

    parse: Callable[[bytes], None]
    seeds: Sequence[bytes]
    kind: str


def _record(data: bytes) -> None:
    found = list(scan_records(io.BytesIO(data)))
    assert seeds.framed([payload for _, payload in found]) == data
    for offset, payload in found:
        assert read_record(io.BytesIO(data), offset, len(payload) + FRAME_BYTES) == payload


def _place(data: bytes) -> None:
    offset, size = (int.from_bytes(data[k : k + 8], "little", signed=True) for k in (0, 8))
    payload = read_record(io.BytesIO(data[16:]), offset, size)
    assert data[16 + offset :].startswith(seeds.framed([payload]))


def _resync(data: bytes) -> None:
    cut = int.from_bytes(data[:2], "little")
    index, file = data[2 : 2 + cut], data[2 + cut :]
    _check_scan(file, None)
    _check_scan(file, decode_index(index, _last_end(index), index.count(b"\n")))


def _last_end(index: bytes) -> int:
    """The size of the shard that an index seems to be of."""
    last = index.rstrip(b"\n").rpartition(b"\n")[2].split()
    return sum(int(word) for word in last if word.isdigit() and len(word) < 20)


def _check_scan(file: bytes, places: Any) -> None:
    at, number = 0, -1
    for one in scan(HashedReader(io.BytesIO(file), hashed=True), places):
        if isinstance(one, Intact):
            assert one.offset >= at
            assert one.number > number
            (found,) = scan_records(io.BytesIO(file[one.offset : one.offset + one.size]))
            assert len(found[1]) == one.size - FRAME_BYTES
            at, number = one.offset + one.size, one.number
        else:
            assert isinstance(one, Gap)
            assert 0 <= one.offset <= one.offset + one.size <= max(len(file), one.offset)


def _compressed(data: bytes) -> None:
    for compression in {detect_compression(data), "GZIP", "ZLIB"} - {""}:
        try:
            for payload in scan_compressed(io.BytesIO(data), compression):
                assert isinstance(payload, bytes)
        except FormatError:
            continue


def _example(data: bytes) -> None:
    features = decode_example(data)
    again = decode_example(encode_example(features))
    assert again.keys() == features.keys()
    for key, value in features.items():
        assert type(again[key]) is type(value)
        if isinstance(value, np.ndarray):
            assert np.array_equal(again[key], value, equal_nan=value.dtype.kind == "f")
        else:
            assert again[key] == value


def _text(data: bytes) -> str:
    """Text of any kind, lone surrogates among it."""
    return data.decode("utf-8", "surrogateescape")


def _manifest(data: bytes) -> None:
    manifest = manifest_json.loads(_text(data))
    assert manifest_json.loads(manifest_json.dumps(manifest)) == manifest
    assert all(split.records * FRAME_BYTES <= split.bytes * 1032 for split in manifest.splits.values())
    assert manifest.foreign is None or manifest.image_key is None or manifest.image_key in manifest.schema
    for name, stats in ((name, stats) for split in manifest.splits.values() for name, stats in split.tensors.items()):
        assert isinstance(name, str)
        assert stats.nan <= stats.values
    try:
        tfds_metadata.dataset_info_json(manifest)
        tfds_metadata.label_files(manifest)
        tfds_metadata.features_json(manifest)
    except ConfigError:  # which names cannot nest, and raw images without a side
        return


def _tensor_proto(data: bytes) -> None:
    proto = read_tensor_proto(data)
    if proto is not None:
        bits = TensorType(proto.dtype, (None,) * len(proto.shape), "proto").read_bits(data)
        assert bits.shape == proto.shape
        assert data.endswith(bits.tobytes()) or bits.tobytes() in data


def _schema(data: bytes) -> None:
    schema = read(parse_json(_text(data), "s.json"), Schema)
    assert read(schema.to_json(), Schema) == schema


def _form(data: bytes) -> None:
    root = read(parse_json(_text(data), "f.json"), dict[str, object])
    assert 1 <= ImageForm.recorded(root).quality <= 100


def _json(data: bytes) -> None:
    waiting = [parse_json(_text(data), "j.json")]
    while waiting:
        node = waiting.pop()
        for kind in (str, int, float, object, dict[str, int], list[str], Schema, Manifest):
            try:
                value = read(node, kind, "j.json")
                assert not isinstance(value, float) or math.isfinite(value)
            except FormatError as error:
                assert len(str(error)) < 4000
        waiting += node if isinstance(node, list) else node.values() if isinstance(node, dict) else ()


def _tfds(data: bytes) -> None:
    """The files of TFDS beside foreign shards, which are hints: what is wrong with them is only said."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        for name in (file_names.TFDS_INFO, file_names.TFDS_FEATURES, "labels.txt"):
            Path(folder, name).write_bytes(data)
        found = read_metadata(folder)
    assert all(isinstance(note, str) and len(note) < 4000 for note in found.notes)
    assert len(found.file_records) <= len(found.file_splits)


def _index(data: bytes) -> None:
    end = _last_end(data)
    table = decode_index(data, end, data.count(b"\n"))
    assert decode_index(encode_index(table[:, 1].tolist()), end, len(table)).tolist() == table.tolist()
    assert int(table[:, 1].sum()) == end


def _naming(data: bytes) -> None:
    name = _text(data)
    try:
        split, index, count = file_names.parse_shard_name(name)
        file_names.check_split_name(split)
        file_names.parse_shard_name(file_names.shard_name(split, index, count))
    except FormatError:
        pass
    file_names.check_foreign_name(name)
    assert ".." not in name.split("/")
    assert not name.startswith("/")
    assert "\0" not in name


def _signed(data: bytes) -> bytes:
    """A view or a catalog whose checksum holds, as far as its header is JSON: it takes more than damage to make one."""
    text, _, body = data.partition(b"\n")
    try:
        header = json.loads(text)
        del header["sha256"]
        return encode_headed(header.pop("format"), header, [body])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return data


def _view(data: bytes) -> None:
    view = decode_view(_signed(data), "v.view", seeds.STORED)
    assert decode_view(view.encode(), "v.view", seeds.STORED).encode() == view.encode()
    for name, split in view.splits.items():
        assert split.records == len(np.unique(split.numbers)) <= split.stored_records <= seeds.STORED[name]


def _catalog(data: bytes) -> None:
    catalog = decode_catalog(_signed(data), "catalog", lambda _: seeds.STORED)
    assert decode_catalog(catalog.encode(), "catalog", lambda _: seeds.STORED).encode() == catalog.encode()
    hidden = (item for entry in catalog.entries for item in entry.hidden.items())
    assert all(len(records) <= seeds.STORED[name] for name, records in hidden)
    assert all(entry.path == file_names.CATALOG or entry.path.count("/") == 1 for entry in catalog.entries)


def _column(data: bytes) -> None:
    """The manifest of a column beside that of its dataset."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        Path(folder, file_names.MANIFEST).write_bytes(seeds.COLUMN_BASE)
        entry = Entry("column", "0" * 64, 1, "c")
        Path(folder, entry.path).mkdir(parents=True)
        Path(folder, entry.path, file_names.MANIFEST).write_bytes(data)
        entry = replace(entry, made=list_fingerprints(load_own_manifest(os.path.join(folder, entry.path))))
        found = load_own_manifest(folder)
        column = load_column(found, entry, folder)
        assert column is not None
        used = use_columns(found, [column])
    assert [each.directory for each in used.columns] == [f"{folder}/{entry.path}"]
    assert column.splits.keys() == found.splits.keys()


_PLACED = [(0).to_bytes(8, "little") + (19).to_bytes(8, "little") + seeds.framed([b"one", b"three"])]
_INDEXED = [
    len(index).to_bytes(2, "little") + index + file
    for index, file in (
        (seeds.INDEXES[0], seeds.RECORDS[0]),
        (b"", seeds.RECORDS[2]),
        (seeds.INDEXES[1], seeds.RECORDS[1]),
    )
]

TARGETS = {
    "record": Target(_record, seeds.RECORDS, "records"),
    "place": Target(_place, _PLACED, "placed"),
    "resync": Target(_resync, _INDEXED, "indexed"),
    "compressed": Target(_compressed, seeds.COMPRESSED, "bytes"),
    "example": Target(_example, seeds.EXAMPLES, "protobuf"),
    "tensor_proto": Target(_tensor_proto, seeds.TENSOR_PROTOS, "protobuf"),
    "schema": Target(_schema, seeds.SCHEMAS, "json"),
    "manifest": Target(_manifest, seeds.MANIFESTS, "json"),
    "index": Target(_index, seeds.INDEXES, "numbers"),
    "naming": Target(_naming, seeds.NAMES, "bytes"),
    "form": Target(_form, seeds.FORMS, "json"),
    "tfds": Target(_tfds, seeds.TFDS, "json"),
    "view": Target(_view, seeds.VIEWS, "headed"),
    "catalog": Target(_catalog, seeds.CATALOGS, "headed"),
    "column": Target(_column, seeds.COLUMNS, "json"),
    "checked_json": Target(_json, seeds.JSON, "json"),
}


_MAX_KEPT = 500
SECONDS = 5
"""Of CPU, for one input of at most `MAX_BYTES`."""
MAX_BYTES = 1 << 16
_MAX_MEMORY_BYTES = 2 << 30  # addresses of the whole process, a third of which the libraries take


class TooSlow(BaseException):
    """No parser catches it."""


def run(name: str, data: bytes) -> bool:
    """Whether the input was read: False where it was refused with `FormatError`."""
    try:
        TARGETS[name].parse(data)
    except FormatError:
        return False
    return True


def limit() -> None:
    """Bounds memory for the rest of this process, and gets `run_timed` ready."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {SECONDS} s")

    signal.signal(signal.SIGVTALRM, stop)


def run_timed(name: str, data: bytes) -> bool:
    """`run`, with `TooSlow` where it takes too long."""
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        return run(name, data)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def inputs(name: str, seed: object) -> Generator[bytes, bool, None]:
    """Changes of the seeds, and of what was read all the same; each must be tried before the next is asked for."""
    parser, rng = TARGETS[name], random.Random(f"{seed} {name}")
    kept = list(parser.seeds)
    while True:
        data = mutate.change(rng.choice(kept), parser.kind, rng)[:MAX_BYTES]
        was_read = yield data
        if was_read and len(kept) < _MAX_KEPT:
            kept.append(data)
