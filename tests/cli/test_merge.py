"""`tfpipe merge` as a user runs it."""

import json
from functools import partial
from pathlib import Path

import pytest

SAMPLE = Path(__file__).resolve().parents[2] / "sample_data"


@pytest.fixture
def merge(tfpipe):
    return partial(tfpipe, "merge")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> tuple[Path, Path]:
    """The sample images, and the same as `test`, smaller."""
    from beam_jobs import shard_job
    from beam_jobs.config import ShardConfig
    from tfpipe.format.image_form import ImageForm

    folder = tmp_path_factory.mktemp("merge")
    shard_job.run(ShardConfig(str(SAMPLE), str(folder / "a"), workers=1))
    form = ImageForm(resize_short=16)
    shard_job.run(ShardConfig(str(SAMPLE), str(folder / "b"), split="test", form=form, workers=1))
    return folder / "a", folder / "b"


def test_two_forms_and_what_to_do(shapes: tuple[Path, Path], tmp_path: Path, merge) -> None:
    a, b = shapes
    code, out, err = merge(a, b, tmp_path / "out")
    assert (code, out) == (1, "")
    assert err == (
        f"Error: The images of all datasets must have one form, but those of {a} (encoding keep) are not like the "
        f"others. Bring them into one first: tfpipe reshard {a} OUTPUT --resize-short 16\n"
    )


def test_one_twice(shapes: tuple[Path, Path], tmp_path: Path, merge) -> None:
    a, _ = shapes
    code, out, err = merge(a, a, tmp_path / "out", "--num-shards", 2, "--json", "--workers", 1)
    assert code == 0, err
    result = json.loads(out)
    assert result["splits"]["train"]["records"] == 298
    assert result["duplicates"] == {"within": {"train": 149}, "across": 0, "dropped": 0}
    code, out, err = merge(a, a, tmp_path / "less", "--drop-duplicates", "--dry-run")
    assert (code, err) == (0, "")
    lines = out.splitlines()[:-3]
    assert [line.split()[:2] for line in lines[2:5]] == [["circle", "50"], ["triangle", "50"], ["square", "49"]]
    assert lines[-1] == "duplicates: 149 dropped"


def test_an_output_in_an_input_is_refused(shapes: tuple[Path, Path], merge) -> None:
    a, b = shapes
    code, out, err = merge(a, b, b)
    assert (code, out) == (2, "")
    assert err.startswith("Error: The output must not lie inside the input, got ")
