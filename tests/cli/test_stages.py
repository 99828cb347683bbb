"""--stages on real runs: a function of the user's changes the pipeline that a command profiles or checks."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beam_jobs.commands import run_python
from tests.conftest import PATH_OF_REPOSITORY, Tfpipe

pytest.importorskip("tensorflow")

# The stage leaves a file for each value that comes out of it, so that a test sees which pixels a process made.
MODULE = """
import os, sys
import numpy as np
import tensorflow as tf
from tfpipe.pipeline.stage import Stage, Stages

def blacken(stages):
    def apply(dataset):
        def change(image):
            open(f"pixels-{os.getpid()}-0", "w").close()
            return np.zeros_like(image)

        def change_example(example):
            image = tf.numpy_function(change, [example["image"]], example["image"].dtype)
            return {**example, "image": tf.ensure_shape(image, example["image"].shape)}

        return dataset.map(change_example)

    return Stages((*stages, Stage("blacken", apply)), stages.options)

def miss(stages):
    return stages.insert_after("augment", *stages[-1:])

def raise_error(stages):
    def apply(dataset):
        return dataset.map(lambda example: {**example, "image": tf.reshape(example["image"], [7])})

    return Stages((*stages, Stage("broken", apply)), stages.options)
"""


@pytest.fixture
def run(tfpipe: Tfpipe, tmp_path: Path, monkeypatch) -> Iterator[Tfpipe]:
    """Runs a command in this process, in a folder with the module of the stages."""
    (tmp_path / "user_stages.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tfpipe
    sys.modules.pop("user_stages", None)


def test_doctor_checks_the_changed_pipeline(small_dataset: Path, tmp_path: Path, run: Tfpipe) -> None:
    done = run("doctor", small_dataset, "--batch-size", 4, "--stages", "user_stages:blacken", "--json")
    assert done.code == 0, done.err
    assert len(list(tmp_path.glob("pixels-*-0"))) == 1  # processes
    broken = run("doctor", small_dataset, "--batch-size", 4, "--stages", "user_stages:raise_error")
    assert broken.code == 1
    assert "failure  shapes        The pipeline failed: " in broken.out
    assert "Not ready: " in broken.out


def test_errors_of_the_users_stages_are_sentences(small_dataset: Path, run: Tfpipe) -> None:
    options = ("profile", small_dataset, "--step-ms", 5)
    done = run(*options, "--batch-size", 4, "--stages", "user_stages:raise_error")
    assert done.code == 1
    assert "Error: The pipeline failed: " in done.err
    assert "Cannot reshape a tensor" in done.err
    assert "Traceback" not in done.err
    Path("exact.toml").write_text("order = 'exact'\nbatch_size = 4\n")
    done = run(*options, "--config", "exact.toml", "--stages", "user_stages:miss")
    assert done.code == 2
    assert "This pipeline has no stage 'augment'; it has list, read, decode, batch, prefetch. With " in done.err


@pytest.mark.slow
def test_a_profile_of_the_users_stages_prints_nothing_but_the_report(small_dataset: Path, tmp_path: Path) -> None:
    """The user's module loads TensorFlow, whose libraries log as they start."""
    options = ("--step-ms", 5, "--batch-size", 4, "--seconds", 0.5, "--stages", "user_stages:blacken", "--json")
    (tmp_path / "user_stages.py").write_text(MODULE)
    environment = {"PYTHONPATH": PATH_OF_REPOSITORY, "CUDA_VISIBLE_DEVICES": ""}
    done = run_python("-m", "tfpipe", "profile", small_dataset, *options, cwd=tmp_path, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["dataset"]["own_stages"] == ["blacken"]
