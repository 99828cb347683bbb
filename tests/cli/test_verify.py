"""`tfpipe verify` and `tfpipe repair` as a user runs them."""

import gzip
import hashlib
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.beam_jobs.datasets import make_dataset, make_seekable_dataset, make_seekable_photos, read_tree
from tests.beam_jobs.images import make_jpeg, make_png, write_files
from tests.flipped_bit import flip_bit
from tests.integrity.damaged import framed
from tests.integrity.made import payload, png, read_all, write_dataset
from tfpipe.dataset.load import load_manifest
from tfpipe.format import file_names
from tfpipe.format.example import encode_example

SHARD, FIRST_OF_3 = "train-00000-of-00002.tfrecord", "train-00000-of-00003.tfrecord"


@pytest.fixture
def verify(tfpipe):
    return partial(tfpipe, "verify")


@pytest.fixture
def repair(tfpipe):
    return partial(tfpipe, "repair")


def kinds(done: Any) -> list[str]:
    return [one["kind"] for one in done.json["damaged"]]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    shards = {"train": [payload(n) for n in range(4)], "train:1": [payload(9)], "validation": [payload(20)]}
    return write_dataset(tmp_path / "made", shards)


@pytest.fixture
def larger(tmp_path: Path) -> Path:
    shards = {f"train:{k}": [payload(10 * k + n) for n in range(4)] for k in range(3)}
    return write_dataset(tmp_path / "made", {**shards, "validation": [payload(90), payload(91)]})


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
    flip_bit(made / SHARD, first + 40)
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
    flip_bit(other, 13)  # in the payload of the first of the other records
    done = verify(other, "--json")
    assert (done.code, kinds(done), len(done.json["notes"])) == (1, ["payload_crc"], 1)


def test_what_is_left_and_what_is_lost(larger: Path, tmp_path: Path, repair, verify) -> None:
    whole, out = read_all(larger), tmp_path / "out"
    flip_bit(larger / FIRST_OF_3, 100)
    (larger / "train-00001-of-00003.tfrecord").unlink()
    (larger / file_names.index_name("train-00002-of-00003.tfrecord")).unlink()
    before = read_tree(larger)
    done = repair(larger, out)
    assert (done.code, done.err) == (0, "")
    assert done.lines[1] == "train-00001-of-00003.tfrecord: missing: the file is missing, with 4 records"
    lost = "lost: 1 payload_crc, 1 missing, listed in repair.json"
    assert done.lines[-2:] == [lost, f"{out} is complete: 9 records, 3 shards"]
    assert read_all(out) == [*whole[1:4], *whole[8:]]
    train = load_manifest(str(out)).splits["train"]
    assert train.class_counts == (3, 4)
    assert [shard.file for shard in train.shards] == [f"train-0000{k}-of-00002.tfrecord" for k in range(2)]
    assert verify(out).code == 0
    assert read_tree(larger) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "out"]


def test_again_says_the_same(larger: Path, tmp_path: Path, repair) -> None:
    (larger / FIRST_OF_3).write_bytes(framed([b"no example"]))
    code, text, _ = repair(larger, tmp_path / "out", "--json")
    done = json.loads(text)
    assert (code, done["records"], done["shards"], done["lost"][0]["kind"]) == (0, 10, 3, "example")
    before = read_tree(tmp_path / "out")
    assert repair(larger, tmp_path / "out", "--json") == (code, text, "")
    assert read_tree(tmp_path / "out") == before
    (larger / FIRST_OF_3).write_bytes(b"changed")
    code, _, errors = repair(larger, tmp_path / "out")
    assert (code, errors) == (2, f"Error: {tmp_path}/out holds the result of another repair; choose another name.\n")


def test_an_intact_dataset_comes_out_as_it_is(small_dataset: Path, tmp_path: Path, repair) -> None:
    code, text, _ = repair(small_dataset, tmp_path / "out", "--workers", 1)
    assert (code, text) == (0, f"{tmp_path}/out is complete: 15 records, 4 shards\n")
    old, new = load_manifest(str(small_dataset)), load_manifest(str(tmp_path / "out"))
    assert (new.splits, new.schema, new.changed) == (old.splits, old.schema, old.changed)
    assert (new.promised_lists, old.promised_lists) == ([], [file_names.QUARANTINE])
    assert new.fingerprint != old.fingerprint
    differ = {name for name, data in read_tree(tmp_path / "out").items() if read_tree(small_dataset).get(name) != data}
    assert differ == {"manifest.json", "repair.json"}


def test_seekable_jpegs_are_counted_again(tmp_path: Path, repair, verify) -> None:
    dataset = tmp_path / "pets"
    make_seekable_dataset(make_seekable_photos(6), dataset, num_shards=2)
    shard = dataset / "train-00001-of-00002.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert repair(dataset, tmp_path / "out").code == 0
    split = load_manifest(str(tmp_path / "out")).splits["train"]
    assert (split.records, split.seekable, split.seekable_jpegs) == (5, True, 5)
    assert verify(tmp_path / "out").code == 0


def test_without_a_manifest(larger: Path, tmp_path: Path, repair, verify) -> None:
    whole = load_manifest(str(larger))
    (larger / file_names.MANIFEST).write_text("[")
    assert repair(larger, tmp_path / "out").ok.out.startswith(
        "The manifest could not be used: schema and class names were taken from the records.\n"
    )
    found = load_manifest(str(tmp_path / "out"))
    assert (found.splits, found.schema, found.label_names) == (whole.splits, whole.schema, whole.label_names)
    assert verify(tmp_path / "out").code == 0


def test_quick_keeps_images_as_they_are(larger: Path, tmp_path: Path, repair) -> None:
    (larger / FIRST_OF_3).write_bytes(framed([payload(0, encoded=b"no image")]))
    assert json.loads(repair(larger, tmp_path / "a", "--json")[1])["lost"][0]["kind"] == "image"
    assert read_all(tmp_path / "a")[0] == payload(10)
    repair(larger, tmp_path / "b", "--quick")
    assert read_all(tmp_path / "b")[0] == payload(0, encoded=b"no image")


def test_a_folder_with_other_files_is_no_output(larger: Path, tmp_path: Path, repair) -> None:
    done = repair(larger, write_files(tmp_path / "taken", {"file": b""}))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "must be empty or not" in done.err


def test_nothing_left(tmp_path: Path, repair) -> None:
    source = write_dataset(tmp_path / "made", {"train": [payload(1)]})
    (source / "train-00000-of-00001.tfrecord").write_bytes(bytes(100))
    code, _, errors = repair(source, tmp_path / "out")
    assert (code, errors) == (1, f"Error: {source} has no undamaged record.\n")
    assert not (tmp_path / "out").exists()
    (tmp_path / "empty").mkdir()
    code, _, errors = repair(tmp_path / "empty", tmp_path / "out")
    assert code == 1
    assert errors.startswith(f"Error: {tmp_path}/empty cannot be repaired: {tmp_path}/empty holds no manifest.json")


def test_foreign_files_are_written_as_a_dataset_instead(foreign, tmp_path: Path, tfpipe) -> None:
    files = foreign.imagenet(tmp_path / "files")
    assert tfpipe("index", files).code == 0
    done = tfpipe("repair", files, tmp_path / "out")
    assert (done.code, done.out) == (2, "")
    assert " ".join(done.err.split()).endswith(
        f"Error: {files} describes files that another program wrote, and a repair writes records as they are. `tfpipe "
        f"reshard {files} OUTPUT` writes the undamaged ones as a dataset of tfpipe and lists the others."
    )
