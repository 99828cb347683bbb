"""Records without images, and lists of classes: TensorFlow, PyTorch and JAX give equal values."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import torch

import tfpipe
from tests.refusals import refusal
from tfpipe import fields
from tfpipe.errors import ConfigError
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.torch import TorchBatches, data_loader

SCHEMA = {
    "id": fields.Values("int64"),
    "latents": fields.Tensor("bfloat16", (2, 3)),
    "flags": fields.Tensor("bool", (2,)),
    "tokens": fields.Tensor("int32", (None, 2)),
    "caption": fields.Text(),
    "class": fields.Label(("cat", "dog")),
}
NUMBERS = ("id", "latents", "flags", "tokens")
STEPS = 9  # more than an epoch of six


def make_record(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "latents": np.full((2, 3), number / 2).astype(ml_dtypes.bfloat16),
        "flags": np.array([number % 2 == 0, True]),
        "tokens": np.full((number % 4, 2), number, np.int32),
        "caption": f"é {number}",
        "class": number % 2,
    }


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> tfpipe.Manifest:
    output = tmp_path_factory.mktemp("tensors") / "out"
    return tfpipe.write(map(make_record, range(50)), output, SCHEMA, num_shards=4, workers=0)


def make_config(**options: Any) -> tfpipe.PipelineConfig:
    return tfpipe.PipelineConfig(batch_size=8, seed=5, pad_to={"tokens": 2}, **options)


def read_tensorflow(manifest: tfpipe.Manifest, config: tfpipe.PipelineConfig, **options: Any) -> list[dict[str, Any]]:
    dataset = tfpipe.build_dataset(manifest, "train", config, **options)
    return [{name: np.asarray(value) for name, value in batch.items()} for batch in dataset.take(STEPS)]


def to_plain(values: Any) -> Any:
    """Lists of Python's own numbers, which all libraries can give."""
    if isinstance(values, tf.RaggedTensor):
        return values.to_list()
    if isinstance(values, list):
        return [each.tolist() for each in values]
    if isinstance(values, torch.Tensor):
        values = values.float() if values.dtype == torch.bfloat16 else values
        return values.numpy().tolist()
    values = np.asarray(values)
    return values.astype(np.float32).tolist() if values.dtype.name == "bfloat16" else values.tolist()


def test_batches_hold_what_was_written(manifest: tfpipe.Manifest) -> None:
    for batch in read_tensorflow(manifest, make_config()):
        for row, number in enumerate(batch["id"].tolist()):
            record = make_record(number)
            assert to_plain(batch["latents"][row]) == to_plain(record["latents"])
            assert batch["flags"][row].tolist() == record["flags"].tolist()
            assert batch["tokens"][row].tolist() == ([[number] * 2] * min(number % 4, 2) + [[0, 0]] * 2)[:2]
            assert batch["tokens.sizes"][row].tolist() == [number % 4]
            assert (batch["caption"][row].decode(), batch["label"][row]) == (record["caption"], record["class"])


@pytest.mark.parametrize("training", [True, False])
def test_the_readers_give_equal_values(manifest: tfpipe.Manifest, training: bool) -> None:
    config = make_config(training=training)
    expected = read_tensorflow(manifest, config)
    loader, found = data_loader(TorchBatches(manifest, "train", config), num_workers=0), []
    for _ in range(2 if training else 1):
        found += list(loader)
    numbers = make_config(training=training, extra_features=NUMBERS)
    on_device = [batch for _ in range(2 if training else 1) for batch in JaxBatches(manifest, "train", numbers)][:7]
    for step, batch in enumerate(expected[: len(found)]):
        assert found[step].keys() == batch.keys()
        assert found[step]["latents"].dtype == torch.bfloat16
        for name, values in batch.items():
            value = found[step][name]
            assert (value if name == "caption" else to_plain(value)) == to_plain(values), name
    for step, batch in enumerate(on_device[:6]):
        assert batch["latents"].dtype == jnp.bfloat16
        assert isinstance(batch["latents"], jax.Array)
        for name, values in batch.items():
            assert to_plain(values) == to_plain(expected[step][name]), name


def test_without_a_size_tensors_are_lists(manifest: tfpipe.Manifest) -> None:
    config = tfpipe.PipelineConfig(batch_size=8, seed=5, extra_features=("id", "tokens"))
    batch = next(iter(data_loader(TorchBatches(manifest, "train", config), 0)))
    ragged = next(iter(tfpipe.build_dataset(manifest, "train", config)))
    assert [tokens.tolist() for tokens in batch["tokens"]] == ragged["tokens"].to_list()
    assert [len(tokens) for tokens in batch["tokens"]] == [number % 4 for number in batch["id"].tolist()]


