"""Valid inputs of every parser, which the fuzzer changes."""

import gzip
import json
import zlib
from dataclasses import replace

import numpy as np

from tests.format.test_manifest import MANIFEST
from tests.integrity.damaged import framed
from tfpipe.format import manifest_json, tfds_metadata
from tfpipe.format.catalog import Catalog, Entry
from tfpipe.format.example import encode_example
from tfpipe.format.manifest import Foreign, Manifest
from tfpipe.format.record_index import encode_index
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, FeatureSpec, Schema, image_schema
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.format.tensors.tensor_type import TensorType
from tfpipe.format.tfrecord import FRAME_BYTES
from tfpipe.format.view import HIDDEN, View, ViewSplit

EXAMPLES = [
    b"",
    encode_example({"image/encoded": b"\xff\xd8\xff\xe0" * 9, "image/class/label": 3, "image/class/text": "cat"}),
    encode_example({"ints": list(range(0, 3000, 7)), "floats": [0.5, -1.0, 3e38], "texts": ["a", "", "long" * 40]}),
    encode_example({"empty": [], "none": None, "negative": [-1, 2**63 - 1, -(2**63)]}),
    # Not packed; then a group, which is refused.
    b"\n\x1f\n\x0e\n\x01a\x12\t\x1a\x07\x08\x01\x08\x02\n\x01\x03\n\r\n\x01b\x12\x08\x12\x06\r\x00\x00\x80?\x5d",
    b"\x4b\x4b\x10\x01\x4c\x4c\n\x00\x92\x06\x03abc\x81\x06abcdefgh",
]
PAYLOADS = [b"", b"one", bytes(40), *EXAMPLES[1:3]]


def sizes(payloads: list[bytes]) -> list[int]:
    return [len(one) + FRAME_BYTES for one in payloads]


RECORDS = [framed(PAYLOADS), framed([b"x"] * 6), framed([framed([b"inner", b"more"]), b"outer"]), b""]
COMPRESSED = [
    gzip.compress(RECORDS[0], mtime=0),
    zlib.compress(RECORDS[0]),
    gzip.compress(RECORDS[1], mtime=0) + gzip.compress(RECORDS[2], mtime=0),
    zlib.compress(bytes(100_000)),
]
INDEXES = [encode_index(sizes(PAYLOADS)), encode_index([16] * 20), b""]
NAMES = [b"train-00003-of-00008.tfrecord", b"images/part-7", b"../x", b"gs://bucket/x", "\u00e9/\u4e2d".encode()]


def _manifest(foreign: Foreign | None) -> Manifest:
    schema = image_schema(labeled=True, boxes=True, box_labels=False, extra=(FeatureSpec("depth", "float", (2, 3)),))
    split = replace(MANIFEST.splits["train"], seekable_jpegs=5)
    if foreign is not None:
        split = replace(split, shards=tuple(shard._replace(file=f"part/{k}") for k, shard in enumerate(split.shards)))
    return replace(MANIFEST, splits={"train": split}, schema=schema, foreign=foreign)


MANIFESTS = [
    manifest_json.dumps(_manifest(foreign)).encode()
    for foreign in (
        None,
        Foreign("/data", IMAGE_ENCODED, CLASS_LABEL, 1, ""),
        Foreign(".", IMAGE_ENCODED, None, 0, "GZIP"),
    )
]
TENSOR_PROTOS = [
    b"\x08\x03\x12\x08\x12\x02\x08\x02\x12\x02\x08\x01\x22\x08\x01\x00\x00\x00\x02\x00\x00\x00",
    b"\x08\x0e\x12\x00\x22\x02\x80\x3f",
    b"\x08\x01\x12\x08\x12\x02\x08\x00\x12\x02\x08\x03",
]
_TENSORS = Schema(
    (
        FeatureSpec.make_tensor("latents", TensorType("bfloat16", (None, 3), "proto")),
        FeatureSpec.make_tensor("frames", TensorType("uint8", (None, None, 3), sizes="frames.sizes")),
        FeatureSpec("frames.sizes", "int64", (2,)),
        FeatureSpec.make_text("caption"),
    )
)


def _tensor_manifest(foreign: Foreign | None) -> Manifest:
    split = _manifest(foreign).splits["train"]
    tensors = {"latents": TensorStats(7, 42, 2, 1, 0, -1.5, 3.0, (1,), (4,)), "frames": TensorStats(7, 0)}
    split = replace(split, formats={}, class_counts=(), seekable_jpegs=0, tensors=tensors)
    return replace(_manifest(foreign), schema=_TENSORS, splits={"train": split}, label_names=(), image={})


MANIFESTS += [
    manifest_json.dumps(_tensor_manifest(foreign)).encode() for foreign in (None, Foreign(".", None, None, 0, ""))
]
SCHEMAS = [
    json.dumps(_TENSORS.to_json()).encode(),
    json.dumps(image_schema(labeled=True, boxes=True, box_labels=True).to_json()).encode(),
    json.dumps(Schema(()).to_json()).encode(),
]
FORMS = [
    b'{"encoding": "raw", "square": 8, "resize_short": null, "quality": 1, "max_pixels": 64}',
    b'{"reencode_progressive": true, "other": "x"}',
]
TFDS = [
    tfds_metadata.features_json(_manifest(None)).encode(),
    tfds_metadata.dataset_info_json(_manifest(None)).encode(),
]
JSON = [*MANIFESTS[:1], *SCHEMAS[2:], *FORMS, *TFDS, b'{"a": [1, 2.5, "\\ud800", null, true, {"b": []}]}']

STORED = {"train": 40, "test": 10}
_VIEW = {
    "train": ViewSplit(np.array([0, 3, 39]), np.array([65536, 0, 98304], np.uint32), 40, 700, (2, 1), "f1"),
    "test": ViewSplit(np.arange(10), None, 10, 70, (), "f2"),
}
VIEWS = [View("few", _VIEW, {"where": "größer"}).encode(), View("none", {}).encode()]
_HIDDEN = {"train": np.array([(3, 1, 700), (4, -1, 20), (39, 0, 9)], HIDDEN)}
_ENTRIES = (
    Entry("append", "1a" * 32, 2, "", {"train": "ab"}, {"train": "c"}, {"train": 5}),
    Entry("delete", "2b" * 32, 3, "", {"train": "ef"}, {}, {"train": 3}, _HIDDEN),
    Entry("column", "3c" * 32, 2, "words", {"train": "ab"}, {"train": "d"}),
    Entry("view", "4d" * 32, 0, "few", {"train": "ab"}),
)
CATALOGS = [Catalog(_ENTRIES).encode(), Catalog().encode()]
_BASE = _tensor_manifest(None)
COLUMN_BASE = manifest_json.dumps(_BASE).encode()
COLUMNS = [
    manifest_json.dumps(
        replace(
            _BASE,
            schema=Schema((FeatureSpec.make_text("words"),)),
            splits={name: replace(split, tensors={}) for name, split in _BASE.splits.items()},
            stands_on={name: split.fingerprint for name, split in _BASE.splits.items()},
        )
    ).encode()
]
