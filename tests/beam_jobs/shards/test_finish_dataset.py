"""From written shards to a dataset: limits, renumbering, the manifest's numbers, and a complete dataset."""

from pathlib import Path
from typing import Any

import pytest

from tests.beam_jobs.datasets import make_dataset, read_images, read_quarantine, read_tree
from tests.beam_jobs.images import make_jpeg, make_photos, make_png, write_files, write_zip
from tests.refusals import refusal
from tfpipe.errors import DataError
from tfpipe.format import manifest_json
from tfpipe.format.manifest import ImageSizes
from tfpipe.integrity.verify import VerifyConfig, verify


def refused(source: Path, output: Path, **options: Any) -> str:
    message = refusal(DataError, make_dataset, source, output, **options)
    assert not (output / "manifest.json").exists()
    return message


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Returns a folder of eight good images and four bad ones."""
    bad = {f"cat/bad{i}.jpg": b"bad %d" % i for i in range(3)} | {"dog/bad3.jpg": b""}
    return write_files(tmp_path / "in", make_photos({"cat": 5, "dog": 3}) | bad)


def test_the_manifest_says_what_is_there(mixed: Path, tmp_path: Path) -> None:
    (mixed / "cat" / "notes.txt").write_text("x")
    (mixed / "cat" / "wide.png").write_bytes(make_png(9, (40, 10)))
    output = tmp_path / "out"
    manifest = make_dataset(mixed, output, num_shards=2, seed=3, keep_quarantined=True)
    assert manifest_json.loads((output / "manifest.json").read_text()) == manifest
    assert (manifest.name, manifest.seed, manifest.label_names) == ("in", 3, ("cat", "dog"))
    assert (manifest.quarantined, manifest.skipped, manifest.changed) == (4, {"*.txt": 1}, {})
    (split,) = manifest.splits.values()
    assert (split.records, split.class_counts, split.formats) == (9, (6, 3), {"JPEG": 8, "PNG": 1})
    assert split.sizes == ImageSizes(10, 16, 15.3, 24, 40, 25.8)
    rows = {row["path"]: row for row in read_quarantine(output)}
    assert rows.keys() == {*(f"cat/bad{k}.jpg" for k in range(3)), "dog/bad3.jpg"}
    assert rows["dog/bad3.jpg"] == (
        {"path": "dog/bad3.jpg", "split": "train", "label": 1, "kind": "bad"}
        | {"reason": "the file is empty", "exception": "BadImage: the file is empty"}
    )
    assert not any("bytes" in row for row in rows.values())  # none of these files is an image
    assert (output / "image-class-label.labels.txt").read_text() == "cat\ndog\n"
    assert not (output / ".tfpipe").exists()
    assert sorted(path.name for path in output.iterdir()) == [
        *("dataset_info.json", "features.json", "image-class-label.labels.txt", "index", "manifest.json", "quarantine"),
        *("train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord"),
    ]


@pytest.mark.parametrize(("max_bad", "allowed"), [(3, 3), (0, 0), (0.3, 3), (0.0, 0)])
def test_too_many_bad_images(mixed: Path, tmp_path: Path, max_bad: Any, allowed: int) -> None:
    output = tmp_path / "out"
    assert refused(mixed, output, max_bad=max_bad, shuffle=False) == (
        f"At most {allowed} of 12 images may be bad, got 4, the first cat/bad0.jpg: not an image: it begins like text. "
        f"They are listed in {output}/quarantine/quarantined.jsonl; mend them and run again with "
        "`overwrite`, or allow more with `max_bad`."
    )
    assert len(read_quarantine(output)) == 4


def test_allowing_more_goes_on_without_writing_again(mixed: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    refused(mixed, output, max_bad=1, num_shards=3)
    stamps = {path: path.stat().st_mtime_ns for path in output.glob("*.tfrecord")}
    assert len(stamps) == 3
    make_dataset(mixed, output, max_bad=0.34, num_shards=3)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    make_dataset(mixed, tmp_path / "straight", max_bad=4, num_shards=3)
    assert read_tree(output) == read_tree(tmp_path / "straight")


def test_mending_what_was_unreadable_leaves_no_trace(tmp_path: Path) -> None:
    """With the same names and sizes the same plan goes on, and ends as if nothing had been wrong."""
    path = write_zip(tmp_path / "a.zip", make_photos({"cat": 3}), 0)
    whole = path.read_bytes()
    at = whole.index(make_jpeg(2)) + 100
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    refused(path, tmp_path / "out", max_bad=0)
    path.write_bytes(whole)
    make_dataset(path, tmp_path / "out", max_bad=0)
    make_dataset(path, tmp_path / "straight", max_bad=0)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")


def test_empty_shards_are_left_out_and_the_others_renumbered(tmp_path: Path) -> None:
    """With one image to a shard, the first, the third and the last shard come out empty."""
    files = make_photos({"a": 6}) | {f"a/00{k}.jpg": b"bad" for k in (0, 2, 5)}
    source, output = write_files(tmp_path / "in", files), tmp_path / "out"
    options = {"num_shards": 6, "shuffle": False, "max_bad": 3}
    manifest = make_dataset(source, output, **options)
    names = [f"train-0000{k}-of-00003" for k in range(3)]
    assert [shard.file for shard in manifest.splits["train"].shards] == [f"{name}.tfrecord" for name in names]
    assert sorted(path.stem for path in output.glob("*.tfrecord")) == names
    for suffix in ("idx", "parquet"):
        assert sorted(path.stem for path in (output / "index").glob(f"*.{suffix}")) == names
    assert [*read_images(output)] == ["a/001.jpg", "a/003.jpg", "a/004.jpg"]
    before = read_tree(output)
    assert make_dataset(source, output, **options) == manifest
    assert read_tree(output) == before
    (output / "train-00001-of-00003.tfrecord").write_bytes(b"damaged")
    make_dataset(source, output, **options)
    assert read_tree(output) == before


def test_a_split_without_a_good_image(tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", {"train/1.jpg": make_jpeg(1), "test/2.jpg": b"bad", "test/3.jpg": b"bad"})
    output = tmp_path / "out"
    message = f"Split 'test' has no image that can be read; see {output}/quarantine/quarantined.jsonl."
    assert refused(source, output, max_bad=2) == message


@pytest.mark.parametrize(
    "name",
    [
        *("features.json", "dataset_info.json", "image-class-label.labels.txt", "duplicates.jsonl"),
        *("quarantine/quarantined.jsonl", "train-00001-of-00002.tfrecord", "index/train-00001-of-00002.idx"),
    ],
)
def test_whatever_is_missing_is_made_again(mixed: Path, tmp_path: Path, name: str) -> None:
    (mixed / "dog" / "copy.jpg").write_bytes((mixed / "dog" / "000.jpg").read_bytes())
    output = tmp_path / "out"
    make_dataset(mixed, output, num_shards=2)
    before = read_tree(output)
    (output / name).unlink()
    make_dataset(mixed, output, num_shards=2)
    assert read_tree(output) == before


def test_a_source_that_changed_under_a_complete_dataset(tmp_path: Path) -> None:
    """An image has the same name and size, but other bytes. A mended shard must not contradict the manifest."""
    source = write_files(tmp_path / "in", {f"{i}.png": make_png(i, (4, 4)) for i in range(4)})
    output = tmp_path / "out"
    make_dataset(source, output)
    data = bytearray((source / "1.png").read_bytes())
    other = next(png for png in (make_png(k, (4, 4)) for k in range(100, 1000)) if len(png) == len(data))
    (source / "1.png").write_bytes(other)
    shard = output / "train-00000-of-00001.tfrecord"
    shard.unlink()
    assert refusal(DataError, make_dataset, source, output) == (
        f"{shard.name} was missing or damaged and came out different when made again: images have changed since. "
        f"{output} is no longer complete; run the same command again to make all of it anew."
    )
    assert not (output / "manifest.json").exists()
    make_dataset(source, output)
    make_dataset(source, tmp_path / "straight")
    assert read_tree(output) == read_tree(tmp_path / "straight")


def test_the_lists_of_another_run_go_and_a_missing_list_is_damage(tmp_path: Path) -> None:
    copies, output = {f"cat/copy{i}.jpg": make_jpeg(i // 2) for i in range(6)}, tmp_path / "out"
    source = write_files(tmp_path / "in", copies | {f"cat/bad{i}.jpg": b"bad %d" % i for i in range(3)})
    make_dataset(source, output, max_bad=3, num_shards=2)
    assert [path.name for path in sorted(output.rglob("*.jsonl"))] == ["duplicates.jsonl", "quarantined.jsonl"]
    make_dataset(write_files(tmp_path / "other", copies), output, overwrite=True)
    assert [path.name for path in sorted(output.rglob("*.jsonl"))] == ["duplicates.jsonl"]
    make_dataset(write_files(tmp_path / "more", copies | {"cat/bad.jpg": b"bad"}), tmp_path / "whole", max_bad=1)
    assert verify(str(tmp_path / "whole"), VerifyConfig(workers=0, allow_duplicates=True)).damaged == []
    names = ("duplicates.jsonl", "quarantine/quarantined.jsonl")
    for name in names:
        (tmp_path / "whole" / name).unlink()
    report = verify(str(tmp_path / "whole"), VerifyConfig(workers=0, allow_duplicates=True))
    assert sorted((damage.file, damage.kind) for damage in report.damaged) == [(name, "missing") for name in names]
