"""The benchmark of a GPU that decodes: on the CPU it runs as a whole."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import torch

import tfpipe
from tests.benchmarks.gpu_feed import (
    SHARDS,
    TINY,
    Difference,
    DrawnShard,
    JpegEngine,
    Row,
    format_difference,
    format_row,
    list_goals,
    name_dali_wheel,
    write_folder,
)
from tests.conftest import ROOT

COMMAND = [sys.executable, str(ROOT / "tests" / "benchmarks" / "gpu_feed.py")]
TRAINED = Row("ResNet-50, DeviceImages", 2871.4, 0.254, 0.02, 0.08, 0.9, idle=0.014, fallbacks=0.001, engine=0.312)


def test_a_row_is_a_line() -> None:
    assert (
        format_row(TRAINED).split()
        == (
            "ResNet-50, DeviceImages 2,871 images/s 0.25 CPU-s/1,000 0.73 cores waits 2% steps 8% device 90% idle 1.4% "
            "fallbacks 0.1% engine 31%"
        ).split()
    )


def test_pixels_of_other_records_are_not_hidden() -> None:
    assert format_difference(Difference("ours beside theirs", 1024, False, 0.4319, 9)) == (
        "ours beside theirs: 1,024 images, OTHER RECORDS, pixels differ by 0.432 levels in the mean and 9 at most"
    )


def test_each_goal_says_what_was_reached() -> None:
    feed = [Row("DeviceImages, 2 threads", 9000.0, 0.1, 1.0, fallbacks=0.0), Row("TorchBatches", 9999.0, 9.0, 1.0)]
    dali = [Row("DALI", 9500.0, 0.2, 1.0)]
    fixed = Row("ResNet-50, the same batch", 2912.0, 0.1, 0.0)
    assert list_goals({"feed": feed, "dali": dali, "resnet50": [fixed, TRAINED]}) == [
        "images/s of DeviceImages, 2 threads: more than 7,834, got 9,000: met",
        "images/s of DeviceImages, 2 threads: more than 9,500, got 9,000: MISSED",
        "idle of ResNet-50, DeviceImages: less than 0.02, got 0.014: met",
        "host cores of ResNet-50, DeviceImages: less than 1, got 0.7293: met",
    ]


@pytest.mark.parametrize(("cuda", "wheel"), [("13.0", "nvidia-dali-cuda130"), ("12.8", "nvidia-dali-cuda120")])
def test_dalis_wheel_is_that_of_pytorchs_cuda(monkeypatch: pytest.MonkeyPatch, cuda: str, wheel: str) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert name_dali_wheel() == wheel


class Nvml:
    """Stands for NVML, whose engine is busy for 31 % of the time."""

    class NVMLError(Exception):
        """The error of every call, if there is one."""

    def __init__(self, fails: bool) -> None:
        self.asked = threading.Event()
        self._fails = fails

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        assert uuid == "GPU-0123"
        return "handle"

    def nvmlDeviceGetJpgUtilization(self, handle: str) -> list[int]:  # noqa: N802
        if self._fails:
            raise self.NVMLError
        if threading.current_thread() is not threading.main_thread():
            self.asked.set()
        return [31, 1000]


@pytest.mark.parametrize(("fails", "share"), [(False, 0.31), (True, None)])
def test_nvml_tells_how_busy_the_engine_is(monkeypatch: pytest.MonkeyPatch, fails: bool, share: float | None) -> None:
    nvml = Nvml(fails)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="0123"))
    with JpegEngine(torch.device("cuda", 0)) as engine:
        assert fails or nvml.asked.wait(60)
    assert engine.share == (None if share is None else pytest.approx(share))


def test_without_nvml_the_share_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for device in ("cuda", "cpu"):
        with JpegEngine(torch.device(device)) as engine:
            pass
        assert engine.share is None


def test_a_folder_of_images_becomes_a_dataset_without_beam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    for number, record in enumerate(DrawnShard(3 * SHARDS, TINY)(0)):
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
    names = {part: [row["name"] for row in results[part]] for part in ("feed", "resnet50", "small_cnn_on_cpu")}
    assert names == {
        "feed": [
            "DeviceImages, 1 thread",
            "DeviceImages, 2 threads",
            "DeviceImages, 4 threads",
            "TorchBatches, decoded on the host",
        ],
        "resnet50": ["ResNet-50, the same batch", "ResNet-50, DeviceImages", "ResNet-50, TorchBatches"],
        "small_cnn_on_cpu": [
            "small_cnn on the CPU, the same batch",
            "small_cnn on the CPU, DeviceImages",
            "small_cnn on the CPU, TorchBatches",
        ],
    }
    rows = [row for part in names for row in results[part]]
    assert all(row["waits"] + row["steps"] + row["device"] == pytest.approx(1) for row in rows)
    by_pillow, by_reader = results["pixels"]
    assert by_pillow["same_records"]
    assert by_reader["same_records"]
    assert (by_pillow["mean"], by_pillow["largest"]) == (0, 0)  # the decoder of the CPU, beside itself
    assert by_reader["mean"] < 1
    assert results["goals"] == []
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