def test_what_a_device_cannot_hold_is_refused(manifest: tfpipe.Manifest) -> None:
    for config, message in (
        (make_config(), "No device holds text, got caption. Name the others in `extra_features`."),
        (
            tfpipe.PipelineConfig(batch_size=8, extra_features=("tokens",)),
            "Arrays on devices must have one shape, and tokens has several. Give a size in `pad_to`, as in "
            "{'tokens': 77}.",
        ),
    ):
        assert refusal(ConfigError, JaxBatches, manifest, "train", config) == message
    with pytest.raises(ConfigError, match=r"^`transform` needs images, and 'train' of .* has none\. Leave it out\.$"):
        TorchBatches(manifest, "train", make_config(), transform=lambda image: image)


def test_records_are_found_by_their_number(manifest: tfpipe.Manifest) -> None:
    records = tfpipe.data_source(manifest, "train")
    record = records[4]
    assert (record.label_name, record.name) == ("cat", "")
    assert manifest.schema["caption"].decode(record.features) == "é 16"
    assert records.read_columns([0, 4], ["id"])["id"].tolist() == [0, 16]


# Lists of classes: ragged, padded, and as vectors

NAMES = ("red", "round", "small")


def list_tags(number: int) -> list[int]:
    return [2, 0, 1, 0][: number % 5]


def list_pair(number: int) -> list[int]:
    return [number % 3, 1]


@pytest.fixture(scope="module")
def classes(tmp_path_factory) -> tfpipe.Manifest:
    schema = {"id": fields.Values("int64"), "tags": fields.Labels(NAMES), "pair": fields.Labels(NAMES, count=2)}
    records = ({"id": k, "tags": list_tags(k), "pair": list_pair(k)} for k in range(20))
    return tfpipe.write(records, tmp_path_factory.mktemp("classes") / "out", schema, num_shards=2, workers=0)


def configure(**options: Any) -> tfpipe.PipelineConfig:
    return tfpipe.PipelineConfig(batch_size=8, **{"training": False, **options})


def read_all(classes: tfpipe.Manifest, config: tfpipe.PipelineConfig, *, jax: bool = True) -> list[dict[str, Any]]:
    readers: list[Any] = [
        tfpipe.build_dataset(classes, "train", config).take(3 if not config.training else 2),
        data_loader(TorchBatches(classes, "train", config), 0),
        *([JaxBatches(classes, "train", config)] if jax else []),
    ]
    found = [[{name: to_plain(value) for name, value in batch.items()} for batch in reader] for reader in readers]
    assert all(batches == found[0] for batches in found)
    return found[0]


def join(batches: list[dict[str, Any]], name: str) -> list[Any]:
    return [row for batch in batches for row in batch[name]]


def test_lists_are_ragged(classes: tfpipe.Manifest) -> None:
    batches = read_all(classes, configure(), jax=False)
    numbers = join(batches, "id")
    assert join(batches, "tags")[:20] == [list_tags(number) for number in numbers[:20]]
    assert join(batches, "pair")[:20] == [list_pair(number) for number in numbers[:20]]
    assert join(batches, "tags")[20:] == [[]] * 4


def test_lists_are_padded_with_no_class(classes: tfpipe.Manifest) -> None:
    batches = read_all(classes, configure(training=True, pad_to={"tags": 3}))
    numbers = join(batches, "id")
    assert join(batches, "tags") == [([*list_tags(k)[:3], -1, -1, -1])[:3] for k in numbers]
    assert join(batches, "tags.sizes") == [[k % 5] for k in numbers]


def test_lists_are_vectors(classes: tfpipe.Manifest) -> None:
    batches = read_all(classes, configure(multi_hot=("tags", "pair")))
    numbers = join(batches, "id")
    for name, list_classes in (("tags", list_tags), ("pair", list_pair)):
        expected = [[float(number in list_classes(k)) for number in range(3)] for k in numbers[:20]]
        assert join(batches, name) == expected + [[0.0] * 3] * 4


def test_dtypes_of_classes(classes: tfpipe.Manifest) -> None:
    for options, kind in (({}, "int64"), ({"pad_to": {"tags": 3}}, "int64"), ({"multi_hot": ("tags",)}, "float32")):
        config = configure(**options)
        assert tfpipe.build_dataset(classes, "train", config).element_spec["tags"].dtype.name == kind
        batch = next(iter(data_loader(TorchBatches(classes, "train", config), 0)))
        assert batch["tags"][0].dtype == getattr(torch, kind)


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
def test_options_that_do_not_fit_are_refused(classes: tfpipe.Manifest, options: dict[str, Any], message: str) -> None:
    assert refusal(ConfigError, tfpipe.build_dataset, classes, "train", configure(**options)) == message
