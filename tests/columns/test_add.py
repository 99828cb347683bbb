"""Columns that a function makes: what they hold, that readers give them in exact order, and kills at any moment."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import tfpipe
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.columns.values import get_index, skip_first, skip_odd
from tests.flipped_bit import flip_bit
from tests.layers.growth import find_part, read_parts
from tests.refusals import refusal
from tfpipe import fields
from tfpipe.engine import record_reader
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, DataError, FormatError, TfpipeError
from tfpipe.readers.data_source import Record, data_source
from tfpipe.readers.grain import RecordSource
from tfpipe.readers.keras import KerasBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches

NAME = "image/filename"
CONFIG = PipelineConfig(image_size=8, batch_size=6, seed=3, extra_features=("embedding",))
VECTOR = fields.Tensor("float32", (4,))


def embed(record: Record) -> Any:
    """Returns a vector that tells the split and the number of its record."""
    return np.array([record.index, len(record.split), record.label, record.image.mean()], np.float32)


def add(dataset: str, **options: Any) -> str:
    tfpipe.add_column(dataset, "embedding", embed, VECTOR, **options)
    return dataset


def get_numbers(batch: Any) -> list[int]:
    return np.asarray(batch["embedding"])[:, 0].astype(int).tolist()


def read_shards(dataset: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(dataset).iterdir() if path.is_file()}


def test_a_record_has_its_value_and_all_files_their_old_bytes(pets: str) -> None:
    before = read_shards(pets)
    add(pets)
    for split, records in (("train", 12), ("validation", 3)):
        found = [record.features["embedding"] for record in data_source(pets, split)]
        assert len(found) == records
        assert [value[0] for value in found] == [embed(record).tobytes() for record in data_source(pets, split)]
    after = read_shards(pets)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"catalog"}
    assert [f"columns/{name}" for name in os.listdir(Path(pets, "columns"))] == [find_part(pets, "column")]


def test_a_function_of_a_batch_gives_several_features(pets: str) -> None:
    sizes = []

    def describe(records: list[Record]) -> list[dict[str, Any]]:
        sizes.append(len(records))
        return [{"caption": f"A {record.label_name}.", "tags": [record.index, 7]} for record in records]

    schema = {"caption": fields.Text(), "tags": fields.Values("int64", None)}
    manifest = tfpipe.add_column(pets, "words", describe, schema, batch_size=4)
    assert sizes == [4, 2, 4, 2, 1, 2]  # of two shards of six, and one of one and one of two
    assert manifest.full_schema.names[-2:] == ("caption", "tags")
    for record in data_source(manifest, "train"):
        assert record.features["caption"] == [f"A {record.label_name}.".encode()]
        assert record.features["tags"].tolist() == [record.index, 7]


def test_worker_processes_write_the_same_bytes(pets: str, tmp_path: Path) -> None:
    other = str(shutil.copytree(pets, tmp_path / "other"))
    for dataset, workers in ((pets, 0), (other, 2)):
        tfpipe.add_column(dataset, "index", get_index, fields.Values("int64"), workers=workers)
    assert read_tree(Path(pets, "columns")) == read_tree(Path(other, "columns"))
    with pytest.raises(ConfigError, match=r"^With `workers` the function must stand at the top of a module, where"):
        tfpipe.add_column(pets, "other", lambda record: 1, fields.Values("int64"), workers=1)


@pytest.mark.parametrize(
    ("kind", "value", "given", "expected"),
    [
        (fields.Values("int64"), 5, {}, [0]),
        (fields.Values("int64"), 5, {"new": -1}, [-1]),
        (fields.Values("float", (2,)), [1.5, 2], {}, [0, 0]),
        (fields.Values("bytes", None), [b"a"], {}, []),
        (fields.Text(), "a", {}, [b""]),
        (fields.Text(), "a", {"new": "none"}, [b"none"]),
        (fields.Labels(("x", "y")), ["y"], {}, []),
        (fields.Tensor("float32", (2,)), np.ones(2, np.float32), {}, [bytes(8)]),
        (fields.Tensor("int8", (None, 2)), np.ones((3, 2), np.int8), {}, [b""]),
    ],
)
def test_a_default_takes_the_place_of_a_missing_value(pets, kind, value, given, expected):
    def make(record: Record) -> Any:
        return None if record.index else value

    tfpipe.add_column(pets, "new", make, kind, missing="default", default=given)
    features = [record.features["new"] for record in data_source(pets, "train")]
    assert list(features[1]) == expected == list(features[11])
    assert list(features[0]) != expected


def test_a_view_has_the_records_with_a_value(pets: str) -> None:
    tfpipe.add_column(pets, "even", skip_odd, fields.Values("int64"), missing="view")
    view = tfpipe.load_manifest(f"{pets}@even")
    assert {name: split.records for name, split in view.splits.items()} == {"train": 6, "validation": 2}
    records = list(data_source(view, "train"))
    assert [record.features["even"].tolist() for record in records] == [[1], [3], [5], [7], [9], [11]]
    labels = [record.label for record in records]
    assert view.splits["train"].class_counts == tuple(labels.count(k) for k in range(3))
    assert view.splits["train"].bytes < tfpipe.load_manifest(pets).splits["train"].bytes


@pytest.mark.parametrize("options", [{}, {"training": False}, {"cache": "bytes"}, {"cache": "decoded"}])
def test_batches_have_the_values_of_their_records(pets: str, options: dict[str, Any]) -> None:
    plain = NumpyBatches(pets, "train", replace(CONFIG, extra_features=(NAME,), **options))
    before = [plain.read(step) for step in range(2)]
    add(pets)
    names = [record.name for record in data_source(pets, "train")]
    batches = NumpyBatches(pets, "train", replace(CONFIG, extra_features=("embedding", NAME), **options))
    read = [batches.read(step) for step in range(2)]
    for batch, old in zip(read, before, strict=True):
        np.testing.assert_array_equal(batch["image"], old["image"])
        assert list(batch[NAME]) == list(old[NAME])
    assert sorted(number for batch in read for number in get_numbers(batch)) == list(range(12))
    for batch in read:
        assert [names[number].encode() for number in get_numbers(batch)] == list(batch[NAME])


def test_a_cache_in_files_gives_the_values(pets: str, tmp_path: Path) -> None:
    add(pets)
    plain = [get_numbers(NumpyBatches(pets, "train", CONFIG).read(step)) for step in range(4)]
    for cache in ("bytes", "decoded"):
        config = replace(CONFIG, cache=cache, cache_dir=str(tmp_path / cache), decoded_size=16)
        for _ in range(2):
            batches = NumpyBatches(pets, "train", config)
            assert [get_numbers(batches.read(step)) for step in range(4)] == plain
            batches._maker._cache.flush()
    shutil.rmtree(Path(pets, find_part(pets, "column"), "index"))
    assert sorted(NumpyBatches(pets, "train", replace(CONFIG, extra_features=())).read(0)) == ["image", "label"]


def test_frameworks_read_the_same_and_go_on_in_the_middle(pets: str) -> None:
    add(pets)
    batches = NumpyBatches(pets, "train", CONFIG)
    expected = [get_numbers(batches.read(step)) for step in range(4)]
    keras = KerasBatches(pets, "train", CONFIG, start_step=2)
    faces = {
        "tensorflow": [*tfpipe.build_dataset(pets, "train", CONFIG, start_step=2).take(2)],
        "torch": list(TorchBatches(pets, "train", CONFIG, start_step=2)),
        "keras": [keras[step][0] for step in range(2)],
    }
    read = {name: [get_numbers(batch) for batch in each] for name, each in faces.items()}
    assert read == dict.fromkeys(faces, expected[2:])
    element = RecordSource(pets, "train", features=("embedding",))[7]
    assert element["embedding"].tolist() == embed(data_source(pets, "train")[7]).tolist()


def test_random_access_reads_a_column_once_a_batch(pets: str, monkeypatch) -> None:
    add(pets)
    source = data_source(pets, "train")
    numbers = [7, 2, 11, 2, -1]
    expected = [source[number].features["embedding"] for number in numbers]
    read = Mock(wraps=record_reader.read_records)
    monkeypatch.setattr(record_reader, "read_records", read)
    assert [record.features["embedding"] for record in source.__getitems__(numbers)] == expected
    assert [len(call.args[1]) for call in read.mock_calls] == [3, 3]  # the column and the records, three of them
    images = source.read_columns(numbers, ["image/encoded", "embedding"])
    assert [value.tobytes() for value in images["embedding"]] == [value[0] for value in expected]


def test_a_damaged_value_is_named_or_left_out(pets: str) -> None:
    add(pets)
    file = Path(pets, find_part(pets, "column"), "train-00001-of-00002.tfrecord")
    flip_bit(file, 30)
    with pytest.raises(FormatError, match=rf"^{file}: Record at byte 0 is damaged: the checksum of its "):
        data_source(pets, "train")[6]
    config = replace(CONFIG, training=False, max_bad_records=1)
    (first, second) = NumpyBatches(pets, "train", config)
    assert get_numbers(first) == list(range(6))
    assert get_numbers(second) == [7, 7, 8, 9, 10, 11]  # the first undamaged one in its place
    file.write_bytes(b"")
    with pytest.raises(DataError, match=r"^At most 1 bad records may be left out"):
        list(NumpyBatches(pets, "train", config))


def test_a_column_of_other_records_is_refused(pets: str, tmp_path: Path, draw_images: Any) -> None:
    make_dataset(draw_images(tmp_path / "images"), tmp_path / "out", seed=1, num_shards=2)
    shutil.copytree(Path(add(pets), "columns"), tmp_path / "out" / "columns")
    shutil.copy(Path(pets, "catalog"), tmp_path / "out")
    assert refusal(FormatError, tfpipe.load_manifest, str(tmp_path / "out")) == (
        f"{tmp_path}/out/{find_part(pets, 'column')} was made for other records than those of {tmp_path}/out. Remove "
        "this folder, and add the column again by `tfpipe add`."
    )


@pytest.mark.parametrize(
    ("name", "schema", "message"),
    [
        ("a.b", fields.Text(), "A column's name must have at most 64 letters, digits, dashes and "),
        (
            *("new", {"embedding": fields.Text()}),
            "{pets} has a feature 'embedding' in its column 'embedding'. Give the new one another name, or set "
            "`replace` and `name` embedding to replace that column.",
        ),
        ("new", {"image/x": fields.Text()}, "An extra column must not be named 'image' or begin with "),
        ("new", {"label": fields.Text()}, "A value must not be named 'label': a batch has something else"),
        ("new", fields.Image(), "A column holds Tensor, Text, Values or Labels, got 'new' as Image."),
        ("new", fields.Text(), "Record 0 of shard 0 of 'train': Feature 'new' must be one value of "),
        (
            *("embedding", {"other": fields.Text()}),
            "{pets} has a column 'embedding'. Give another `name`, or set `replace`.",
        ),
        ("new", {"embedding/x": fields.Text()}, "Extra columns 'embedding' and 'embedding/x' cannot "),
    ],
)
def test_wrong_arguments(pets: str, name: str, schema: Any, message: str) -> None:
    add(pets)
    found = refusal(TfpipeError, tfpipe.add_column, pets, name, get_index, schema)
    assert found.startswith(message.format(pets=pets))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0."),
        ({"workers": -1}, "`workers` must be at least 0, got -1."),
        ({"missing": "skip"}, "`missing` must be error, default or view, got 'skip'."),
        ({"default": {"embedding": 0}}, "`default` goes with `missing` default, got 'error'. Leave one of them out."),
        ({"missing": "default", "default": {"x": 0}}, "`default` must name features of embedding, got 'x'."),
    ],
)
def test_wrong_options(pets: str, options: dict[str, Any], message: str) -> None:
    assert refusal(ConfigError, add, pets, **options) == message


def test_a_column_takes_the_place_of_another_and_may_come_out_of_it(pets: str, tmp_path: Path) -> None:
    other = str(shutil.copytree(pets, tmp_path / "other"))
    add(pets)

    def describe(record: Record) -> dict[str, str]:
        (old,) = record.features["embedding"]
        return {"caption": f"{record.split} {np.frombuffer(old, np.float32)[0]:.0f}"}

    manifest = tfpipe.add_column(pets, "embedding", describe, {"caption": fields.Text()}, replace=True)
    assert manifest.full_schema.names[-1] == "caption"
    assert "embedding" not in manifest.full_schema
    captions = [record.features["caption"] for record in data_source(pets, "validation")]
    assert captions == [[b"validation 0"], [b"validation 1"], [b"validation 2"]]
    tfpipe.add_column(pets, "embedding", get_index, fields.Values("int64"), replace=True)
    tfpipe.add_column(other, "embedding", get_index, fields.Values("int64"), replace=True)  # there is none
    assert read_parts(pets) == read_parts(other)


def test_a_failure_leaves_the_old_column(pets: str) -> None:
    before = read_tree(Path(add(pets)))
    with pytest.raises(DataError, match=r"^Record 5 of shard 1 of 'train' could not be made: ZeroDivisionError"):
        tfpipe.add_column(
            pets, "embedding", lambda record: 1 // (record.index - 11), fields.Values("int64"), replace=True
        )
    assert {path: data for path, data in read_tree(Path(pets)).items() if ".tfpipe-write" not in path} == before


def test_a_feature_of_the_records_is_not_replaced(tmp_path: Path) -> None:
    tfpipe.write([{"caption": "a"}], tmp_path / "texts", {"caption": fields.Text()}, num_shards=1, workers=0)
    arguments = (tmp_path / "texts", "caption", str, fields.Text())
    sentence = f"{tmp_path}/texts has a feature 'caption'. Give the new one another name."
    assert refusal(ConfigError, tfpipe.add_column, *arguments, replace=True) == sentence


def test_a_view_shows_its_records_with_the_new_values(pets: str) -> None:
    tfpipe.add_column(pets, "even", skip_odd, fields.Values("int64"), missing="view")
    tfpipe.add_column(pets, "even", get_index, fields.Values("int64"), replace=True)
    values = [int(record.features["even"][0]) for record in data_source(f"{pets}@even", "train")]
    assert values == [0, 2, 4, 6, 8, 10]
    tfpipe.add_column(pets, "even", skip_first, fields.Values("int64"), missing="view", replace=True)
    values = [int(record.features["even"][0]) for record in data_source(f"{pets}@even", "train")]
    assert values == [*range(1, 12)]


def test_a_function_that_fails_or_gives_no_value_is_named(pets: str) -> None:
    def make(record: Record) -> int:
        return 1 // (record.index - 2)

    message = "Record 2 of shard 0 of 'train' could not be made: ZeroDivisionError: integer division or modulo by zero."
    assert refusal(DataError, tfpipe.add_column, pets, "new", make, fields.Values("int64")) == message
    with pytest.raises(DataError, match=r"The function must return 4 values for as many records, got 3\.$"):
        tfpipe.add_column(pets, "new", lambda records: [1] * 3, fields.Values("int64"), batch_size=4)
    message = "Record 1 of shard 0 of 'train' has no value. Give it one, or set `missing` to default or view."
    assert refusal(DataError, tfpipe.add_column, pets, "even", skip_odd, fields.Values("int64")) == message
    assert tfpipe.load_manifest(pets).columns == ()


def test_a_view_gets_no_column(pets: str) -> None:
    tfpipe.add_column(pets, "even", skip_odd, fields.Values("int64"), missing="view")
    sentence = "A column is added to a dataset and not to the view 'even'. Leave the @ out."
    assert refusal(ConfigError, add, f"{pets}@even") == sentence
    shutil.rmtree(Path(pets, "columns"))
    tfpipe.add_column(pets, "even", skip_odd, fields.Values("int64"), missing="view")  # its own view is replaced
    shutil.rmtree(Path(pets, "columns"))
    with pytest.raises(ConfigError, match=r"^There is a view 'even' already\. Give the column another `name`\.$"):
        tfpipe.add_column(pets, "even", skip_odd, fields.Values("float"), missing="view")
