"""`tfpipe diff`: the differences of datasets, layers and views."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tfpipe as library
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import make_jpeg, write_files
from tests.conftest import Tfpipe
from tests.layers.growth import list_names
from tfpipe.errors import ConfigError
from tfpipe.layers.delete import delete_records
from tfpipe.layers.diff import compare
from tfpipe.views.choose import make_view, write_view
from tfpipe.views.config import ViewConfig


def test_layers_differ_by_their_records(grown: str) -> None:
    gone = list_names(grown)[2]
    delete_records(grown, [gone])
    found = compare(f"{grown}@1", grown)
    assert (found.only_in_a.count, found.only_in_a.names) == (1, (gone,))
    new = [*list_names(grown)[11:], "validation/cat/7.jpg"]
    assert (found.only_in_b.count, found.only_in_b.names) == (6, tuple(sorted(new)))
    assert found.classes == ((), ("ant",))
    assert found.records == {"train": (12, 16), "validation": (3, 4)}
    assert (found.other_bytes.count, found.other_label.count, found.features) == (0, 0, ((), ()))
    assert not found.is_empty
    assert compare(grown, f"{grown}@3").is_empty


def test_datasets_differ_by_bytes_classes_splits_and_features(tmp_path: Path) -> None:
    images = {f"{name}.jpg": make_jpeg(k) for k, name in enumerate("abcd")}
    source = write_files(
        tmp_path / "a", {**images, "t.csv": b"image,label,split\na.jpg,x,train\nb.jpg,x,train\nc.jpg,y,train\n"}
    )
    make_dataset(source / "t.csv", tmp_path / "one")
    table = b"image,label,split,price\na.jpg,x,train,1\nb.jpg,y,train,2\nc.jpg,y,test,3\nd.jpg,y,test,4\n"
    other = write_files(tmp_path / "b", {**images, "a.jpg": make_jpeg(9), "t.csv": table})
    make_dataset(other / "t.csv", tmp_path / "two")
    found = compare(str(tmp_path / "one"), str(tmp_path / "two"))
    names = {
        name: getattr(found, name).names
        for name in ("only_in_a", "only_in_b", "other_bytes", "other_label", "other_split")
    }
    assert names == {
        "only_in_a": (),
        "only_in_b": ("d.jpg",),
        "other_bytes": ("a.jpg",),
        "other_label": ("b.jpg",),
        "other_split": ("c.jpg",),
    }
    assert found.features == ((), ("price",))


def test_views_and_columns_are_compared(pets: str, tmp_path: Path) -> None:
    manifest = library.load_manifest(pets)
    write_view(manifest, make_view(manifest, ViewConfig("dogs", "label = 'dog'")))
    found = compare(pets, f"{pets}@dogs")
    assert (found.only_in_a.count, found.only_in_b.count) == (10, 0)
    copy = shutil.copytree(pets, tmp_path / "copy")
    library.add_column(copy, "index", lambda record: record.index, library.Values("int64"))
    assert compare(pets, str(copy)).features == ((), ("index",))


def test_records_without_names_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        library.write([{"x": 1}], str(tmp_path / name), {"x": library.Values("int64")}, num_shards=1)
    with pytest.raises(ConfigError, match=r"have neither names nor digests in common, by which to compare them\.$"):
        compare(str(tmp_path / "a"), str(tmp_path / "b"))


def test_the_command_says_what_differs(grown: str, tfpipe: Tfpipe) -> None:
    ran = tfpipe("diff", f"{grown}@1", grown)
    assert ran.code == 0, ran.err
    assert ran.lines[0].startswith("train: 12 and 17 records, ")
    assert ran.lines[2:] == [
        f"only in {grown}: 6 records, such as train/ant/0.jpg, train/ant/1.jpg, train/owl/7.jpg",
        f"classes only in {grown}: ant",
    ]
    assert tfpipe("diff", grown, grown).lines[-1] == f"{grown} and {grown} have the same records, features and classes"
    document = tfpipe("diff", f"{grown}@1", grown, "--json").json
    assert (document["equal"], document["only_in_b"]["count"]) == (False, 6)
