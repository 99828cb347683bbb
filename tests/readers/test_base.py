"""What every reader has: functions of the trainer, limits for threads, and records of tensors and lists of classes."""

import json
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import torch

import tfpipe
from tests.beam_jobs.commands import wait_for
from tests.integrity.made import payload, write_dataset
from tests.refusals import refusal
from tests.several_images import write_several
from tfpipe import fields
from tfpipe.engine.batch import BatchMaker
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.readers.grain import GrainBatches
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.keras import KerasBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches, data_loader
from tfpipe.system import host_limits

CONFIG = PipelineConfig(batch_size=4, image_size=8, seed=3, as_supervised=True)
STEPS = 5  # more than an epoch of three


def repeat(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from batches


def open_numpy(data: Any, config: PipelineConfig, **functions: Any) -> Iterator[Any]:
    return repeat(NumpyBatches(data, "train", config, **{"num_threads": 3, **functions}))


def open_jax(data: Any, config: PipelineConfig, **functions: Any) -> Iterator[Any]:
    return repeat(JaxBatches(data, "train", config, **{"num_threads": 1, **functions}))


def open_keras(data: Any, config: PipelineConfig, **functions: Any) -> Iterator[Any]:
    batches = KerasBatches(data, "train", config, **functions)
    while True:
        batches.on_epoch_begin()
        yield from (batches[step] for step in range(batches.num_batches))


def open_grain(data: Any, config: PipelineConfig, **functions: Any) -> Iterator[Any]:
    batches = GrainBatches(data, "train", config, num_epochs=2, **functions)
    yield from (batches[step] for step in range(len(batches)))


def open_torch(data: Any, config: PipelineConfig, **functions: Any) -> Iterator[Any]:
    return repeat(data_loader(TorchBatches(data, "train", config, **functions), 0))


Open = Callable[..., Iterator[Any]]
NUMPY_LIKE = [open_numpy, open_jax, open_keras, open_grain]
ALL = [*NUMPY_LIKE, open_torch]


def draw(image: Any, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    time.sleep(0.002 * (image.width % 3))  # so that threads end in another order than they began
    return np.array([image.width, image.height, *generator.random(2)], np.float32)


@pytest.mark.parametrize("open_face", NUMPY_LIKE)
def test_a_transform_draws_the_same_in_every_face(small_dataset: Path, open_face: Open) -> None:
    expected = NumpyBatches(small_dataset, "train", CONFIG, num_threads=1, transform=draw)
    for step, (image, label) in enumerate(islice(open_face(small_dataset, CONFIG, transform=draw), STEPS)):
        wanted, wanted_label = expected.read(step)
        assert (image.shape, image.dtype, wanted.shape) == ((4, 4), np.float32, (4, 4))
        np.testing.assert_array_equal(image, wanted)
        np.testing.assert_array_equal(label, wanted_label)


def test_random_numbers_depend_on_the_record_and_the_epoch_alone(small_dataset: Path) -> None:
    whole = [image for image, _ in islice(open_numpy(small_dataset, CONFIG, transform=draw), STEPS + 1)]
    assert len({tuple(row) for image in whole for row in image[:, 2:].tolist()}) == 4 * (STEPS + 1)
    for step in (0, 4):
        ranks = [NumpyBatches(small_dataset, "train", CONFIG, step, (rank, 2), transform=draw) for rank in range(2)]
        np.testing.assert_array_equal(np.concatenate([next(iter(rank))[0] for rank in ranks]), whole[step])


def test_a_transform_in_evaluation_fills_rows_with_zeros(small_dataset: Path) -> None:
    config = PipelineConfig(batch_size=4, training=False)
    (batch,) = NumpyBatches(small_dataset, "validation", config, transform=draw)
    assert batch["mask"].tolist() == [True, True, True, False]
    assert batch["image"][3].tolist() == [0, 0, 0, 0]
    assert batch["image"][:3].all()
    (none,) = NumpyBatches(small_dataset, "validation", config, rank=(0, 4), transform=draw)
    assert (none["image"].tolist(), none["mask"].tolist()) == ([[0, 0, 0, 0]], [False])


def test_a_transform_of_several_images_and_of_a_mixture(tmp_path: Path) -> None:
    write_several(tmp_path / "several", 8, 2)
    config = PipelineConfig(batch_size=4, seed=1)
    batch = NumpyBatches(tmp_path / "several", "train", config, transform=draw).read(1)
    assert batch["image"].shape == (4, 2, 4)
    assert len({tuple(image[2:]) for row in batch["image"].tolist() for image in row}) == 8
    for name in ("cats", "dogs"):
        write_dataset(tmp_path / name, {"train": [payload(k) for k in range(8)]})
    mixture = tfpipe.mix({str(tmp_path / "cats"): 1, str(tmp_path / "dogs"): 3})
    batch = NumpyBatches(mixture, "train", config, transform=draw).read(1)
    assert batch["image"].shape == (4, 4)
    assert batch["image"].all()


@pytest.mark.parametrize("open_face", ALL)
def test_a_function_of_a_batch(small_dataset: Path, open_face: Open) -> None:
    def double(batch: dict[str, Any]) -> dict[str, Any]:
        assert batch["image"].shape[0] == 4
        return {"image": batch["image"], "label": 2 * batch["label"] + 0.5}

    expected = NumpyBatches(small_dataset, "train", CONFIG)
    for step, (image, label) in enumerate(islice(open_face(small_dataset, CONFIG, batch_transform=double), STEPS)):
        wanted, wanted_label = expected.read(step)
        np.testing.assert_array_equal(image.movedim(1, -1) if isinstance(image, torch.Tensor) else image, wanted)
        assert label.tolist() == (2 * wanted_label + 0.5).tolist()
        assert isinstance(label, {open_jax: jax.Array, open_torch: torch.Tensor}.get(open_face, np.ndarray))


@pytest.mark.parametrize("open_face", [open_numpy, open_torch])
def test_a_function_of_a_batch_runs_in_the_threads(small_dataset: Path, open_face: Open) -> None:
    def tell_thread(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "thread": threading.current_thread().name}

    config = PipelineConfig(batch_size=4, image_size=8)
    batches = islice(open_face(small_dataset, config, batch_transform=tell_thread), 3)
    assert {batch["thread"].rpartition("_")[0] for batch in batches} == {"tfpipe-decode"}


def test_a_function_turns_text_into_numbers_for_jax(small_dataset: Path) -> None:
    config = PipelineConfig(batch_size=4, image_size=8, extra_features=("image/filename",))

    def count(batch: dict[str, Any]) -> dict[str, Any]:
        return {"length": np.array([len(name) for name in batch["image/filename"]])}

    expected = NumpyBatches(small_dataset, "train", config, batch_transform=count).read(0)["length"]
    given = next(iter(JaxBatches(small_dataset, "train", config, batch_transform=count)))
    assert given["length"].tolist() == expected.tolist()
    for function, got in (
        (lambda batch: batch, "list as 'image/filename'"),
        (lambda batch: {"label": batch["label"][:3]}, "the shape (3,) as 'label'"),
    ):
        batches = JaxBatches(small_dataset, "train", config, batch_transform=function)
        sentence = f"`batch_transform` must return arrays of 4 rows for JAX, got {got}."
        assert refusal(ConfigError, next, iter(batches)) == sentence


def list_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("tfpipe-")}


def break_down(*_: Any) -> Any:
    raise LookupError("mine")


@pytest.mark.parametrize("name", ["transform", "batch_transform"])
@pytest.mark.parametrize("open_face", ALL)
def test_an_error_reaches_the_trainer_as_it_is(small_dataset: Path, open_face: Open, name: str) -> None:
    before = list_threads()
    with pytest.raises(LookupError, match=r"^mine$") as caught:
        next(open_face(small_dataset, CONFIG, **{name: break_down}))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "break_down"
    del caught
    wait_for(lambda: not list_threads() - before)


@pytest.mark.parametrize("name", ["transform", "batch_transform"])
def test_the_end_of_an_iterator_is_no_end_of_an_epoch(small_dataset: Path, name: str) -> None:
    """A function that raises StopIteration by mistake does not end training without a word."""
    stop = Mock(side_effect=StopIteration)
    for batches in (
        NumpyBatches(small_dataset, "train", CONFIG, **{name: stop}),
        data_loader(TorchBatches(small_dataset, "train", CONFIG, **{name: stop}), 0),
    ):
        assert "StopIteration" in refusal(RuntimeError, list, batches)


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"transform": lambda image, _: 1}, "`transform` must return ndarrays of one shape and dtype, got int."),
        (
            {"transform": lambda image, generator: np.zeros(int(generator.integers(1, 1000)), np.uint8)},
            "`transform` must return ndarrays of one shape and dtype, got uint8 (",
        ),
        ({"batch_transform": lambda batch: None}, "`batch_transform` must return a dictionary, got NoneType."),
        (
            {"batch_transform": lambda batch: {"image": batch["image"]}},
            "`batch_transform` must return label too, of which `as_supervised` makes a pair, got image.",
        ),
    ],
)
def test_what_a_function_must_return(small_dataset: Path, functions: dict[str, Any], message: str) -> None:
    assert refusal(ConfigError, NumpyBatches(small_dataset, "train", CONFIG, **functions).read, 0).startswith(message)


