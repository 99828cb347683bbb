"""A small dataset of tensors and text, written by hand."""

import hashlib
from pathlib import Path

import numpy as np

from tfpipe.format import manifest_json
from tfpipe.format.example import encode_example
from tfpipe.format.file_names import index_name
from tfpipe.format.manifest import Manifest, ShardInfo
from tfpipe.format.record_index import encode_index
from tfpipe.format.schema import FeatureSpec, Schema
from tfpipe.format.shard_stats import ShardStats
from tfpipe.format.tensors.tensor_type import TensorType
from tfpipe.format.tfrecord import record_footer, record_header

SCHEMA = Schema(
    (
        FeatureSpec.make_tensor("tokens", TensorType("int32", (None, 2))),
        FeatureSpec.make_tensor("frames", TensorType("float32", (None, None, 3), sizes="frames.sizes")),
        FeatureSpec("frames.sizes", "int64", (2,)),
        FeatureSpec.make_text("caption"),
    )
)
RECORDS = [
    {"tokens": np.int32([[1, 2]]), "frames": np.zeros((1, 2, 3), np.float32), "caption": "a dog"},
    {"tokens": np.int32([[3, 4], [5, 6]]), "frames": np.float32(np.arange(6)).reshape(2, 1, 3), "caption": "é"},
]


def write_tensors(folder: Path) -> Manifest:
    stats, data, sizes = ShardStats(), b"", []
    for record in RECORDS:
        checked = SCHEMA.check(record)
        assert stats.add_tensors(SCHEMA, checked) == []
        payload = encode_example(checked)
        frame = record_header(len(payload)) + payload + record_footer(payload)
        sizes.append(len(frame))
        data += frame
    name = "train-00000-of-00001.tfrecord"
    shard = ShardInfo(name, len(RECORDS), len(data), hashlib.sha256(data).hexdigest())
    split = stats.to_split_info("train", [shard], 0)
    manifest = Manifest(name="tensors", splits={"train": split}, schema=SCHEMA, tool_version="0.1.0")
    (folder / "index").mkdir()
    (folder / name).write_bytes(data)
    (folder / index_name(name)).write_bytes(encode_index(sizes))
    (folder / "manifest.json").write_text(manifest_json.dumps(manifest))
    return manifest
