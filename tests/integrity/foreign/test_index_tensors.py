"""`tfpipe index` on records of serialized tensors and no image, as trainers of diffusion models write them."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import Tfpipe
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.format.tensors.tensor_type import TensorType
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.pipeline.build import build_dataset


def make_latents(number: int) -> tf.Tensor:
    return tf.cast(tf.reshape(tf.range(8) + 8 * number, [2, 2, 2]), tf.bfloat16)


def make_states(number: int) -> tf.Tensor:
    return tf.fill([2 + number % 2, 3], tf.constant(np.nan if number == 3 else number, tf.float32))


@pytest.fixture
def folder(foreign, tmp_path: Path) -> Path:
    for file in range(2):
        records = [
            {
                "latents": tf.io.serialize_tensor(make_latents(number)).numpy(),
                "encoder_hidden_states": tf.io.serialize_tensor(make_states(number)).numpy(),
                "label": number % 3,
            }
            for number in range(4 * file, 4 * file + 4)
        ]
        foreign.write(tmp_path / "latents" / f"file_{file:02d}-4.tfrec", records)
    return tmp_path / "latents"


def test_dtypes_shapes_and_ranges_are_found(folder: Path, tfpipe: Tfpipe) -> None:
    manifest = index(IndexConfig(str(folder), split="train")).manifest
    assert manifest == load_manifest(str(folder))
    assert (manifest.image_key, manifest.label_key) == (None, "label")
    assert {spec.name: spec.tensor for spec in manifest.schema.tensors} == {
        "encoder_hidden_states": TensorType("float32", (None, 3), "proto"),
        "latents": TensorType("bfloat16", (2, 2, 2), "proto"),
    }
    assert manifest.splits["train"].tensors == {
        "encoder_hidden_states": TensorStats(8, 60, 9, 1, 0, 0.0, 7.0, (2,), (3,)),
        "latents": TensorStats(8, 64, 0, 0, 0, 0.0, 63.0),
    }
    assert dict(manifest.splits["train"].formats) == {}
    result = tfpipe("index", folder, "--split", "train")
    assert result.code == 0, result.err
    assert "tensor: 'encoder_hidden_states', float32 [?, 3]\ntensor: 'latents', bfloat16 [2, 2, 2]\n" in result.out
    assert "no image; label: 'label', 3 classes, stored from 0" in result.out


def test_they_are_read_padded_or_ragged(folder: Path) -> None:
    manifest = index(IndexConfig(str(folder), split="train")).manifest
    ragged = next(iter(build_dataset(manifest, "train", PipelineConfig(batch_size=8, training=False))))
    padded_config = PipelineConfig(batch_size=8, training=False, pad_to={"encoder_hidden_states": 4})
    padded = next(iter(build_dataset(manifest, "train", padded_config)))
    assert isinstance(ragged["encoder_hidden_states"], tf.RaggedTensor)
    for number in range(8):
        rows = 2 + number % 2
        np.testing.assert_array_equal(ragged["encoder_hidden_states"][number], make_states(number))
        np.testing.assert_array_equal(padded["encoder_hidden_states"][number, :rows], make_states(number))
        np.testing.assert_array_equal(padded["encoder_hidden_states"][number, rows:], np.zeros((4 - rows, 3)))
        assert padded["encoder_hidden_states.sizes"][number].numpy().tolist() == [rows]
        assert tf.reduce_all(ragged["latents"][number] == make_latents(number))
    assert ragged["label"].numpy().tolist() == [number % 3 for number in range(8)]


def test_other_values_stay_bytes(foreign, tmp_path: Path) -> None:
    tensor = tf.io.serialize_tensor(tf.zeros([2])).numpy()
    other = tf.io.serialize_tensor(tf.zeros([2], tf.int32)).numpy()
    rows = [{"a": tensor, "b": tensor, "c": tensor}, {"a": tensor, "b": other, "c": b"text"}]
    foreign.write(tmp_path / "mixed" / "train.tfrecord", rows)
    schema = index(IndexConfig(str(tmp_path / "mixed"))).manifest.schema
    assert [(spec.name, spec.kind) for spec in schema.features] == [("a", "tensor"), ("b", "values"), ("c", "values")]
    foreign.write(tmp_path / "text" / "train.tfrecord", [{"words": b"no image", "image": b"cats/1.jpg"}])
    manifest = index(IndexConfig(str(tmp_path / "text"))).manifest
    assert (manifest.image_key, manifest.schema.names) == (None, ("image", "words"))


def test_tensors_of_text_stay_bytes(foreign, tmp_path: Path) -> None:
    texts = [tf.io.serialize_tensor(tf.constant(value)).numpy() for value in (["a", "bc"], [], "d")]
    foreign.write(tmp_path / "train.tfrecord", [{"tokens": text} for text in texts])
    (spec,) = index(IndexConfig(str(tmp_path))).manifest.schema.features
    assert (spec.name, spec.dtype, spec.kind, spec.shape) == ("tokens", "bytes", "values", ())


def test_an_empty_tensor_of_a_huge_size_is_bytes(foreign, tmp_path: Path) -> None:
    """Whoever made room for its rows would take all memory."""
    for size, kind in ((2**16, "tensor"), (2**62, "values")):
        proto = tf.make_tensor_proto(np.zeros((1, 0), np.float32))
        proto.tensor_shape.dim[0].size = size
        data = proto.SerializeToString()
        foreign.write(tmp_path / kind / "train.tfrecord", [{"a": data}])
        assert [spec.kind for spec in index(IndexConfig(str(tmp_path / kind))).manifest.schema.features] == [kind]