READERS: tuple[Any, ...] = (NumpyBatches, JaxBatches, KerasBatches, GrainBatches, TorchBatches)


@pytest.mark.parametrize("open_reader", READERS)
def test_what_is_no_function_or_has_no_effect_is_refused(small_dataset: Path, open_reader: Any) -> None:
    for name in ("transform", "batch_transform"):
        sentence = f"`{name}` must be a function, got 3."
        assert refusal(ConfigError, open_reader, small_dataset, "train", CONFIG, **{name: 3}) == sentence
    config = PipelineConfig(batch_size=4, image_dtype="float32")
    assert refusal(ConfigError, open_reader, small_dataset, "train", config, transform=draw) == (
        "`transform` returns images of its own dtype, so `image_dtype` float32 cannot be had. Leave it out."
    )


@pytest.mark.parametrize("make", [NumpyBatches, lambda *args, **more: data_loader(TorchBatches(*args, **more), 0)])
def test_positions_are_whole_numbers(small_dataset: Path, make: Any) -> None:
    batches = make(small_dataset, "train", CONFIG, start_step=np.int64(4))
    state = json.loads(json.dumps(batches.state_dict()))
    assert (state["epoch"], state["step"]) == (1, 1)
    evaluation = make(small_dataset, "train", CONFIG, training=False)
    evaluation.set_epoch(3)
    evaluation.load_state_dict(evaluation.state_dict())
    for function, value, message in (
        (batches.set_epoch, 2**31, "A run must have at most 2,147,483,648 steps, got step 6,442,450,944."),
        (batches.set_epoch, -1, "`epoch` must be at least 0, got -1."),
        (batches.load_state_dict, {**state, "step": "1"}, "`state['step']` must be a whole number, got '1'."),
        (evaluation.load_state_dict, state, "`state` is for training; evaluation begins at 0, got 4."),
    ):
        assert refusal(ConfigError, function, value) == message


