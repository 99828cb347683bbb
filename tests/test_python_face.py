"""What all public functions have in common: what they take for a dataset, what they say, and how they look."""

import base64
import io
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
import tensorflow as tf
from jax.sharding import SingleDeviceSharding
from PIL import Image
from tensorflow.experimental import dtensor

import tfpipe
from beam_jobs.config import ShardConfig
from tests.beam_jobs.commands import run_python
from tests.refusals import refusal
from tfpipe.readers.grain import GrainBatches, RecordSource
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.keras import KerasBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches, data_loader

CONFIG = tfpipe.PipelineConfig(batch_size=2, image_size=8)


def distribute(data: Any, split: str, config: Any = None, **options: Any) -> object:
    return tfpipe.distribute_dataset(tf.distribute.get_strategy(), data, split, config, **options)


def distribute_over_mesh(data: Any, split: str, config: Any = None, **options: Any) -> object:
    mesh = dtensor.create_mesh([("data", 1)], devices=["CPU:0"])
    return tfpipe.distribute_over_mesh(mesh, data, split, config, **options)


WITH_CONFIG: list[Callable[..., object]] = [
    *(tfpipe.build_dataset, tfpipe.build_stages, tfpipe.steps_per_epoch, distribute, distribute_over_mesh),
    lambda *args, **options: JaxBatches(*args, sharding=SingleDeviceSharding(jax.devices()[0]), **options),
    *(TorchBatches, KerasBatches, NumpyBatches, GrainBatches),
]


@pytest.mark.parametrize("function", WITH_CONFIG)
def test_a_manifest_a_path_and_a_text_open_the_same(function: Callable[..., object], small_dataset: Path) -> None:
    for data in (tfpipe.load_manifest(small_dataset), small_dataset, str(small_dataset), f"file://{small_dataset}"):
        assert function(data, "train", CONFIG) is not None
    assert function(small_dataset, "train", batch_size=2) is not None


@pytest.mark.parametrize("function", WITH_CONFIG)
def test_a_wrong_type_is_a_sentence(function: Callable[..., object], small_dataset: Path) -> None:
    kinds = "a path, URL, Manifest(, Source)? or Mixture, got 3."
    with pytest.raises(tfpipe.ConfigError, match=f"^A dataset must be {kinds}$"):
        function(3, "train", CONFIG)
    needs = (
        "A reader needs `batch_size=256`, or a `config` such as tfpipe.PipelineConfig(batch_size=256, image_size=224), "
    )
    for config, got in [(None, "neither"), ({"batch_size": 4}, "{'batch_size': 4}"), (256, "256")]:
        assert refusal(tfpipe.ConfigError, function, small_dataset, "train", config) == f"{needs}got {got}."
    for wrong, advice in [("batchsize", "did you mean `batch_size`?"), ("fuzz", "see the fields of PipelineConfig.")]:
        sentence = f"PipelineConfig: `{wrong}` is not an option; {advice}"
        assert refusal(tfpipe.ConfigError, function, small_dataset, "train", **{wrong: 4}) == sentence


def test_options_stand_in_place_of_a_config_or_change_it(small_dataset: Path) -> None:
    alone = NumpyBatches(small_dataset, "train", batch_size=2, image_size=24)
    assert next(iter(alone))["image"].shape == (2, 24, 24, 3)
    assert alone.read(5)["label"].tolist() == NumpyBatches(small_dataset, "train", CONFIG).read(5)["label"].tolist()
    changed = NumpyBatches(small_dataset, "train", CONFIG, image_size=24, batch_size=3)
    assert next(iter(changed))["image"].shape == (3, 24, 24, 3)
    assert CONFIG.batch_size == 2
    with pytest.raises(tfpipe.ConfigError, match=r"^`batch_size` must be at least 1, got 0"):
        NumpyBatches(small_dataset, "train", CONFIG, batch_size=0)


@pytest.mark.parametrize("function", [tfpipe.data_source, RecordSource])
def test_records_by_number_take_the_same(function: Callable[..., object], small_dataset: Path) -> None:
    for data in (tfpipe.load_manifest(small_dataset), small_dataset, str(small_dataset)):
        assert function(data, "train") is not None
    sentence = f"A dataset must be a path, URL or Manifest, got <1 of {small_dataset}>."
    assert refusal(tfpipe.ConfigError, function, tfpipe.mix({small_dataset: 1}), "train") == sentence


def test_another_type_is_refused(small_dataset: Path) -> None:
    assert refusal(tfpipe.ConfigError, tfpipe.load_manifest, None) == "A dataset must be a path or URL, got None."
    assert refusal(tfpipe.ConfigError, tfpipe.mix, ["photos"] * 20) == (
        "`weights` must give each dataset a weight, as in {'photos': 0.7}, got a value of the type list."
    )
    stages = tfpipe.build_stages(small_dataset, "train", CONFIG)
    sentence = "A stage must be a tfpipe.Stage(name, function), got <built-in function len>."
    assert refusal(tfpipe.ConfigError, stages.insert_after, "batch", len) == sentence


