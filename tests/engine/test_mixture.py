"""Several datasets in fixed shares of every batch."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.pipeline.conftest import many as many
from tests.pipeline.conftest import write_dataset
from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.distribution.distribute import distribute_dataset, steps_per_epoch
from tfpipe.engine.config.pipeline_config import PipelineConfig, TfDataOptions
from tfpipe.engine.mixture import Mixture, apportion, mix
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.pipeline.build import build_dataset, build_stages
from tfpipe.readers.numpy import NumpyBatches

CONFIG = PipelineConfig(batch_size=20, image_size=8, extra_features=("id", "image/class/text"))


def test_a_weight_too_small_for_a_share() -> None:
    assert refusal(ConfigError, apportion, (99.9, 0.1), 64) == (
        "Every dataset of a mixture must have a share of each batch of 64, and a weight of 0.1 among 100 gives none. "
        "Raise it, or the batch size."
    )


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "A mixture must have a dataset, got none."),
        ({"/data/a": 0}, "A weight must be a number above 0, got 0 for /data/a."),
        ({"/data/a": float("nan")}, "A weight must be a number above 0, got nan for /data/a."),
        ({"/data/a": "1"}, "A weight must be a number above 0, got '1' for /data/a."),
    ],
)
def test_weights_that_cannot_be(weights, message: str) -> None:
    assert refusal(ConfigError, mix, weights) == message


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Manifest:
    """Writes 40 records with other classes to a path with a space: `dog` is the first and `emu` is new."""
    folder = tmp_path_factory.mktemp("other set")
    manifest = write_dataset(folder, train=(25, 15))
    text = (folder / "manifest.json").read_text().replace('["cat", "dog", "owl"]', '["dog", "emu", "cat"]')
    (folder / "manifest.json").write_text(text)
    assert load_manifest(str(folder)).label_names != manifest.label_names
    return load_manifest(str(folder))


@pytest.fixture
def mixture(many: Manifest, other: Manifest) -> Mixture:
    return mix({many.directory: 3, other.directory: 1})


def test_pairs_end_with_the_epoch(mixture: Mixture) -> None:
    config = dataclasses.replace(CONFIG, as_supervised=True)
    steps = steps_per_epoch(mixture, "train", config)
    assert int(build_dataset(mixture, "train", config).cardinality()) == steps > 1


def test_what_a_mixture_cannot_do(mixture: Mixture, tmp_path: Path) -> None:
    for config, wish in (
        (dataclasses.replace(CONFIG, training=False), "evaluated"),
        (dataclasses.replace(CONFIG, cache="bytes", cache_dir=str(tmp_path)), "cached in files"),
    ):
        sentence = f"A mixture cannot be {wish} as a whole. Take its datasets one by one."
        assert refusal(ConfigError, build_dataset, mixture, "train", config) == sentence
    with pytest.raises(ConfigError, match=r"^`tf_data` is for the textbook pipeline, .* got autotune\."):
        build_dataset(mixture, "train", dataclasses.replace(CONFIG, tf_data=TfDataOptions(autotune=False)))
    with pytest.raises(ConfigError, match=r"^A mixture is read in exact order, and `order` is throughput\. Leave out"):
        build_dataset(mixture, "train", dataclasses.replace(CONFIG, order="throughput"))


def test_all_have_labels_or_none(many: Manifest, tmp_path: Path) -> None:
    write_dataset(tmp_path, train=(9,))
    text = (tmp_path / "manifest.json").read_text()
    text = text.replace('"label_names": ["cat", "dog", "owl"]', '"label_names": []')
    (tmp_path / "manifest.json").write_text(text.replace('"class_counts": [3, 3, 3]', '"class_counts": []'))
    sentence = f"All datasets of a mixture must have labels, or none; {tmp_path} has none."
    assert refusal(ConfigError, mix, {many.directory: 1, str(tmp_path): 1}) == sentence


def test_the_stages_name_its_datasets_and_classes_meet_by_name(mixture: Mixture, many: Manifest, other: Manifest):
    assert mixture.label_names == ("cat", "dog", "owl", "emu")
    stages = build_stages(mixture, "train", CONFIG)
    assert stages.names == ("list", "read", "decode", "batch", "prefetch")
    assert stages[0].settings["datasets"] == f"15 of 20 from {many.directory}, 5 of 20 from {other.directory}"


def test_records_of_no_class_stay_so(foreign, tmp_path: Path) -> None:
    for names, labels in (("cat", [0, -1]), ("emu\ncat", [1, 0, -1, -7])):
        path = foreign.write(tmp_path / names[:3] / "x.tfrecord", [{"id": 0, "label": label} for label in labels])
        path.with_name("labels.txt").write_text(names)
        index(IndexConfig(str(path.parent)))
    batches = NumpyBatches(mix({str(tmp_path / "cat"): 1, str(tmp_path / "emu"): 2}), "train", batch_size=6)
    assert sorted(batches.read(0)["label"].tolist()) == [-7, -1, -1, 0, 0, 1]


def test_it_is_distributed_like_any_other(mixture: Mixture) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    distributed = iter(distribute_dataset(strategy, mixture, "train", CONFIG))
    for expected in build_dataset(mixture, "train", CONFIG).take(3):
        np.testing.assert_array_equal(next(distributed)["id"], expected["id"])
    assert steps_per_epoch(mixture, "train", CONFIG, strategy) == (257 + 40) // 20


def test_a_pass_ends_with_the_records_of_all(mixture: Mixture) -> None:
    batches = NumpyBatches(mixture, "train", CONFIG)
    assert len(batches) == 14  # of 297 records
    ids = [batch["id"].tolist() for _ in range(2) for batch in batches]
    assert ids == [batches.read(step)["id"].tolist() for step in range(28)]
    again = NumpyBatches(mixture, "train", CONFIG)
    again.load_state_dict({**batches.state_dict(), "epoch": 1, "step": 2})
    assert [batch["id"].tolist() for batch in again] == ids[16:]


def test_a_host_without_a_row_of_a_dataset_may_leave_records_out(mixture: Mixture) -> None:
    even = mix({manifest.directory: 1 for manifest in mixture.manifests})
    for host in range(2):
        strict, lenient = (
            NumpyBatches(even, "train", CONFIG, batch_size=2, rank=(host, 2), max_bad_records=most).read(3)
            for most in (0, 1)
        )
        assert lenient["id"].tolist() == strict["id"].tolist()
        np.testing.assert_array_equal(lenient["image"], strict["image"])
