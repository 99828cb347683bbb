"""`tfpipe index` as a user runs it, and the other commands on what it described."""

from pathlib import Path

import pytest

from tests.flipped_bit import flip_bit


@pytest.fixture
def imagenet(foreign, tmp_path: Path) -> Path:
    return foreign.imagenet(tmp_path / "imagenet")


def test_what_was_found_in_words(tfpipe, imagenet: Path, foreign, tmp_path: Path) -> None:
    lines = tfpipe("index", imagenet).ok.lines
    assert lines[0].startswith("train: 40 records, 4 files, ")
    assert lines[0].endswith("; 27 JPEG, 13 PNG")
    assert lines[2:] == [
        "image: 'image/encoded'; label: 'image/class/label', 3 classes, stored from 1, read as 0 and up",
        f"{imagenet} is indexed: 4 features",
    ]
    done = tfpipe("index", foreign.imagenet(tmp_path / "packed", "GZIP")).ok
    assert "The files are GZIP compressed: no random access, no exact order and no exact resume." in done.out


def test_what_was_found_as_json(tfpipe, imagenet: Path, tmp_path: Path) -> None:
    options = ("--split", "holdout", "--output", tmp_path / "out", "--label-base", "0", "--json")
    found = tfpipe("index", f"{imagenet}/val*", *options).ok.json
    assert (found["root"], found["image_key"]) == (str(imagenet), "image/encoded")
    assert found["label_key"] == "image/class/label"
    assert (found["label_base"], found["classes"], found["compression"], found["random_access"]) == (0, 4, "", True)
    assert (found["splits"]["holdout"]["records"], found["notes"]) == (7, [])
    assert (tmp_path / "out/index/validation-00000-of-00001.idx").exists()


def test_errors_are_sentences(tfpipe, imagenet: Path) -> None:
    path = imagenet / "train-00001-of-00004"
    path.write_bytes(path.read_bytes()[:-1])
    code, out, err = tfpipe("index", imagenet)
    assert (code, out) == (1, "")
    assert err.startswith(f"Error: {path} cannot be indexed: record 15 at byte ")
    assert "`tfpipe verify` lists the damage, `tfpipe repair` saves the rest." in err


def test_inspect_and_verify_know_it(tfpipe, imagenet: Path, tmp_path: Path, caplog) -> None:
    tfpipe("index", imagenet)
    out = tfpipe("inspect", imagenet, "--show", 6, tmp_path / "sheet.png").ok.out
    assert "written by another tool, indexed by tfpipe" in out
    assert "labels: 'image/class/label', stored from 1" in out
    assert (tmp_path / "sheet.png").exists()
    found = tfpipe("inspect", imagenet, "--json").json
    assert (found["format_version"], found["foreign"]["label_base"]) == (1, 1)
    found = tfpipe("inspect", imagenet, "--record", "train:2", "--output", tmp_path / "x.png", "--json").json
    assert (found["features"]["id"], found["written"]["format"], found["shard"]) == (2, "PNG", "train-00000-of-00004")
    tfpipe("index", imagenet, "--output", tmp_path / "out")
    assert "46.jpg" in tfpipe("inspect", tmp_path / "out", "--record", "validation:-1").ok.out
    assert f"The shards of {tmp_path}/out lie outside it, in {imagenet}, as its manifest says." in caplog.messages
    assert tfpipe("verify", imagenet).ok.lines[-1].startswith(f"{imagenet} is intact: ")
    path = imagenet / "train-00001-of-00004"
    flip_bit(path, -100)
    code, out, _ = tfpipe("verify", imagenet)
    assert code == 1
    assert "train-00001-of-00004, record 15 at byte" in out
