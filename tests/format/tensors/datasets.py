"""A small dataset of tensors and text, written by hand."""

from pathlib import Path

import numpy as np

from tests.integrity.made import write_shards
from tfpipe.format import manifest_json
from tfpipe.format.example import encode_example
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import FeatureSpec, Schema
from tfpipe.format.shard_stats import ShardStats
from tfpipe.format.tensors.tensor_type import TensorType

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
    stats, payloads = ShardStats(), []
    for record in RECORDS:
        checked = SCHEMA.check(record)
        assert stats.add_tensors(SCHEMA, checked) == []
        payloads.append(encode_example(checked))
    split = stats.to_split_info("train", write_shards(folder, "train", [payloads]), 0)
    manifest = Manifest(name="tensors", splits={"train": split}, schema=SCHEMA, tool_version="0.1.0")
    (folder / "manifest.json").write_text(manifest_json.dumps(manifest))
    return manifest
