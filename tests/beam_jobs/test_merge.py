"""Several finished datasets become one: labels and splits go by name, records stay, copies are noticed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.shard_job import plan_shards
from tests.beam_jobs.datasets import (
    join_datasets,
    make_dataset,
    make_seekable_dataset,
    make_seekable_photos,
    read_images,
    read_payloads,
    read_quarantine,
    read_records,
)
from tests.beam_jobs.images import make_jpeg, make_photos, make_png, write_files
from tests.flipped_bit import flip_bit
from tfpipe.errors import DataError
from tfpipe.format.image_form import ImageForm


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    """Returns two datasets that share the class `dog` and an image: in `train` of both, and in `test` of the second."""
    folder = tmp_path_factory.mktemp("merge")
    first = {f"train/{name}": data for name, data in make_photos({"cat": 6, "dog": 5}).items()}
    second = {f"train/{name}": data for name, data in make_photos({"ape": 4, "dog": 3}, seed=1).items()}
    copies = {"train/dog/copy.jpg": make_jpeg(0), "test/ape/copy.jpg": make_jpeg(0), "test/dog/x.png": make_png(5)}
    write_files(folder / "one" / "pets", first)
    write_files(folder / "two" / "pets", {**second, **copies})
    make_dataset(folder / "one" / "pets", folder / "a", num_shards=2)
    make_dataset(folder / "two" / "pets", folder / "b", num_shards=3)
    return folder / "a", folder / "b"


def test_a_split_is_seekable_if_all_parts_are(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    make_seekable_dataset(make_seekable_photos(4), folders[0])
    make_seekable_dataset(make_seekable_photos(3, seed=1), folders[1])
    make_dataset(write_files(tmp_path / "c-images", make_photos({"cat": 2, "dog": 1}, seed=2)), folders[2])
    all_parts = join_datasets(folders[:2], tmp_path / "all")
    assert (all_parts.splits["train"].seekable, all_parts.splits["train"].seekable_jpegs) == (True, 7)
    assert all_parts.image == ImageForm(seekable=True).to_json()
    for k, order in enumerate((folders, folders[::-1])):
        some = join_datasets(order, tmp_path / f"some{k}")
        assert (some.splits["train"].seekable, some.splits["train"].seekable_jpegs) == (False, 7)
        assert some.image == ImageForm().to_json()


def test_records_and_labels(pair: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = pair
    manifest = join_datasets(pair, tmp_path / "out", num_shards=4)
    assert manifest.label_names == ("cat", "dog", "ape")
    assert {name: (split.records, split.class_counts) for name, split in manifest.splits.items()} == {
        "test": (2, (0, 1, 1)),
        "train": (19, (6, 9, 4)),
    }
    assert manifest.splits["test"].formats == {"JPEG": 1, "PNG": 1}
    after = read_payloads(tmp_path / "out")
    assert set(read_payloads(a)) < set(after)  # the first dataset's labels stay, and so do its records
    old_records, new_records = (
        {record["image/sha256"][0] + record["image/filename"][0]: record for record in read_records(folder)}
        for folder in (b, tmp_path / "out")
    )
    for key, record in old_records.items():
        for name, value in record.items():
            if name == "image/class/label":
                assert manifest.label_names[int(new_records[key][name][0])].encode() == record["image/class/text"][0]
            else:
                assert np.array_equal(new_records[key][name], value)
    assert len(old_records) == 8
    assert (tmp_path / "out" / "image-class-label.labels.txt").read_text() == "cat\ndog\nape\n"
    assert manifest.name == "pets"


def test_the_order_is_kept(pair: tuple[Path, Path], tmp_path: Path) -> None:
    join_datasets(pair, tmp_path / "out", shuffle=False)
    assert read_payloads(tmp_path / "out")[:11] == read_payloads(pair[0])
    names = [bytes(record["image/filename"][0]) for folder in pair for record in read_records(folder)]
    assert [bytes(record["image/filename"][0]) for record in read_records(tmp_path / "out")] == names
    manifest = join_datasets([pair[0]] * 3, tmp_path / "thrice", num_shards=4)
    assert sorted(read_payloads(tmp_path / "thrice")) == sorted(read_payloads(pair[0]) * 3)
    assert manifest.duplicates.within == {"train": 22}


def test_copies_are_noticed(pair: tuple[Path, Path], tmp_path: Path) -> None:
    manifest = join_datasets(pair, tmp_path / "out")
    assert (manifest.duplicates.within, manifest.duplicates.across, manifest.duplicates.dropped) == ({"train": 1}, 1, 0)
    (line,) = (tmp_path / "out" / "duplicates.jsonl").read_text().splitlines()
    copies = {(record["split"], record["path"]) for record in json.loads(line)["records"]}
    assert copies == {("train", "train/cat/000.jpg"), ("train", "train/dog/copy.jpg"), ("test", "test/ape/copy.jpg")}


def test_copies_are_dropped(pair: tuple[Path, Path], tmp_path: Path) -> None:
    config = ShardConfig("a, b", str(tmp_path / "out"), datasets=(str(pair[0]), str(pair[1])), drop_duplicates=True)
    plan = plan_shards(config)
    assert plan.class_counts == {"test": [0, 1, 1], "train": [5, 8, 4]}
    manifest = join_datasets(pair, tmp_path / "out", drop_duplicates=True)
    assert {name: list(split.class_counts) for name, split in manifest.splits.items()} == plan.class_counts
    assert (manifest.duplicates.within, manifest.duplicates.across, manifest.duplicates.dropped) == ({}, 0, 2)
    names = read_images(tmp_path / "out")
    assert "train/cat/000.jpg" not in names
    assert "train/dog/copy.jpg" not in names
    assert "test/ape/copy.jpg" in read_images(tmp_path / "out", "test")
    manifest = join_datasets([pair[0], pair[0]], tmp_path / "twice", drop_duplicates=True, shuffle=False)
    assert read_payloads(tmp_path / "twice") == read_payloads(pair[0])
    assert manifest.duplicates.dropped == 11
    make_dataset(write_files(tmp_path / "in", {"cat/0.jpg": make_jpeg(0)}), tmp_path / "c", split="extra")
    make_dataset(write_files(tmp_path / "in", {}), tmp_path / "d", split="more")
    with pytest.raises(DataError, match=r"^Split 'more' holds nothing but copies of images in other splits\.$"):
        join_datasets([tmp_path / "c", tmp_path / "d"], tmp_path / "none", drop_duplicates=True)


def test_names_of_their_own(tmp_path: Path) -> None:
    for name, split in {"one": "train", "two": "test", "three": "train"}.items():
        make_dataset(write_files(tmp_path / name, make_photos({"cat": 2})), tmp_path / f"{name}-ds", split=split)
    manifest = join_datasets([tmp_path / f"{name}-ds" for name in ("one", "two", "three")], tmp_path / "out")
    assert manifest.name == "one+two+three"
    assert {name: split.records for name, split in manifest.splits.items()} == {"test": 2, "train": 4}
    assert json.loads((tmp_path / "out" / "dataset_info.json").read_text())["name"] == "one_two_three"


def test_a_damaged_record_is_named_by_its_dataset(pair: tuple[Path, Path], tmp_path: Path) -> None:
    broken = Path(shutil.copytree(pair[1], tmp_path / "broken"))
    shard = broken / "train-00001-of-00003.tfrecord"
    flip_bit(shard, 100)
    for options in ({}, {"drop_duplicates": True}):
        assert join_datasets([pair[0], broken], tmp_path / "out", overwrite=True, **options).quarantined == 1
        (line,) = read_quarantine(tmp_path / "out")
        assert line["path"] == "pets-2/train:2"
        assert line["reason"].startswith("train-00001-of-00003.tfrecord: Record at byte 0 is damaged")
