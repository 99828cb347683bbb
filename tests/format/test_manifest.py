"""`tfpipe.format.manifest` and its JSON: round trips, every way to be wrong, and where that of other files may lead."""

import copy
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
from tfpipe.format.manifest import Duplicates, Foreign, ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.manifest_json import dumps, loads
from tfpipe.format.schema import FeatureSpec, Schema, image_schema

SHA = "0123456789abcdef" * 4


def split(name, records):
    shards = tuple(
        ShardInfo(f"{name}-{i:05d}-of-{len(records):05d}.tfrecord", n, n * 1000, SHA) for i, n in enumerate(records)
    )
    total = sum(records)
    return SplitInfo(
        name, shards, {"PNG": 1, "JPEG": total - 1}, (total - 2, 2), ImageSizes(100, 200, 150.5, 90, 300, 123.25)
    )


MANIFEST = Manifest(
    name="flowers",
    splits={"train": split("train", [4, 3]), "test": split("test", [2])},
    label_names=("daisy", "löwenzahn \ud800"),
    schema=image_schema(labeled=True, boxes=False, box_labels=False),
    seed=7,
    changed={"orientation": 2, "cmyk": 1},
    noticed={},
    skipped={"text": 3},
    quarantined=1,
    duplicates=Duplicates({"train": 1}, 2, 0),
    image={"encoding": "original", "resize_short": None, "quality": 95, "fraction": 0.5, "strict": True},
    fingerprint="f00d",
    tool_version="0.1.0",
)
DOCUMENT = json.loads(dumps(MANIFEST))


def test_round_trip():
    text = dumps(MANIFEST)
    assert loads(text) == MANIFEST
    assert dumps(loads(text)) == text
    assert text.isascii()
    assert text.endswith("}\n")
    turned = {name: dict(reversed(getattr(MANIFEST, name).items())) for name in ("splits", "changed", "image")}
    assert dumps(replace(MANIFEST, **turned)) == dumps(MANIFEST)
    lines = dumps(MANIFEST).splitlines()
    assert lines[1] == '  "format_version": 1,'
    shard = f'{{"file": "train-00000-of-00002.tfrecord", "records": 4, "bytes": 4000, "sha256": "{SHA}"}},'
    assert " " * 8 + shard in lines
    assert '  "noticed": {},' in lines
    empty = replace(
        MANIFEST, label_names=(), splits={"train": SplitInfo("train", (), {}, (), ImageSizes(0, 0, 0.0, 0, 0, 0.0))}
    )
    assert loads(dumps(empty)) == empty


def test_seekable_jpegs_are_counted_where_there_are_some():
    train, test = MANIFEST.splits["train"], MANIFEST.splits["test"]
    assert "seekable" not in dumps(MANIFEST)
    assert (train.seekable, train.seekable_jpegs) == (False, 0)
    some, all_jpegs = replace(train, seekable_jpegs=5), replace(train, seekable_jpegs=6)
    assert (some.seekable, all_jpegs.seekable) == (False, True)
    assert not replace(train, formats={"PNG": 7}).seekable
    for split, is_seekable in ((some, False), (all_jpegs, True)):
        manifest = replace(MANIFEST, splits={"train": split, "test": test})
        document = json.loads(dumps(manifest))
        assert document["format_version"] == 1
        assert document["splits"]["train"]["seekable"] is is_seekable
        assert document["splits"]["train"]["seekable_jpegs"] == split.seekable_jpegs
        assert "seekable" not in document["splits"]["test"]
        assert loads(dumps(manifest)) == manifest


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seekable": True}, None),
        ({"seekable": True, "seekable_jpegs": 7}, "seekable_jpegs must be a whole number of at least 0 and at most 6"),
        ({"seekable": True, "seekable_jpegs": 5}, "seekable must be true if all 6 JPEGs are seekable, else false; 5 "),
        ({"seekable": False, "seekable_jpegs": 6}, "seekable must be true if all 6 JPEGs are seekable, else false; 6"),
        ({"seekable_jpegs": 6}, "seekable must be true if all 6 JPEGs are seekable, else false; 6 are, got None"),
    ],
    ids=str,
)
def test_a_split_that_contradicts_itself_about_markers(fields, message):
    document = copy.deepcopy(DOCUMENT)
    document["splits"]["train"] |= fields
    if message is None:  # no count, so nobody looked
        assert loads(json.dumps(document)) == MANIFEST
        return
    assert refusal(FormatError, loads, json.dumps(document)).startswith(f"manifest.json: splits.train.{message}")


def test_unknown_fields_are_ignored():
    document = copy.deepcopy(DOCUMENT)
    document["new"] = {"deep": [1]}
    document["splits"]["train"]["shards"][0]["new"] = 1
    assert loads(json.dumps(document)) == MANIFEST


