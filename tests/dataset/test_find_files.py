"""Which files are meant and which split each belongs to."""

from pathlib import Path

import pytest

from tests.refusals import refusal
from tfpipe.dataset.find_files import describe_missing_files, find_files, group_by_split, infer_split
from tfpipe.errors import ConfigError, DataError, FormatError


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train-00000-of-01024", "train"),
        ("data/validation-00000-of-00128", "validation"),
        ("data/val_03.tfrecord", "validation"),
        ("data/valid.tfrec", "validation"),
        ("data/mnist-test.tfrecord-00000-of-00001", "test"),
        ("data/imagenet_v2-matched.tfrecord-00000-of-00001", "matched"),
        ("data/coco_train2017-00000-of-00256.tfrecord", "train"),
        ("data/part-00000-of-00010", "train"),
        ("validation/part-00000-of-00010", "validation"),
        ("test/shards/part-00000-of-00010", "test"),
        ("test_of_mine/part-0", "train"),
        ("data/constraint-0.tfrecord", "train"),
        ("train/validation-0.tfrecord", "validation"),
    ],
)
def test_the_split_is_in_the_name(name: str, split: str) -> None:
    assert infer_split(name) == split


def test_splits_keep_the_order_of_names() -> None:
    files = ("/data", ("b-test-0", "extra", "a-train-1", "a-val-0", "z"))
    assert group_by_split(*files, {"extra": "unsupervised"}, None) == {
        "train": ("a-train-1", "z"),
        "validation": ("a-val-0",),
        "test": ("b-test-0",),
        "unsupervised": ("extra",),
    }
    assert group_by_split(*files, {"extra": "unsupervised"}, "all") == {"all": files[1]}
    assert "A split's name must be letters" in refusal(ConfigError, group_by_split, *files, {}, "../x")


def test_missing_files_are_said() -> None:
    names = ["a/train-00000-of-00003", "a/train-00002-of-00003", "x.tfrecord-00000-of-00001", "part-7"]
    assert describe_missing_files(names) == ["2 of the 3 files a/train-*-of-00003 exist."]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_a_directory_gives_what_is_named_like_records(tmp_path: Path) -> None:
    touch(tmp_path, "train-00000-of-00002", "b.tfrecord", "notes.txt", "train.tfrecord.idx")
    touch(tmp_path, ".x.tfrecord", "sub/c.tfrecord")
    assert find_files(str(tmp_path)) == (str(tmp_path), ("b.tfrecord", "train-00000-of-00002"))


def test_folders_count_where_the_directory_has_none(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.tfrec", "val/1.tfrec", "index/1.tfrec.idx", "readme.md")
    files = find_files(str(tmp_path))
    assert files == (str(tmp_path), ("train/1.tfrec", "val/1.tfrec"))
    assert list(group_by_split(*files, {}, None)) == ["train", "validation"]


def test_a_pattern_takes_all_that_fits(tmp_path: Path) -> None:
    touch(tmp_path, "a/x.bin", "b/y.bin", "b/y.txt")
    assert find_files(f"{tmp_path}/*/*.bin") == (str(tmp_path), ("a/x.bin", "b/y.bin"))
    touch(tmp_path / "b", "manifest.json", "c/catalog", "class.labels.txt", "index/y.idx", "index/y.parquet", "c/z.idx")
    assert find_files(f"{tmp_path}/b/*") == (str(tmp_path / "b"), ("y.bin", "y.txt"))
    assert find_files(f"{tmp_path}/b/*/*") == (str(tmp_path / "b" / "c"), ("z.idx",))
    assert find_files(str(tmp_path / "b/c/catalog")) == (str(tmp_path / "b" / "c"), ("catalog",))
    assert find_files(str(tmp_path / "a" / "x.bin")) == (str(tmp_path / "a"), ("x.bin",))


def test_names_that_no_manifest_holds_and_nothing_at_all(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no .*/none"):
        find_files(str(tmp_path / "none"))
    touch(tmp_path, "a\nb.tfrecord")
    with pytest.raises(FormatError, match=r"got 'a\\nb\.tfrecord'\. Rename the file"):
        find_files(str(tmp_path))
