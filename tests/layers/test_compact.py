"""`tfpipe compact`: the same records as one layer without the bytes of hidden ones, or the old dataset after a kill."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe as library
from tests.beam_jobs.datasets import join_datasets, read_tree
from tests.beam_jobs.images import make_jpeg, write_files
from tests.conftest import Tfpipe
from tests.layers.growth import append, list_names
from tests.writer.test_every_writer import write_and_vanish
from tfpipe.errors import DataError
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.layers.compact import compact
from tfpipe.layers.delete import delete_records
from tfpipe.layers.rollback import roll_back
from tfpipe.readers.data_source import data_source
from tfpipe.storage import local
from tfpipe.views.choose import make_view, write_view
from tfpipe.views.config import ViewConfig

HERE = VerifyConfig(workers=0)


@pytest.fixture
def layered(grown: str) -> str:
    """The dataset with appended records, two views, a column, a note, and two hidden records of the first shard."""
    library.add_column(grown, "index", lambda record: record.index, library.Values("int64"))
    manifest = library.load_manifest(grown)
    write_view(manifest, make_view(manifest, ViewConfig("owls", "label = 'owl'", weights="label_id")))
    write_view(
        library.load_manifest(grown), make_view(manifest, ViewConfig("first", f"name = '{list_names(grown)[1]}'"))
    )
    Path(grown, "NOTE.txt").write_text("Mine.")
    delete_records(grown, [list_names(grown)[k] for k in (1, 3)])
    return grown


def read_records(dataset: Path | str) -> dict[str, list[Any]]:
    return {
        split: [
            (record.name, record.label_name, record.encoded, record.features["index"])
            for record in data_source(str(dataset), split)
        ]
        for split in library.load_manifest(str(dataset)).splits
    }


def test_it_is_a_fresh_dataset_with_the_same_records(layered: str, tmp_path: Path) -> None:
    before, hidden = read_records(layered), set(list_names(f"{layered}@2")) - set(list_names(layered))
    owls = list_names(f"{layered}@owls")
    join_datasets([layered], tmp_path / "fresh", shuffle=False, num_shards=1)
    done = compact(layered)
    assert done is not None
    assert (done.records, done.removed, done.dropped_views) == ({"train": 15, "validation": 4}, 2, ("first",))
    assert (done.kept_shards, done.written_shards) == (12, 2)
    assert read_records(layered) == before
    new, fresh = (library.load_manifest(str(each)) for each in (layered, tmp_path / "fresh"))
    assert (new.layer, new.parts, new.view) == (1, (), "")
    for split in ("train", "validation"):
        one, other = new.splits[split], fresh.splits[split]
        for name in ("records", "class_counts", "formats", "sizes", "chosen", "label_counts"):
            assert getattr(one, name) == getattr(other, name), name
    assert new.label_names == fresh.label_names
    assert list_names(f"{layered}@owls") == owls
    view = library.load_manifest(f"{layered}@owls").splits["train"].chosen
    assert view is not None
    assert view.weights is not None
    assert sum(view.class_counts) == len(owls)
    assert Path(layered, "NOTE.txt").read_text() == "Mine."
    assert not Path(layered, "layers").exists()
    assert not any(name.encode() in data for name in hidden for data in read_tree(Path(layered)).values())
    assert sorted(os.listdir(tmp_path)) == ["fresh", "grown"]
    assert verify(layered, HERE).damaged == []
    assert compact(layered) is None


def test_shards_without_a_hidden_record_keep_their_place_on_disk(layered: str) -> None:
    kept = [Path(layered, name) for name in ("train-00001-of-00002.tfrecord", "layers/2/train-00000-of-00002.tfrecord")]
    inodes = [path.stat().st_ino for path in kept]
    compact(layered)
    new = [Path(layered, f"train-{k:05d}-of-00004.tfrecord") for k in (1, 2)]
    assert [path.stat().st_ino for path in new] == inodes
    assert not set(inodes) & {Path(layered, f"train-{k:05d}-of-00004.tfrecord").stat().st_ino for k in (0, 3)}


def test_a_file_system_without_links_gets_copies(layered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_records(layered)

    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(local.os, "link", refuse)
    compact(layered)
    assert read_records(layered) == before


def test_a_shard_of_hidden_records_alone_is_gone(pets: str) -> None:
    names = list_names(pets)
    delete_records(pets, names[:6])
    done = compact(pets)
    assert done is not None
    assert (done.kept_shards, done.written_shards) == (3, 0)
    assert list_names(pets) == names[6:]
    assert library.load_manifest(pets).splits["train"].num_shards == 1
    assert verify(pets, HERE).damaged == []
    delete_records(pets, [*list_names(pets), *list_names(pets, "validation")])
    with pytest.raises(DataError, match=r"^All records of .*/pets are hidden, so none would be left\.$"):
        compact(pets)


def test_equal_images_are_searched_anew(pets: str, tmp_path: Path) -> None:
    twice = make_jpeg(1)
    names = ("train/cat/x.jpg", "train/cat/y.jpg", "validation/cat/z.jpg")
    append(pets, write_files(tmp_path / "a", dict.fromkeys(names[:2], twice)), num_shards=1)
    append(pets, write_files(tmp_path / "b", {names[2]: twice}), num_shards=1)
    compact(pets)
    found = library.load_manifest(pets).duplicates
    assert (found.within, found.across) == ({"train": 1}, 1)
    lines = Path(pets, "duplicates.jsonl").read_text().splitlines()
    assert len(lines) == 1
    assert all(name in lines[0] for name in names)
    assert list_names(pets, "validation").index(names[2]) == 3
    assert '"index": 3, "path": "validation/cat/z.jpg"' in lines[0]


def test_records_that_were_taken_back_are_gone(grown: str, tmp_path: Path) -> None:
    manifest = library.load_manifest(grown)
    write_view(manifest, make_view(manifest, ViewConfig("ants", "label = 'ant'")))
    roll_back(grown, 1)
    names = list_names(grown)
    done = compact(grown)
    assert done is not None
    assert (done.dropped_views, done.written_shards) == (("ants",), 0)
    assert list_names(grown) == names
    assert library.load_manifest(grown).label_names == ("cat", "dog", "owl")


def test_the_command_prints_what_it_did(layered: str, tfpipe: Tfpipe) -> None:
    ran = tfpipe("compact", layered)
    assert (ran.code, ran.lines) == (
        0,
        [
            "train: 15 records",
            "validation: 4 records",
            "2 hidden records removed; 12 shards kept, 2 written anew",
            "removed, as none of their records is left or a rollback took some: the views first",
            f"{layered} is complete",
        ],
    )
    assert tfpipe("compact", layered).lines == [f"{layered} has one layer, so there is nothing to do"]
    assert tfpipe("compact", layered, "--json").json == {"dataset": layered, "compacted": False}
    assert tfpipe("log", layered, "--json").json["layers"][0]["records"] == {"train": 15, "validation": 4}
    assert tfpipe("compact", "gs://bucket/x").code == 2


# Kills


def compact_here(_: Path, dataset: Path) -> None:
    compact(str(dataset))


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_kill_leaves_the_old_dataset_or_the_new_one(
    layered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    if not exchanges:
        monkeypatch.setattr(local, "exchange_folders", lambda *_: False)
    names = list_names(layered)
    straight = shutil.copytree(layered, tmp_path / "straight")
    named = []
    for function in ("replace", "rename"):
        real = getattr(os, function)
        monkeypatch.setattr(os, function, lambda *args, real=real: (named.append(args), real(*args)))
    compact(str(straight))
    monkeypatch.undo()
    if not exchanges:
        monkeypatch.setattr(local, "exchange_folders", lambda *_: False)
    expected, total = read_tree(straight), len(named)
    assert total > 20
    for moment in (0, 7, total // 2, total - 3, total - 2, total - 1):
        dataset = shutil.copytree(layered, tmp_path / str(moment) / "out")
        assert not write_and_vanish(compact_here, Path(), dataset, moment)
        assert dataset.exists() or not exchanges
        if dataset.exists():
            assert list_names(dataset) == names, moment
        compact(str(dataset))
        assert read_tree(dataset) == expected, moment
        assert os.listdir(dataset.parent) == ["out"]


def test_a_kill_between_the_exchange_and_the_end_leaves_the_new_one(layered: str, tmp_path: Path) -> None:
    work = Path(f"{layered}.tfpipe-layers")
    old = shutil.copytree(layered, tmp_path / "copy")
    names = list_names(layered)
    compact(layered)
    work.mkdir()
    shutil.move(old, work / "data")
    assert compact(layered) is None
    assert not work.exists()
    assert list_names(layered) == names


def test_numbers_of_columns_follow_the_records(layered: str) -> None:
    values: list[Any] = [record.features["index"] for record in data_source(layered, "train")]
    compact(layered)
    after: list[Any] = [record.features["index"] for record in data_source(layered, "train")]
    np.testing.assert_array_equal(after, values)
