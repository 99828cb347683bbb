"""`tfpipe index` on records of other projects: every reader has what TensorFlow's own parser has, value for value."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch

from tests.beam_jobs.datasets import join_datasets
from tests.conftest import Tfpipe
from tests.integrity.damaged import framed
from tests.integrity.foreign.families import FAMILIES, RECORDS, Family, example, png, sequence_example
from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.engine.order import Order
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.manifest import Manifest
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.format.tensors.tensor_type import TensorType
from tfpipe.integrity.foreign.index import IndexConfig, IndexReport, index
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.pipeline.build import build_dataset
from tfpipe.readers.data_source import data_source
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import ShardLoader, TorchBatches, data_loader

BATCH, BLOCK, STEPS = 6, 3, 4  # more steps than an epoch has
ONE_PROCESS = VerifyConfig(workers=0)


@dataclass(frozen=True)
class Indexed:
    """A family that was written and indexed, and what TensorFlow parses of each record."""

    family: Family
    manifest: Manifest
    parsed: list[Mapping[str, Any]]

    @property
    def config(self) -> PipelineConfig:
        parts = {*self.parsed[0]} - {"image", *self.family.text, self.manifest.label_key, self.manifest.value_key}
        return PipelineConfig(
            batch_size=BATCH,
            block_records=BLOCK,
            augment="none",
            image_size=8,
            images=self.family.images,
            extra_features=tuple(sorted(parts)),
            pad_to=dict(self.family.pad_to),
        )

    def list_numbers(self, step: int, host: int = 0, hosts: int = 1) -> list[int]:
        """Lists the records of a step by `tfpipe.engine.order`."""
        order = Order(RECORDS, BATCH, BLOCK, self.config.seed)
        return order.list_numbers(*order.locate(step), Host(host, hosts, hosts).share(BATCH)).tolist()

    def check(self, batch: Mapping[str, Any], numbers: list[int]) -> None:
        """Checks that the arrays of a batch are those of these records, in their order."""
        for name in self.parsed[0]:
            if name in batch:
                rows = [_to_array(self.parsed[number][name]) for number in numbers]
                if name in self.family.pad_to:
                    rows = [_pad(row, self.family.pad_to[name], -1 if row.dtype == np.int64 else 0) for row in rows]
                found, expected = _to_array(batch[name]), np.stack(rows)
                if expected.dtype == np.int64 and found.dtype == np.int32:  # as JAX has whole numbers
                    found = found.astype(np.int64)
                assert found.dtype == expected.dtype, name
                np.testing.assert_array_equal(found, expected, name)


def _to_array(value: Any) -> Any:
    """Makes an array of a tensor of any framework, of bfloat16 with its bits."""
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        value = value.view(torch.uint16)
    array = np.asarray(value)
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _pad(row: Any, length: int, padding: int) -> Any:
    filled = 0 if row.ndim > 1 else padding
    return np.concatenate([row, np.full((length - len(row), *row.shape[1:]), filled, row.dtype)])


@pytest.fixture(scope="module", params=[*FAMILIES, "deepvariant.gz"])
def indexed(request, tmp_path_factory) -> Indexed:
    name, _, packed = request.param.partition(".")
    family, folder = FAMILIES[name], tmp_path_factory.mktemp("family")
    records = family.write(folder, in_members=bool(packed))
    index(IndexConfig(str(folder), **family.index))
    return Indexed(family, load_manifest(str(folder)), [family.parse(tf.constant(record)) for record in records])


def test_numpy_has_every_value_and_the_text(indexed: Indexed) -> None:
    config = replace(indexed.config, extra_features=(*indexed.config.extra_features, *indexed.family.text))
    batches = NumpyBatches(indexed.manifest, "train", config)
    for step in range(STEPS):
        batch, numbers = batches.read(step), indexed.list_numbers(step)
        assert batch.keys() >= indexed.parsed[0].keys()
        for name in indexed.family.text:
            assert batch.pop(name) == [indexed.parsed[number][name].numpy() for number in numbers]
        indexed.check(batch, numbers)


def _resume(indexed: Indexed, reader: str, host: int, hosts: int) -> list[Mapping[str, Any]]:
    """Reads what comes after step 0: TensorFlow by the step's number, the others by a state saved after that step."""
    arguments = indexed.manifest, "train", indexed.config
    if reader == "tensorflow":
        context = tf.distribute.InputContext(hosts, host, hosts)
        return list(build_dataset(*arguments, context, start_step=1).take(STEPS - 1).as_numpy_iterator())
    left: JaxBatches | ShardLoader
    left, resumed = (
        JaxBatches(*arguments) if reader == "jax" else data_loader(TorchBatches(*arguments, rank=(host, hosts)), 0)
        for _ in range(2)
    )
    next(iter(left))
    resumed.load_state_dict(left.state_dict())
    return [batch for _ in range(2) for batch in resumed]


