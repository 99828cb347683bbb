"""Tensors and text of records in a batch: padded, or ragged."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.format.tensors.datasets import RECORDS, write_tensors
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.pipeline.build import build_dataset, build_stages

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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"pad_to": ("tokens",)},
            "`pad_to` must have sizes from 1 by the names of features, such as {'tokens': 77} or {'frames': (16, "
            "128)}, got ('tokens',).",
        ),
        (
            {"pad_to": {"tokens": 0}},
            "`pad_to` must have sizes from 1 by the names of features, such as {'tokens': 77} or",
        ),
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
    with pytest.raises(ConfigError) as error:
        build_dataset(dataset, "train", PipelineConfig(**SMALL, **options))
    assert str(error.value).startswith(message)
