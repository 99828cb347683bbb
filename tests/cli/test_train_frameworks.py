"""`tfpipe train --framework`: what it refuses, what it loads, and that no kill costs more than time."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click import Abort

from tests.cli.test_train import QUICK, finish, invoke, start, wait_for
from tests.test_imports import list_loaded, run_cli_without, run_python
from tfpipe.cli.main import tfpipe as commands
from tfpipe.errors import ConfigError

pytest.importorskip("torch")

FRAMEWORKS = ("torch", "jax")
INTERRUPTED = "Interrupted. The same command goes on from the last checkpoint, if there is one."


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("--framework", "torch", "--model", "mobilenet_v3_small"),
            "--model must be small_cnn, resnet50 or module:function where --framework is torch, got "
            "'mobilenet_v3_small'.",
        ),
        (
            ("--framework", "torch", "--tflite", "int8"),
            "--tflite needs --framework tensorflow, got torch and 'int8'. Leave it out.",
        ),
        (
            ("--framework", "torch", "--steps-per-execution", "5"),
            "--steps-per-execution needs --framework tensorflow, got torch and 5. Leave it out.",
        ),
        (
            ("--framework", "torch", "--tpu", "local"),
            "--tpu needs --framework tensorflow or jax, got torch. Leave it out.",
        ),
        (("--compile",), "--compile needs --framework torch, got tensorflow and True. Leave it out."),
    ],
)
def test_what_a_framework_has_not_is_one_sentence(
    small_dataset: Path, tmp_path: Path, args: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        invoke(str(small_dataset), "--output", str(tmp_path / "run"), *args)
    assert str(caught.value) == message
    assert not (tmp_path / "run").exists()


def test_a_framework_that_is_not_installed_is_named(small_dataset: Path) -> None:
    result = run_cli_without("torch", ("train", str(small_dataset), "--framework", "torch"))
    torch = "`tfpipe train --framework torch` needs PyTorch."
    sentence = f"{torch} Install it with: pip install '.[torch]' in a checkout of tfpipe."
    assert (result.returncode, result.stderr) == (1, f"Error: {sentence}\n")
    result = run_cli_without("jax", ("train", str(small_dataset), "--framework", "jax"))
    sentence = (
        "`tfpipe train --framework jax` needs JAX. Install it with: pip install '.[jax]' in a checkout of tfpipe."
    )
    assert (result.returncode, result.stderr) == (1, f"Error: {sentence}\n")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_trainer_loads_no_other_framework(framework: str) -> None:
    pytest.importorskip(framework)
    modules = ", ".join(f"tfpipe.training.{framework}.{name}" for name in ("train", "export"))
    assert not list_loaded(f"import {modules}") & {"tensorflow", "keras", "apache_beam", "pyarrow", "torch", "jax"} - {
        framework
    }


@pytest.mark.slow
def test_a_whole_run_in_pytorch_loads_no_tensorflow(small_dataset: Path, tmp_path: Path) -> None:
    args = ["train", str(small_dataset), *QUICK, "--framework", "torch", "--epochs", "1", "--workers", "0"]
    code = f"""
import sys
import torch
torch.set_num_threads(1)
sys.modules["tensorflow"] = sys.modules["apache_beam"] = None
from tfpipe.cli.main import main
sys.argv = ["tfpipe", *{[*args, "--output", str(tmp_path / "run")]!r}]
main()
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Epoch 1/1: loss ")
    assert result.stderr.splitlines()[0].startswith("small_cnn on CPU: 1 process (PyTorch ")
    assert result.stderr.splitlines()[-1] == (
        f"The model is in {tmp_path}/run/model; `tfpipe predict {tmp_path}/run IMAGE` classifies images with it."
    )


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["tensorflow", *FRAMEWORKS])
def test_kills_at_any_moment_change_nothing(small_dataset: Path, tmp_path: Path, framework: str) -> None:
    pytest.importorskip(framework)
    options = (str(small_dataset), *QUICK[:4], "--checkpoint-every-steps", "1", "--deterministic", "--epochs", "8")
    options = (*options, "--framework", framework)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert finish(start(*options, "--output", str(whole)))[0] == 0
    for i in range(4):
        saved = set((killed / "checkpoints").glob("*"))
        process = start(*options, "--output", str(killed))
        while set((killed / "checkpoints").glob("*")) <= saved and process.poll() is None:
            time.sleep(0.001)
        time.sleep(0.013 * i)  # at another place of a step, or of a save
        process.kill()
        finish(process)
    code, _, err = finish(start(*options, "--output", str(killed)))
    assert code == 0, err
    assert "The run goes on at step " in err
    assert (killed / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_sigterm_saves_although_workers_read(small_dataset: Path, tmp_path: Path, framework: str) -> None:
    pytest.importorskip(framework)
    options = (str(small_dataset), *QUICK, "--epochs", "2000", "--framework", framework, "--workers", "2")
    process = start(*options, "--output", str(tmp_path / "run"))
    wait_for(process, tmp_path / "run" / "checkpoints")
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 143, err
    assert err.splitlines()[-1].startswith("Stopped and saved at epoch ")
    assert sys.platform != "linux" or "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_interrupt_is_one_sentence_although_workers_read(
    small_dataset: Path, tmp_path: Path, framework: str
) -> None:
    pytest.importorskip(framework)
    options = (*QUICK[:4], "--epochs", "2000", "--framework", framework, "--workers", "2")
    command = [sys.executable, "-m", "tfpipe", "train", str(small_dataset), *options, "--output", str(tmp_path / "run")]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL, start_new_session=True
    )
    wait_for(process, tmp_path / "run" / "run.json")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
    code, _, err = finish(process)
    assert code == 130, err
    assert INTERRUPTED in err.splitlines()
    assert "Traceback" not in err


def test_an_interrupt_says_how_to_go_on(
    small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tfpipe.training.torch.train.TorchLearner._train", interrupt)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises((KeyboardInterrupt, Abort)):
        commands.main(
            ["train", str(small_dataset), *QUICK, "--framework", "torch", "--output", str(tmp_path / "run")],
            standalone_mode=False,
        )
    assert INTERRUPTED in capsys.readouterr().err.splitlines()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_checkpoint_that_does_not_fit_is_one_sentence(small_dataset: Path, tmp_path: Path, framework: str) -> None:
    pytest.importorskip(framework)
    resource = pytest.importorskip("resource")
    output = tmp_path / "run"
    options = (*QUICK[:4], "--epochs", "4", "--framework", framework, "--workers", "1", "--output", str(output))
    options = ("train", str(small_dataset), *options, "--checkpoint-every-steps", "1")
    # A file of 100 kB stands for a full disk: the lines and curves fit, and no checkpoint does.
    code = f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, {resource.RLIM_INFINITY}))"
    code += f"; from tfpipe.cli.main import main; sys.argv = {['tfpipe', *options]!r}; main()"
    result = run_python(code)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "Error: A checkpoint cannot be written: [Errno 27] File too large."
    assert "Traceback" not in result.stderr
    code, _, err = finish(start(*options[1:]))  # with room again the same command makes the whole run
    assert code == 0, err
    assert not list(output.rglob("*tmp*"))