# Limits for threads and waiting batches

OPTIONS: dict[str, Any] = {"batch_size": 2, "image_size": 8, "as_supervised": True}


@pytest.mark.parametrize("waiting", [0, 1, 4])
@pytest.mark.parametrize("open_face", [open_numpy, open_jax, open_keras, open_torch])
def test_so_many_finished_batches_wait(small_dataset: Path, open_face: Open, waiting: int) -> None:
    made = []
    config = PipelineConfig(**OPTIONS, prefetch_batches=waiting)
    batches = open_face(small_dataset, config, batch_transform=lambda batch: made.append(1) or batch)
    next(batches)
    wait_for(lambda: len(made) >= 1 + waiting)
    time.sleep(0.05)
    assert len(made) == 1 + waiting
    batches.close()


def test_workers_share_the_waiting_batches_and_grain_makes_its_own(small_dataset: Path) -> None:
    def count(workers: int, waiting: int | None, **functions: Any) -> Any:
        images = TorchBatches(small_dataset, "train", PipelineConfig(**OPTIONS, prefetch_batches=waiting), **functions)
        return data_loader(images, workers).prefetch_factor

    assert [count(0, 3), count(2, None), count(2, 5), count(2, 1)] == [None, 2, 3, 1]
    assert refusal(ConfigError, count, 2, 0).startswith("`prefetch_batches` 0 needs `num_workers` 0: a batch of each")
    images = TorchBatches(small_dataset, "train", CONFIG)
    assert refusal(ConfigError, data_loader, images, 0, None, "fork").startswith("`start_method` fork needs workers.")
    with pytest.raises(ConfigError, match=r"^`prefetch_batches` 3 needs workers with a `transform`"):
        count(0, 3, transform=lambda image: image)
    config = PipelineConfig(**OPTIONS, prefetch_batches=3)
    assert refusal(ConfigError, GrainBatches, small_dataset, "train", config) == (
        "`prefetch_batches` 3 is decided by Grain: give `grain.ReadOptions(prefetch_buffer_size=...)`, and leave it "
        "out here."
    )


