"""A dataset that has grown once."""

import shutil
from pathlib import Path

import pytest

from tests.layers.growth import append, draw_more


@pytest.fixture(scope="session")
def grown_once(small_dataset: Path, tmp_path_factory) -> Path:
    """The same with `draw_more` as layer 2. Not to be changed: take `grown`."""
    folder = tmp_path_factory.mktemp("grown")
    dataset = shutil.copytree(small_dataset, folder / "pets")
    append(dataset, draw_more(folder / "more"))
    return dataset


@pytest.fixture
def grown(grown_once: Path, tmp_path: Path) -> str:
    """The dataset with layer 2, to be changed."""
    return str(shutil.copytree(grown_once, tmp_path / "grown"))
