"""A dataset that may be damaged, and the end of whatever a test left filling."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfpipe.engine.folder_cache.fill_process import close_all
from tfpipe.format.manifest import Manifest
from tfpipe.open_dataset import load_manifest


@pytest.fixture
def source(small_dataset: Path, tmp_path: Path) -> Manifest:
    """`small_dataset`, to be damaged."""
    return load_manifest(str(shutil.copytree(small_dataset, tmp_path / "source")))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    close_all()
