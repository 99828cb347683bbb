"""`tfpipe verify` as a user runs it."""

import gzip
import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import make_jpeg, make_png, write_files
from tests.integrity.damaged import framed
from tests.integrity.made import payload, png, write_dataset
from tfpipe.dataset.load import load_manifest
from tfpipe.format import file_names
from tfpipe.format.example import encode_example

SHARD = "train-00000-of-00002.tfrecord"


@pytest.fixture
def verify(tfpipe):
    return partial(tfpipe, "verify")


def kinds(done: Any) -> list[str]:
    return [one["kind"] for one in done.json["damaged"]]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    shards = {"train": [payload(n) for n in range(4)], "train:1": [payload(9)], "validation": [payload(20)]}
    return write_dataset(tmp_path / "made", shards)


def change(path: Path, at: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    path.write_bytes(data)


def rewrite(dataset: Path, shard: str, payloads: list[bytes]) -> None:
    from tfpipe.format.record_index import encode_index

    old, data = (dataset / shard).read_bytes(), framed(payloads)
    (dataset / shard).write_bytes(data)
    (dataset / file_names.index_name(shard)).write_bytes(encode_index([len(p) + 16 for p in payloads]))
    text = (dataset / file_names.MANIFEST).read_text()
    text = text.replace(hashlib.sha256(old).hexdigest(), hashlib.sha256(data).hexdigest())
    text = text.replace(f'"bytes": {len(old)}, "sha256"', f'"bytes": {len(data)}, "sha256"')
    (dataset / file_names.MANIFEST).write_text(text)


def test_what_the_job_wrote_is_intact(small_dataset: Path, verify) -> None:
    done = verify(small_dataset)
    assert (done.code, done.err) == (0, "")
    size = sum(path.stat().st_size for path in small_dataset.glob("*.tfrecord"))
    assert done.out == f"{small_dataset} is intact: 4 files, 15 intact records, {size / 1000:.1f} KB\n"
    assert verify(small_dataset, "--quick", "--workers", 1).code == 0


def test_a_flipped_bit_is_named(made: Path, verify) -> None:
    first = len(payload(0)) + 16
    change(made / SHARD, first + 40, b"\xff")
    done = verify(made, "--json")
    size = len(payload(1))
    assert (done.code, done.json["version"]) == (1, 1)
    assert (done.json["files"], done.json["records"], done.json["kinds"]) == (3, 5, {"payload_crc": 1})
    (one,) = done.json["damaged"]
    assert (one["file"], one["record"], one["offset"], one["kind"]) == (SHARD, 1, first, "payload_crc")
    assert one["detail"] == f"the checksum of its {size:,} bytes of payload is wrong"
    text = verify(made, "--quick")
    assert text.code == 1
    answer, damage, advice = text.lines
    assert answer.startswith(f"{made} is damaged: 1 payload_crc; 3 files, 5 intact records, ")
    assert damage.startswith(f"{SHARD}, record 1 at byte {first:,}")
    assert advice == f"`tfpipe repair {made} OUTPUT` writes the intact records as a new dataset."


@pytest.mark.parametrize(
    ("changes", "kind", "detail"),
    [
        ({"label": 2}, "label", "label 2 is not one of the 2 classes"),
        ({"label": 1}, "label", "label 1 is 'dog', its text is 'cat'"),
        ({"encoded": b"<html>"}, "image", "not an image: it begins like HTML"),
        ({"encoded": png(0)[:-20]}, "image", "truncated PNG"),
        ({"format": "JPEG"}, "image", "it is a PNG, not a JPEG"),
        ({"height": 7}, "image", "image/height says 7, the image says 4"),
    ],
    ids=["label", "text", "html", "cut", "format", "height"],
)
def test_content(made: Path, verify, changes: dict[str, Any], kind: str, detail: str) -> None:
    rewrite(made, SHARD, [payload(0, **changes), *(payload(n) for n in range(1, 4))])
    (one,) = verify(made, "--json").json["damaged"]
    assert (one["record"], one["offset"], one["kind"], one["detail"]) == (0, 0, kind, detail)
    assert one["key"] == "cat/0.png"
    assert verify(made, "--quick").code == 0


def test_jpegs_without_their_restart_markers(tmp_path: Path, verify) -> None:
    images = {"cat/0.jpg": make_jpeg(0, restart_marker_blocks=2), "cat/1.jpg": make_jpeg(1), "cat/2.png": make_png(2)}
    dataset = tmp_path / "pets"
    make_dataset(write_files(tmp_path / "images", images), dataset, shuffle=False)
    assert verify(dataset).code == 0
    path = dataset / file_names.MANIFEST
    path.write_text(path.read_text().replace('"class_counts"', '"seekable": true, "seekable_jpegs": 2, "class_counts"'))
    done = verify(dataset, "--json")
    assert done.code == 1
    (one,) = done.json["damaged"]
    detail = "the manifest says that all JPEGs have restart markers that divide a row, but this one has not"
    assert (one["record"], one["kind"], one["key"], one["detail"]) == (1, "image", "cat/1.jpg", detail)
    assert verify(dataset, "--quick").code == 0


def test_schema(made: Path, verify) -> None:
    rewrite(made, SHARD, [b"\xff\xff", encode_example({"image/encoded": b""}), payload(2), payload(3)])
    damaged = verify(made, "--json").json["damaged"]
    assert [(one["record"], one["kind"]) for one in damaged if one["kind"] != "schema"] == [(0, "example")]
    assert "feature 'image/width' is missing" in [one["detail"] for one in damaged]


def test_files_and_the_manifest(made: Path, verify) -> None:
    os.rename(made / "train-00001-of-00002.tfrecord", made / "train-00001-of-00003.tfrecord")
    os.remove(made / file_names.index_name(SHARD))
    os.remove(made / file_names.TFDS_INFO)
    validation = made / file_names.index_name("validation-00000-of-00001.tfrecord")
    validation.write_text("0 99\n")
    assert [(one["file"], one["kind"]) for one in verify(made, "--json", "--quick").json["damaged"]] == [
        (file_names.index_name(SHARD), "index"),
        ("train-00001-of-00002.tfrecord", "missing"),
        (file_names.index_name("validation-00000-of-00001.tfrecord"), "index"),
        ("train-00001-of-00003.tfrecord", "extra"),
        (file_names.TFDS_INFO, "missing"),
    ]


def test_what_only_the_manifest_tells(made: Path, verify) -> None:
    """Whole other records: nothing is wrong with them but that they are not those that were written."""
    data = framed([payload(n) for n in (0, 1, 2)])
    (made / SHARD).write_bytes(data)
    (one,) = verify(made, "--json").json["damaged"]
    assert (one["kind"], one["record"], one["offset"]) == ("truncated", 3, len(data))
    (made / SHARD).write_bytes(framed([payload(0), payload(1), payload(2, sha256="0" * 64), payload(3)]))
    (one,) = verify(made, "--json").json["damaged"]
    assert (one["file"], one["kind"], one["record"]) == (SHARD, "sha256", None)
    text = (made / file_names.MANIFEST).read_text()
    assert '"class_counts": [2, 3]' in text
    (made / SHARD).write_bytes(framed([payload(n) for n in range(4)]))
    (made / file_names.MANIFEST).write_text(text.replace('"class_counts": [2, 3]', '"class_counts": [3, 2]'))
    done = verify(made, "--json")
    assert kinds(done) == ["count", "count"]
    assert done.json["damaged"][0]["detail"] == "split 'train' has 2 records of class 0, the manifest says 3"


def test_an_image_in_two_splits(made: Path, verify) -> None:
    rewrite(made, "validation-00000-of-00001.tfrecord", [payload(2)])
    (one,) = verify(made, "--json").json["damaged"]
    assert (one["file"], one["record"], one["kind"]) == ("validation-00000-of-00001.tfrecord", 0, "duplicate")
    assert one["detail"] == f"it is record 2 of {SHARD} too, in split 'train'"
    assert verify(made).lines[2:] == ["--allow-duplicates accepts images that occur in two splits."]
    assert verify(made, "--allow-duplicates").code == 0


def test_links_in_a_circle_pipes_and_no_manifest(made: Path, verify) -> None:
    for name, make in ((SHARD, lambda path: os.symlink(path, path)), ("train-00001-of-00002.tfrecord", os.mkfifo)):
        os.rename(made / name, made / f"{name}.old")
        make(made / name)
    assert kinds(verify(made, "--json"))[:2] == ["unreadable", "unreadable"]
    for name in (SHARD, "train-00001-of-00002.tfrecord"):
        os.replace(made / f"{name}.old", made / name)
    (made / file_names.MANIFEST).write_text("{")
    done = verify(made, "--json")
    assert (kinds(done), done.code, done.json["records"]) == (["manifest"], 1, 6)


def test_foreign_files(tmp_path: Path, verify) -> None:
    good = encode_example({"jpg": png(1), "text": "hello"})
    (tmp_path / "a-0").write_bytes(framed([good, encode_example({"jpg": png(1)[:-9]})]))
    packed = gzip.compress(framed([good, good, encode_example({"jpg": png(1)[:-9]})]))
    (tmp_path / "a-1").write_bytes(packed)
    (tmp_path / "a-2").write_bytes(packed[:-20])
    os.mkfifo(tmp_path / "b")
    done = verify(str(tmp_path / "a-*"), "--json")
    assert [(one["file"], one["record"], one["kind"]) for one in done.json["damaged"]] == [
        (str(tmp_path / "a-0"), 1, "image"),
        (str(tmp_path / "a-1"), 2, "image"),
        (str(tmp_path / "a-2"), 2, "compressed"),
    ]
    assert done.json["records"] == 7
    assert kinds(verify(tmp_path / "b", "--json")) == ["unreadable"]
    done = verify(tmp_path / "none-*")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"Error: No file fits {tmp_path}/none-*. Give the directory of a dataset, a file, or")


