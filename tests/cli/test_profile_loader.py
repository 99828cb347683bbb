"""`tfpipe profile --loader`, as a user runs it."""

import json
from pathlib import Path

import pytest

from tests.conftest import Tfpipe

pytest.importorskip("torch")

MODULE = """
import glob, os, time
import numpy as np
from PIL import Image
from torch.utils.data import DataLoader

FILES = sorted(glob.glob(os.path.join(os.path.dirname(__file__), "images/train/*/*")))
FILES = [file for file in FILES if "broken" not in file]

class Photos:
    def __len__(self):
        return 500

    def __getitem__(self, number):
        time.sleep(0.002)
        with Image.open(FILES[number % len(FILES)]) as image:
            return np.asarray(image.convert("RGB").resize((32, 24)))

def make():
    return DataLoader(Photos(), batch_size=4)

def step(batch):
    time.sleep(0.001)
"""


@pytest.fixture
def folder(tmp_path: Path, draw_images: object, monkeypatch) -> Path:
    draw_images(tmp_path / "images")  # type: ignore[operator]
    (tmp_path / "own_loader.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "own_loader", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_report_in_text_and_a_share_of_idle_time_that_is_too_large(folder: Path, tfpipe: Tfpipe) -> None:
    """An image waits far longer than a busy machine keeps a thread waiting."""
    (folder / "own_loader.py").write_text(MODULE.replace("0.002", "0.1"))
    done = tfpipe("profile", "--loader", "own_loader:make", "--step-ms", "5", "--seconds", "1")
    assert done.code == 0, done.err
    first = done.lines[done.lines[0].startswith("Busy neighbors: ")]  # other tests
    assert first.startswith("Bottleneck: too few workers (own_loader.py:")
    assert "The accelerator needs 800 images/s, and this pipeline gives " in done.out
    assert "1. num_workers=" in done.out
    line = ["profile", "--loader", "own_loader:make", "--step-ms", "1", "--seconds", "1", "--json", "--max-idle"]
    done = tfpipe(*line, "5")
    idle = f"{done.json['idle_fraction']:.1%}"
    assert (done.code, done.err.splitlines()[-1]) == (1, f"The accelerator is idle for {idle}, more than 5.0%.")


def test_the_options_that_were_kept(folder: Path, tfpipe: Tfpipe, monkeypatch) -> None:
    monkeypatch.setattr("tfpipe.profiler.trials.ROUNDS", 1)
    line = ["profile", "--loader", "own_loader:make", "--train", "own_loader:step", "--seconds", "0.4", "--json"]
    done = tfpipe(*line, "--apply", folder / "kept.json")
    assert (done.code, done.err.splitlines()[-1]) == (0, f"Wrote {folder / 'kept.json'}.")
    report = done.json
    assert (report["version"], report["loader"], report["method"]) == (6, "PyTorch DataLoader", "train")
    kept = {name: value for fix in report["fixes"] if fix["kept"] for name, value in fix["changes"].items()}
    assert json.loads((folder / "kept.json").read_text()) == kept
    assert report["fixes"][0]["measured_gain"] is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--html page.html", "--loader profiles a loader as its code makes it. Leave out --html."),
        ("DATASET --split train", "Leave out DATASET, --split."),
        ("--apply kept.yaml", "must end in .toml or .json"),
    ],
)
def test_options_that_make_no_sense(options: str, message: str, tfpipe: Tfpipe) -> None:
    done = tfpipe("profile", "--loader", "own_loader:make", *options.split())
    assert done.code == 2
    assert message in done.err