@pytest.mark.parametrize("open_face", ALL)
def test_threads_are_those_that_the_budget_leaves(small_dataset: Path, open_face: Open, monkeypatch):
    monkeypatch.setattr(host_limits, "usable_cpus", lambda: 10)
    given: set[tuple[float | None, int]] = set()
    decode = BatchMaker.decode

    def note(self: BatchMaker, stored: Any, threads: int = 1, *more: Any) -> Any:
        given.add((self.plan.config.cpu_budget, threads))
        return decode(self, stored, threads, *more)

    monkeypatch.setattr(BatchMaker, "decode", note)
    expected = {(None, 10), (0.35, 3), (0.01, 1)}
    has_number = open_face in (open_numpy, open_jax)
    for budget in (None, 0.35, 0.01):
        options = {"num_threads": None} if has_number else {}
        batches = open_face(small_dataset, PipelineConfig(**OPTIONS, cpu_budget=budget), **options)
        next(batches)
        batches.close()
    if has_number:  # one that the program gives stands
        expected.add((0.02, 5))
        next(open_face(small_dataset, PipelineConfig(**OPTIONS, cpu_budget=0.02), num_threads=5))
    assert given == expected


SCHEMA = {
    "id": fields.Values("int64"),
    "latents": fields.Tensor("bfloat16", (2, 3)),
    "flags": fields.Tensor("bool", (2,)),
    "scale": fields.Tensor("bfloat16", ()),
    "tokens": fields.Tensor("int32", (None, 2)),
    "caption": fields.Text(),
    "class": fields.Label(("cat", "dog")),
}
BATCHES = 9  # more than an epoch of six


def make_record(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "latents": np.full((2, 3), number / 2).astype(ml_dtypes.bfloat16),
        "flags": np.array([number % 2 == 0, True]),
        "scale": ml_dtypes.bfloat16(number / 4),
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
    return [{name: np.asarray(value) for name, value in batch.items()} for batch in dataset.take(BATCHES)]


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
            assert batch["scale"][row] == number / 4
            assert batch["flags"][row].tolist() == record["flags"].tolist()
            assert batch["tokens"][row].tolist() == ([[number] * 2] * min(number % 4, 2) + [[0, 0]] * 2)[:2]
            assert batch["tokens.sizes"][row].tolist() == [number % 4]
            assert (batch["caption"][row].decode(), batch["label"][row]) == (record["caption"], record["class"])


@pytest.mark.parametrize("training", [True, False])
def test_the_readers_give_equal_values(manifest: tfpipe.Manifest, training: bool) -> None:
    config = make_config(training=training)
    expected = read_tensorflow(manifest, config)
    loader = data_loader(TorchBatches(manifest, "train", config), num_workers=0)
    numbers = make_config(training=training, extra_features=("id", "latents", "flags", "scale", "tokens"))
    in_torch, in_jax = (
        [*batches, *(batches if training else ())] for batches in (loader, JaxBatches(manifest, "train", numbers))
    )
    for batch, other in zip(expected, in_torch, strict=False):
        assert other.keys() == batch.keys()
        assert other["latents"].dtype == torch.bfloat16
        for name, values in batch.items():
            assert (other[name] if name == "caption" else to_plain(other[name])) == to_plain(values), name
    for batch, other in zip(expected, in_jax, strict=False):
        assert other["latents"].dtype == jnp.bfloat16
        assert isinstance(other["latents"], jax.Array)
        for name, values in other.items():
            assert to_plain(values) == to_plain(batch[name]), name


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


def test_lists_are_ragged_or_padded_with_no_class(classes: tfpipe.Manifest) -> None:
    batches = read_all(classes, configure(), jax=False)
    numbers = join(batches, "id")
    assert join(batches, "tags")[:20] == [list_tags(number) for number in numbers[:20]]
    assert join(batches, "pair")[:20] == [list_pair(number) for number in numbers[:20]]
    assert join(batches, "tags")[20:] == [[]] * 4
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
            "`multi_hot` must name lists of classes in the batch (none), got 'tags'. Add it to `extra_features`.",
        ),
        (
            {"multi_hot": ("tags",), "pad_to": {"tags": 3}},
            "`pad_to` must not name 'tags', which `multi_hot` names too. Choose one.",
        ),
        (
            {"pad_to": {"tags": 3}, "extra_features": ("id",)},
            "`pad_to` must name features of the batch, got 'tags'; it has id. Add it to `extra_features`.",
        ),
        ({"pad_to": {"pair": 3}}, "`pad_to` must give 'pair' a size for each unknown axis, got 1 for values."),
    ],
)
def test_options_that_do_not_fit_are_refused(classes: tfpipe.Manifest, options: dict[str, Any], message: str) -> None:
    assert refusal(ConfigError, tfpipe.build_dataset, classes, "train", configure(**options)) == message
