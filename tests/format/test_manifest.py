"""`tfpipe.format.manifest` and its JSON: round trips, and every way to be wrong."""

import copy
import json
from dataclasses import replace

import pytest

from tests.refusals import refusal
from tfpipe.errors import FormatError
from tfpipe.format.manifest import Duplicates, ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.manifest_json import dumps, loads
from tfpipe.format.schema import image_schema

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
