"""Several datasets in fixed shares of every batch."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.pipeline.conftest import write_dataset
from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.distribution.distribute import distribute_dataset, steps_per_epoch
from tfpipe.engine.config.pipeline_config import PipelineConfig, TfDataOptions
from tfpipe.engine.mixture import Mixture, apportion, mix
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_dataset, build_stages

CONFIG = PipelineConfig(batch_size=20, image_size=8, extra_features=("id", "image/class/text"))


@pytest.mark.parametrize(
    ("weights", "total", "shares"),
    [
        ((0.7, 0.3), 256, (179, 77)),
        ((7, 3), 256, (179, 77)),
        ((1, 1, 1), 64, (22, 21, 21)),
        ((5,), 8, (8,)),
    ],
)
def test_shares_are_whole_and_fill_the_batch(weights, total, shares) -> None:
    assert apportion(weights, total) == shares


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
    """Writes 40 records with other classes: `dog` is the first and `emu` is new."""
    folder = tmp_path_factory.mktemp("other")
    manifest = write_dataset(folder, train=(25, 15))
    text = (folder / "manifest.json").read_text().replace('["cat", "dog", "owl"]', '["dog", "emu", "cat"]')
    (folder / "manifest.json").write_text(text)
    assert load_manifest(str(folder)).label_names != manifest.label_names
    return load_manifest(str(folder))


@pytest.fixture(scope="module")
def undisturbed(many: Manifest, other: Manifest) -> list[dict[str, np.ndarray]]:
    """The first 23 batches, beyond an epoch of each dataset."""
    dataset = build_dataset(mix({many.directory: 3, other.directory: 1}), "train", CONFIG)
    return list(dataset.take(23).as_numpy_iterator())


def test_pairs_end_with_the_epoch(many: Manifest, other: Manifest) -> None:
    config, data = dataclasses.replace(CONFIG, as_supervised=True), mix({many.directory: 3, other.directory: 1})
    steps = steps_per_epoch(data, "train", config)
    assert int(build_dataset(data, "train", config).cardinality()) == steps > 1


def test_every_batch_has_its_shares_and_classes_meet_by_name(many, other, undisturbed):
    mixture = mix({many.directory: 3, other.directory: 1})
    assert mixture.label_names == ("cat", "dog", "owl", "emu")
    stages = build_stages(mixture, "train", CONFIG)
    assert stages.names == ("list", "read", "decode", "batch", "prefetch")
    assert stages[0].settings["datasets"] == f"15 of 20 from {many.directory}, 5 of 20 from {other.directory}"
    # Both count records from 0 and give record n the class n % 3: the first has 257, the other 40 and other names.
    renamed = [mixture.label_names.index(name) for name in ("dog", "emu", "cat")]
    seen = np.zeros(4, int)
    for batch in undisturbed:
        own = batch["label"] == batch["id"] % 3
        theirs = batch["label"] == np.take(renamed, batch["id"] % 3)
        assert (own | theirs).all()
        assert (~own).sum() == 5  # no class of the other keeps its number
        seen += np.bincount(batch["label"], minlength=4)
    assert (seen > 0).all()
    assert undisturbed[0]["image"].shape == (20, 8, 8, 3)


def test_what_a_mixture_cannot_do(many: Manifest, other: Manifest, tmp_path: Path) -> None:
    mixture = Mixture((many, other), (1.0, 1.0))
    for config, wish in (
        (dataclasses.replace(CONFIG, training=False), "evaluated"),
        (dataclasses.replace(CONFIG, cache="bytes", cache_dir=str(tmp_path)), "cached in files"),
    ):
        with pytest.raises(ConfigError) as caught:
            build_dataset(mixture, "train", config)
        assert str(caught.value) == f"A mixture cannot be {wish} as a whole. Take its datasets one by one."
    with pytest.raises(ConfigError, match=r"^`tf_data` is for the textbook pipeline, .* got autotune\."):
        build_dataset(mixture, "train", dataclasses.replace(CONFIG, tf_data=TfDataOptions(autotune=False)))
    with pytest.raises(ConfigError, match=r"^A mixture is read in exact order, and `order` is throughput\. Leave out"):
        build_dataset(mixture, "train", dataclasses.replace(CONFIG, order="throughput"))


def test_all_have_labels_or_none(many: Manifest, tmp_path: Path) -> None:
    write_dataset(tmp_path, train=(9,))
    text = (tmp_path / "manifest.json").read_text()
    text = text.replace('"label_names": ["cat", "dog", "owl"]', '"label_names": []')
    (tmp_path / "manifest.json").write_text(text.replace('"class_counts": [3, 3, 3]', '"class_counts": []'))
    with pytest.raises(ConfigError) as caught:
        mix({many.directory: 1, str(tmp_path): 1})
    assert str(caught.value) == f"All datasets of a mixture must have labels, or none; {tmp_path} has none."


def test_it_is_the_same_each_time_and_is_distributed_like_any_other(many, other, undisturbed):
    mixture = Mixture((many, other), (3.0, 1.0))
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    distributed = iter(distribute_dataset(strategy, mixture, "train", CONFIG))
    for expected in undisturbed[:3]:
        np.testing.assert_array_equal(next(distributed)["id"], expected["id"])
    assert steps_per_epoch(mixture, "train", CONFIG, strategy) == (257 + 40) // 20
