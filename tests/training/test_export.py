"""The served model against the evaluation pipeline: the same images, the same numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from tfpipe import PipelineConfig
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.image_form import ImageForm
from tfpipe.training import export
from tfpipe.training.export import export_model

GetDataset = Callable[[str], tfpipe.Manifest]

NAMES = ("cat", "dog", "owl")
CONFIG = PipelineConfig(
    per_replica_batch_size=16,
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
def datasets(tmp_path_factory: pytest.TempPathFactory, draw_images: Callable[[Path], Path]) -> GetDataset:
    """Returns a function from a form to the drawn images as the job stores them in it."""
    folder = tmp_path_factory.mktemp("forms")
    manifests: dict[str, tfpipe.Manifest] = {}

    def get(form: str) -> tfpipe.Manifest:
        if form not in manifests:
            if not (folder / "images").exists():
                draw_images(folder / "images")
            output = str(folder / form)
            options = ShardConfig(
                input=str(folder / "images"), output=output, form=FORMS[form], workers=1, num_shards=1
            )
            shard_job.run(options)
            manifests[form] = tfpipe.load_manifest(output)
        return manifests[form]

    return get


def evaluate(manifest: tfpipe.Manifest, config: PipelineConfig, model: Any) -> tuple[dict[str, Any], np.ndarray]:
    """Returns a whole split as one batch without padding, and the probabilities in evaluation."""
    batch = next(iter(tfpipe.build_dataset(manifest, "train", config)))
    real = batch["mask"].numpy()
    batch = {name: value[real] for name, value in batch.items()}
    return batch, tf.nn.softmax(model(batch["image"], training=False)).numpy()


@pytest.mark.parametrize(
    "options",
    [{}, {"image_dtype": "float32"}, {"augment": "none"}, {"augment": "none", "dct_scaling": False}],
    ids=str,
)
@pytest.mark.parametrize("form", ["as they came", "raw"])
def test_a_served_record_gives_what_evaluation_gives_to_the_bit(
    datasets: GetDataset, tmp_path: Path, form: str, options: dict[str, Any]
) -> None:
    check_records(datasets(form), replace(CONFIG, **options), FORMS[form], tmp_path)


@pytest.mark.parametrize("form", ["resize-short", "square"])
def test_a_served_record_of_another_form_gives_what_evaluation_gives(
    datasets: GetDataset, tmp_path: Path, form: str
) -> None:
    check_records(datasets(form), CONFIG, FORMS[form], tmp_path)


def check_records(manifest: tfpipe.Manifest, config: PipelineConfig, form: ImageForm, folder: Path) -> None:
    model = linear_model(config)
    export_model(model, config, NAMES, str(folder / "model"), form)
    batch, expected = evaluate(manifest, config, model)
    served = tf.saved_model.load(str(folder / "model")).signatures[export.RECORDS](
        image_bytes=batch["image/encoded"], height=batch["image/height"], width=batch["image/width"]
    )
    np.testing.assert_array_equal(served["probabilities"].numpy(), expected)
    np.testing.assert_array_equal(served["label"].numpy(), expected.argmax(axis=1))
    assert [name.decode() for name in served["label_name"].numpy()] == [NAMES[k] for k in expected.argmax(axis=1)]
    assert served["label"].dtype == tf.int64


def test_the_original_files_give_what_evaluation_gives_to_the_bit(
    datasets: GetDataset, draw_images: Callable[[Path], Path], tmp_path: Path
) -> None:
    manifest, model = datasets("as they came"), linear_model()
    export_model(model, CONFIG, NAMES, str(tmp_path / "model"))
    batch, expected = evaluate(manifest, CONFIG, model)
    images = draw_images(tmp_path / "images") / "train"
    files = [(images / name.decode().removeprefix("train/")).read_bytes() for name in batch["image/filename"].numpy()]
    assert {file[:4] for file in files} == {b"\x89PNG", b"\xff\xd8\xff\xe0"}
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"](image_bytes=tf.constant(files))
    np.testing.assert_array_equal(served["probabilities"].numpy(), expected)


def test_decoded_images_give_what_evaluation_gives(datasets: GetDataset, tmp_path: Path) -> None:
    manifest, form = datasets("raw"), FORMS["raw"]
    model = linear_model()
    export_model(model, CONFIG, NAMES, str(tmp_path / "model"), form)
    batch, expected = evaluate(manifest, CONFIG, model)
    pixels = tf.reshape(tf.io.decode_raw(batch["image/encoded"], tf.uint8), [-1, 18, 18, 3])
    served = tf.saved_model.load(str(tmp_path / "model")).signatures[export.IMAGES](
        images=pixels, height=batch["image/height"], width=batch["image/width"]
    )
    np.testing.assert_array_equal(served["probabilities"].numpy(), expected)


def test_plain_tensorflow_serves_batches_of_any_size(datasets: GetDataset, tmp_path: Path) -> None:
    # The process has no tfpipe and no Keras.
    model = linear_model()
    export_model(model, CONFIG, NAMES, str(tmp_path / "model"))
    batch, expected = evaluate(datasets("as they came"), CONFIG, model)
    np.save(tmp_path / "files.npy", batch["image/encoded"].numpy())
    code = f"""
