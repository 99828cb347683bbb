"""Predictions for files: they equal those for their records in evaluation."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import tfpipe
from tests.beam_jobs.datasets import make_dataset
from tests.refusals import refusal
from tfpipe import PipelineConfig
from tfpipe.errors import DataError, FormatError
from tfpipe.format.image_form import ImageForm
from tfpipe.training.export import export_model
from tfpipe.training.predict import Classifier

CONFIG = PipelineConfig(batch_size=8, image_size=16, training=False, extra_features=("image/filename",))


@pytest.fixture(scope="module")
def model() -> Any:
    tf.keras.utils.set_random_seed(1)
    image = tf.keras.Input((16, 16, 3), dtype="uint8")
    x = tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1 / 255)(image))
    return tf.keras.Model(image, tf.keras.layers.Dense(2)(x))


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Six images: five that `tfpipe shard` changes in a way that TensorFlow's decoders lack, and one that it keeps."""
    folder = tmp_path_factory.mktemp("images")
    y, x = np.mgrid[0:30, 0:40]
    pixels = np.stack([x * 6, y * 8, x * y % 256], axis=-1).astype(np.uint8)
    picture = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6
    alpha = Image.fromarray(np.dstack([pixels, (x * 6).astype(np.uint8)]))
    files: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "a/turned.jpg": (picture, {"exif": exif}),
        "a/cmyk.jpg": (picture.convert("CMYK"), {}),
        "a/plain.jpg": (picture, {}),
        "b/alpha.png": (alpha, {}),
        "b/deep.png": (Image.fromarray((x * y * 50).astype(np.uint16)), {}),
        "b/lossy.webp": (picture, {}),
    }
    for name, (image, options) in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        image.save(folder / name, **options)
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory, model: Any) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    export_model(model, CONFIG, ("a", "b"), str(folder), ImageForm())
    return folder


@pytest.mark.parametrize(
    "form",
    [
        ImageForm(),
        pytest.param(ImageForm(resize_short=20), marks=pytest.mark.slow),
        pytest.param(ImageForm(square=18, encoding="raw"), marks=pytest.mark.slow),
    ],
    ids=["keep", "short", "raw"],
)
def test_a_file_is_classified_as_its_record_to_the_bit(tmp_path: Path, model: Any, images: Path, form: ImageForm):
    make_dataset(images, tmp_path / "data", form=form, num_shards=1)
    manifest = tfpipe.load_manifest(str(tmp_path / "data"))
    batch = next(iter(tfpipe.build_dataset(manifest, "train", CONFIG)))
    names = [name.decode() for name in batch["image/filename"][:6].numpy()]
    expected = tf.nn.softmax(model(batch["image"][:6])).numpy()
    export_model(model, CONFIG, manifest.label_names, str(tmp_path / "run" / "model"), form)
    predictions = list(Classifier(str(tmp_path / "run")).classify([str(images / name) for name in names], 6, 5))
    assert [prediction["file"] for prediction in predictions] == [str(images / name) for name in names]
    for prediction, row in zip(predictions, expected, strict=True):
        first, second = prediction["top"]  # there are no more
        assert {guess["label"]: guess["probability"] for guess in (first, second)} == dict(enumerate(row.tolist()))
        assert first["probability"] >= second["probability"]
        assert all(guess["label_name"] == "ab"[guess["label"]] for guess in (first, second))


def test_bad_files_keep_their_place_among_the_batches(tmp_path: Path, exported: Path, images: Path) -> None:
    good, cut = str(images / "a" / "plain.jpg"), tmp_path / "cut.jpg"
    cut.write_bytes(Path(good).read_bytes()[:300])
    (tmp_path / "empty").touch()
    files = [str(tmp_path / "empty"), good, good, str(cut), str(tmp_path / "none.jpg"), good, str(images)]
    results = list(Classifier(str(exported)).classify(files, 2, 1))
    assert [result["file"] for result in results] == files
    assert ["top" in result for result in results] == [False, True, True, False, False, True, False]
    assert "No such file" in results[4]["reason"]
    assert all(len(result["top"]) == 1 for result in results if "top" in result)


def test_a_path_without_a_model_is_refused_in_one_sentence(tmp_path: Path, exported: Path) -> None:
    def refused(path: Path, kind: type[Exception] = DataError) -> str:
        return refusal(kind, Classifier, str(path)).replace(str(tmp_path), "")

    must = "must be the folder of a finished run of `tfpipe train`, or a model from one."
    assert refused(tmp_path / "none") == f"/none {must}"
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    assert refused(run) == f"/run {must}"
    shutil.copytree(exported, run / "model")
    notes = run / "model" / "tfpipe.json"
    kept = json.loads(notes.read_text())
    notes.write_text(json.dumps({**kept, "version": 2}))
    message = "The model in /run/model cannot be read: its version is 2, and this tfpipe reads 1."
    assert refused(run, FormatError) == message
    for spoil in (
        lambda: notes.write_text("[]"),
        notes.unlink,
        lambda: (notes.write_text(json.dumps(kept)), (run / "model" / "saved_model.pb").write_bytes(b"\xff")),
    ):
        spoil()
        assert refused(run, FormatError).startswith("The model in /run/model cannot be read: ")
