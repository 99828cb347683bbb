"""Records without images: TensorFlow, PyTorch and JAX give equal values, on any number of hosts, from any step on."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
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
    (batch,) = [
        batch for batch, _ in zip(data_loader(TorchBatches(manifest, "train", config), 0), range(1), strict=False)
    ]
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
