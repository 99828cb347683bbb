"""`tfpipe reshard` and `tfpipe merge` as a user runs them."""

import json
from pathlib import Path

import pytest

from tests.beam_jobs.datasets import make_dataset

SAMPLE = Path(__file__).resolve().parents[2] / "sample_data"


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("reshard") / "shapes"
    make_dataset(SAMPLE, out, num_shards=2)
    return out


def test_more_shards(shapes: Path, tmp_path: Path, tfpipe) -> None:
    done = tfpipe("reshard", shapes, tmp_path / "out", "--num-shards", 4, "--json")
    assert done.code == 0, done.err
    result = done.json
    num_bytes = sum(path.stat().st_size for path in shapes.glob("*.tfrecord"))
    assert result["splits"] == {"train": {"records": 149, "shards": 4, "bytes": num_bytes}}
    assert result["classes"] == {"circle": 50, "square": 49, "triangle": 50}
    assert result["changed"] == {"alpha_composited": 1, "cmyk_to_rgb": 1, "eoi_appended": 1, "exif_rotated": 1}
    assert (result["quarantined"], result["first_quarantined"], result["skipped"]) == (0, [], {})


def test_smaller_images(shapes: Path, tmp_path: Path, tfpipe) -> None:
    done = tfpipe("reshard", shapes, tmp_path / "out", "--square", 16, "--encoding", "raw", "--quality", 80)
    assert done.code == 0, done.err
    assert any(line.startswith("changed: ") and ", 149 resized" in line for line in done.lines)
    image = json.loads((tmp_path / "out" / "manifest.json").read_text())["image"]
    assert [image[name] for name in ("encoding", "square", "quality", "reencode_progressive")] == ["raw", 16, 80, False]
    again = tfpipe("reshard", tmp_path / "out", tmp_path / "smaller", "--square", 8)
    assert again.code == 0, again.err
    shown = tfpipe("inspect", tmp_path / "smaller").out
    assert "made from: encoding raw, square 16, quality 80" in " ".join(shown.split())


def test_foreign_files_without_a_feature(foreign, tmp_path: Path, tfpipe) -> None:
    files = foreign.imagenet(tmp_path / "files", "GZIP")
    assert tfpipe("index", files).code == 0
    done = tfpipe("reshard", files, tmp_path / "out", "--drop-feature", "id", "--num-shards", 2)
    assert done.code == 0, done.err
    assert [line.split(",")[0] for line in done.lines[:2]] == ["train: 40 records", "validation: 7 records"]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["format_version"] == 1
    assert "id" not in [feature["name"] for feature in manifest["schema"]["features"]]
    assert tfpipe("verify", tmp_path / "out").code == 0
    done = tfpipe("reshard", files, tmp_path / "other", "--drop-feature", "id", "--drop-feature", "image/class/label")
    assert (done.code, done.out) == (2, "")
    assert " ".join(done.err.split()).endswith(
        "Error: --drop-feature must name features that can be left out (id), got 'image/class/label', which every "
        "dataset of images needs."
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["SHAPES", "out", "c"], "DATASET and OUTPUT must be two paths, got a third, 'c'. Write options for Beam"),
        (["SHAPES", "SHAPES"], "The output must not lie inside the input, got "),
        (["SHAPES", "out", "--quality", "50"], "--quality is for images that are encoded again, and none would be."),
    ],
)
def test_a_mistake_is_one_sentence(args, message, shapes, tmp_path, monkeypatch, tfpipe):
    monkeypatch.chdir(tmp_path)
    done = tfpipe("reshard", *(shapes if arg == "SHAPES" else arg for arg in args))
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "Traceback" not in done.err
    assert done.err.count("Error: ") == 1
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_one_dataset_is_merged_twice(shapes: Path, tmp_path: Path, tfpipe) -> None:
    code, out, err = tfpipe("merge", shapes, shapes, tmp_path / "out", "--num-shards", 2, "--json", "--workers", 1)
    assert code == 0, err
    result = json.loads(out)
    assert result["splits"]["train"]["records"] == 298
    assert result["duplicates"] == {"within": {"train": 149}, "across": 0, "dropped": 0}
    code, out, err = tfpipe("merge", shapes, shapes, tmp_path / "less", "--drop-duplicates", "--dry-run")
    assert (code, err) == (0, "")
    lines = out.splitlines()[:-3]
    assert [line.split()[:2] for line in lines[2:5]] == [["circle", "50"], ["triangle", "50"], ["square", "49"]]
    assert lines[-1] == "duplicates: 149 dropped"
