"""The manifest of shards that something else wrote: what it may say, and above all where it may lead."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format import file_names
from tfpipe.format.catalog import Catalog
from tfpipe.format.manifest import Foreign, ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.manifest_json import dumps, loads
from tfpipe.format.schema import FeatureSpec, Schema, image_schema

SHARDS = (ShardInfo("a/train-0.rec", 2, 90, "0" * 64), ShardInfo("train-1", 0, 0, "1" * 64))
MANIFEST = Manifest(
    name="others",
    splits={"train": SplitInfo("train", SHARDS, {"JPEG": 2}, (1, 1), ImageSizes(4, 4, 4.0, 5, 5, 5.0))},
    label_names=("one", "two"),
    schema=Schema(
        (FeatureSpec("image", "bytes", ()), FeatureSpec("label", "int64", ()), FeatureSpec("x", "int64", None))
    ),
    tool_version="0.1.0",
    foreign=Foreign(".", "image", "label", 1, "GZIP"),
)


def changed(**foreign: object) -> str:
    document = json.loads(dumps(MANIFEST))
    document["foreign"] |= foreign
    return json.dumps(document)


def test_it_comes_back_with_the_shards_own_keys() -> None:
    assert loads(dumps(MANIFEST)) == MANIFEST
    own = replace(MANIFEST, foreign=None, schema=image_schema(labeled=False, boxes=False, box_labels=False), splits={})
    assert "foreign" not in json.loads(dumps(own))
    assert (MANIFEST.image_key, MANIFEST.label_key, MANIFEST.label_base) == ("image", "label", 1)
    assert MANIFEST.compression == "GZIP"
    own = replace(MANIFEST, foreign=None)
    assert (own.image_key, own.label_key, own.label_base, own.compression) == ("image/encoded", None, 0, "")


@pytest.mark.parametrize(
    ("field", "value", "must_be"),
    [
        ("root", "../data", "'.' or an absolute path without . and .., or such a place in a bucket, got "),
        *(("root", root, "'.' or an absolute path") for root in ("/data/../etc", "gs://bucket/../x", "gs:///x")),
        *(("root", root, "'.' or an absolute path") for root in ("ftp://host/x", "")),
        ("root", 3, "text, got 3."),
        ("image_key", "x", "a feature of the schema with one value of bytes, got 'x'."),
        ("label_key", "x", "a feature of the schema with one value of int64 or float, got 'x'."),
        ("label_key", "none", "a feature of the schema"),
        ("label_base", 2, "a whole number of at least 0"),
        ("label_base", -1, "a whole number of at least 0"),
        ("compression", "LZ4", "one of '', 'GZIP', 'ZLIB', got 'LZ4'."),
        ("compression", ["GZIP"], "one of '', 'GZIP', 'ZLIB', got ['GZIP']."),
    ],
)
def test_what_cannot_be_is_named(field: str, value: object, must_be: str) -> None:
    found = refusal(FormatError, loads, changed(**{field: value}), "m.json")
    assert found.startswith(f"m.json: foreign.{field} must be {must_be}")


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "/etc/passwd", "a/../../x", "a//b", "./x", "a/.", "", "gs://bucket/x", "a\nb", "a\0b", ".."),
        *("a/", "x" * 5000),
    ],
)
def test_names_cannot_leave_the_root(name: str) -> None:
    document = json.loads(dumps(MANIFEST))
    document["splits"]["train"]["shards"][0]["file"] = name
    found = refusal(FormatError, loads, json.dumps(document), "m.json")
    assert "splits.train.shards[0].file: A shard's name must be a relative path without . and .." in found
    assert len(found) < 400


def test_a_foreign_name_may_lie_in_folders_and_no_file_is_two_shards() -> None:
    document = json.loads(dumps(MANIFEST))
    document["splits"]["test"] = document["splits"]["train"]
    assert "a name that no other shard has" in refusal(FormatError, loads, json.dumps(document))
    assert file_names.check_foreign_name("images/2024/part 7.tfrecord") == "images/2024/part 7.tfrecord"
    assert file_names.index_name("images/part-7") == "index/images/part-7.idx"


def written(folder: Path, root: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / file_names.MANIFEST).write_text(changed(root=root))
    return folder


def test_shards_elsewhere_are_never_read_unnoticed(tmp_path: Path, caplog) -> None:
    def locate(folder: Path, root: str | None = None) -> str:
        manifest = load_manifest(str(folder), root=root)
        return manifest.shard_directory(manifest.directory)

    folder = written(tmp_path / "index", "/data/others")
    assert locate(written(tmp_path, ".")) == str(tmp_path)
    assert locate(folder, root="gs://bucket/others") == "gs://bucket/others"
    assert not caplog.records
    assert locate(folder) == "/data/others"
    message = f"The shards of {folder} lie outside it, in /data/others, as its manifest says."
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [(logging.WARNING, message)]


def test_a_manifest_from_a_store_names_no_local_directory(tmp_path: Path, monkeypatch) -> None:
    url, data = "gs://bucket/others", (written(tmp_path, "/etc") / "manifest.json").read_bytes()
    monkeypatch.setattr("tfpipe.storage.file_io.read_bytes", lambda *_: data)
    monkeypatch.setattr("tfpipe.dataset.dataset_files.load_catalog", lambda *_: Catalog())
    assert "says that its shards lie in /etc, a folder of some machine" in refusal(FormatError, load_manifest, url)
    assert load_manifest(url, root=str(tmp_path)).shard_directory(url) == str(tmp_path)


def test_own_shards_lie_where_the_manifest_lies(small_dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`root` is for what `tfpipe index` described"):
        load_manifest(str(small_dataset), root=str(tmp_path))
