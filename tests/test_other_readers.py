"""Readers that know nothing of tfpipe open what it writes. TFDS is tested beside its metadata."""

import hashlib
import json
from pathlib import Path

import pytest

from tests.beam_jobs.commands import run_python
from tests.beam_jobs.datasets import read_records
from tests.export.datasets import make_photo_dataset

# In a process of its own: the package brings a copy of TensorFlow's protocol that cannot live beside the original.
_READ = """
import hashlib, json, pathlib, sys
sys.modules["torch"] = None  # the package loads it if it can, in a second, and nothing here needs it
from tfrecord.reader import tfrecord_loader
found = []
for shard in sorted(pathlib.Path(sys.argv[1]).glob("train-*")):
    index = shard.parent / "index" / (shard.stem + ".idx")
    for part in range(2):  # each half by its place in the index
        keys = {"image/encoded": "byte", "image/class/label": "int"}
        for record in tfrecord_loader(str(shard), str(index), keys, shard=(part, 2)):
            digest = hashlib.sha256(bytes(record["image/encoded"])).hexdigest()
            found.append([digest, int(record["image/class/label"][0])])
print(json.dumps(found))
"""


@pytest.mark.needs("tfrecord")
def test_vahidk_tfrecord_reads_every_record_by_the_index(small_dataset: Path) -> None:
    done = run_python("-c", _READ, small_dataset)
    images = small_dataset.parent / "images" / "train"
    sources = sorted(path for path in images.rglob("*.*") if path.name != "broken.jpg")
    labels = {"cat": 0, "dog": 1, "owl": 2}
    expected = [[hashlib.sha256(path.read_bytes()).hexdigest(), labels[path.parent.name]] for path in sources]
    assert sorted(json.loads(done.stdout)) == sorted(expected)


def test_tf_models_finds_the_features_that_it_documents(tmp_path: Path) -> None:
    for features in read_records(make_photo_dataset(tmp_path)):
        kinds = {name: "bytes" if isinstance(value, list) else str(value.dtype) for name, value in features.items()}
        for name in ("image/encoded", "image/class/label", "image/height", "image/width"):
            assert (kinds[name], len(features[name])) == ("bytes" if name == "image/encoded" else "int64", 1)
        assert {kinds[f"image/object/bbox/{side}"] for side in ("xmin", "xmax", "ymin", "ymax")} == {"float32"}
        assert kinds["image/object/class/label"] == "int64"
        assert "image/source_id" not in features  # so the page says to let the Garden make it
