"""`tfpipe train`: what it prints, and that no kill costs more than time."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beam_jobs.commands import finish_command, start_command, wait_for

pytest.importorskip("tensorflow")

QUICK = ("--batch-size", "4", "--image-size", "16", "--checkpoint-every-steps", "2")


def start(*args: str) -> "subprocess.Popen[str]":
    return start_command(*args, command="train", env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})


def test_sigterm_saves_a_model_of_ones_own_and_the_same_command_goes_on(small_dataset, tmp_path, monkeypatch, tfpipe):
    from tfpipe.training import train

    (tmp_path / "own_model.py").write_text(
        "import keras\n"
        "def linear(num_classes, image_size):\n"
        "    layers = [keras.Input((*image_size, 3)), keras.layers.Flatten(), keras.layers.Dense(num_classes)]\n"
        "    return keras.Sequential(layers)\n"
    )
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_dataset, tmp_path / "pets")
    before, steps, own = signal.getsignal(signal.SIGTERM), [], train._Run._must_stop

    def must_stop(self: train._Run, stop: Callable[[], bool], asks_others: bool) -> bool:
        if self.global_step == 5 and 5 not in steps:
            os.kill(os.getpid(), signal.SIGTERM)
        steps.append(self.global_step)
        return own(self, stop, asks_others)

    monkeypatch.setattr(train._Run, "_must_stop", must_stop)
    # No checkpoint is due, so only the one of SIGTERM is there to go on from.
    options = ("pets/", "--model", "own_model:linear", *QUICK[:4], "--epochs", "3", "--learning-rate", "0.01")
    code, out, err = tfpipe("train", *options)
    assert code == 143
    assert "own_model:linear on CPU: " in err.splitlines()[0]
    assert out.startswith("Epoch 1/3: loss ")
    assert "; evaluation: loss " in out
    assert (tmp_path / "runs" / "pets" / "run.json").exists()
    assert err.splitlines()[-1] == "Stopped and saved at epoch 2, step 2. Run the same command again to go on."
    code, out, err = tfpipe("train", *options, "--json")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["epoch"] for line in lines[:-1]] == [1, 2]
    assert lines[-2]["evaluation"]["images"] == 3
    assert lines[-1] == {"output": "runs/pets", "finished": True, "epoch": 3, "step": 0}
    assert "`tfpipe predict runs/pets IMAGE` classifies images with it." in err
    assert signal.getsignal(signal.SIGTERM) == before
    code, out, err = tfpipe("train", *options)
    assert (code, out) == (0, "")
    assert err.splitlines()[-1].startswith("The model is in runs/pets/model; ")
    assert "was begun with seed 0, got 3" in tfpipe("train", *options, "--seed", "3").err


@pytest.mark.slow
def test_kills_at_any_moment_change_nothing(small_dataset: Path, tmp_path: Path) -> None:
    options = (str(small_dataset), *QUICK[:4], "--checkpoint-every-steps", "1", "--deterministic", "--epochs", "8")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert finish_command(start(*options, "--output", str(whole)), 240)[0] == 0
    for i in range(4):
        saved = set((killed / "checkpoints").glob("*"))
        process = start(*options, "--output", str(killed))
        while set((killed / "checkpoints").glob("*")) <= saved and process.poll() is None:
            time.sleep(0.001)
        time.sleep(0.013 * i)  # at another place of a step, or of a save
        process.kill()
        finish_command(process, 240)
    code, _, err = finish_command(start(*options, "--output", str(killed)), 240)
    assert code == 0, err
    assert "The run goes on at step " in err
    assert (killed / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_an_interrupt_is_one_sentence(small_dataset: Path, tmp_path: Path) -> None:
    process = start(str(small_dataset), *QUICK[:4], "--epochs", "2000", "--output", str(tmp_path / "run"))
    wait_for((tmp_path / "run" / "run.json").exists, 240)
    process.send_signal(signal.SIGINT)
    code, _, err = finish_command(process, 240)
    assert code == 130, err
    assert "Interrupted. The same command goes on from the last checkpoint, if there is one." in err.splitlines()
    assert "Traceback" not in err
