"""The served model against the evaluation pipeline: the same images, the same numbers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tests.beam_jobs.datasets import make_dataset
from tests.training.conftest import make_interpreter
from tfpipe import PipelineConfig
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.errors import DataError
from tfpipe.format.image_form import ImageForm
from tfpipe.training.export import export_model, export_tflite

GetDataset = Callable[[str], tfpipe.Manifest]

NAMES = ("cat", "dog", "owl")
FLOATS = ("float32", "bfloat16")
CONFIG = PipelineConfig(
    batch_size=16,
    image_size=16,
    training=False,
    extra_features=("image/encoded", "image/height", "image/width", "image/filename"),
)
FORMS = {
    "as they came": ImageForm(),
    "resize-short": ImageForm(resize_short=12),
    "square": ImageForm(square=18),
    "raw": ImageForm(square=18, encoding="raw"),
}


def linear_model(config: PipelineConfig = CONFIG, classes: int = 3) -> Any:
    """Returns a model with a weight for each pixel: two batches that differ anywhere give different logits."""
    tf.keras.utils.set_random_seed(5)
    image = tf.keras.Input((*config.size, 3), dtype=config.image_dtype)
    x = tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1 / 255)(image))
    return tf.keras.Model(image, tf.keras.layers.Dense(classes)(x))


@pytest.fixture(scope="module")
def datasets(tmp_path_factory, draw_images: Callable[[Path], Path]) -> GetDataset:
    """Returns a function from a form to the drawn images as the job stores them in it."""
    folder = tmp_path_factory.mktemp("forms")
    images = draw_images(folder / "images")

    @cache
    def get(form: str) -> tfpipe.Manifest:
        make_dataset(images, folder / form, form=FORMS[form], num_shards=1)
        return tfpipe.load_manifest(str(folder / form))

    return get


def evaluate(manifest: tfpipe.Manifest, config: PipelineConfig, model: Any) -> tuple[dict[str, Any], np.ndarray]:
    """Returns a whole split as one batch without padding, and the probabilities in evaluation."""
    batch = next(iter(tfpipe.build_dataset(manifest, "train", config)))
    real = batch["mask"].numpy()
    batch = {name: value[real] for name, value in batch.items()}
    return batch, tf.nn.softmax(model(batch["image"], training=False)).numpy()


class Exported(NamedTuple):
    """An exported model, and what it must say about the split `train`."""

    folder: Path
    batch: dict[str, Any]
    expected: np.ndarray

    def serve(self, signature: str) -> Any:
        return tf.saved_model.load(str(self.folder)).signatures[signature]


GetExported = Callable[..., Exported]


@pytest.fixture(scope="module")
def exported(datasets: GetDataset, tmp_path_factory) -> GetExported:
    """Returns a function from a form and options of the pipeline to a model that is exported with them."""

    @cache
    def get(form: str, **options: Any) -> Exported:
        config = replace(CONFIG, **options)
        model, folder = linear_model(config), tmp_path_factory.mktemp("exported") / "model"
        export_model(model, config, NAMES, str(folder), FORMS[form])
        return Exported(folder, *evaluate(datasets(form), config, model))

    return get


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("as they came", {}),
        pytest.param("as they came", {"image_dtype": "float32"}, marks=pytest.mark.slow),
        pytest.param("as they came", {"augment": "none"}, marks=pytest.mark.slow),
        pytest.param(
            "as they came",
            {"augment": "none", "augment_options": AugmentOptions(dct_scaling=False)},
            marks=pytest.mark.slow,
        ),
        pytest.param("resize-short", {}, marks=pytest.mark.slow),
        pytest.param("square", {}, marks=pytest.mark.slow),
        pytest.param("raw", {}, marks=pytest.mark.slow),
        ("raw", {"augment": "none", "image_dtype": "float32"}),
    ],
    ids=str,
)
def test_a_served_record_gives_what_evaluation_gives_to_the_bit(exported, form, options):
    model = exported(form, **options)
    batch, expected = model.batch, model.expected
    served = model.serve("records")(
        image_bytes=batch["image/encoded"], height=batch["image/height"], width=batch["image/width"]
    )
    np.testing.assert_array_equal(served["probabilities"].numpy(), expected)
    np.testing.assert_array_equal(served["label"].numpy(), expected.argmax(axis=1))
    assert [name.decode() for name in served["label_name"].numpy()] == [NAMES[k] for k in expected.argmax(axis=1)]
    assert served["label"].dtype == tf.int64


def test_the_original_files_give_what_evaluation_gives_to_the_bit(exported: GetExported, draw_images, tmp_path):
    model = exported("as they came")
    images = draw_images(tmp_path / "images") / "train"
    names = [name.decode() for name in model.batch["image/filename"].numpy()]
    files = [(images / name.removeprefix("train/")).read_bytes() for name in names]
    assert {file[:4] for file in files} == {b"\x89PNG", b"\xff\xd8\xff\xe0"}
    served = model.serve("serving_default")(image_bytes=tf.constant(files))
    np.testing.assert_array_equal(served["probabilities"].numpy(), model.expected)


@pytest.mark.slow
def test_plain_tensorflow_serves_batches_of_any_size(exported: GetExported, tmp_path: Path) -> None:
    # The process has no tfpipe and no Keras, nor JAX, which TensorFlow would load.
    model = exported("as they came")
    np.save(tmp_path / "files.npy", model.batch["image/encoded"].numpy())
    code = f"""
