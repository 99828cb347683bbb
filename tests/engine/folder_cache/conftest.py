"""A dataset that may be damaged, makers that see a new shard at once, and the end of whatever a test left filling."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfpipe.dataset.load import load_manifest
from tfpipe.engine.folder_cache import batch, fill_process
from tfpipe.format.manifest import Manifest


@pytest.fixture
def source(small_dataset: Path, tmp_path: Path) -> Manifest:
    return load_manifest(str(shutil.copytree(small_dataset, tmp_path / "source")))


def end_fillings() -> None:
    """Kills every process that fills, and forgets those that failed."""
    for filling in list(fill_process._fillings.values()):
        if filling.process is not None:
            filling.process.kill()
        filling.join(20)
    fill_process._fillings.clear()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    end_fillings()


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch) -> None:
    monkeypatch.setattr(batch, "_LOOK_EVERY_S", 0.0)
