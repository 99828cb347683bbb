"""One dataset with everything that a record may hold, for all tests of exports."""

from pathlib import Path

import pytest

from tests.export.datasets import make_photo_dataset


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """A dataset with classes, boxes and further columns. Not to be changed: copy it."""
    return make_photo_dataset(tmp_path_factory.mktemp("photos"))
