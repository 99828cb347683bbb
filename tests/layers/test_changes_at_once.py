"""Processes that change one dataset at once and are killed: each change is made as a whole and once, or not at all."""

import random
import shutil
from pathlib import Path

import pytest

from tests.beam_jobs.images import make_jpeg, write_files
from tests.layers.changer import Model, check_rounds
from tests.layers.growth import list_names
from tfpipe.integrity.verify import VerifyConfig, verify

FOLDERS = 6


def draw_folders(folder: Path) -> dict[str, frozenset[str]]:
    """Draws folders of two images each, and returns the names of theirs."""
    names = {k: (f"train/cat/{k}.jpg", f"train/dog/{k}.jpg") for k in range(100, 100 + FOLDERS)}
    for k, two in names.items():
        write_files(folder / str(k), {name: make_jpeg(k + at * 50, (20, 20)) for at, name in enumerate(two)})
    return {str(folder / str(k)): frozenset(two) for k, two in names.items()}


def make_model(dataset: Path) -> Model:
    return Model((frozenset(name for split in ("train", "validation") for name in list_names(dataset, split)),))


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_on_a_disk(rng: random.Random, small_dataset: Path, tmp_path: Path, rounds: int) -> None:
    dataset = str(shutil.copytree(small_dataset, tmp_path / "pets"))
    images = draw_folders(tmp_path / "images")
    check_rounds(dataset, make_model(small_dataset), images, rng, rounds, {})
    assert verify(dataset, VerifyConfig(workers=0)).damaged == []
