"""What a manifest promises about a split, and files that something else wrote."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import Foreign as Writer
from tests.pipeline.conftest import few as few
from tests.pipeline.conftest import foreign as foreign
from tfpipe.engine.config.pipeline_config import PipelineConfig, TfDataOptions
from tfpipe.engine.source import StoredImages, get_source, tfrecord_files
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.manifest import Foreign, ImageSizes, Manifest, SplitInfo
from tfpipe.format.schema import FeatureSpec, Schema, image_schema
from tfpipe.pipeline.build import build_dataset

SPLIT = SplitInfo("train", (), {"JPEG": 3, "PNG": 1}, (), ImageSizes(4, 8, 6.0, 5, 9, 7.0), seekable_jpegs=3)
MANIFEST = Manifest(
    name="pets",
    splits={"train": SPLIT},
    schema=image_schema(labeled=False, boxes=False, box_labels=False),
    tool_version="0",
)


@pytest.mark.parametrize(("seekable_jpegs", "seekable"), [(0, False), (2, False), (3, True)])
@pytest.mark.parametrize("foreign", [None, Foreign(".", "image/encoded", None, 0, "")], ids=["own", "foreign"])
def test_a_split_is_seekable_if_all_of_its_jpegs_are(seekable_jpegs: int, seekable: bool, foreign: Foreign | None):
    split = replace(SPLIT, seekable_jpegs=seekable_jpegs)
    stored = StoredImages.from_manifest(replace(MANIFEST, splits={"train": split}, foreign=foreign), "train")
    assert stored == StoredImages(frozenset({"JPEG", "PNG"}), None, seekable)
    split = replace(SPLIT, formats={"PNG": 4}, seekable_jpegs=0)  # PNGs alone are not
    assert not StoredImages.from_manifest(replace(MANIFEST, splits={"train": split}), "train").seekable


EVALUATION = {"batch_size": 8, "image_size": 8, "training": False}


def write(path: Path, record: dict[str, object]) -> Path:
    """Writes an example with TensorFlow's own writer, as its users do."""
    return Writer().write(path, [record])


def test_the_first_record_says_what_all_are(tmp_path: Path) -> None:
    record = {"image/encoded": [b"x"], "image/class/label": [3], "box": [0.5, 1.0], "name": [b"a"]}
    (tmp_path / "a-0").write_bytes(b"")
    path = write(tmp_path / "a-1", record)
    source = tfrecord_files(str(tmp_path / "a-*"), num_classes=7)
    assert source.files == (str(tmp_path / "a-0"), str(path))
    assert [(spec.name, spec.dtype, spec.shape) for spec in source.schema.features] == [
        ("box", "float", None),
        ("image/class/label", "int64", ()),
        ("image/encoded", "bytes", ()),
        ("name", "bytes", ()),
    ]
    assert (source.image_key, source.label_key, source.num_classes) == ("image/encoded", "image/class/label", 7)
    assert (source.num_records, source.shard_records) == (None, None)
    source.check()  # nobody said how large they must be


def test_flat_names_and_labels_that_are_none(tmp_path: Path) -> None:
    source = tfrecord_files(str(write(tmp_path / "flat", {"image": [b"x"], "label": [1]})))
    assert (source.image_key, source.label_key) == ("image", "label")
    for label in ([b"cat"], [1, 2], [0.5]):  # no number of a class
        source = tfrecord_files(str(write(tmp_path / "other", {"image": [b"x"], "label": label})))
        assert source.label_key is None
    given = Schema((FeatureSpec("image", "bytes", ()), FeatureSpec("label", "int64", ())))
    assert tfrecord_files(str(tmp_path / "flat"), schema=given).schema == given