def test_many_damages_are_cut_on_a_terminal(made: Path, verify) -> None:
    rewrite(made, SHARD, [b"\xff"] * 4)
    (made / SHARD).write_bytes(framed([b"\xff"] * 70))
    (made / file_names.index_name(SHARD)).unlink()
    lines = verify(made).out.splitlines()
    assert len(lines) == 53
    assert lines[51] == "and 23 more (--json lists all)"
    assert load_manifest(str(made)).splits["train"].records == 5


def test_records_that_are_no_examples_are_no_damage(tmp_path: Path, verify) -> None:
    other, packed, mixed = (tmp_path / name for name in ("other", "packed", "mixed"))
    other.write_bytes(framed([b"\xff\xff"] * 3))
    packed.write_bytes(gzip.compress(framed([b"\xff\xff"] * 3)))
    for path in (other, packed):
        done = verify(path, "--json")
        assert (done.code, done.json["damaged"], done.json["records"]) == (0, [], 3)
        assert verify(path).out == (
            f"{path} is intact: 1 file, 3 intact records, {path.stat().st_size} B\n"
            f"{path} holds no tf.train.Examples, so only the frames and the checksums are checked. "
            "`tfpipe reshard --opaque` shuffles records of any content.\n"
        )
        assert verify(path, "--quick").out.startswith(f"{path} is intact: ")
    notes = verify(f"{tmp_path}/*", "--json").json["notes"]
    assert [note.partition(" no ")[0] for note in notes] == [f"{other} and 1 more file hold"]
    mixed.write_bytes(framed([b"\xff\xff", encode_example({"a": 1})]))
    done = verify(mixed, "--json")
    assert (done.code, kinds(done), done.json["notes"]) == (1, ["example"], [])
    change(other, 13, b"\xfe")  # in the payload of the first of the other records
    done = verify(other, "--json")
    assert (done.code, kinds(done), len(done.json["notes"])) == (1, ["payload_crc"], 1)
