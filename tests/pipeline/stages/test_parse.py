"""Features: which ones come out of a record, and in what form."""

from __future__ import annotations

import pytest

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import tfrecord_files
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import RESERVED
from tfpipe.pipeline.build import build_dataset, build_stages

EVALUATION = {"training": False, "image_size": 8, "global_batch_size": 8}


def test_included_features_are_padded_and_cut(few: Manifest) -> None:
    extra_features = ("id", "pair", "marks", "words", "image/object/bbox/xmin", "image/filename", "image/height")
    config = PipelineConfig(**EVALUATION, extra_features=extra_features, max_boxes=3)
    batch = next(build_dataset(few, "train", config).as_numpy_iterator())
    assert set(batch) == {*extra_features, "image", "label", "mask"}
    assert batch["id"].tolist() == list(range(8))
    assert batch["pair"].tolist() == [[float(i), -0.5] for i in range(8)]
    assert batch["marks"].tolist() == [[j if j < i % 6 else -1 for j in range(3)] for i in range(8)]
    assert batch["words"].tolist() == [[b"w%d" % j if j < i % 3 else b"" for j in range(3)] for i in range(8)]
    sides = [[0.125 * (j + 1) if j < i % 4 else 0.0 for j in range(3)] for i in range(8)]
    assert batch["image/object/bbox/xmin"].tolist() == sides
    assert batch["image/filename"].tolist() == [b"%d.jpg" % i for i in range(8)]
    assert batch["image/height"].tolist() == [10] * 8


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
