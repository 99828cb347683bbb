"""`tfpipe predict` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfpipe import Manifest, PipelineConfig, load_manifest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def predict(tfpipe):
    return partial(tfpipe, "predict")


CONFIG = PipelineConfig(batch_size=8, image_size=8, training=False)
BIAS = np.log([3.0, 1.0, 1.0], dtype=np.float32)


def export_with_tensorflow(folder: str, _: Manifest) -> None:
    import tensorflow as tf

    from tfpipe.training.tensorflow.export import export_model

    image = tf.keras.Input((8, 8, 3), dtype="uint8")
    head = tf.keras.layers.Dense(3, kernel_initializer="zeros")
    model = tf.keras.Model(image, head(tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1.0)(image))))
    head.bias.assign(BIAS)
    export_model(model, CONFIG, ("cat", "dog", "owl"), folder)


def export_with_torch(folder: str, manifest: Manifest) -> None:
    torch = pytest.importorskip("torch")
    from tfpipe.training.torch.export import export_model
    from tfpipe.training.torch.models import build_model

    model = build_model("small_cnn", 3, CONFIG)
    with torch.no_grad():
        model.net.head.weight.zero_()
        model.net.head.bias.copy_(torch.from_numpy(BIAS))
    export_model(model, CONFIG, manifest, folder)


def export_with_jax(folder: str, manifest: Manifest) -> None:
    jax = pytest.importorskip("jax")
    from tfpipe.training.jax.export import export_model
    from tfpipe.training.jax.models import init_small_cnn

    parameters = init_small_cnn(jax.random.key(0), 3)
    parameters["head"] = {"kernel": 0 * parameters["head"]["kernel"], "bias": BIAS}
    export_model(parameters, CONFIG, manifest, folder)


@pytest.fixture(scope="module", params=[export_with_tensorflow, export_with_torch, export_with_jax])
def run_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, small_dataset: Path) -> Path:
    """Returns a run whose model finds `cat` three times as likely as `dog` and `owl`, whatever it sees."""
    run = tmp_path_factory.mktemp("runs") / "pets"
    request.param(str(run / "model"), load_manifest(str(small_dataset)))
    return run


@pytest.fixture
def photos(tmp_path: Path, draw_images) -> Path:
    draw_images(tmp_path / "photos")
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    return tmp_path / "photos"


def test_a_line_for_each_image_and_the_bad_one_named(predict, run_folder, photos) -> None:
    done = predict(run_folder, photos / "train" / "cat", photos / "validation" / "*" / "*.jpg", "--batch-size", "4")
    cats = [f"{photos}/train/cat/{k}.{'png' if k % 2 else 'jpg'}" for k in range(6)]
    files = [*cats, *(f"{photos}/validation/{name}/0.jpg" for name in ("cat", "dog", "owl"))]
    assert done.out.splitlines() == [f"{file}: cat 60.0%, dog 20.0%, owl 20.0%" for file in files]
    lines = done.err.splitlines()
    assert lines[0].startswith(f"{photos}/train/cat/broken.jpg: ")
    assert lines[1:] == ["1 of 10 images could not be classified."]
    assert done.code == 1


def test_json(predict, run_folder, photos) -> None:
    one, bad = photos / "train" / "dog" / "0.jpg", photos / "train" / "cat" / "broken.jpg"
    done = predict(run_folder / "model", one, bad, "--json", "--top", 2)
    document: dict[str, Any] = json.loads(done.out)
    (found,), (failed,) = document["predictions"], document["failed"]
    assert {name: found[name] for name in ("file", "label", "label_name")} == {
        "file": str(one),
        "label": 0,
        "label_name": "cat",
    }
    assert found["probability"] == pytest.approx(0.6)
    assert [guess["label_name"] for guess in found["top"]] == ["cat", "dog"]
    assert (failed["file"], done.code) == (str(bad), 1)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        ([], "Name the images to classify: files, folders or patterns."),
        (["{}/*.gif"], "The pattern {}/*.gif must hold at least one image, and holds none."),
        (["{}/empty"], "The folder {}/empty must hold at least one image, and holds none."),
    ],
    ids=["none", "pattern", "folder"],
)
def test_no_images_are_one_sentence(predict, run_folder, tmp_path, images, sentence) -> None:
    (tmp_path / "empty").mkdir()
    done = predict(run_folder, *(one.format(tmp_path) for one in images))
    assert (done.code, done.out, done.err) == (2, "", f"Error: {sentence.format(tmp_path)}\n")


@pytest.mark.parametrize(
    "run_folder",
    [
        export_with_tensorflow,
        *(pytest.param(one, marks=pytest.mark.slow) for one in (export_with_torch, export_with_jax)),
    ],
    indirect=True,
)
def test_nothing_but_the_answer_is_printed_in_a_process_of_its_own(run_folder, photos) -> None:
    command = [sys.executable, "-m", "tfpipe", "predict", str(run_folder), str(photos / "validation"), "--top", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [f"{photos}/validation/{name}/0.jpg: cat 60.0%" for name in ("cat", "dog", "owl")]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, lines, "")


def test_no_run_is_one_sentence(predict, photos, tmp_path) -> None:
    done = predict(tmp_path / "none", photos)
    sentence = (
        f"{tmp_path}/none must be the folder of a run of `tfpipe train`, or a model from one, and does not exist."
    )
    assert (done.code, done.out, done.err) == (1, "", f"Error: {sentence}\n")


@pytest.mark.parametrize(
    ("file", "module", "sentence"),
    [
        (
            "saved_model.pb",
            "tensorflow",
            "needs TensorFlow. Install it with: pip install '.[tensorflow]' in a checkout of tfpipe.",
        ),
        ("model.pt2", "torch", "needs PyTorch. Install it with: pip install '.[torch]' in a checkout of tfpipe."),
        ("model.jax", "jax", "needs JAX. Install it with: pip install '.[jax]' in a checkout of tfpipe."),
    ],
)
def test_a_missing_library_is_named(predict, photos, tmp_path, monkeypatch, file, module, sentence) -> None:
    (tmp_path / file).touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == module else object())
    done = predict(tmp_path, photos)
    assert (done.code, done.out, done.err) == (1, "", f"Error: The model in {tmp_path} {sentence}\n")
