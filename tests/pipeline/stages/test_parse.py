"""Features: which ones come out of a record, and in what form."""

import pytest
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import tfrecord_files
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import RESERVED
from tfpipe.pipeline.build import build_dataset, build_stages

EVALUATION = {"training": False, "image_size": 8, "batch_size": 8}


def test_boxes_and_lists_with_a_size_are_padded_and_cut(few: Manifest) -> None:
    extra_features = ("id", "pair", "marks", "words", "image/object/bbox/xmin", "image/filename", "image/height")
    config = PipelineConfig(**EVALUATION, extra_features=extra_features, max_boxes=3, pad_to={"marks": 3, "words": 3})
    batch = next(build_dataset(few, "train", config).as_numpy_iterator())
    assert set(batch) == {*extra_features, "marks.sizes", "words.sizes", "image", "label", "mask"}
    assert batch["id"].tolist() == list(range(8))
    assert batch["pair"].tolist() == [[float(i), -0.5] for i in range(8)]
    assert batch["marks"].tolist() == [[j if j < i % 6 else -1 for j in range(3)] for i in range(8)]
    assert batch["words"].tolist() == [[b"w%d" % j if j < i % 3 else b"" for j in range(3)] for i in range(8)]
    sides = [[0.125 * (j + 1) if j < i % 4 else 0.0 for j in range(3)] for i in range(8)]
    assert batch["image/object/bbox/xmin"].tolist() == sides
    assert batch["image/filename"].tolist() == [b"%d.jpg" % i for i in range(8)]
    assert batch["image/height"].tolist() == [10] * 8
    assert batch["marks.sizes"].tolist() == [[i % 6] for i in range(8)]
    assert batch["words.sizes"].tolist() == [[i % 3] for i in range(8)]


@pytest.mark.parametrize("order", ["exact", "throughput"])
def test_features_of_one_size_are_those_of_the_record(few: Manifest, order: str) -> None:
    config = PipelineConfig(**EVALUATION, extra_features=("id", "pair", "image/filename"), order=order)
    batch = next(build_dataset(few, "train", config).as_numpy_iterator())
    assert set(batch) == {"id", "pair", "image/filename", "image", "label", "mask"}
    assert batch["id"].tolist() == list(range(8))
    assert batch["pair"].tolist() == [[float(i), -0.5] for i in range(8)]
    assert batch["image/filename"].tolist() == [b"%d.jpg" % i for i in range(8)]
    assert batch["label"].tolist() == [i % 3 for i in range(8)]


def test_a_list_without_a_size_is_not_cut(few: Manifest) -> None:
    config = PipelineConfig(**EVALUATION, extra_features=("marks", "words"), max_boxes=1)
    *_, batch = build_dataset(few, "train", config)
    whole = [list(range(i % 6)) for i in range(16, 23)]
    assert isinstance(batch["marks"], tf.RaggedTensor)
    assert batch["marks"].to_list() == [*whole, []]
    assert batch["words"].to_list() == [*([b"w%d" % j for j in range(i % 3)] for i in range(16, 23)), []]
    assert batch["words"].shape == (8, None)


def test_features_that_cannot_be_included(few: Manifest, foreign) -> None:
    for name in RESERVED:
        with pytest.raises(ConfigError, match=f"`extra_features` must not name '{name}': the pipeline uses"):
            build_stages(few, "train", PipelineConfig(**EVALUATION, extra_features=("id", name)))
    with pytest.raises(
        ConfigError, match=r"features of 'train' of .*, got 'nothing'; it has image/encoded, .*, pair\."
    ):
        build_stages(few, "train", PipelineConfig(**EVALUATION, extra_features=("nothing",)))
    with pytest.raises(ConfigError, match=r"`one_hot` needs the number of classes of .*: give `num_classes`\."):
        build_stages(tfrecord_files(str(foreign / "flat-*")), None, PipelineConfig(**EVALUATION, one_hot=True))
