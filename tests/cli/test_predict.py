"""`tfpipe predict` as a user runs it."""

from pathlib import Path

import numpy as np
import pytest

from tests.beam_jobs.commands import run_python
from tfpipe import PipelineConfig
from tfpipe.format.image_form import ImageForm


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """Returns a run whose model finds `cat` three times as likely as `dog` and `owl`, whatever it sees."""
    import tensorflow as tf

    from tfpipe.training.export import export_model

    run = tmp_path_factory.mktemp("runs") / "pets"
    image = tf.keras.Input((8, 8, 3), dtype="uint8")
    head = tf.keras.layers.Dense(3, kernel_initializer="zeros")
    model = tf.keras.Model(image, head(tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1.0)(image))))
    head.bias.assign(np.log([3.0, 1.0, 1.0]))
    config = PipelineConfig(batch_size=8, image_size=8, training=False)
    export_model(model, config, ("cat", "dog", "owl"), str(run / "model"), ImageForm())
    return run


@pytest.fixture
def photos(tmp_path: Path, draw_images) -> Path:
    draw_images(tmp_path / "photos")
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    return tmp_path / "photos"


def test_a_line_for_each_image_and_the_bad_one_named(tfpipe, run_folder, photos) -> None:
    done = tfpipe("predict", run_folder, photos / "train/cat", photos / "validation/*/*.jpg", "--batch-size", "4")
    cats = [f"{photos}/train/cat/{k}.{'png' if k % 2 else 'jpg'}" for k in range(6)]
    files = [*cats, *(f"{photos}/validation/{name}/0.jpg" for name in ("cat", "dog", "owl"))]
    assert done.out.splitlines() == [f"{file}: cat 60.0%, dog 20.0%, owl 20.0%" for file in files]
    lines = done.err.splitlines()
    assert lines[0].startswith(f"{photos}/train/cat/broken.jpg: ")
    assert lines[1:] == ["1 of 10 images could not be classified."]
    assert done.code == 1


def test_json(tfpipe, run_folder, photos) -> None:
    one, bad = photos / "train" / "dog" / "0.jpg", photos / "train" / "cat" / "broken.jpg"
    done = tfpipe("predict", run_folder / "model", one, bad, "--json", "--top", 2)
    (found,), (failed,) = done.json["predictions"], done.json["failed"]
    assert (found["file"], found["label"], found["label_name"]) == (str(one), 0, "cat")
    assert found["probability"] == pytest.approx(0.6)
    assert [guess["label_name"] for guess in found["top"]] == ["cat", "dog"]
    assert (failed["file"], done.code) == (str(bad), 1)


@pytest.mark.parametrize("name", ["*.gif", "empty"])
def test_no_images_are_one_sentence(tfpipe, run_folder, tmp_path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    sentence = f"{tmp_path}/{name} must hold or match at least one image, and there is none."
    assert tfpipe("predict", run_folder, tmp_path / name) == (2, "", f"Error: {sentence}\n")


@pytest.mark.slow
def test_nothing_but_the_answer_is_printed_in_a_process_of_its_own(run_folder, photos) -> None:
    done = run_python("-m", "tfpipe", "predict", run_folder, photos / "validation", "--top", "1")
    lines = [f"{photos}/validation/{name}/0.jpg: cat 60.0%" for name in ("cat", "dog", "owl")]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, lines, "")