import sys
sys.modules.update(tfpipe=None, keras=None, jax=None)
import numpy as np, tensorflow as tf
serve = tf.saved_model.load({str(model.folder)!r}).signatures["serving_default"]
files = np.load({str(tmp_path / "files.npy")!r}, allow_pickle=True)
np.save({str(tmp_path / "all.npy")!r}, serve(image_bytes=tf.constant(files))["probabilities"])
assert serve(image_bytes=tf.constant(files[:1]))["label"].shape == [1]
assert serve(image_bytes=tf.constant([], tf.string))["probabilities"].shape == [0, 3]
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "all.npy"), model.expected)


def test_labels_and_the_form_lie_beside_the_model_and_a_failed_export_leaves_none(tmp_path: Path, monkeypatch):
    target = str(tmp_path / "model")
    export_model(linear_model(), CONFIG, NAMES, target, ImageForm(resize_short=12))
    assert (tmp_path / "model" / "labels.txt").read_text() == "cat\ndog\nowl\n"
    notes = json.loads((tmp_path / "model" / "tfpipe.json").read_text())
    assert (notes["version"], notes["image_size"], notes["form"]["resize_short"]) == (1, [16, 16], 12)
    assert os.listdir(tmp_path) == ["model"]
    assert (tmp_path / "model" / "saved_model.pb").exists()
    monkeypatch.setattr(tf.saved_model, "save", Mock(side_effect=OSError("No space left on device")))
    with pytest.raises(DataError, match=r"^The model cannot be written to .*model: No space left on device\.$"):
        export_model(linear_model(), CONFIG, NAMES, target, ImageForm())
    assert not (tmp_path / "model" / "saved_model.pb").exists()


def test_object_stores_get_the_model_file_by_file(tmp_path: Path) -> None:
    target = f"ram://{tmp_path.name}/run/model"  # one in memory
    export_model(linear_model(classes=2), CONFIG, NAMES[:2], target, ImageForm())
    assert set(tf.io.gfile.listdir(target)) >= {"labels.txt", "saved_model.pb", "tfpipe.json"}
    with tf.io.gfile.GFile(f"{target}/labels.txt") as file:
        assert file.read() == "cat\ndog\n"
    assert tf.saved_model.load(target).signatures["serving_default"].structured_outputs["probabilities"].shape[1] == 2


@pytest.mark.parametrize("dtype", ["uint8", *(pytest.param(each, marks=pytest.mark.slow) for each in FLOATS)])
def test_a_file_for_tflite_takes_the_pipelines_images_and_predicts_as_the_model_does(tmp_path: Path, dtype: str):
    random = np.random.default_rng(3)
    labels = random.integers(0, 3, 40)
    # Each class has a bright channel, and the model names the brightest one without training.
    images = random.integers(0, 100, (40, 8, 8, 3)) + 120 * np.eye(3, dtype=int)[labels][:, None, None]
    image = tf.keras.Input((8, 8, 3), dtype=dtype)
    x = tf.keras.layers.DepthwiseConv2D(1, depthwise_initializer="ones")(tf.keras.layers.Rescaling(1 / 255)(image))
    x = tf.keras.layers.GlobalAveragePooling2D()(tf.keras.layers.BatchNormalization()(x))
    model = tf.keras.Model(image, tf.keras.layers.Dense(3, kernel_initializer="identity")(x))
    config, path = PipelineConfig(batch_size=8, image_size=8, image_dtype=dtype), tmp_path / "model.tflite"
    export_tflite(model, config, list(images[:10]), str(path))
    interpret = make_interpreter(path)
    taken = np.uint8 if dtype == "uint8" else np.float32
    assert (interpret.details["dtype"], interpret.details["shape"].tolist()) == (taken, [1, 8, 8, 3])
    assert interpret.details["quantization"] == (0.0, 0)  # pixels as they are
    assert [interpret(one.astype(taken)).argmax() for one in images] == labels.tolist()
    with pytest.raises(DataError, match=r"^Could not write /nowhere/model\.tflite: "):
        export_tflite(model, config, list(images[:1]), "/nowhere/model.tflite")
