"""The examples learn the sample images to a stated accuracy, and resume exactly after a kill amid an epoch."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.conftest import PATH_OF_REPOSITORY, ROOT, Processes
from tests.docs.pages import DOCS

EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
ACCURACY = 0.9  # of 43 images
EPOCH = 13  # steps
SHORT = ("--epochs", "4", "--precision", "float32", "--save-every", "5")
CPUS = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1"}


class Printed(NamedTuple):
    """What an example has printed."""

    resumed: int
    losses: dict[int, str]
    accuracies: dict[int, float]
    text: str


def run(name: str, *arguments: object, processes: int = 1, kill_at: int | None = None) -> Printed:
    """Runs an example in one process, or in several, which SIGKILL ends once the first has named the step `kill_at`."""
    command = [str(DOCS / "examples" / f"{name}.py"), *map(str, arguments)]
    commands: Sequence[Sequence[str]] = [command]
    if name == "pytorch_ddp" and processes > 1:
        commands = [["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *command]]
    elif processes > 1:
        place = ("--coordinator", f"127.0.0.1:{Processes().free_ports(1)[0]}", "--processes", str(processes))
        commands = [[*command, *place, "--process", str(k)] for k in range(processes)]
    lines = []
    with ExitStack() as stack:
        started = []
        for one in commands:
            process = subprocess.Popen(
                [sys.executable, "-u", *one],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, **CPUS, "PYTHONPATH": PATH_OF_REPOSITORY},
                start_new_session=True,
            )
            stack.callback(kill, process)
            started.append(process)
        assert started[0].stdout is not None
        for line in started[0].stdout:
            lines.append(line)
            if kill_at is not None and line.startswith(f"step {kill_at}:"):
                break
        else:
            codes = [process.wait(60) for process in started]
            assert codes == [0] * len(codes), "".join(lines)[-4000:]
    text = "".join(lines)
    losses = {int(step): loss for step, loss in re.findall(r"^step (\d+): loss (\S+)$", text, re.MULTILINE)}
    found = re.findall(r"^epoch (\d+): accuracy (\S+)$", text, re.MULTILINE)
    resumed = re.search(r"^resumed at step (\d+)$", text, re.MULTILINE)
    return Printed(int(resumed[1]) if resumed else 0, losses, {int(k): float(value) for k, value in found}, text)


def kill(process: subprocess.Popen[str]) -> None:
    """Ends a process and all that it started, which may have groups of their own."""
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False).stdout
    for group in (process.pid, *map(int, children.split())):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
    time.sleep(0.1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("shapes") / "shapes"
    command = [sys.executable, "-m", "tfpipe", "shard", str(ROOT / "sample_data"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": PATH_OF_REPOSITORY}
    split = ["--splits", "train=0.75,validation=0.25"]
    subprocess.run([*command, *split], check=True, env=environment, stdout=subprocess.DEVNULL)
    return folder


def test_each_is_short_and_linked() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "howto").glob("*.md"))
    assert {path.stem for path in EXAMPLES} == {"jax_train", "keras_tpu", "pytorch_ddp", "pytorch_int8", "pytorch_xla"}
    for path in EXAMPLES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 150, path.name
        assert f"../examples/{path.name}" in pages


@pytest.fixture(scope="module")
def trained(dataset: Path, tmp_path_factory) -> Path:
    """The checkpoint of a network that two processes began to train, and one has finished."""
    checkpoint = tmp_path_factory.mktemp("trained") / "shapes.pt"
    arguments = (dataset, "--checkpoint", checkpoint)
    run("pytorch_ddp", *arguments, processes=2, kill_at=100)
    printed = run("pytorch_ddp", *arguments)
    assert printed.resumed >= 100
    assert printed.accuracies[60] >= ACCURACY
    return checkpoint


@pytest.mark.slow
def test_int8_is_as_accurate(dataset: Path, trained: Path) -> None:
    printed = run("pytorch_int8", dataset, "--checkpoint", trained)
    found = re.findall(r"^(\w+).*: accuracy (\S+), (\d+) bytes$", printed.text, re.MULTILINE)
    (_, accuracy, size), (_, static, static_size), (_, dynamic, _) = found
    assert float(accuracy) >= ACCURACY
    assert float(static) == pytest.approx(float(accuracy), abs=0.05)
    assert float(dynamic) == pytest.approx(float(accuracy), abs=0.05)
    assert int(static_size) < int(size) / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pytorch_ddp", "jax_train"])
def test_two_processes_are_killed_and_go_on(name: str, dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip(name[:3] if name == "jax_train" else "torch")
    paths = [tmp_path / f"{run_name}.{'npz' if name == 'jax_train' else 'pt'}" for run_name in ("whole", "two", "one")]
    whole, two, one = ((dataset, "--checkpoint", path, *SHORT) for path in paths)
    undisturbed = run(name, *whole, processes=2)
    run(name, *two, processes=2, kill_at=30)  # in the third epoch
    shutil.copy(paths[1], paths[2])
    again = run(name, *two, processes=2)
    assert again.resumed % EPOCH
    assert again.losses == {step: loss for step, loss in undisturbed.losses.items() if step > again.resumed}
    assert again.accuracies == {3: undisturbed.accuracies[3], 4: undisturbed.accuracies[4]}
    for left, right in zip(read_arrays(paths[0]), read_arrays(paths[1]), strict=True):
        np.testing.assert_array_equal(left, right)
    alone = run(name, *one)
    assert alone.resumed == again.resumed
    assert alone.losses.keys() == again.losses.keys()
    differences = [float(alone.losses[step]) / float(loss) - 1 for step, loss in again.losses.items()]
    assert abs(differences[0]) < 1e-4  # the difference grows from step to step
    assert max(map(abs, differences)) < 1e-2


def read_arrays(path: Path) -> list[np.ndarray]:
    if path.suffix == ".npz":
        with np.load(path) as saved:
            return [saved[name] for name in sorted(saved.files)]
    import torch

    saved = torch.load(path)
    moments = [value for state in saved["optimizer"]["state"].values() for value in state.values()]
    return [value.numpy() for value in (*saved["network"].values(), *moments)]


@pytest.mark.slow
def test_jax_learns(dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    assert run("jax_train", dataset, "--checkpoint", tmp_path / "shapes.npz").accuracies[60] >= ACCURACY


@pytest.mark.slow
def test_keras_learns_and_resumes_exactly(dataset: Path, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    options = (dataset, "--precision", "bfloat16", "--output")
    undisturbed = run("keras_tpu", *options, tmp_path / "whole")
    assert undisturbed.accuracies[60] >= ACCURACY
    run("keras_tpu", *options, tmp_path / "killed", kill_at=30)  # in the third epoch
    again = run("keras_tpu", *options, tmp_path / "killed")
    assert again.resumed % EPOCH
    assert again.losses == {step: loss for step, loss in undisturbed.losses.items() if step > again.resumed}
    assert again.accuracies == {epoch: value for epoch, value in undisturbed.accuracies.items() if epoch > 2}
    saved = [tf.train.load_checkpoint(tf.train.latest_checkpoint(tmp_path / name)) for name in ("whole", "killed")]
    names = [name for name in saved[0].get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")]
    assert len(names) > 20
    for name in names:
        np.testing.assert_array_equal(*(checkpoint.get_tensor(name) for checkpoint in saved))


@pytest.mark.slow
def test_torchvision_augments_and_resumes_exactly(dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchvision", reason="needs torchvision")
    paths = [tmp_path / "whole.pt", tmp_path / "killed.pt"]
    whole, killed = ((dataset, "--torchvision", "--checkpoint", path) for path in paths)
    assert run("pytorch_ddp", *whole, processes=2).accuracies[60] >= ACCURACY
    run("pytorch_ddp", *killed, processes=2, kill_at=100)
    run("pytorch_ddp", *killed, processes=2)
    for left, right in zip(*map(read_arrays, paths), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.slow
def test_xla_learns_in_few_programs_and_resumes_exactly(dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch_xla", reason="needs torch_xla")
    learned = run("pytorch_xla", dataset, "--checkpoint", tmp_path / "learned.pt")
    assert learned.accuracies[60] >= ACCURACY
    undisturbed = run("pytorch_xla", dataset, "--checkpoint", tmp_path / "whole.pt", *SHORT)
    run("pytorch_xla", dataset, "--checkpoint", tmp_path / "killed.pt", *SHORT, kill_at=30)  # in the third epoch
    again = run("pytorch_xla", dataset, "--checkpoint", tmp_path / "killed.pt", *SHORT)
    assert again.resumed % EPOCH
    assert again.losses == {step: loss for step, loss in undisturbed.losses.items() if step > again.resumed}
    for printed in (learned, undisturbed, again):  # programs do not grow with the steps
        assert int(re.findall(r"^(\d+) programs were compiled$", printed.text, re.MULTILINE)[0]) < 10
