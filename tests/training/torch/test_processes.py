"""Two processes on gloo that train as one does, and processes that do not find each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.training.torch.program import mean_loss, predict_validation

OPTIONS = (
    "--framework",
    "torch",
    "--batch-size",
    "8",
    "--image-size",
    "16",
    "--epochs",
    "2",
    "--record-losses",
    "--json",
)


def start_ranks(processes: Any, count: int, dataset: Path, output: Path, *options: str) -> list[Any]:
    """Starts the processes as torchrun does."""
    port = str(processes.free_ports(1)[0])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    command = ("-m", "tfpipe", "train", str(dataset), *OPTIONS, *options, "--output", str(output), "--workers", "0")
    return [processes.start(*command, **shared, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(count)]


def read_lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_two_processes_train_as_one_does_and_one_goes_on(processes: Any, colors: Path, tmp_path: Path) -> None:
    (alone,) = start_ranks(processes, 1, colors, tmp_path / "one")
    assert processes.finish(alone)["finished"]
    first, second = start_ranks(processes, 2, colors, tmp_path / "two")
    result = processes.finish(first)
    assert second.communicate(timeout=60)[0] == ""  # the first speaks for both
    assert second.returncode == 0
    assert result["last"]["evaluation"]["images"] == 27  # 14 and 13, the second filled up
    for line, expected in zip(read_lines(tmp_path / "two"), read_lines(tmp_path / "one"), strict=True):
        assert (line["kind"], line["step"]) == (expected["kind"], expected["step"])
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-3)
        if "evaluation" in line:
            assert line["evaluation"]["loss"] == pytest.approx(expected["evaluation"]["loss"], rel=1e-3)
    assert sorted(path.name for path in (tmp_path / "two" / "hosts").iterdir()) == [
        *("host-00000.json", "host-00001.json")
    ]
    first, second = (np.fromfile(tmp_path / name / "losses.f32", "<f4") for name in ("two", "one"))
    assert len(first) == len(second) > 8
    np.testing.assert_allclose(first[:8], second[:8], rtol=1e-4)


@pytest.mark.slow
def test_two_processes_evaluate_with_the_averages_that_are_kept(processes: Any, colors: Path, tmp_path: Path) -> None:
    # Batch normalization has other moving averages in each process. The exported program has those of the first.
    (tmp_path / "pipeline.toml").write_text('decoder = "pillow"\n')  # the pixels that the program is given
    resnet = ("--model", "resnet50", "--image-size", "32", "--epochs", "1", "--config", str(tmp_path / "pipeline.toml"))
    ranks = start_ranks(processes, 2, colors, tmp_path / "two", *resnet)
    evaluation = processes.finish(ranks[0])["last"]["evaluation"]
    assert ranks[1].wait(timeout=60) == 0
    probabilities, labels = predict_validation(tmp_path / "two", colors)
    assert evaluation["images"] == len(labels)
    assert evaluation["loss"] == pytest.approx(mean_loss(probabilities, labels), rel=1e-4)


@pytest.mark.slow
def test_a_torchrun_without_an_address_is_one_sentence(processes: Any, colors: Path, tmp_path: Path) -> None:
    command = ("-m", "tfpipe", "train", str(colors), *OPTIONS, "--output", str(tmp_path / "run"))
    process = processes.start(*command, WORLD_SIZE="2")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.startswith("Error: The 2 processes do not find each other: ")
    assert err.endswith("Start them with torchrun.\n")
