"""Two processes with two devices each, which train as one device does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfpipe.errors import ConfigError

pytest.importorskip("jax")

OPTIONS = (
    "--framework",
    "jax",
    "--batch-size",
    "8",
    "--image-size",
    "16",
    "--epochs",
    "2",
    "--record-losses",
    "--json",
)


def start(processes: Any, dataset: Path, output: Path, **environment: str) -> Any:
    command = ("-m", "tfpipe", "train", str(dataset), *OPTIONS, "--output", str(output), "--workers", "1")
    return processes.start(*command, JAX_PLATFORMS="cpu", **environment)


def read_lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_a_machine_without_a_tpu_is_one_sentence() -> None:
    from tfpipe.training.jax.processes import join_processes

    with (
        pytest.raises(
            ConfigError, match=r"^JAX finds no TPU on this machine: .*\. Run on the TPU VM, with pip install"
        ),
        join_processes(is_tpu=True),
    ):
        pass


@pytest.mark.slow
def test_two_processes_train_as_one_does(processes: Any, colors: Path, tmp_path: Path) -> None:
    assert processes.finish(start(processes, colors, tmp_path / "one"))["finished"]
    shared = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{processes.free_ports(1)[0]}",
        "JAX_NUM_PROCESSES": "2",
    }
    started = [start(processes, colors, tmp_path / "two", **shared, JAX_PROCESS_ID=str(index)) for index in range(2)]
    result = processes.finish(started[0])
    out, err = started[1].communicate(timeout=60)
    assert started[1].returncode == 0, err
    assert "epoch" not in out  # the first speaks for both
    assert result["last"]["evaluation"]["images"] == 27
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


def test_a_process_without_a_number_is_one_sentence(processes: Any, colors: Path, tmp_path: Path) -> None:
    process = start(processes, colors, tmp_path / "run", JAX_COORDINATOR_ADDRESS="127.0.0.1:9", JAX_NUM_PROCESSES="two")
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (2, "Error: JAX_NUM_PROCESSES must be a whole number, got 'two'.\n")
