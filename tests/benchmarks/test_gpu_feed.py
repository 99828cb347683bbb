"""The benchmark of a GPU that is fed: on the CPU it runs as a whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

import tfpipe
from tests.benchmarks.gpu_feed import SHARDS, DrawnShard, Row, format_row, make_resnet50, write_folder
from tests.conftest import ROOT

COMMAND = [sys.executable, str(ROOT / "tests" / "benchmarks" / "gpu_feed.py")]
TRAINED = Row("ResNet-50, TorchBatches", 2871.4, 0.254, 0.02, 0.08, 0.9, idle=0.014)


def test_a_row_is_a_line() -> None:
    assert (
        format_row(TRAINED).split()
        == (
            "ResNet-50, TorchBatches 2,871 images/s 0.25 CPU-s/1,000 0.73 cores waits 2% steps 8% device 90% idle 1.4%"
        ).split()
    )


def test_the_net_has_as_many_weights_as_the_paper() -> None:
    assert sum(weight.numel() for weight in make_resnet50(1000).parameters()) == 25_557_032


def test_a_folder_of_images_becomes_a_dataset_without_beam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    for number, record in enumerate(DrawnShard(3 * SHARDS, (32, 32))(0)):
        path = tmp_path / "images" / f"class_{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(record["image"])
    manifest = tfpipe.load_manifest(str(write_folder(tmp_path / "images", tmp_path / "data")))
    assert manifest.label_names == ("class_0", "class_1")
    assert manifest.splits["train"].records == 3
    with pytest.raises(click.ClickException, match=r" must hold \.jpg or \.jpeg files, got none\.$"):
        write_folder(tmp_path / "data", tmp_path / "nothing")


@pytest.mark.slow
def test_every_row_is_measured_on_the_cpu(tmp_path: Path) -> None:
    command = [*COMMAND, "--device", "cpu", "--quick", "--json", str(tmp_path / "rows.json")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "rows.json").read_text())
    rows = results["feed"] + results["resnet50"]
    assert [row["name"] for row in rows] == ["TorchBatches", "ResNet-50, the same batch", "ResNet-50, TorchBatches"]
    assert all(row["waits"] + row["steps"] + row["device"] == pytest.approx(1) for row in rows)
    assert all(row["images_per_s"] > 0 and row["cpu_s_per_1000"] > 0 for row in rows)
    assert len(done.stdout.splitlines()) >= len(rows)


@pytest.mark.slow
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = [*COMMAND, "--device", "cuda:99"]  # also where there is one
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: `--device` must be ")
    assert len(done.stderr.splitlines()) == 1