@pytest.mark.parametrize(
    ("reader", "hosts"),
    [("tensorflow", [(0, 1), (2, 3)]), ("torch", [(0, 1), (0, 3), (1, 3), (2, 3)]), ("jax", [(0, 1)])],
)
def test_each_framework_resumes_with_every_value_on_one_and_three_hosts(
    indexed: Indexed, reader: str, hosts: list[tuple[int, int]]
) -> None:
    for host in hosts:
        for step, values in zip(range(1, STEPS), _resume(indexed, reader, *host), strict=True):
            batch = dict(values)
            assert batch.keys() >= indexed.parsed[0].keys() - {*indexed.family.text}
            if reader == "torch" and "image" in batch:
                batch["image"] = batch["image"].movedim(-3, -1)
            indexed.check(batch, indexed.list_numbers(step, *host))


def _count_values(manifest: Manifest) -> Counter[Any]:
    """Counts the tensors and images of all records, by their names and bytes."""
    with data_source(manifest, "train") as source:
        return Counter(
            value
            for record in source
            for value in [
                *((spec.name, spec.check_stored(record.features).tobytes()) for spec in manifest.schema.tensors),
                *(("image", image.tobytes()) for image in (record.images if manifest.image_key else ())),
            ]
        )


def test_they_are_verified_and_made_a_dataset_of_our_own(indexed: Indexed, tmp_path: Path) -> None:
    manifest = indexed.manifest
    assert verify(manifest.directory, ONE_PROCESS).damaged == []
    if "image/encoded" in manifest.schema and manifest.image_key is None:
        assert refusal(DataError, join_datasets, [Path(manifest.directory)], tmp_path / "own").endswith(
            f"got 'image/encoded' in {manifest.directory}. Leave it out with `drop_features`."
        )
        return
    join_datasets([Path(manifest.directory)], tmp_path / "own")
    assert verify(str(tmp_path / "own"), ONE_PROCESS).damaged == []
    made = load_manifest(str(tmp_path / "own"))
    assert {spec.name: spec.tensor for spec in made.schema.tensors} == {
        spec.name: spec.tensor for spec in manifest.schema.tensors
    }
    assert made.has_several_images == manifest.has_several_images
    assert made.splits["train"].tensors == manifest.splits["train"].tensors
    assert _count_values(made) == _count_values(manifest)


# What the families do not have


