"""`tfpipe merge` as a user runs it."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.beam_jobs.datasets import make_dataset

SAMPLE = Path(__file__).resolve().parents[2] / "sample_data"


@pytest.fixture
def merge(tfpipe):
    return partial(tfpipe, "merge")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> Path:
    """The sample images."""
    output = tmp_path_factory.mktemp("merge") / "a"
    make_dataset(SAMPLE, output)
    return output


def test_one_twice(shapes: Path, tmp_path: Path, merge) -> None:
    code, out, err = merge(shapes, shapes, tmp_path / "out", "--num-shards", 2, "--json", "--workers", 1)
    assert code == 0, err
    result = json.loads(out)
    assert result["splits"]["train"]["records"] == 298
    assert result["duplicates"] == {"within": {"train": 149}, "across": 0, "dropped": 0}
    code, out, err = merge(shapes, shapes, tmp_path / "less", "--drop-duplicates", "--dry-run")
    assert (code, err) == (0, "")
    lines = out.splitlines()[:-3]
    assert [line.split()[:2] for line in lines[2:5]] == [["circle", "50"], ["triangle", "50"], ["square", "49"]]
    assert lines[-1] == "duplicates: 149 dropped"
