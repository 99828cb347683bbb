"""`tfpipe add`, and every command that reads a dataset: it knows the features of columns, or refuses them."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tfpipe as library
from tests.beam_jobs.datasets import join_datasets
from tests.conftest import Tfpipe
from tests.flipped_bit import flip_bit
from tests.layers.growth import find_part, list_records
from tests.refusals import refusal
from tests.service.workers import open_as_worker
from tfpipe.columns.config import TableConfig
from tfpipe.columns.join_table import join_table
from tfpipe.engine.config.pipeline_config import PipelineConfig, ServiceOptions
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.integrity.repair import repair
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.profiler.measure.option_costs import sample_records
from tfpipe.readers.data_source import Record, data_source
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.writer.changes import open_change

QUICK = VerifyConfig(quick=True, workers=0)
CONFIG = PipelineConfig(batch_size=4, image_size=8, extra_features=("caption", "vector"))


def make_rows(dataset: str) -> dict[str, list[Any]]:
    """Makes a table with a row for each record, in an order of its own."""
    records = [list_records(dataset)[number] for number in np.random.default_rng(5).permutation(15)]
    return {
        "name": [record.name for record in records],
        "digest": [record.features["image/sha256"][0].decode() for record in records],
        "number": [record.index for record in records],
        "split": [record.split for record in records],
        "caption": [f"A {record.label_name} called {record.name}." for record in records],
        "score": [record.index / 4 for record in records],
        "vector": [np.full(3, record.index, np.float32) for record in records],
        "tags": [[record.split] * (record.index % 3) for record in records],
    }


def write_table(path: Path, rows: dict[str, Any]) -> str:
    pq.write_table(pa.table(rows), path, row_group_size=4)
    return str(path)


@pytest.fixture(scope="module")
def captioned_once(small_dataset: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("captioned")
    pets = str(shutil.copytree(small_dataset, folder / "pets"))
    table = write_table(folder / "words.parquet", make_rows(pets))
    join_table(pets, table, TableConfig("words", features=("caption", "score", "vector", "tags")))
    return folder / "pets"


@pytest.fixture
def captioned(captioned_once: Path, tmp_path: Path) -> str:
    """The dataset with a column `words`, to be changed."""
    return str(shutil.copytree(captioned_once, tmp_path / "captioned"))


def check_values(dataset: str, records: int = 15) -> None:
    found = list_records(dataset)
    assert len(found) == records
    for record in found:
        number = int(record.features["score"][0] * 4)
        assert record.features["caption"] == [f"A {record.label_name} called {record.name}.".encode()]
        assert record.features["vector"] == [np.full(3, number, np.float32).tobytes()]
        assert len(record.features["tags"] or []) == number % 3


@pytest.mark.parametrize("on", ["name", "number", "digest"])
def test_rows_are_joined_by_name_number_or_digest(pets: str, tmp_path: Path, tfpipe: Tfpipe, on: str) -> None:
    table = write_table(tmp_path / "words.parquet", make_rows(pets))
    options = [option for name in ("caption", "score", "vector", "tags") for option in ("--feature", name)]
    ran = tfpipe("add", pets, table, "--on", on, *options)
    assert (ran.code, ran.err) == (0, "")
    size = ran.out.rpartition(": ")[2]
    assert ran.lines == [
        "caption: text",
        "score: float",
        "vector: float32 [3]",
        "tags: bytes",
        "15 records got a value, 0 did not; 0 rows of the table belong to no record",
        f"The column 'words' of {pets} is complete: {size.strip()}",
    ]
    check_values(pets)
    assert [record.features["score"].tolist() for record in data_source(pets, "train")] == [
        [number / 4] for number in range(12)
    ]


def test_rows_that_are_missing_or_too_many(pets: str, tmp_path: Path, tfpipe: Tfpipe) -> None:
    names = [record.name for record in data_source(pets, "train")]
    rows = {"file": [*names[1:], "x.jpg", names[0]], "score": pa.array([*range(1, 12), 5, None], pa.int16())}
    table = write_table(tmp_path / "score.parquet", rows)
    ran = tfpipe("add", pets, table, "--key", "file")
    assert (ran.code, ran.err) == (
        1,
        f"Error: {table} has no whole row for 4 records of 15, such as {names[0]!r} of 'train'. Add the rows, or set "
        "--missing to default or view.\n",
    )
    ran = tfpipe("add", pets, table, "--key", "file", "--missing", "default", "--default", "score=-7", "--json")
    document = {"dataset": pets, "column": "score", "features": ["score"]}
    assert ran.json.items() >= {**document, "records": 11, "without": 4, "unused_rows": 1}.items()
    scores = [int(record.features["score"][0]) for record in list_records(pets)]
    assert sorted(scores) == [-7] * 4 + list(range(1, 12))
    shutil.rmtree(Path(pets, "columns"))
    ran = tfpipe("add", pets, table, "--key", "file", "--missing", "view", "--name", "scored")
    assert ran.code == 0, ran.err
    view = library.load_manifest(f"{pets}@scored")
    assert list(view.splits) == ["train"]
    assert [record.name for record in data_source(view, "train")] == names[1:]
    assert sum(view.splits["train"].class_counts) == 11


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ({"name": ["a", "a"], "x": [1, 2]}, {}, "Each row of {table} must have another 'name', got 'a' twice."),
        ({"x": [1, 2]}, {}, "{table} has no column 'name'; it has x."),
        ({"name": ["a"]}, {}, "{table} must have a column besides 'name', which becomes a feature."),
        ({"name": ["a"], "x": [1]}, {}, "No row of {table} belongs to a record by its name: the table begins with "),
        ({"name": ["a"], "x": [{"y": 1}]}, {}, "A column must hold numbers, texts, bytes or lists of them, and 'x' "),
        ({"number": [1], "x": [1]}, {"on": "number"}, "`on` number counts from 0 in each split, so the table needs a "),
        ({"number": ["?"], "split": ["train"], "x": [1]}, {"on": "number"}, "{table} cannot be joined with {pets}: "),
        ({"number": [0.4], "split": ["train"], "x": [1]}, {"on": "number"}, "Each 'number' of {table} must be a w"),
        ({"name": ["a"], "image/x": [1]}, {}, "An extra column must not be named 'image' or begin with 'image/', got"),
    ],
)
def test_wrong_tables(pets: str, tmp_path: Path, rows: Any, options: dict[str, Any], message: str) -> None:
    table = write_table(tmp_path / "x.parquet", rows)
    found = refusal(TfpipeError, join_table, pets, table, TableConfig("x", **options))
    assert found.startswith(message.format(table=table, pets=pets))
    assert library.load_manifest(pets).columns == ()


def test_names_that_differ_in_case_and_other_names_of_splits(pets: str, tmp_path: Path) -> None:
    rows = make_rows(pets)
    rows["split"] = [{"train": "training", "validation": "Val"}[split] for split in rows["split"]]
    names = {"Name": rows["name"][::-1], "Score": [-1.0] * 15}
    table = write_table(tmp_path / "x.parquet", names | {name: rows[name] for name in ("name", "split", "score")})
    join_table(pets, table, TableConfig("words"))
    for record in list_records(pets):
        assert (record.features["Score"], record.features["score"]) == ([-1], [record.index / 4])
    for value, got in (1e300, "float of 32 bits, got 1e+300"), ([1.0, None], "float64 [2], got values of object"):
        write_table(tmp_path / "x.parquet", {"name": rows["name"], "x": [value] * 15})
        assert f"Feature 'x' must be {got}" in refusal(ConfigError, join_table, pets, table, TableConfig("x"))


def test_what_is_no_table(pets: str, tmp_path: Path, tfpipe: Tfpipe) -> None:
    ran = tfpipe("add", pets, tmp_path / "x.parquet")
    assert (ran.code, ran.err) == (2, f"Error: There is no table {tmp_path}/x.parquet. Give a Parquet file.\n")
    (tmp_path / "x.parquet").write_text("name,x")
    ran = tfpipe("add", pets, tmp_path / "x.parquet")
    assert ran.err.startswith(f"Error: The table must be a Parquet file, and {tmp_path}/x.parquet is not: ")
    ran = tfpipe("add", pets, tmp_path / "x.parquet", "--default", "x")
    assert "It must be FEATURE=VALUE, got 'x'." in ran.err
    ran = tfpipe("add", tmp_path / "x.parquet", pets)
    assert (ran.code, ran.err) == (
        2,
        f"Error: The dataset comes first, and then its table: {pets} is a folder. Exchange the two.\n",
    )


def test_a_table_takes_the_place_of_another(captioned: str, tmp_path: Path, tfpipe: Tfpipe) -> None:
    table = write_table(tmp_path / "words.parquet", {**make_rows(captioned), "score": [9.5] * 15})
    ran = tfpipe("add", captioned, table, "--feature", "score")
    assert (ran.code, ran.err) == (
        2,
        f"Error: {captioned} has a feature 'score' in its column 'words'. Give the new one another name, or set "
        "--replace and --name words to replace that column.\n",
    )
    ran = tfpipe("add", captioned, table, "--feature", "score", "--replace", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["features"] == ["score"]
    (column,) = library.load_manifest(captioned).columns
    assert (column.name, column.schema.names) == ("words", ("score",))
    assert {float(record.features["score"][0]) for record in list_records(captioned)} == {9.5}


def test_a_condition_asks_for_the_values(captioned: str, tfpipe: Tfpipe) -> None:
    ran = tfpipe("view", captioned, "score >= 0.5 and caption like '%jpg.'", "--name", "some")
    assert ran.code == 0, ran.err
    names = [record.name for record in list_records(captioned) if record.features["score"][0] >= 0.5]
    assert [record.name for record in list_records(f"{captioned}@some")] == [n for n in names if n.endswith("jpg")]
    ran = tfpipe("view", captioned, "scores > 1", "--name", "none")
    assert "colorspace, caption, score, duplicate; got 'scores > 1'" in ran.err
    batch = NumpyBatches(f"{captioned}@some", "train", replace(CONFIG, batch_size=1)).read(0)
    assert batch["caption"][0].decode().endswith(".jpg.")


def test_inspect_shows_the_columns(captioned: str, tfpipe: Tfpipe) -> None:
    summary = tfpipe("inspect", captioned, "--json").json
    assert list(summary["columns"]) == ["words"]
    assert summary["columns"]["words"]["features"] == ["caption", "score", "vector", "tags"]
    assert summary["splits"]["train"]["tensors"]["vector"]["high"] == 11
    assert "words (4 features, " in tfpipe("inspect", captioned).out
    assert tfpipe("inspect", captioned, "--record", "train:5", "--json").json["features"]["score"] == 1.25
    file = Path(captioned, find_part(captioned, "column"), "train-00000-of-00002.tfrecord")
    file.write_bytes(file.read_bytes()[:-1])
    ran = tfpipe("inspect", captioned)
    assert ran.code == 1
    assert str(file) in ran.err


@pytest.mark.parametrize("command", ["reshard", "merge"])
def test_a_new_dataset_has_the_values_in_its_records(captioned: str, tmp_path: Path, tfpipe: Tfpipe, command: str):
    output = str(tmp_path / "out")
    sources = [captioned] if command == "reshard" else [captioned, captioned]
    ran = tfpipe(command, *sources, output, "--num-shards", 3)
    assert ran.code == 0, ran.err
    check_values(output, 15 * len(sources))
    assert library.load_manifest(output).columns == ()
    assert verify(output, VerifyConfig(workers=0, allow_duplicates=True)).damaged == []


def test_datasets_with_other_columns_do_not_merge(captioned: str, small_dataset: Path, tmp_path: Path) -> None:
    assert refusal(TfpipeError, join_datasets, [Path(captioned), small_dataset], tmp_path / "out") == (
        f"Every dataset must have the same features, but {small_dataset} has no 'caption', which {captioned} has. "
        "Leave it out with `drop_features`."
    )
    both, features = [Path(captioned), small_dataset], ("caption", "score", "vector", "tags")
    join_datasets(both, tmp_path / "out", drop_features=features)
    assert "caption" not in library.load_manifest(str(tmp_path / "out")).schema


@pytest.mark.parametrize("to", ["parquet", "webdataset"])
def test_an_export_has_the_values(captioned: str, tmp_path: Path, tfpipe: Tfpipe, to: str) -> None:
    ran = tfpipe("export", captioned, tmp_path / "out", "--to", to, "--workers", 0)
    assert ran.code == 0, ran.err
    captions = {record.features["caption"][0] for record in list_records(captioned)}
    if to == "parquet":
        rows = [row for path in (tmp_path / "out").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
        assert {row["caption"].encode() for row in rows} == captions
        assert sorted(row["score"] for row in rows if row["vector"] is not None)[-1] == 2.75
    else:
        data = b"".join(path.read_bytes() for path in (tmp_path / "out").glob("*.tar"))
        assert len(captions) == 15
        assert all(caption in data for caption in captions)


def test_doctor_and_profile_read_the_values(captioned: str, tfpipe: Tfpipe) -> None:
    ran = tfpipe("doctor", captioned, "--batch-size", 4, "--json")
    assert ran.code == 0, ran.out
    source = Source.from_manifest(library.load_manifest(captioned), "train")
    plain, with_words = sample_records(source), sample_records(source, ["score"])
    assert len(plain) == len(with_words) == 32
    assert not any(b"called" in payload for payload in plain)
    assert all(b"called" in payload for payload in with_words)


def test_a_worker_of_a_service_and_a_mixture_read_the_values(captioned: str, tmp_path: Path) -> None:
    reader = NumpyBatches(captioned, "train", replace(CONFIG, service=ServiceOptions()))
    maker, expected = open_as_worker(reader._maker.plan), reader.read(1)
    np.testing.assert_array_equal(maker.make(0, 1)["vector"], expected["vector"])
    other = str(shutil.copytree(captioned, tmp_path / "other"))
    mixed = NumpyBatches(library.mix({captioned: 1, other: 1}), "train", CONFIG).read(0)
    assert [len(set(vector)) for vector in mixed["vector"]] == [1] * 4


def test_the_textbook_pipeline_refuses_a_column(captioned: str) -> None:
    """It reads whole files, which do not hold the values."""
    config = replace(CONFIG, order="throughput")
    assert refusal(ConfigError, library.build_dataset, captioned, "train", config) == (
        "The feature 'caption' lies in a column beside the shards: that is for batches by their steps, and `order` "
        "is throughput. Use order='exact', in which stages of your own get whole batches."
    )
    (batch,) = library.build_dataset(captioned, "train", replace(config, extra_features=())).take(1)
    assert batch["image"].shape == (4, 8, 8, 3)


def test_damage_in_a_column_is_found_and_named(captioned: str) -> None:
    assert verify(captioned, VerifyConfig(workers=0)).damaged == []
    report = verify(captioned, QUICK)
    assert (report.files, report.records) == (8, 15)
    column = find_part(captioned, "column")
    folder = Path(captioned, column)
    file = folder / "train-00001-of-00002.tfrecord"
    flip_bit(file, 20)
    (damage,) = verify(captioned, QUICK).damaged
    assert (damage.file, damage.kind, damage.record) == (f"{column}/{file.name}", "payload_crc", 0)
    manifest = (folder / "manifest.json").read_text()
    other = manifest.replace('"stands_on": {\n    "train": "', '"stands_on": {\n    "train": "0')
    (folder / "manifest.json").write_text(other)
    text = f"{folder} was made for other records than those of {captioned}. Remove this folder, and add the column "
    assert verify(captioned, QUICK).damaged == [Damage(column, "column", f"{text}again by `tfpipe add`")]
    (folder / "manifest.json").unlink()
    (damage,) = verify(captioned, QUICK).damaged
    assert (damage.file, damage.kind) == (column, "column")


def test_a_column_has_no_columns(captioned: str) -> None:
    Path(captioned, find_part(captioned, "column"), "columns").symlink_to(Path(captioned, "columns"))  # a loop
    assert verify(captioned, QUICK).damaged == []
    assert [column.name for column in library.load_manifest(captioned).columns] == ["words"]


def test_two_columns_with_one_feature_are_found(captioned: str) -> None:
    with open_change(captioned) as change:
        words = change.history.catalog.find("column", "words", 1)
        again = replace(words, name="again")
        shutil.copytree(Path(captioned, words.path), Path(captioned, again.path))
        change.commit([again])
    text = (
        f"{captioned}/{again.path} and {captioned}/{words.path} both have a feature 'caption'. Remove the folder of a "
        "column"
    )
    assert verify(captioned, QUICK).damaged == [Damage("columns", "column", text)]


def test_a_repair_keeps_the_records_of_which_all_values_are_whole(captioned: str, tmp_path: Path) -> None:
    for path, at in (
        (f"{find_part(captioned, 'column')}/train-00001-of-00002.tfrecord", 20),
        ("train-00000-of-00002.tfrecord", 30),
    ):
        flip_bit(Path(captioned, path), at)
    result = repair(captioned, str(tmp_path / "out"), workers=0)
    assert [(damage.file, damage.kind, damage.record) for damage in result.lost] == [
        ("train-00000-of-00002.tfrecord", "payload_crc", 0),
        ("train-00001-of-00002.tfrecord", "column", 0),
    ]
    check_values(str(tmp_path / "out"), 13)
    assert verify(str(tmp_path / "out"), VerifyConfig(workers=0)).damaged == []
    shutil.rmtree(Path(captioned, "index"))
    kinds = [damage.kind for damage in repair(captioned, str(tmp_path / "no-index"), workers=0).lost]
    assert kinds == ["payload_crc", *["column"] * 5, "column"]  # numbers are not sure behind a damage
    check_values(str(tmp_path / "no-index"), 8)


def test_a_repair_leaves_out_a_column_that_cannot_be_used(captioned: str, tmp_path: Path) -> None:
    Path(captioned, find_part(captioned, "column"), "manifest.json").write_text("{")
    result = repair(captioned, str(tmp_path / "out"), workers=0)
    assert [(damage.file, damage.kind) for damage in result.lost] == [("columns/words", "column")]
    assert result.records == 15
    assert "caption" not in library.load_manifest(str(tmp_path / "out")).schema


def test_another_programs_records_get_columns(pets: str, tmp_path: Path) -> None:
    """Also vectors of several lengths, whose sizes lie in a feature of their own."""
    (tmp_path / "raw").mkdir()
    for number in range(2):
        shutil.copy(Path(pets, f"train-0000{number}-of-00002.tfrecord"), tmp_path / "raw" / f"part-{number}.tfrecord")
    index(IndexConfig(str(tmp_path / "raw")))

    def make(record: Record) -> Any:
        return np.full((record.index % 3 + 1, 2), record.index, np.float32)

    library.add_column(tmp_path / "raw", "points", make, library.fields.Tensor("float32", (None, 2)))
    join_datasets([tmp_path / "raw"], tmp_path / "out")
    schema = library.load_manifest(str(tmp_path / "out")).schema
    names = [record.name for record in data_source(str(tmp_path / "raw"), "train")]
    records = list(data_source(str(tmp_path / "out"), "train"))
    assert len(records) == 12
    for record in records:
        number = names.index(record.name)
        np.testing.assert_array_equal(schema["points"].decode(record.features), np.full((number % 3 + 1, 2), number))