def write(folder: Path, *records: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train.tfrecord").write_bytes(framed(list(records)))
    return folder


def run(folder: Path, *tensors: str, **options: Any) -> IndexReport:
    return index(IndexConfig(str(folder), tensors=tensors, **options))


def test_shapes_that_differ_stay_open_and_have_their_sizes(tmp_path: Path) -> None:
    shapes = [(2, 3), (4, 1), (2, 2)]
    records = [
        example({"pixels": np.full(shape, k, np.uint8).tobytes(), "sizes": np.array(shape), "row": np.zeros(shape[0])})
        for k, shape in enumerate(shapes)
    ]
    manifest = run(write(tmp_path / "x", *records), "pixels=uint8[sizes]", "row=float32[?]").manifest
    assert manifest == load_manifest(str(tmp_path / "x"))
    assert {spec.name: spec.tensor for spec in manifest.schema.tensors} == {
        "pixels": TensorType("uint8", (None, None), sizes="sizes"),
        "row": TensorType("float32", (None,), "list"),
    }
    assert manifest.splits["train"].tensors["pixels"] == TensorStats(3, 14, 0, 0, 0, 0, 2, (2, 1), (4, 3))
    batch = NumpyBatches(manifest, "train", batch_size=3, training=False).read(0)
    assert [array.tolist() for array in batch["pixels"]] == [np.full(s, k).tolist() for k, s in enumerate(shapes)]
    assert [len(row) for row in batch["row"]] == [2, 4, 2]
    padded = NumpyBatches(manifest, "train", batch_size=3, training=False, pad_to={"pixels": (4, 3), "row": 4}).read(0)
    assert padded["pixels"].shape == (3, 4, 3)
    assert padded["pixels.sizes"].tolist() == [list(shape) for shape in shapes]


def test_steps_of_one_width_are_found_and_others_left_out(tmp_path: Path) -> None:
    records = []
    for k in range(3):
        lists = {"even": [np.full(3, k, np.float32)] * (k + 1), "uneven": [np.arange(1), np.arange(2)]}
        records.append(sequence_example({"id": np.array(k)}, {**lists, "one": [np.array(5)] * k}))
    report = run(write(tmp_path / "x", *records))
    specs = {spec.name: (spec.dtype, spec.shape, spec.tensor) for spec in report.manifest.schema.features}
    assert specs == {
        "even": ("float", None, TensorType("float32", (None, 3), "list")),
        "id": ("int64", (), None),
        "one": ("int64", None, None),
    }
    assert report.manifest.splits["train"].tensors == {"even": TensorStats(3, 18, 0, 0, 0, 0.0, 2.0, (1,), (3,))}
    assert "Left out: the steps of 'uneven' have different numbers of values." in report.notes


def test_a_named_float_is_in_every_batch(tmp_path: Path) -> None:
    records = [example({"image": png(k, "x", 4), "label": np.array(k / 4, np.float32)}) for k in range(4)]
    report = run(write(tmp_path / "x", *records))
    assert report.notes == (
        "No feature was found to be a class: the dataset has no labels. 'label' holds a number: --label-key label "
        "makes it a value of each batch.",
    )
    manifest = run(tmp_path / "x", label_key="label").manifest
    assert (manifest.label_key, manifest.value_key) == (None, "label")
    batch = NumpyBatches(tmp_path / "x", "train", batch_size=4, training=False, image_size=4).read(0)
    assert batch["label"].tolist() == [0, 0.25, 0.5, 0.75]


def test_raw_pixels_may_have_the_name_of_an_image(tmp_path: Path) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    write(tmp_path / "x", *[example({"image": pixels.tobytes(), "label": np.array(k)}) for k in range(2)])
    assert refusal(DataError, run, tmp_path / "x") == (
        f"{tmp_path}/x: no decoder knows the bytes of 'image'. If they are raw values, give their type with `tensors`, "
        "as in image=uint8[100,221,6], or image=uint8[image/shape] if 'image/shape' holds the shape. Otherwise name "
        "the image with `image_key`."
    )
    manifest = run(tmp_path / "x", "image=uint8[2,2,3]").manifest
    for batch in (
        NumpyBatches(manifest, "train", batch_size=2).read(0),
        next(iter(TorchBatches(manifest, "train", batch_size=2))),
    ):
        np.testing.assert_array_equal(batch["image"], np.stack([pixels] * 2))


GOOD = {"a": np.zeros((2, 3), np.float32), "raw": bytes(6), "n": np.array([2, 3]), "text": b"x", "two": [b"ab", b"cd"]}
FIRST = "the first record has 'a', 'n', 'raw', 'text', 'two'"
EACH = "elevation=float32[64,64], image/encoded=uint8[image/shape] or rgb=uint8[?,1024]"


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ("a", f"`tensors` must name each feature once, as in {EACH}, got 'a'."),
        ("a=float32(2,3)", f"`tensors` must name each feature once, as in {EACH}, got 'a=float32(2,3)'."),
        ("b=float32[6]", f"`tensors` must name features with values; {FIRST}, got 'b'."),
        ("a=float64[2,3]", "`tensors` a=float64[2,3]: Feature 'a': a list of float holds float32, got float64."),
        ("n=int32[2]", "`tensors` n=int32[2]: Feature 'n': a list of int64 holds int64, got int32."),
        ("raw=complex64[2]", "`tensors` raw=complex64[2]: A tensor's dtype must be one of bool, int8, "),
        ("raw=uint8[0,6]", "`tensors` raw=uint8[0,6]: A tensor must have at most 8 axes of at least 1, "),
        ("raw=uint8[2,?]", "`tensors` raw=uint8[2,?]: A tensor must have at most 8 axes of at least 1, "),
        ("raw=uint8[?,?]", "`tensors` raw=uint8[?,?]: it has one ? at most. Name the feature that holds the shape "),
        ("raw=uint8[rows,3]", "`tensors` raw=uint8[rows,3]: A tensor's type must be a dtype and a shape, as in "),
        ("raw=uint8[text]", "`tensors` raw=uint8[text]: 'text' must hold the size of each axis as int64."),
    ],
)
def test_types_that_cannot_be(tmp_path: Path, tensor: str, message: str) -> None:
    folder = write(tmp_path / "x", example(GOOD))
    assert refusal(ConfigError, run, folder, tensor).startswith(message)
    assert [path.name for path in folder.iterdir()] == ["train.tfrecord"]


