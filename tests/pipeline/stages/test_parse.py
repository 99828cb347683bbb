"""Features: which ones come out of a record, and in what form."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.format.tensors.datasets import RECORDS, write_tensors
from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
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


def test_features_of_one_size_are_those_of_the_record_in_the_textbook_too(few: Manifest) -> None:
    config = PipelineConfig(**EVALUATION, extra_features=("id", "pair", "image/filename"), order="throughput")
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


SMALL = {"batch_size": 2, "training": False}


@pytest.fixture
def dataset(tmp_path: Path):
    write_tensors(tmp_path)
    return load_manifest(str(tmp_path))


def test_without_images_a_batch_has_all_features(dataset) -> None:
    stages = build_stages(dataset, "train", PipelineConfig(**SMALL))
    assert stages.names == ("list", "read", "decode", "batch", "prefetch")
    (batch,) = stages.dataset()
    assert set(batch) == {"tokens", "frames", "caption", "mask"}
    assert batch["caption"].numpy().tolist() == [record["caption"].encode() for record in RECORDS]
    for name in ("tokens", "frames"):
        assert isinstance(batch[name], tf.RaggedTensor)
        for k, record in enumerate(RECORDS):
            value = batch[name][k]
            value = value.to_tensor() if isinstance(value, tf.RaggedTensor) else value
            np.testing.assert_array_equal(value, record[name])


def test_padding_cuts_and_fills_and_keeps_the_sizes(dataset) -> None:
    config = PipelineConfig(**SMALL, extra_features=("tokens", "frames"), pad_to={"tokens": 1, "frames": (2, 2)})
    data = build_dataset(dataset, "train", config)
    assert data.element_spec["frames"].shape == (2, 2, 2, 3)
    (batch,) = data
    assert batch["tokens"].numpy().tolist() == [[[1, 2]], [[3, 4]]]
    assert batch["tokens.sizes"].numpy().tolist() == [[1], [2]]
    assert batch["frames.sizes"].numpy().tolist() == [[1, 2], [2, 1]]
    assert batch["frames"].numpy()[1].tolist() == [[[0, 1, 2], [0, 0, 0]], [[3, 4, 5], [0, 0, 0]]]


SIZES_BY_NAMES = (
    "`pad_to` must have sizes from 1 by the names of features, such as {'tokens': 77} or {'frames': (16, 128)}"
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad_to": ("tokens",)}, f"{SIZES_BY_NAMES}, got ('tokens',)."),
        ({"pad_to": {"tokens": 0}}, SIZES_BY_NAMES),
        (
            {"pad_to": {"frames": 3}},
            "`pad_to` must give 'frames' a size for each unknown axis, got 1 for float32 [?, ?, 3].",
        ),
        ({"pad_to": {"caption": 3}}, "`pad_to` must give 'caption' a size for each unknown axis, got 1 for text."),
        ({"pad_to": {"x": 3}}, "`pad_to` must name features of the batch, got 'x'; it has tokens, frames, caption."),
        ({"augment": "device"}, "`augment` device needs images, and 'train' of "),
        ({"cache": "decoded"}, "`cache` decoded needs images, and 'train' of "),
    ],
)
def test_options_that_do_not_fit_are_refused(dataset, options: dict, message: str) -> None:
    assert refusal(ConfigError, build_dataset, dataset, "train", **SMALL, **options).startswith(message)
