"""--stages on real runs: a function of the user's changes the pipeline that a command trains, tunes or checks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

ROOT = Path(__file__).resolve().parents[2]

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

def raise_error(stages):
    def apply(dataset):
        return dataset.map(lambda example: {**example, "image": tf.reshape(example["image"], [7])})

    return Stages((*stages, Stage("broken", apply)), stages.options)
"""


def run(folder: Path, *args: object) -> "subprocess.CompletedProcess[str]":
    (folder / "user_stages.py").write_text(MODULE)
    return subprocess.run(
        [sys.executable, "-m", "tfpipe", *map(str, args)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
    )


def count_processes(folder: Path) -> int:
    return len(list(folder.glob("pixels-*-0")))


def test_doctor_checks_the_changed_pipeline(small_dataset: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "doctor", small_dataset, "--global-batch-size", 4, "--stages", "user_stages:blacken", "--json")
    assert done.returncode == 0, done.stderr
    assert count_processes(tmp_path) == 1
    broken = run(tmp_path, "doctor", small_dataset, "--global-batch-size", 4, "--stages", "user_stages:raise_error")
    assert broken.returncode == 1
    assert "failure  shapes        The pipeline failed: " in broken.stdout
    assert "Not ready: " in broken.stdout


def test_train_runs_the_changed_pipeline(small_dataset: Path, tmp_path: Path) -> None:
    """The run notes its stages, so that it cannot go on without them."""
    options = ("train", small_dataset, "--global-batch-size", 4, "--image-size", 16, "--epochs", 1, "--output", "run")
    done = run(tmp_path, *options, "--stages", "user_stages:blacken")
    assert done.returncode == 0, done.stderr
    assert count_processes(tmp_path) == 1
    without = run(tmp_path, *options)
    assert without.returncode == 2
    assert "The run in run was begun with stages user_stages:blacken, got None." in without.stderr


@pytest.mark.parametrize("command", ["train", "profile"])
def test_an_error_of_the_users_stages_is_a_sentence(command: str, small_dataset: Path, tmp_path: Path) -> None:
    more = {"train": ("--image-size", 16, "--output", "run"), "profile": ("--step-ms", 5)}[command]
    options = (command, small_dataset, "--global-batch-size", 4, *more)
    done = run(tmp_path, *options, "--stages", "user_stages:raise_error")
    assert done.returncode == 1
    assert "Error: The pipeline failed: " in done.stderr
    assert "Cannot reshape a tensor" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_bench_measures_the_changed_pipeline_in_its_processes(small_dataset: Path, tmp_path: Path) -> None:
    options = ("--global-batch-size", 4, "--runs", 3, "--stages", "user_stages:blacken", "--json")
    done = run(tmp_path, "bench", small_dataset, *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scores"]
    assert count_processes(tmp_path) == 3


@pytest.mark.slow
def test_tune_searches_with_the_changed_pipeline(small_dataset: Path, tmp_path: Path) -> None:
    options = ("--global-batch-size", 4, "--seconds", 60, "--stages", "user_stages:blacken", "--json")
    done = run(tmp_path, "tune", small_dataset, *options)
    assert done.returncode == 0, done.stderr
    assert count_processes(tmp_path) >= 2
