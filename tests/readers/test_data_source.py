"""`tfpipe.data_source`: images and classes by number, by class and by name."""

import io
import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tfpipe
from tests.flipped_bit import flip_bit
from tests.integrity.made import payload, png, write_dataset
from tests.refusals import refusal
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.example import decode_example
from tfpipe.format.manifest import Foreign
from tfpipe.readers import data_source as data_source_module
from tfpipe.readers.data_source import DataSource, data_source


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Eight records, `cat/0.png`, `dog/1.png`, ... in two shards, and one of another split."""
    folder = tmp_path_factory.mktemp("records") / "pets"
    shards = {
        "train": [payload(k) for k in range(5)],
        "train:1": [payload(k) for k in range(5, 8)],
        "test": [payload(9)],
    }
    return write_dataset(folder, shards)


@pytest.fixture
def records(folder: Path) -> DataSource:
    return data_source(str(folder), "train")


def numbers(records: DataSource) -> list[int]:
    return [record.index for record in records]


def test_a_record_is_what_was_written(records: DataSource) -> None:
    record = records[6]
    assert (record.split, record.index, record.name) == ("train", 6, "cat/6.png")
    assert (record.label, record.label_name, record.encoded) == (0, "cat", png(6))
    assert record.features == decode_example(payload(6))
    pixels = record.image
    assert pixels.dtype == np.uint8
    assert pixels.flags.writeable
    assert np.array_equal(pixels, np.asarray(Image.open(io.BytesIO(png(6)))))
    assert repr(record) == "Record(split='train', index=6, name='cat/6.png', label=0, label_name='cat')"


def test_it_is_a_sequence(records: DataSource) -> None:
    assert len(records) == 8
    assert numbers(records) == list(range(8))
    assert [records[k].index for k in (-1, -8, np.int64(3))] == [7, 0, 3]
    assert [record.index for record in reversed(records)] == list(range(8))[::-1]
    for index in (8, -9, 10**30):
        with pytest.raises(IndexError, match="must have an index from -8 to 7") as caught:
            records[index]
        assert isinstance(caught.value, ConfigError)


def test_slices_and_lists_of_numbers_are_views(records: DataSource) -> None:
    assert numbers(records[2:5]) == [2, 3, 4]
    assert numbers(records[::-1]) == list(range(8))[::-1]
    assert numbers(records[::-1][1:3]) == [6, 5]
    assert numbers(records[100:]) == []
    assert numbers(records[[4, -1, 4]]) == [4, 7, 4]
    assert numbers(records[2:][np.array([0, 5])]) == [2, 7]
    assert numbers(records[[4, 1, 6]][1:]) == [1, 6]
    assert numbers(records[[]]) == []
    assert repr(records[:3]).startswith("<3 records of 'train' in /")
    for key, number in ((3, 3), ([0, -4], -4)):
        with pytest.raises(IndexError, match=rf"of 'train' must have an index from -3 to 2, got {number}\."):
            records[:3][key]
    with pytest.raises(ConfigError, match="chosen by whole numbers in one list or array, got float64 on 1 axes"):
        records[[0.5]]
    with pytest.raises(ConfigError, match="got bool on 1 axes"):
        records[np.array([True] * 8)]


def test_nothing_is_read_for_a_view(folder: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "copy")
    records = data_source(str(copied), "train")
    for path in copied.glob("*.tfrecord"):
        path.unlink()
    assert len(records[1:][[0, 1]]) == 2
    with pytest.raises(FormatError, match="is missing"):
        records[0]


def test_classes_are_found_by_name_and_number(records: DataSource) -> None:
    assert records.with_label("dog").tolist() == [1, 3, 5, 7]
    assert records.with_label(0).tolist() == [0, 2, 4, 6]
    assert records.with_label(0).dtype == np.int64
    view = records[::-1][1:]
    assert view.with_label("dog").tolist() == [1, 3, 5]
    assert {record.label_name for record in view[view.with_label("dog")]} == {"dog"}
    for label, message in (
        ("owl", "The dataset has no class 'owl'; `manifest.label_names` lists them."),
        (2, "A class must be from 0 to 1, got 2."),
        (-1, "A class must be from 0 to 1, got -1."),
    ):
        assert refusal(ConfigError, records.with_label, label) == message


def test_names_are_found(records: DataSource, monkeypatch) -> None:
    assert records.find("dog/5.png") == 5
    assert records[::-1].find("dog/5.png") == 2
    assert records[[5, 1, 5]].find("dog/5.png") == 0
    for view, name in ((records, "dog/4.png"), (records[:3], "dog/5.png"), (records, "\ud800")):
        assert refusal(ConfigError, view.find, name) == f"No record of 'train' has the name {name!r}."


def test_names_of_one_hash_are_told_apart(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(data_source_module, "_hash", lambda name: 7)
    records = data_source(str(folder), "train")
    assert [records.find(record.name) for record in records] == list(range(8))
    with pytest.raises(ConfigError):
        records.find("dog/4.png")


def test_the_split_is_read_once_for_all_lookups(records: DataSource, monkeypatch) -> None:
    read = []
    real = data_source_module.get_label
    monkeypatch.setattr(data_source_module, "get_label", lambda *args: read.append(1) or real(*args))
    records[2:].with_label("dog")
    records.find("dog/5.png")
    records.with_label(0)
    assert pickle.loads(pickle.dumps(records[1:])).with_label("dog").tolist() == [0, 2, 4, 6]
    assert len(read) == 8


def test_a_batch_and_columns_are_those_of_the_records(records: DataSource) -> None:
    for view in (records, records[::-1], records[[5, 1, 5, 0]]):
        batch = view.__getitems__([3, -1, 0, 3])
        assert [repr(record) for record in batch] == [repr(view[k]) for k in (3, -1, 0, 3)]
        assert [repr(record.features) for record in batch] == [repr(view[k].features) for k in (3, -1, 0, 3)]
        assert repr(view._getitems([3, -1, 0, 3])) == repr(batch)  # Grain's name for it
    assert records.__getitems__([]) == []
    sentence = "A record of 'train' must have an index from -3 to 2, got 3."
    assert refusal(IndexError, records[2:5].__getitems__, np.array([0, 3])) == sentence
    memory = np.zeros(1 << 14, np.uint8)
    columns = records[::-1].read_columns([0, 3, -1], ["image/encoded", "image/class/label"], memory)
    assert [encoded.tobytes() for encoded in columns["image/encoded"]] == [png(7), png(4), png(0)]
    assert columns["image/class/label"].tolist() == [1, 0, 0]


def test_a_copy_for_another_process_opens_its_own_files(records: DataSource) -> None:
    records[0]
    with pickle.loads(pickle.dumps(records[3:])) as other:
        assert (other.split, numbers(other)) == ("train", [3, 4, 5, 6, 7])
    assert len(pickle.dumps(records)) < 10_000


def test_a_manifest_or_a_folder_opens_it(folder: Path, monkeypatch) -> None:
    manifest = tfpipe.load_manifest(str(folder))
    assert numbers(tfpipe.data_source(manifest, "train")) == numbers(data_source(folder, "train"))
    monkeypatch.chdir(folder.parent)
    records = data_source("pets", "train")
    monkeypatch.chdir("/")
    assert records[0].name == "cat/0.png"
    with pytest.raises(ConfigError, match=r"must come from `tfpipe.load_manifest`"):
        data_source(replace(manifest, directory=""), "train")
    assert "has no split 'val'; it has test, train." in refusal(ConfigError, data_source, manifest, "val")
    with pytest.raises(ConfigError, match="from a local directory, got 'hdfs://b/d'"):
        data_source(replace(manifest, directory="hdfs://b/d"), "train")


def test_labels_of_others_are_counted_from_0(folder: Path) -> None:
    manifest = tfpipe.load_manifest(str(folder))
    foreign = Foreign(".", "image/encoded", "image/class/label", 1, "")
    records = data_source(replace(manifest, foreign=foreign), "train")
    assert [record.label for record in records] == [-1, 0] * 4
    assert [record.label_name for record in records[:2]] == [None, "cat"]
    assert records.with_label("cat").tolist() == [1, 3, 5, 7]
    unlabeled = data_source(replace(manifest, foreign=replace(foreign, label_key=None)), "train")
    assert (unlabeled[0].label, unlabeled[0].label_name) == (None, None)
    with pytest.raises(ConfigError, match="are GZIP compressed"):
        data_source(replace(manifest, foreign=replace(foreign, compression="GZIP")), "train")


def test_damage_is_named(tmp_path: Path) -> None:
    bad = [payload(0, encoded=png(0)[:30]), payload(1, encoded=b"no image")]
    folder = write_dataset(tmp_path / "pets", {"train": bad})
    records = data_source(folder, "train")
    for record, reason in zip(records, ("PNG", "not an image"), strict=True):
        found = refusal(FormatError, getattr, record, "image")
        assert found.startswith(f"Record {record.index} of 'train': its image cannot be used, ")
        assert reason.lower() in found.lower()
    flip_bit(folder / "train-00000-of-00001.tfrecord", -20)
    assert "is damaged" in refusal(FormatError, records.with_label, 0)


def test_raw_pixels_need_no_decoder(tmp_path: Path) -> None:
    pixels = np.arange(3 * 3 * 3, dtype=np.uint8)
    folder = write_dataset(tmp_path / "raw", {"train": [payload(0, encoded=pixels.tobytes(), format="RAW")]})
    document = json.loads((folder / "manifest.json").read_text())
    document["image"] = {"encoding": "raw", "square": 3}
    (folder / "manifest.json").write_text(json.dumps(document))
    assert data_source(folder, "train")[0].image.tolist() == pixels.reshape(3, 3, 3).tolist()
