"""Columns of a dataset that grows: what a layer lacks is said, and added to that layer alone."""

import logging
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tfpipe as library
from tests.beam_jobs.datasets import join_datasets, read_tree
from tests.columns.values import get_index
from tests.conftest import Tfpipe
from tests.layers.growth import add_view, append, draw_more, find_part, list_names, list_records
from tests.refusals import refusal
from tfpipe.columns.config import TableConfig
from tfpipe.columns.join_table import join_table
from tfpipe.dataset import history
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.layers.delete import delete_records
from tfpipe.readers.data_source import Record, data_source
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.views.choose import make_view
from tfpipe.views.config import ViewConfig

CAPTIONS = TableConfig("captions", features=("caption",))


def write_captions(path: Path, records: list[Record]) -> str:
    rows = {"name": [record.name for record in records], "caption": [f"A {record.label_name}." for record in records]}
    pq.write_table(pa.table(rows), path)
    return str(path)


@pytest.fixture(scope="module")
def lacking_once(small_dataset: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lacking")
    pets = str(shutil.copytree(small_dataset, folder / "pets"))
    join_table(pets, write_captions(folder / "captions.parquet", list_records(pets)), CAPTIONS)
    append(pets, draw_more(folder / "more"))
    return folder / "pets"


@pytest.fixture
def lacking(lacking_once: Path, tmp_path: Path) -> str:
    """The dataset with a column, and an appended layer that has none, to be changed."""
    return str(shutil.copytree(lacking_once, tmp_path / "lacking"))


def check_captions(dataset: str) -> None:
    for record in list_records(dataset):
        assert record.features["caption"] == [f"A {record.label_name}.".encode()], record.name


def test_a_column_that_lacks_values_is_named_once(lacking: str, caplog) -> None:
    history._WARNED.clear()
    with caplog.at_level(logging.WARNING):
        assert library.load_manifest(lacking).columns == ()
        assert library.load_manifest(lacking).columns == ()
    assert [record.getMessage() for record in caplog.records] == [
        "The column 'captions' has no values for the 6 records of layer 2, so it is not read. Add them: tfpipe add "
        f"{lacking} TABLE --name captions"
    ]
    assert [column.name for column in library.load_manifest(f"{lacking}@1").columns] == ["captions"]


def test_values_are_added_to_the_layer_alone(lacking: str, tmp_path: Path, tfpipe: Tfpipe) -> None:
    before = {path: data for path, data in read_tree(Path(lacking)).items() if path != "catalog"}
    new = [record for record in list_records(lacking) if record.name not in list_names(f"{lacking}@1")]
    new = [record for record in new if record.name not in list_names(f"{lacking}@1", "validation")]
    table = write_captions(tmp_path / "more.parquet", new)
    ran = tfpipe("add", lacking, table, "--name", "captions", "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["records"], ran.json["without"], ran.json["unused_rows"]) == (6, 0, 0)
    check_captions(lacking)
    after = read_tree(Path(lacking))
    assert {path: after[path] for path in before} == before
    made = {path for path in after.keys() - before.keys() if not path.endswith(".parquet")}
    assert all(path.startswith((f"{find_part(lacking, 'column')}/", "catalog")) for path in made)
    assert tfpipe("add", lacking, table, "--name", "captions", "--json").json == ran.json
    assert {path for path in read_tree(Path(lacking)).keys() - before.keys() if not path.endswith(".parquet")} == made
    ran = tfpipe("add", lacking, table, "--name", "captions", "--missing", "default")
    assert ran.err == (
        f"Error: {lacking} has a feature 'caption' in its column 'captions'. Give the new one another name, or set "
        "--replace and --name captions to replace that column.\n"
    )


def test_a_column_of_all_layers_is_replaced(lacking: str, tmp_path: Path, tfpipe: Tfpipe) -> None:
    table = write_captions(tmp_path / "all.parquet", list_records(lacking))
    join_table(lacking, table, replace(CAPTIONS, replace=True))
    check_captions(lacking)
    library.add_column(lacking, "captions", get_index, library.fields.Values("int64"), replace=True)
    records = list_records(lacking)
    assert [int(record.features["captions"][0]) for record in records] == [record.index for record in records]  # type: ignore[index]


def test_lists_of_any_length_stay_so_where_new_ones_have_one_length(pets: str, tmp_path: Path) -> None:
    def add(records: list[Record], length: int | None) -> None:
        sizes = [record.index % 3 if length is None else length for record in records]
        rows = {"name": [record.name for record in records], "tags": [["x"] * size for size in sizes]}
        rows["vector"] = [[0.5] * size for size in sizes]
        pq.write_table(pa.table(rows), tmp_path / "tags.parquet")
        join_table(pets, str(tmp_path / "tags.parquet"), TableConfig("tags"))

    old = list_records(pets)
    add(old, None)
    append(pets, draw_more(tmp_path / "more"))
    add([record for record in list_records(pets) if record.name not in {one.name for one in old}], 2)
    features = [record.features for record in list_records(pets)]
    assert [len(one["tags"]) for one in features if one["tags"] is not None][-1] == 2  # type: ignore[arg-type]
    assert library.load_manifest(pets).columns[0].schema["tags"].shape is None


@pytest.mark.parametrize("config", [CAPTIONS, TableConfig("captions", on="number", features=("caption",))])
def test_a_new_column_has_values_for_all_layers(grown: str, tmp_path: Path, config: TableConfig) -> None:
    records = list_records(grown)
    table = write_captions(tmp_path / "captions.parquet", records)
    rows = pq.read_table(table).append_column("number", [[record.index for record in records]])
    pq.write_table(rows.append_column("split", [[record.split for record in records]]), table)
    hidden = [list_names(grown)[k] for k in (1, 14)]
    if config.on == "name":  # a number is that of the record in the shards, hidden ones counted
        delete_records(grown, hidden)
    assert join_table(grown, table, config).records == len(list_records(grown))
    check_captions(grown)
    batches = NumpyBatches(grown, "train", PipelineConfig(batch_size=5, image_size=8, extra_features=("caption",)))
    captions = {caption.decode() for step in range(6) for caption in batches.read(step)["caption"]}
    assert captions == {"A cat.", "A dog.", "A owl.", "A ant."}
    view = make_view(library.load_manifest(grown), ViewConfig("v", "caption = 'A ant.'"))
    assert view.splits["train"].records == sum("/ant/" in name for name in list_names(grown))
    join_datasets([grown], tmp_path / "new", shuffle=False)
    check_captions(str(tmp_path / "new"))


def test_merging_takes_what_can_be_seen_of_each_dataset(grown: str, tmp_path: Path, tfpipe: Tfpipe) -> None:
    delete_records(grown, [list_names(grown)[k] for k in (1, 14)])
    other = str(shutil.copytree(grown, tmp_path / "other"))
    for dataset in (grown, other):
        library.add_column(dataset, "length", lambda record: len(record.name), library.fields.Values("int64"))
    add_view(other, "owls", "label = 'owl'")
    ran = tfpipe("merge", grown, f"{other}@owls", tmp_path / "out", "--no-shuffle")
    assert ran.code == 0, ran.err
    out = library.load_manifest(str(tmp_path / "out"))
    assert (out.layer, out.columns, out.label_names) == (1, (), library.load_manifest(other).label_names)
    owls = [name for name in list_names(grown) if "/owl/" in name]
    assert owls
    assert list_names(tmp_path / "out") == [*list_names(grown), *owls]
    assert list_names(tmp_path / "out", "validation")[:1] == list_names(grown, "validation")[:1]
    lengths = [int(record.features["length"][0]) for record in list_records(str(tmp_path / "out"))]  # type: ignore[index]
    assert lengths == [len(record.name) for record in list_records(str(tmp_path / "out"))]
    ran = tfpipe("merge", grown, f"{other}@owls", tmp_path / "once", "--drop-duplicates", "--json")
    shown = library.load_manifest(f"{other}@owls").splits.values()
    assert ran.json["duplicates"]["dropped"] == sum(split.records for split in shown)


def test_a_function_sees_no_hidden_record(grown: str) -> None:
    delete_records(grown, [list_names(grown)[k] for k in (1, 14)])
    seen: list[str] = []

    def measure(record: Record) -> int:
        seen.append(record.name)
        return len(record.name)

    library.add_column(grown, "length", measure, library.fields.Values("int64"))
    assert sorted(seen) == sorted(record.name for record in list_records(grown))
    for record in list_records(grown):
        assert record.features["length"].tolist() == [len(record.name)]


def test_workers_make_the_values_of_layers(grown: str) -> None:
    library.add_column(grown, "index", get_index, library.fields.Values("int64"), workers=2)
    values: list[Any] = [record.features["index"] for record in data_source(grown, "train")]
    assert [value.tolist() for value in values] == [[k] for k in range(17)]


def test_values_of_another_kind_are_refused(lacking: str) -> None:
    assert refusal(ConfigError, library.add_column, lacking, "captions", len, library.fields.Values("int64")) == (
        f"The features must be those in {lacking}/{find_part(lacking, 'column')}, caption, of the same types, got "
        "captions."
    )
    call = partial(library.add_column, lacking, "even", get_index, library.fields.Values("int64"))
    assert refusal(ConfigError, call, missing="view") == (
        f"`missing` view is for a dataset without appended layers, and {lacking} has some: layers may get their values "
        "one after another, and a view does not grow. Set `missing` to default, and make the view by `tfpipe view`."
    )