def test_a_missing_framework_is_a_sentence() -> None:
    names = ("build_dataset", "distribute_dataset", "steps_per_epoch", "masked_sum")
    code = f"""
import sys
sys.modules["tensorflow"] = None
import tfpipe
for name in {names}:
    try:
        getattr(tfpipe, name)
    except tfpipe.errors.MissingDependencyError as error:
        print(error)
"""
    done = run_python("-c", code)
    for name, line in zip(names, done.stdout.splitlines(), strict=True):
        assert line.startswith(f"`tfpipe.{name}` needs TensorFlow. Install it with: pip install ")


def test_texts_are_one_short_line(small_dataset: Path) -> None:
    manifest = tfpipe.load_manifest(small_dataset)
    assert re.fullmatch(
        rf"<{small_dataset}: train 12 records, validation 3 records, 3 classes, \d+\.\d KB>", repr(manifest)
    )
    assert re.fullmatch(r"<'train': 12 records, 2 shards, \d+\.\d KB>", repr(manifest.splits["train"]))
    assert repr(tfpipe.mix({small_dataset: 0.5})) == f"<0.5 of {small_dataset}>"
    data = f"6 batches of 2 from 'train' of {small_dataset}"
    start = f"{data}, epoch 0, step 0>"
    torch_batches = TorchBatches(manifest, "train", CONFIG)
    assert repr(torch_batches) == f"<TorchBatches: {start}"
    assert repr(data_loader(torch_batches)) == f"<ShardLoader: {start}"
    assert repr(NumpyBatches(manifest, "train", CONFIG, start_step=8)) == f"<NumpyBatches: {data}, epoch 1, step 2>"
    assert repr(KerasBatches(manifest, "train", CONFIG)) == f"<KerasBatches: {start}"
    both = tfpipe.mix({small_dataset: 1, str(small_dataset): 1})
    assert repr(NumpyBatches(both, "train", CONFIG)).count("'train' of") == 2


def test_a_config_shows_what_was_asked_for() -> None:
    assert repr(CONFIG) == "PipelineConfig(batch_size=2, image_size=8)"
    assert repr(replace(CONFIG, augment_options=tfpipe.AugmentOptions(flip=False), cache="bytes")) == (
        "PipelineConfig(batch_size=2, image_size=8, augment_options=AugmentOptions(flip=False), cache='bytes')"
    )
    assert repr(tfpipe.TfDataOptions()) == "TfDataOptions()"
    assert repr(ShardConfig(input="a", output="b", workers=2)) == "ShardConfig(input='a', output='b', workers=2)"


@pytest.mark.parametrize(
    ("open_shown", "num_shown"),
    [
        (tfpipe.load_manifest, 8),
        (lambda path: tfpipe.data_source(path, "train")[1:4], 3),
        (lambda path: NumpyBatches(path, "validation", CONFIG), 3),
        (lambda path: TorchBatches(tfpipe.mix({path: 1, str(path): 2}), "train", replace(CONFIG, batch_size=4)), 8),
        (lambda path: data_loader(TorchBatches(path, "train", CONFIG)), 8),
        (lambda path: KerasBatches(path, "train", CONFIG), 8),
    ],
)
def test_a_notebook_shows_images(open_shown: Callable[[Path], Any], num_shown: int, small_dataset: Path) -> None:
    page = open_shown(small_dataset)._repr_html_()
    match = re.fullmatch(r'<p>(.+)</p><img alt="(\d+) records" src="data:image/png;base64,([^"]+)">', page)
    assert int(match[2]) == num_shown
    assert match[1].startswith("&lt;")
    with Image.open(io.BytesIO(base64.b64decode(match[3]))) as image:
        assert 100 * num_shown < image.width < 150 * num_shown


def test_a_notebook_shows_text_where_there_are_no_images(tmp_path: Path) -> None:
    manifest = tfpipe.write([{"value": 1.0}], tmp_path / "rows", {"value": tfpipe.fields.Values("float")}, num_shards=1)
    assert manifest._repr_html_() is None


def test_pairs_end_with_the_epoch_unless_you_say_otherwise(small_dataset: Path, caplog):
    pairs = replace(CONFIG, as_supervised=True)
    steps = tfpipe.steps_per_epoch(small_dataset, "train", pairs)
    with caplog.at_level(logging.WARNING):
        for function, config, epochs, expected in (
            (tfpipe.build_dataset, pairs, None, steps),
            (tfpipe.build_dataset, pairs, 2, 2 * steps),
            (tfpipe.build_dataset, pairs, 0, -1),
            (tfpipe.build_dataset, CONFIG, None, -1),
            (distribute, pairs, None, steps),
            (distribute, pairs, 0, -1),
        ):
            cardinality = function(small_dataset, "train", config, epochs=epochs).cardinality
            assert int(cardinality() if callable(cardinality) else cardinality) == expected
    assert caplog.messages == []
    tfpipe.build_dataset(small_dataset, "train", replace(pairs, order="throughput"))
    assert caplog.messages == [
        "These batches never end, and neither does `model.fit` with them alone. Give "
        "`steps_per_epoch=tfpipe.steps_per_epoch(...)` to `fit`, or read in exact order."
    ]