SHARD = "splits.train.shards[1]"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("format_version", 2, "m.json has format version 2, this tfpipe reads up to 1: it needs a newer tfpipe."),
        ("format_version", "1", "m.json: format_version must be a whole number of at least 1, got '1'."),
        ("seed", 1.5, "m.json: seed must be a whole number of at least -9223372036854775808 and at most"),
        ("seed", 2**63, "m.json: seed must be a whole number"),
        ("quarantined", -1, "m.json: quarantined must be a whole number of at least 0, got -1."),
        ("label_names", ["a", "a"], "m.json: label_names[1] must be a name that no other class has, got 'a'."),
        ("label_names", ["a"], "m.json: splits.test.class_counts must be empty or a count for each of the 1 label"),
        ("skipped", {"a b\n": 0.5}, "m.json: skipped.['a b\\n'] must be a whole number of at least 0, got 0.5."),
        ("image", {"a": [1]}, "m.json: image.a must be text, a number, true, false or null, got [1]."),
        ("image", {"a": 10**30}, "m.json: image.a must be text, a number, true, false or null"),
        ("schema", {"features": [{}]}, "m.json: schema.features[0].name is missing."),
        ("splits", {"../x": {}}, "m.json: splits.['../x']: A split's name must be letters"),
        ("splits.train.formats", {"JPEG": 6}, "m.json: splits.train.formats must be counts that sum to the 7 records"),
        ("splits.train.class_counts", [5, 3], "m.json: splits.train.class_counts must be counts that sum to at most 7"),
        ("splits.train.class_counts", [5, -3], "m.json: splits.train.class_counts[1] must be a whole number"),
        ("splits.train.sizes.mean_width", -0.5, "m.json: splits.train.sizes.mean_width must be a number of at least 0"),
        (f"{SHARD}.sha256", SHA.upper(), f"m.json: {SHARD}.sha256 must be 64 lower-case hexadecimal digits, got '01"),
        (f"{SHARD}.sha256", SHA + "\n", f"m.json: {SHARD}.sha256 must be 64 lower-case hexadecimal digits, got '01"),
        (f"{SHARD}.file", "train-00000-of-00002.tfrecord", f"m.json: {SHARD}.file must be 'train-00001-of-00002.tf"),
        (f"{SHARD}.file", "test-00001-of-00002.tfrecord", f"m.json: {SHARD}.file must be 'train-00001-of-00002.tf"),
        (f"{SHARD}.file", "../train-00001-of-00002.tfrecord", f"m.json: {SHARD}.file must be 'train-00001-of-0000"),
        (f"{SHARD}.file", "train-" + "1" * 9000, f"m.json: {SHARD}.file must be 'train-00001-of-00002.tfrecord', got"),
    ],
)
def test_wrong_values_are_named(place, value, message):
    document = copy.deepcopy(DOCUMENT)
    here, keys = document, place.replace("[1]", ".1").split(".")
    for key in keys[:-1]:
        here = here[int(key) if isinstance(here, list) else key]
    here[int(keys[-1]) if isinstance(here, list) else keys[-1]] = value
    found = refusal(FormatError, loads, json.dumps(document), "m.json")
    assert found.startswith(message)
    assert len(found) < 400


def test_missing_fields_are_named_and_text_that_is_no_manifest():
    for key in DOCUMENT:
        rest = json.dumps({k: v for k, v in DOCUMENT.items() if k != key})
        assert refusal(FormatError, loads, rest) == f"manifest.json: {key} is missing."
    assert refusal(FormatError, loads, "") == "manifest.json is not JSON: Expecting value: line 1 column 1 (char 0)."
    assert refusal(FormatError, loads, "[]") == "manifest.json: the document must be an object, got []."


# Manifests of shards that something else wrote: what they may say, and above all where they may lead.

FOREIGN_SHARDS = (ShardInfo("a/train-0.rec", 2, 90, "0" * 64), ShardInfo("train-1", 0, 0, "1" * 64))
FOREIGN = Manifest(
    name="others",
    splits={"train": SplitInfo("train", FOREIGN_SHARDS, {"JPEG": 2}, (1, 1), ImageSizes(4, 4, 4.0, 5, 5, 5.0))},
    label_names=("one", "two"),
    schema=Schema(
        (FeatureSpec("image", "bytes", ()), FeatureSpec("label", "int64", ()), FeatureSpec("x", "int64", None))
    ),
    tool_version="0.1.0",
    foreign=Foreign(".", "image", "label", 1, "GZIP"),
)


def changed(**foreign: object) -> str:
    document = json.loads(dumps(FOREIGN))
    document["foreign"] |= foreign
    return json.dumps(document)


def test_it_comes_back_with_the_shards_own_keys() -> None:
    assert loads(dumps(FOREIGN)) == FOREIGN
    own = replace(FOREIGN, foreign=None, schema=image_schema(labeled=False, boxes=False, box_labels=False), splits={})
    assert "foreign" not in json.loads(dumps(own))
    assert (FOREIGN.image_key, FOREIGN.label_key, FOREIGN.label_base) == ("image", "label", 1)
    assert FOREIGN.compression == "GZIP"
    own = replace(FOREIGN, foreign=None)
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
    document = json.loads(dumps(FOREIGN))
    document["splits"]["train"]["shards"][0]["file"] = name
    found = refusal(FormatError, loads, json.dumps(document), "m.json")
    assert "splits.train.shards[0].file: A shard's name must be a relative path without . and .." in found
    assert len(found) < 400


def test_a_foreign_name_may_lie_in_folders_and_no_file_is_two_shards() -> None:
    document = json.loads(dumps(FOREIGN))
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