@pytest.mark.parametrize(
    ("tensor", "second", "what"),
    [
        ("a=float32[2,3]", {"a": np.zeros(5, np.float32)}, "'a' must be float32 [2, 3], got 5 values."),
        ("a=float32[2,3]", {"a": np.zeros(6, np.int64)}, "'a' must be float32 [2, 3], got values of int64."),
        ("a=float32[?,3]", {"a": np.zeros(5, np.float32)}, "'a' must be float32 [?, 3], got 5 values."),
        ("raw=uint8[n]", {"n": np.array([2, 4])}, "'raw' must be uint8 [?, ?], got 6 bytes."),
        ("raw=uint8[n]", {"n": np.array([-2, -3])}, "'raw' must be uint8 [?, ?], but 'n' does not hold 2 sizes."),
        ("raw=uint8[n]", {"n": np.array([2**62, 0]), "raw": b""}, "'raw' must be uint8 [?, ?], but 'n' does not hold "),
        ("raw=uint8[?]", {"raw": [b"a", b"b"]}, "'raw' must be one value of bytes."),
        ("two=uint8[?,2]", {"two": [b"ab", b"c"]}, "'two' must be uint8 [?, 2], got 2 values of 1 to 2 bytes."),
        ("two=uint8[?,2]", {"two": [b"abcd", b"efgh"]}, "'two' must be uint8 [?, 2], got 2 values of 4 bytes."),
    ],
)
def test_a_value_that_does_not_fit_is_named(tmp_path: Path, tensor: str, second: dict[str, Any], what: str) -> None:
    first = example(GOOD)
    folder = write(tmp_path / "x", first, example({**GOOD, **second}))
    place = f"{folder}/train.tfrecord, record 1 at byte {len(first) + 16}"
    assert refusal(DataError, run, folder, tensor).startswith(f"{place}: Feature {what}")
    assert [path.name for path in folder.iterdir()] == ["train.tfrecord"]


def test_several_features_need_an_image_each(tmp_path: Path) -> None:
    image = png(0, "x", 4)
    folder = write(tmp_path / "x", example({"a": image, "b": image}), example({"a": image, "b": [image, image]}))
    assert refusal(DataError, run, folder, image_key=("a", "b")) == (
        "Each of the 2 records must have one image under 'b'; it is 1 to 2 values."
    )
    assert run(folder, image_key="b").manifest.splits["train"].images_per_record.min == 1


def test_episodes_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", example({"steps/action": np.zeros((2, 3), np.float32)}))
    kind = "tensorflow_datasets.core.features."
    steps = {"pythonClassName": f"{kind}dataset_feature.Dataset", "sequence": {"feature": {}, "length": "-1"}}
    features = {"pythonClassName": f"{kind}features_dict.FeaturesDict", "featuresDict": {"features": {"steps": steps}}}
    (folder / "features.json").write_text(json.dumps(features))
    assert run(folder, "steps/action=float32[?,3]").notes[0] == (
        "RLDS episodes: each record is an episode, and the features below steps/ are lists of its steps. --tensor "
        "gives those of vectors a shape, as in 'steps/action=float32[?,7]'."
    )


def test_the_command_takes_them(tmp_path: Path, tfpipe: Tfpipe) -> None:
    image = png(0, "x", 4)
    folder = write(tmp_path / "x", example({**GOOD, "p": image, "q": image, "label": np.array(0.5, np.float32)}))
    options = ["--tensor", "a=float32[2,3]", "--image-key", "p", "--image-key", "q", "--label-key", "label"]
    result = tfpipe("index", folder, *options)
    assert (result.code, result.err) == (0, "")
    assert "images: 'p', 'q'; label: 'label', a float\ntensor: 'a', float32 [2, 3]\n" in result.out
    result = tfpipe("index", folder, "--tensor", "a=float32[2,4]", "--image-key", "p")
    assert "Feature 'a' must be float32 [2, 4], got 6 values. Give the type with --tensor anew." in result.err


def test_several_images_beside_lists_of_steps(tmp_path: Path) -> None:
    """Python parses such records, one by one."""
    records = [
        sequence_example({name: png(k, name, 4) for name in ("a", "b")}, {"x": [np.array(k)] * 2}) for k in range(4)
    ]
    manifest = run(write(tmp_path / "x", *records), image_key=("b", "a")).manifest
    batch = NumpyBatches(manifest, "train", batch_size=4, training=False, image_size=4, augment="none").read(0)
    expected = [[tf.io.decode_png(png(k, name, 4)).numpy() for name in "ba"] for k in range(4)]
    np.testing.assert_array_equal(batch["image"], expected)
