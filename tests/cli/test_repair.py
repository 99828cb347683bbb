"""`tfpipe repair` as a user runs it."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.beam_jobs.datasets import make_seekable_dataset, make_seekable_photos, read_tree
from tests.beam_jobs.images import write_files
from tests.flipped_bit import flip_bit
from tests.integrity.damaged import framed
from tests.integrity.made import payload, read_all, write_dataset
from tfpipe.dataset.load import load_manifest
from tfpipe.format import file_names
from tfpipe.integrity.verify import VerifyConfig, verify

SHARD = "train-00000-of-00003.tfrecord"


@pytest.fixture
def repair(tfpipe):
    return partial(tfpipe, "repair")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    shards = {f"train:{k}": [payload(10 * k + n) for n in range(4)] for k in range(3)}
    return write_dataset(tmp_path / "made", {**shards, "validation": [payload(90), payload(91)]})


def is_intact(dataset: Path) -> bool:
    return verify(str(dataset), VerifyConfig(workers=0)).damaged == []


def test_what_is_left_and_what_is_lost(made: Path, tmp_path: Path, repair) -> None:
    whole, out = read_all(made), tmp_path / "out"
    flip_bit(made / SHARD, 100)
    (made / "train-00001-of-00003.tfrecord").unlink()
    (made / file_names.index_name("train-00002-of-00003.tfrecord")).unlink()
    before = read_tree(made)
    done = repair(made, out)
    assert (done.code, done.err) == (0, "")
    assert done.lines[1] == "train-00001-of-00003.tfrecord: missing: the file is missing, with 4 records"
    lost = "lost: 1 payload_crc, 1 missing, listed in repair.json"
    assert done.lines[-2:] == [lost, f"{out} is complete: 9 records, 3 shards"]
    assert read_all(out) == [*whole[1:4], *whole[8:]]
    train = load_manifest(str(out)).splits["train"]
    assert train.class_counts == (3, 4)
    assert [shard.file for shard in train.shards] == [f"train-0000{k}-of-00002.tfrecord" for k in range(2)]
    assert is_intact(out)
    assert read_tree(made) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "out"]


def test_again_says_the_same(made: Path, tmp_path: Path, repair) -> None:
    (made / SHARD).write_bytes(framed([b"no example"]))
    code, text, _ = repair(made, tmp_path / "out", "--json")
    done = json.loads(text)
    kinds = [one["kind"] for one in done["lost"]]
    assert (code, done["records"], done["shards"], kinds[0]) == (0, 10, 3, "example")
    before = read_tree(tmp_path / "out")
    assert repair(made, tmp_path / "out", "--json") == (code, text, "")
    assert read_tree(tmp_path / "out") == before
    (made / SHARD).write_bytes(b"changed")
    code, _, errors = repair(made, tmp_path / "out")
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


def test_seekable_jpegs_are_counted_again(tmp_path: Path, repair) -> None:
    dataset = tmp_path / "pets"
    make_seekable_dataset(make_seekable_photos(6), dataset, num_shards=2)
    shard = dataset / "train-00001-of-00002.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert repair(dataset, tmp_path / "out").code == 0
    split = load_manifest(str(tmp_path / "out")).splits["train"]
    assert (split.records, split.seekable, split.seekable_jpegs) == (5, True, 5)
    assert is_intact(tmp_path / "out")


def test_without_a_manifest(made: Path, tmp_path: Path, repair) -> None:
    whole = load_manifest(str(made))
    (made / file_names.MANIFEST).write_text("[")
    code, text, _ = repair(made, tmp_path / "out")
    assert code == 0
    assert text.startswith("The manifest could not be used: schema and class names were taken from the records.\n")
    found = load_manifest(str(tmp_path / "out"))
    assert (found.splits, found.schema, found.label_names) == (whole.splits, whole.schema, whole.label_names)
    assert is_intact(tmp_path / "out")


def test_quick_keeps_images_as_they_are(made: Path, tmp_path: Path, repair) -> None:
    (made / SHARD).write_bytes(framed([payload(0, encoded=b"no image")]))
    assert json.loads(repair(made, tmp_path / "a", "--json")[1])["lost"][0]["kind"] == "image"
    assert read_all(tmp_path / "a")[0] == payload(10)
    repair(made, tmp_path / "b", "--quick")
    assert read_all(tmp_path / "b")[0] == payload(0, encoded=b"no image")


@pytest.mark.parametrize(
    ("out", "sentence"), [("made", "The output must not lie inside the input, got "), ("taken", "must be empty or not")]
)
def test_outputs_that_cannot_be(made: Path, tmp_path: Path, repair, out: str, sentence: str) -> None:
    write_files(tmp_path / "taken", {"file": b""})
    done = repair(made, tmp_path / out)
    assert done.code == 2
    assert sentence in done.err
    assert done.err.count("\n") == 1


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
