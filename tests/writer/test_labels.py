"""Records with several classes: what is stored and refused, and what every command makes of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe
from tests.beam_jobs.datasets import join_datasets, make_dataset
from tests.beam_jobs.images import make_png
from tests.conftest import Tfpipe
from tests.refusals import refusal
from tfpipe import fields
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.export.run import ExportConfig, export
from tfpipe.format import manifest_json
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.schema import FeatureSpec
from tfpipe.integrity.check_record import ContentCheck
from tfpipe.integrity.repair import repair
from tfpipe.integrity.verify import VerifyConfig, verify

NAMES = ("red", "round", "small")
SCHEMA = {"id": fields.Values("int64"), "tags": fields.Labels(NAMES), "pair": fields.Labels(NAMES, count=2)}


def make_record(number: int) -> dict[str, Any]:
    return {"id": number, "tags": [*NAMES, 2][: number % 4], "pair": np.array([number % 3, 1])}


def write(output: Path, schema: dict[str, Any] | None = None, records: Any = None) -> Path:
    records = map(make_record, range(12)) if records is None else records
    tfpipe.write(records, output, schema or SCHEMA, num_shards=2, workers=0)
    return output


def read(dataset: Path, name: str = "tags") -> list[tuple[int, list[int]]]:
    with tfpipe.data_source(dataset, "train") as records:
        found = [(record.features["id"], record.features[name]) for record in records]
    return sorted((int(number[0]), [] if classes is None else classes.tolist()) for number, classes in found)


TAGS = [(number, [0, 1, 2][: number % 4]) for number in range(12)]


def test_names_and_numbers_are_stored_as_numbers(tmp_path: Path) -> None:
    dataset = write(tmp_path / "out")
    manifest = tfpipe.load_manifest(str(dataset))
    assert read(dataset) == TAGS
    assert read(dataset, "pair") == [(number, [number % 3, 1]) for number in range(12)]
    tags = FeatureSpec("tags", "int64", None, "classes, counted from 0", names=NAMES)
    assert manifest.schema.features[1:] == (tags, FeatureSpec("pair", "int64", (2,), tags.doc, names=NAMES))
    line = next(line for line in (dataset / "manifest.json").read_text().splitlines() if '"tags"' in line)
    expected = {"name": "tags", "dtype": "int64", "shape": None, "doc": "classes, counted from 0"}
    assert json.loads(line.rstrip(",")) == {**expected, "names": list(NAMES)}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["red", "blue"], "must be a list of classes from 0 to 2 or their names, got 'blue'."),
        ([3], "must be a list of classes from 0 to 2 or their names, got 3."),
        (np.array([-1]), "must be a list of classes from 0 to 2 or their names, got -1."),
        ([1.0], "must be a list of classes from 0 to 2 or their names, got 1.0."),
        ([None], "must be a list of classes from 0 to 2 or their names, got None."),
        ("red", "must be a list, got a str."),
        (1, "must be a list, got a int."),
    ],
)
def test_what_is_not_a_class_is_refused(tmp_path: Path, value: object, message: str) -> None:
    records = [make_record(0), {**make_record(1), "tags": value}]
    found = refusal(ConfigError, write, tmp_path / "out", records=records)
    assert found == f"Record 1 of 'train': Feature 'tags' {message}"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (fields.Labels(("a", "a")), "Feature 'x': the names of classes must be different, got 'a' twice."),
        (fields.Labels(("a",), 0), "'x': the `count` of Labels must be at least 1, got 0."),
    ],
)
def test_what_cannot_be_declared_is_refused(tmp_path: Path, labels: fields.Labels, message: str) -> None:
    assert refusal(ConfigError, write, tmp_path / "out", {"x": labels}) == message


def test_names_of_a_manifest_are_checked(tmp_path: Path) -> None:
    text = (write(tmp_path / "out") / "manifest.json").read_text()
    assert manifest_json.dumps(manifest_json.loads(text)) == text
    with pytest.raises(FormatError, match=r"the names of classes must be different, got 'red' twice\.$"):
        manifest_json.loads(text.replace('"round"', '"red"', 1))
    message = r"label_counts\.tags must be at most 3 counts, each at most 12, got \[13\]\.$"
    with pytest.raises(FormatError, match=message):
        manifest_json.loads(text.replace("[9, 6, 3]", "[13]"))
    assert manifest_json.loads(text.replace('"label_counts"', '"unknown"')).splits["train"].label_counts == {}
    sentence = "Feature 'x': `names` belong to values of int64, got values float."
    assert refusal(ConfigError, FeatureSpec, "x", "float", None, names=("a",)) == sentence


def test_verify_finds_a_number_that_is_not_a_class(tmp_path: Path) -> None:
    dataset = write(tmp_path / "out")
    report = verify(str(dataset), VerifyConfig(workers=0))
    assert (report.records, report.damaged) == (12, [])
    manifest = tfpipe.load_manifest(str(dataset))
    features = decode_example(encode_example(manifest.schema.check(make_record(3))))
    content = ContentCheck.from_manifest(manifest).check(encode_example({**features, "tags": [1, 3]}))
    assert content.faults == (("label", "feature 'tags' holds 3, which is not one of the 3 classes"),)


def test_copies_keep_numbers_and_names(tmp_path: Path) -> None:
    dataset = write(tmp_path / "out")
    schema = tfpipe.load_manifest(str(dataset)).schema
    repair(str(dataset), str(tmp_path / "repaired"), workers=0)
    join_datasets([dataset], tmp_path / "resharded", num_shards=3, workers=1)
    counts = tfpipe.load_manifest(str(dataset)).splits["train"].label_counts
    assert counts == {"pair": (4, 12, 4), "tags": (9, 6, 3)}
    for name in ("repaired", "resharded"):
        assert tfpipe.load_manifest(str(tmp_path / name)).splits["train"].label_counts == counts
        assert tfpipe.load_manifest(str(tmp_path / name)).schema == schema
        assert read(tmp_path / name) == TAGS
    join_datasets([dataset, tmp_path / "repaired"], tmp_path / "merged", num_shards=1, workers=1)
    assert tfpipe.load_manifest(str(tmp_path / "merged")).schema == schema
    assert read(tmp_path / "merged") == sorted(TAGS * 2)


def test_merge_refuses_other_names(tmp_path: Path) -> None:
    first = write(tmp_path / "first")
    second = write(tmp_path / "second", {**SCHEMA, "tags": fields.Labels((*NAMES, "a", "b", "c"))})
    assert refusal(DataError, join_datasets, [first, second], tmp_path / "merged", num_shards=1, workers=1) == (
        f"Feature 'tags' must have the same classes in the same order, got 'red', 'round', 'small' in {first} and "
        f"'red', 'round', 'small', 'a', 'b', ... in {second}. Leave it out with `drop_features`."
    )
    join_datasets([first, second], tmp_path / "merged", num_shards=1, workers=1, drop_features=("tags",))
    assert tfpipe.load_manifest(str(tmp_path / "merged")).schema.names == ("id", "pair")
    mixture = tfpipe.mix({str(first): 1, str(second): 1})
    assert refusal(ConfigError, tfpipe.build_dataset, mixture, "train", batch_size=4) == (
        "The classes of 'tags' must have the same names in all datasets of a mixture. Leave it out of `extra_features`."
    )


@pytest.mark.parametrize("to", ["parquet", "webdataset"])
def test_exports_hold_the_numbers(tmp_path: Path, to: Any) -> None:
    schema = {"image": fields.Image(), "id": fields.Values("int64"), "tags": fields.Labels(NAMES)}
    records = ({"image": make_png(k), "id": k, "tags": make_record(k)["tags"]} for k in range(12))
    export(ExportConfig(str(write(tmp_path / "out", schema, records)), str(tmp_path / to), to, workers=0))
    make_dataset(tmp_path / to, tmp_path / "back", num_shards=1, workers=1)
    assert read(tmp_path / "back") == TAGS


def test_inspect_shows_the_names(tmp_path: Path, tfpipe: Tfpipe) -> None:
    dataset = write(tmp_path / "out")
    done = tfpipe("inspect", dataset)
    lines = [" ".join(line.split()) for line in done.lines]
    assert {"tags 3: red, round, small", "pair 3: red, round, small"} <= {*lines}
    assert "red     9" in done.out
    shown = tfpipe("inspect", dataset, "--json").json
    assert shown["schema"]["features"][1]["names"] == list(NAMES)
    assert shown["splits"]["train"]["label_counts"] == {"pair": [4, 12, 4], "tags": [9, 6, 3]}
