"""The benchmark of a GPU that decodes: on the CPU it runs as a whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.gpu_feed import Row, format_row
from tests.conftest import ROOT

COMMAND = [sys.executable, str(ROOT / "tests" / "benchmarks" / "gpu_feed.py")]


def test_a_row_is_a_line() -> None:
    line = format_row(Row("ResNet-50, DeviceImages", 2871.4, 0.654, 0.021, idle=0.034, fallbacks=0.001))
    assert line.split() == (
        "ResNet-50, DeviceImages 2,871 images/s 0.65 CPU-s/1,000 waits 2% idle 3% fallbacks 0.1%".split()
    )


@pytest.mark.slow
def test_every_row_is_measured_on_the_cpu(tmp_path: Path) -> None:
    command = [*COMMAND, "--device", "cpu", "--quick", "--json", str(tmp_path / "rows.json")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "rows.json").read_text())
    names = {part: [row["name"] for row in results[part]] for part in ("feed", "resnet50", "small_cnn_on_cpu")}
    assert names == {
        "feed": [
            "DeviceImages, 1 thread",
            "DeviceImages, 2 threads",
            "DeviceImages, 4 threads",
            "ShardedImages, decoded on the host",
        ],
        "resnet50": ["ResNet-50, the same batch", "ResNet-50, DeviceImages", "ResNet-50, ShardedImages"],
        "small_cnn_on_cpu": [
            "small_cnn on the CPU, the same batch",
            "small_cnn on the CPU, DeviceImages",
            "small_cnn on the CPU, ShardedImages",
        ],
    }
    rows = [row for part in names for row in results[part]]
    assert all(row["images_per_s"] > 0 and row["cpu_s_per_1000"] > 0 for row in rows)
    assert {row["fallbacks"] for row in rows if "DeviceImages" in row["name"]} == {0.0}
    assert len(done.stdout.splitlines()) >= len(rows)


@pytest.mark.slow
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = [*COMMAND, "--device", "cuda:99"]  # also where there is one
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: `device` ")
    assert len(done.stderr.splitlines()) == 1
