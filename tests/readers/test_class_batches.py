"""Lists of classes in batches: ragged, padded, and as vectors, with equal values in TensorFlow, PyTorch and JAX."""

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import torch

import tfpipe
from tests.beam_jobs.images import make_png
from tests.refusals import refusal
from tfpipe import fields
from tfpipe.errors import ConfigError
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.torch import TorchBatches, data_loader

NAMES = ("red", "round", "small")
SCHEMA = {
    "id": fields.Values("int64"),
    "tags": fields.Labels(NAMES),
    "pair": fields.Labels(NAMES, count=2),
}


def list_tags(number: int) -> list[int]:
    return [2, 0, 1, 0][: number % 5]


def list_pair(number: int) -> list[int]:
    return [number % 3, 1]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> tfpipe.Manifest:
    records = ({"id": k, "tags": list_tags(k), "pair": list_pair(k)} for k in range(20))
    return tfpipe.write(records, tmp_path_factory.mktemp("classes") / "out", SCHEMA, num_shards=2, workers=0)


def make_config(**options: Any) -> tfpipe.PipelineConfig:
    return tfpipe.PipelineConfig(batch_size=8, **{"training": False, **options})


def to_plain(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    if isinstance(value, list):
        return [each.tolist() for each in value]
    return value.numpy().tolist() if isinstance(value, tf.Tensor) else value.tolist()


def read_all(manifest: tfpipe.Manifest, config: tfpipe.PipelineConfig, *, jax: bool = True) -> list[dict[str, Any]]:
    readers: list[Any] = [
        tfpipe.build_dataset(manifest, "train", config).take(3 if not config.training else 2),
        data_loader(TorchBatches(manifest, "train", config), 0),
        *([JaxBatches(manifest, "train", config)] if jax else []),
    ]
    found = [[{name: to_plain(value) for name, value in batch.items()} for batch in reader] for reader in readers]
    assert all(batches == found[0] for batches in found)
    return found[0]


def join(batches: list[dict[str, Any]], name: str) -> list[Any]:
    return [row for batch in batches for row in batch[name]]


def test_lists_are_ragged(manifest: tfpipe.Manifest) -> None:
    batches = read_all(manifest, make_config(), jax=False)
    numbers = join(batches, "id")
    assert join(batches, "tags")[:20] == [list_tags(number) for number in numbers[:20]]
    assert join(batches, "pair")[:20] == [list_pair(number) for number in numbers[:20]]
    assert join(batches, "tags")[20:] == [[]] * 4


def test_lists_are_padded_with_no_class(manifest: tfpipe.Manifest) -> None:
    batches = read_all(manifest, make_config(training=True, pad_to={"tags": 3}))
    numbers = join(batches, "id")
    assert join(batches, "tags") == [([*list_tags(k)[:3], -1, -1, -1])[:3] for k in numbers]
    assert join(batches, "tags.sizes") == [[k % 5] for k in numbers]


def test_lists_are_vectors(manifest: tfpipe.Manifest) -> None:
    batches = read_all(manifest, make_config(multi_hot=("tags", "pair")))
    numbers = join(batches, "id")
    for name, list_classes in (("tags", list_tags), ("pair", list_pair)):
        expected = [[float(number in list_classes(k)) for number in range(3)] for k in numbers[:20]]
        assert join(batches, name) == expected + [[0.0] * 3] * 4


def test_dtypes(manifest: tfpipe.Manifest) -> None:
    for options, kind in (({}, "int64"), ({"pad_to": {"tags": 3}}, "int64"), ({"multi_hot": ("tags",)}, "float32")):
        config = make_config(**options)
        assert tfpipe.build_dataset(manifest, "train", config).element_spec["tags"].dtype.name == kind
        batch = next(iter(data_loader(TorchBatches(manifest, "train", config), 0)))
        assert batch["tags"][0].dtype == getattr(torch, kind)


def test_beside_images(tmp_path: Path) -> None:
    schema = {"image": fields.Image(), "tags": fields.Labels(NAMES)}
    records = [{"image": make_png(k), "tags": list_tags(k)} for k in range(8)]
    manifest = tfpipe.write(records, tmp_path / "out", schema, num_shards=1, workers=0)
    config = make_config(image_size=8, extra_features=("tags",), multi_hot=("tags",))
    (batch,) = tfpipe.build_dataset(manifest, "train", config)
    assert batch["image"].shape == (8, 8, 8, 3)
    assert batch["tags"].numpy().tolist() == [[float(c in list_tags(k)) for c in range(3)] for k in range(8)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"multi_hot": ("id",)}, "`multi_hot` must name lists of classes in the batch (tags, pair), got 'id'."),
        (
            {"multi_hot": ("tags",), "extra_features": ("id",)},
            "`multi_hot` must name lists of classes in the batch (none), got 'tags'.",
        ),
        (
            {"multi_hot": ("tags",), "pad_to": {"tags": 3}},
            "`pad_to` must not name 'tags', which `multi_hot` names too. Choose one.",
        ),
        ({"pad_to": {"pair": 3}}, "`pad_to` must give 'pair' a size for each unknown axis, got 1 for values."),
    ],
)
def test_options_that_do_not_fit_are_refused(manifest: tfpipe.Manifest, options: dict[str, Any], message: str) -> None:
    assert refusal(ConfigError, tfpipe.build_dataset, manifest, "train", make_config(**options)) == message
