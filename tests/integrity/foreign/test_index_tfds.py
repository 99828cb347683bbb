"""A dataset that TensorFlow Datasets itself wrote, indexed, verified and read with exact resume, and left untouched."""

import os
from pathlib import Path
from typing import ClassVar

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf

from tests.beam_jobs.datasets import read_tree
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.pipeline.build import build_dataset

tfds = pytest.importorskip("tensorflow_datasets")
pytestmark = pytest.mark.needs("tensorflow_datasets")

NAMES = ["daisy", "rose", "tulip"]


class Flowers(tfds.core.GeneratorBasedBuilder):
    """Small PNGs, as CIFAR's."""

    VERSION = tfds.core.Version("1.0.0")
    url_infos: ClassVar[dict] = {}  # nothing is downloaded, and looking for checksums needs one more package

    def _info(self):
        features = {
            "id": tf.int64,
            "image": tfds.features.Image(shape=(8, 8, 3)),
            "label": tfds.features.ClassLabel(names=NAMES),
            "tags": tfds.features.Sequence(tfds.features.Text()),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 40), "test": self._generate_examples(40, 10)}

    def _generate_examples(self, first, count):
        for k in range(first, first + count):
            pixels = np.full((8, 8, 3), k, np.uint8)
            yield k, {"id": k, "image": pixels, "label": 1 + k % 2, "tags": ["a"] * (k % 3)}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    builder = Flowers(data_dir=str(tmp_path_factory.mktemp("tfds")))
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
    return Path(builder.data_path)


def test_tfds_is_indexed_verified_and_resumed(written: Path) -> None:
    before = read_tree(written)
    report = index(IndexConfig(str(written)))
    manifest = load_manifest(str(written))
    assert report.notes == ()
    assert {name: split.records for name, split in manifest.splits.items()} == {"train": 40, "test": 10}
    assert (manifest.name, manifest.image_key, manifest.label_key) == ("flowers", "image", "label")
    assert (manifest.label_base, manifest.label_names) == (0, tuple(NAMES))
    assert manifest.splits["train"].class_counts == (0, 20, 20)
    assert manifest.schema["tags"].shape is None
    assert Source.from_manifest(manifest, "train").images.size == (8, 8)
    checked = verify(str(written), VerifyConfig(workers=0))
    assert (checked.records, checked.damaged) == (50, [])
    config = PipelineConfig(batch_size=4, augment="none", image_size=8, extra_features=("id",))
    whole = list(build_dataset(manifest, "train", config).take(12).as_numpy_iterator())
    resumed = build_dataset(manifest, "train", config, start_step=7).take(5).as_numpy_iterator()
    assert [batch["id"].tolist() for batch in resumed] == [batch["id"].tolist() for batch in whole[7:]]
    for batch in whole:
        assert batch["label"].tolist() == (1 + batch["id"] % 2).tolist()
        assert batch["image"][:, 0, 0, 0].tolist() == batch["id"].tolist()
    assert before.items() <= read_tree(written).items()
    assert len(list(tfds.builder_from_directory(str(written)).as_dataset(split="train"))) == 40
