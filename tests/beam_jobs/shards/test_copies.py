"""Equal images are counted, listed line by line, and left out on request."""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.shard_job import plan_shards
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import make_jpeg, make_tar, write_files, write_tar, write_zip
from tests.beam_jobs.plans import read_lines
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.manifest import Duplicates


def lines(output: Path) -> list[Any]:
    return [json.loads(line) for line in (output / "duplicates.jsonl").read_text().splitlines()]


@pytest.fixture
def twins(tmp_path: Path) -> Path:
    """Returns a folder with two copies in `train`, a pair across splits, and an image that occurs three times."""
    a, b, c, d = (make_jpeg(i) for i in range(4))
    files = {
        "train/cat/1.jpg": a,
        "train/cat/2.jpg": a,
        "train/cat/3.jpg": b,
        "train/dog/4.jpg": c,
        "train/cat/0bad.jpg": b"bad",
        "train/dog/bad2.jpg": b"bad",
        "val/cat/5.jpg": b,
        "val/cat/6.jpg": d,
        "val/dog/7.jpg": a,
    }
    return write_files(tmp_path / "in", files)


def list_copies(seed: int, *records: tuple[str, int, str]) -> dict[str, Any]:
    """Returns the line of an image and its copies, each with its split, number and path."""
    copies = [{"split": split, "index": number, "path": path} for split, number, path in records]
    return {"sha256": hashlib.sha256(make_jpeg(seed)).hexdigest(), "records": copies}


def test_counted_and_listed(twins: Path, tmp_path: Path) -> None:
    """Bad images, of which one comes first, have no number."""
    output = tmp_path / "out"
    manifest = make_dataset(twins, output, shuffle=False, num_shards=2)
    assert manifest.duplicates == Duplicates(within={"train": 1}, across=2, dropped=0)
    first = ("train", 0, "train/cat/1.jpg"), ("train", 1, "train/cat/2.jpg"), ("validation", 2, "val/dog/7.jpg")
    second = ("train", 2, "train/cat/3.jpg"), ("validation", 0, "val/cat/5.jpg")
    assert lines(output) == [list_copies(0, *first), list_copies(1, *second)]


def dropped(source: Path, **options: Any) -> tuple[list[str], int]:
    """Returns the paths that stay, and the number of images left out."""
    plan = plan_shards(ShardConfig(str(source), "/out", drop_duplicates=True, workers=1, **options))
    return sorted(image.path for lines in read_lines(plan) for image in lines), plan.listing.dropped


def test_the_evaluation_copy_stays(twins: Path, tmp_path: Path) -> None:
    stay = ["train/cat/0bad.jpg", "train/dog/4.jpg", "val/cat/5.jpg", "val/cat/6.jpg", "val/dog/7.jpg"]
    assert dropped(twins) == (stay, 4)
    manifest = make_dataset(twins, tmp_path / "out", drop_duplicates=True, workers=2)
    assert manifest.duplicates == Duplicates(within={}, across=0, dropped=4)
    assert (manifest.splits["train"].records, manifest.splits["validation"].records) == (1, 3)
    assert manifest.splits["train"].class_counts == (0, 1)


def test_then_the_first_by_path_stays_and_what_cannot_be_read(tmp_path: Path, monkeypatch) -> None:
    write_files(tmp_path / "in", {"c/1.jpg": b"same", "a/9.jpg": b"same", "b/1.jpg": b"same", "b/2.jpg": b"diff"})
    assert dropped(tmp_path / "in") == (["a/9.jpg", "b/2.jpg"], 2)
    write_files(tmp_path / "sizes", {"a/1.jpg": b"1", "a/2.jpg": b"22", "a/3.jpg": b"333"})
    with monkeypatch.context() as patch:
        patch.setattr("beam_jobs.shards.copies.read_image", None)
        assert dropped(tmp_path / "sizes")[1] == 0
    source = write_files(tmp_path / "empty", {"a/1.jpg": b"", "a/2.jpg": b""})
    (source / "a" / "gone.jpg").symlink_to("nowhere")
    assert dropped(source) == (["a/1.jpg", "a/gone.jpg"], 1)


FILES = {"cat/1.jpg": b"same", "cat/2.jpg": b"diff", "dog/3.jpg": b"same", "dog/4.jpg": b"longer"}


def test_in_archives(tmp_path: Path) -> None:
    for path in (write_zip(tmp_path / "a.zip", FILES), write_tar(tmp_path / "a.tar", FILES)):
        assert dropped(path) == (["cat/1.jpg", "cat/2.jpg", "dog/4.jpg"], 1)
    assert refusal(ConfigError, dropped, write_tar(tmp_path / "a.tar.gz", FILES, "w:gz")) == (
        "`drop_duplicates` reads some images alone, and a.tar.gz is compressed as a whole. Uncompress it first; "
        "TFRecords with `tfpipe reshard`."
    )


def test_links_and_tars_in_a_tar_are_copies(tmp_path: Path) -> None:
    link = tarfile.TarInfo("dog/1.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, "../cat/1.jpg"
    path = tmp_path / "a.tar"
    path.write_bytes(make_tar({"cat/1.jpg": b"x"}, extra=[link]))
    assert dropped(path) == (["cat/1.jpg"], 1)
    inner = {"cat.tar": make_tar({"1.jpg": b"same"}), "dog.tar": make_tar({"2.jpg": b"same"})}
    assert dropped(write_tar(path, inner)) == (["cat/1.jpg"], 1)


def test_a_split_that_holds_nothing_but_copies(tmp_path: Path) -> None:
    """A split without an image must neither become an empty shard nor vanish without a word."""
    write_files(tmp_path / "in", {"train/1.jpg": make_jpeg(1), "val/1.jpg": make_jpeg(1), "val/2.jpg": make_jpeg(2)})
    with pytest.raises(DataError, match=r"^Split 'train' holds nothing but copies of images in other splits\.$"):
        dropped(tmp_path / "in")