@pytest.mark.parametrize("kind", ["train", "flat"])
def test_foreign_files_are_read_once_in_evaluation(foreign: Path, kind: str) -> None:
    source = tfrecord_files(str(foreign / f"{kind}-*"))
    config = PipelineConfig(**EVALUATION, extra_features=("id",) if kind == "train" else ())
    batches = list(build_dataset(source, None, config))
    assert [batch["mask"].numpy().sum() for batch in batches] == [8, 8]
    assert batches[0]["image"].shape == (8, 8, 8, 3)
    labels = np.concatenate([batch["label"] for batch in batches])
    assert sorted(labels) == sorted(number % 3 for number in range(16))
    if kind == "train":
        numbers = np.concatenate([batch["id"] for batch in batches])
        assert sorted(numbers) == list(range(16))
        np.testing.assert_array_equal(labels, numbers % 3)


def test_uncounted_evaluation_gives_every_replica_a_batch(foreign: Path) -> None:
    source = tfrecord_files(str(foreign / "train-*"))
    config = PipelineConfig(**{**EVALUATION, "batch_size": 12}, extra_features=("id",))
    batches = list(build_dataset(source, None, config, tf.distribute.InputContext(1, 0, 3)))
    assert [batch["mask"].numpy().sum() for batch in batches] == [4, 4, 4, 4, 0, 0]  # twice three replicas


@pytest.mark.parametrize("cache", ["none", "decoded"])
def test_foreign_files_are_read_epoch_after_epoch_in_training(foreign: Path, cache: str) -> None:
    source = tfrecord_files(str(foreign / "train-*"))
    options = {
        "extra_features": ("id",),
        "image_size": 8,
        "cache": cache,
        "tf_data": TfDataOptions(shuffle_buffer_size=1, deterministic=True),
    }
    batches = list(build_dataset(source, None, PipelineConfig(batch_size=8, **options)).take(4))
    epochs = [np.concatenate([batch["id"] for batch in batches[i : i + 2]]) for i in (0, 2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(16))] * 2
    pixels = [np.concatenate([batch["image"] for batch in batches[i : i + 2]]) for i in (0, 2)]
    first, second = (pixels[i][np.argsort(epochs[i])] for i in (0, 1))
    assert (first != second).any(axis=(1, 2, 3)).sum() > 10  # other crops


def test_what_cannot_be_read(tmp_path: Path) -> None:
    def refuse(error: type[Exception], sentence: str) -> None:
        with pytest.raises(error, match=sentence):
            tfrecord_files(str(tmp_path / "x*"))

    refuse(DataError, r"No file fits .*x\*\. Check the path")
    (tmp_path / "x").write_bytes(b"")
    refuse(DataError, r"None of 1 files, from .*x on, has a record\.")
    write(tmp_path / "x", {"picture": [b"a"], "image": [1]})
    refuse(FormatError, r"an image under one of image/encoded, image; the first of .*x has image, picture\.")
    write(tmp_path / "x", {"image": [b"a", b"b"]})
    refuse(FormatError, r"an image under one of image/encoded, image; the first of .*x has image\.")
    data = bytearray(write(tmp_path / "x", {"image": [b"a"]}).read_bytes())
    data[14] ^= 1
    (tmp_path / "x").write_bytes(data)
    refuse(FormatError, r"x: Record 0 at byte 0 is damaged: the checksum of its \d+ bytes of payload")
    data[9] ^= 1
    (tmp_path / "x").write_bytes(data)
    refuse(FormatError, r"x: Record 0 at byte 0 is damaged: the checksum of its length")
    (tmp_path / "x").write_bytes(data[:5])
    refuse(FormatError, r"x: Record 0 at byte 0 is cut off: 5 of 12 header bytes")


def test_splits(few: Manifest, foreign: Path) -> None:
    source = get_source(few, "train")
    assert source.shard_records == (7, 5, 2, 9)
    assert source.bases.tolist() == [0, 7, 12, 14, 23]
    assert (source.num_classes, source.name) == (3, f"'train' of {few.directory}")
    for data, split, sentence in (
        (few, "test", r"no split 'test'; it has train, validation\."),
        (few, None, r"Say which split to read: train, validation\."),
        (replace(few, directory=""), "train", r"must come from `tfpipe.load_manifest`"),
        (tfrecord_files(str(foreign / "train-*")), "train", r"have no splits: give None for the split, got 'train'\."),
    ):
        with pytest.raises(ConfigError, match=sentence):
            get_source(data, split)