import sys
sys.modules["tfpipe"] = None
import numpy as np, tensorflow as tf
serve = tf.saved_model.load({str(tmp_path / "model")!r}).signatures["serving_default"]
files = np.load({str(tmp_path / "files.npy")!r}, allow_pickle=True)
np.save({str(tmp_path / "all.npy")!r}, serve(image_bytes=tf.constant(files))["probabilities"])
assert serve(image_bytes=tf.constant(files[:1]))["label"].shape == [1]
assert serve(image_bytes=tf.constant([], tf.string))["probabilities"].shape == [0, 3]
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "all.npy"), expected)


def test_labels_and_the_form_lie_beside_the_model(tmp_path: Path) -> None:
    export_model(linear_model(), CONFIG, NAMES, str(tmp_path / "model"), ImageForm(resize_short=12))
    assert (tmp_path / "model" / "labels.txt").read_text() == "cat\ndog\nowl\n"
    notes = json.loads((tmp_path / "model" / "tfpipe.json").read_text())
    assert (notes["version"], notes["image_size"], notes["form"]["resize_short"]) == (1, [16, 16], 12)
    assert os.listdir(tmp_path) == ["model"]


def test_a_failed_export_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = str(tmp_path / "model")
    export_model(linear_model(), CONFIG, NAMES, target)
    before = {path: path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file()}
    save = tf.saved_model.save

    def fail(*args: Any, **options: Any) -> None:
        save(*args, **options)
        raise OSError("No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(DataError, match=r"^The model cannot be written to .*model: No space left on device\.$"):
        export_model(linear_model(), CONFIG, NAMES, target)
    assert {path: path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file()} == before
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("cut", [1, 2])
def test_a_kill_between_the_renames_leaves_a_complete_model_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    target = tmp_path / "model"
    export_model(linear_model(), CONFIG, NAMES, str(target))
    calls, rename = [], os.rename

    def rename_or_die(source: str, name: str) -> None:
        calls.append(name)
        if len(calls) == cut:
            raise SystemExit(9)  # nothing catches it on the way
        rename(source, name)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename_or_die)
        with pytest.raises(SystemExit):
            export_model(linear_model(), CONFIG, NAMES, str(target))
    assert export.has_model(str(target)) == (cut == 1)
    with pytest.raises(ConfigError):
        # The next attempt fails too, and has restored the old model first.
        export_model(linear_model(classes=4), CONFIG, NAMES, str(target))
    export_model(linear_model(), CONFIG, NAMES, str(target))
    assert os.listdir(tmp_path) == ["model"]
    tf.saved_model.load(str(target))


def test_object_stores_get_the_model_file_by_file(tmp_path: Path) -> None:
    # This one is in memory. The second export replaces the first.
    target = f"ram://{tmp_path.name}/run/model"
    for classes in (3, 2):
        export_model(linear_model(classes=classes), CONFIG, NAMES[:classes], target)
    assert export.has_model(target)
    assert set(tf.io.gfile.listdir(target)) >= {"labels.txt", "saved_model.pb", "tfpipe.json"}
    with tf.io.gfile.GFile(f"{target}/labels.txt") as file:
        assert file.read() == "cat\ndog\n"
    assert not tf.io.gfile.exists(target + ".tfpipe-new")
    assert tf.saved_model.load(target).signatures["serving_default"].structured_outputs["probabilities"].shape[1] == 2


@pytest.mark.parametrize(
    ("config", "names", "sentence"),
    [
        (
            replace(CONFIG, training=True),
            NAMES,
            "`training` must be False to export a model, got True. Use the options of its evaluation.",
        ),
        (
            replace(CONFIG, augment="device"),
            NAMES,
            "`augment` must not be device to export a model, which contains the crop. Set it to host.",
        ),
        (CONFIG, NAMES[:2], "The model must give one logit for each of the 2 names, got (None, 3)."),
    ],
    ids=["training", "device", "names"],
)
def test_models_that_cannot_be_served_are_refused(
    tmp_path: Path, config: PipelineConfig, names: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        export_model(linear_model(), config, names, str(tmp_path / "model"))
    assert str(refused.value) == sentence
    assert not list(tmp_path.iterdir())
