"""Layers: `verify` and `repair`, columns of a dataset that grows, and links, through which nothing is written."""

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tfpipe as library
from tests.beam_jobs.datasets import join_datasets, make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, write_files
from tests.columns.values import get_index
from tests.conftest import Tfpipe
from tests.flipped_bit import flip_bit
from tests.layers.growth import add_view, append, draw_more, find_part, list_names, list_records
from tests.refusals import refusal
from tfpipe.columns.config import TableConfig
from tfpipe.columns.join_table import join_table
from tfpipe.dataset import history
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.integrity.repair import repair
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.layers.delete import delete_records
from tfpipe.readers.data_source import Record, data_source
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.views.choose import make_view
from tfpipe.views.config import ViewConfig
from tfpipe.writer.changes import open_change

HERE = VerifyConfig(workers=0)


@pytest.fixture(scope="module")
def layered_once(grown_once: Path, tmp_path_factory) -> Path:
    grown = str(shutil.copytree(grown_once, tmp_path_factory.mktemp("layered") / "pets"))
    add_view(grown, "owls", "label = 'owl'")
    delete_records(grown, [list_names(grown)[k] for k in (1, 14)])
    library.add_column(grown, "index", lambda record: record.index, library.fields.Values("int64"))
    return Path(grown)


@pytest.fixture
def layered(layered_once: Path, tmp_path: Path) -> str:
    """The dataset with appended records, two hidden ones, a view and a column, to be changed."""
    return str(shutil.copytree(layered_once, tmp_path / "layered"))


def list_damage(dataset: str) -> list[tuple[str, str]]:
    return [(damage.file, damage.kind) for damage in verify(dataset, HERE).damaged]


def test_whole_layers_have_no_damage_and_damaged_files_are_named(layered: str) -> None:
    report = verify(layered, HERE)
    assert report.damaged == []
    assert (report.files, report.records) == (14, 21)  # 4 shards, 3 of layer 2, and as many of the column
    shard = f"{find_part(layered, 'append')}/train-00001-of-00002.tfrecord"
    flip_bit(Path(layered, shard), 300)
    assert [file for file, _ in list_damage(layered)] == [shard]
    Path(layered, shard).unlink()
    assert (shard, "missing") in list_damage(layered)
    value = f"{find_part(layered, 'column')}/train-00000-of-00002.tfrecord"
    Path(layered, value).unlink()
    assert (value, "missing") in list_damage(layered)


def test_an_image_in_splits_of_two_layers_is_named(grown: str, tmp_path: Path) -> None:
    images = {"validation/owl/again.jpg": make_jpeg(500, (30, 20)), "train/owl/again.jpg": make_jpeg(500, (30, 20))}
    append(grown, write_files(tmp_path / "again", images))
    place = list_names(f"{grown}@2").index("train/owl/7.jpg")
    shards = library.load_manifest(grown).splits["train"].shards
    begins = [sum(shard.records for shard in shards[:k]) for k in range(len(shards))]
    number = max(k for k, begin in enumerate(begins) if begin <= place)
    (damage,) = verify(grown, HERE).damaged
    assert damage.file == f"{find_part(grown, 'append')}/validation-00000-of-00001.tfrecord"
    assert (damage.kind, damage.record) == ("duplicate", 0)
    assert damage.detail == (f"it is record {place - begins[number]} of {shards[number].file} too, in split 'train'")
    assert verify(grown, VerifyConfig(workers=0, allow_duplicates=True)).damaged == []
    delete_records(grown, ["validation/owl/again.jpg"])
    assert verify(grown, HERE).damaged == []


def test_names_may_repeat_in_a_layer_and_between_layers(tmp_path: Path) -> None:
    table = b"image,label\na.jpg,cat\na.jpg,dog\n"
    first = write_files(tmp_path / "first", {"a.jpg": make_jpeg(1), "t.csv": table})
    make_dataset(first / "t.csv", tmp_path / "pets")
    assert (list_names(tmp_path / "pets"), list_damage(str(tmp_path / "pets"))) == (["a.jpg", "a.jpg"], [])
    table = b"image,label,split\na.jpg,cat,train\nb.jpg,cat,validation\n"
    more = write_files(tmp_path / "more", {"a.jpg": make_jpeg(2), "b.jpg": make_jpeg(3), "t.csv": table})
    append(tmp_path / "pets", more / "t.csv", num_shards=1)
    table = b"image,label,split\na.jpg,cat,validation\n"
    last = write_files(tmp_path / "last", {"a.jpg": make_jpeg(4), "t.csv": table})
    append(tmp_path / "pets", last / "t.csv", num_shards=1)
    names = [list_names(tmp_path / "pets", split) for split in ("train", "validation")]
    assert (names, list_damage(str(tmp_path / "pets"))) == ([["a.jpg"] * 3, ["b.jpg", "a.jpg"]], [])


def test_a_damaged_catalog_is_named(layered: str) -> None:
    catalog = Path(layered, "catalog")
    catalog.write_bytes(catalog.read_bytes()[:-2])
    damage = verify(layered, HERE).damaged
    assert [(one.file, one.kind) for one in damage] == [("catalog", "layer")]
    assert damage[0].detail.startswith(f"{layered}/catalog is damaged: its bytes have another checksum")


@pytest.mark.parametrize("name", ["layers/4", "columns/index", "views/owls.view"])
def test_what_the_catalog_does_not_name_is_named(layered: str, name: str) -> None:
    shutil.copytree(Path(layered, find_part(layered, "append")), Path(layered, name))
    assert list_damage(layered) == [(name, "extra")]


def test_records_under_an_entry_of_others_are_named(layered: str) -> None:
    shutil.rmtree(Path(layered, find_part(layered, "append")))
    (damage,) = verify(layered, HERE).damaged
    assert (damage.file, damage.kind) == ("catalog", "layer")
    assert damage.detail.startswith("The records of layer 2 are missing: ")


def test_a_repair_writes_what_can_be_seen(layered: str, tmp_path: Path) -> None:
    names = list_names(layered)
    result = repair(layered, str(tmp_path / "clean"), workers=0)
    assert (result.records, result.lost) == (19, [])
    assert list_names(tmp_path / "clean") == names
    manifest = library.load_manifest(str(tmp_path / "clean"))
    assert (manifest.layer, manifest.columns, manifest.label_names[-1]) == (1, (), "ant")
    assert "index" in manifest.schema
    assert manifest.splits["train"].class_counts == library.load_manifest(layered).splits["train"].class_counts
    assert verify(str(tmp_path / "clean"), HERE).damaged == []


def test_a_repair_never_brings_a_hidden_record_back(layered: str, tmp_path: Path) -> None:
    hidden = set(list_names(f"{layered}@2")) - set(list_names(layered))
    part = find_part(layered, "append")
    for name in ("index/train-00000-of-00002.idx", f"{part}/index/train-00000-of-00002.idx"):
        Path(layered, name).unlink()
    for name in ("train-00000-of-00002.tfrecord", f"{part}/train-00000-of-00002.tfrecord"):
        flip_bit(Path(layered, name), 2)
    shutil.rmtree(Path(layered, "columns"))
    repair(layered, str(tmp_path / "clean"), workers=0)
    assert not hidden & set(list_names(tmp_path / "clean"))
    assert not any(name in Path(tmp_path, "clean", "repair.json").read_text() for name in hidden)


def test_a_repair_asks_for_the_layer_if_the_catalog_is_damaged(layered: str, tmp_path: Path) -> None:
    flip_bit(Path(layered, "catalog"), 300)
    assert refusal(ConfigError, repair, layered, str(tmp_path / "clean"), workers=0).endswith(
        f"Nobody knows which records it hides, so say which layer to write: tfpipe repair {layered}@1 OUTPUT"
    )
    assert repair(f"{layered}@1", str(tmp_path / "clean"), workers=0).records == 15
    with pytest.raises(ConfigError, match=r"^A repair writes all records that can be seen, got the view 'owls'\. "):
        repair(f"{layered}@owls", str(tmp_path / "other"), workers=0)


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
    assert [int(record.features["captions"][0]) for record in records] == [record.index for record in records]


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
    assert [len(one["tags"]) for one in features if one["tags"] is not None][-1] == 2
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
    lengths = [int(record.features["length"][0]) for record in list_records(str(tmp_path / "out"))]
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


CHANGES: dict[str, Callable[[str], object]] = {
    "delete": lambda data: delete_records(data, list_names(data)[:1]),
    "append": lambda data: append(data, draw_more(Path(f"{data}-more"))),
    "join": lambda data: join_table(
        data, write_captions(Path(f"{data}.parquet"), list_records(data)), replace(CAPTIONS, replace=True)
    ),
    "add": lambda data: library.add_column(data, "one", lambda record: 1, library.fields.Values("int64")),
    "view": lambda data: add_view(data, "wide", "width > 3"),
    "shard": lambda data: make_dataset(draw_more(Path(f"{data}-more")), data, num_shards=1, overwrite=True),
}


def test_all_changes_share_a_lock(pets: str) -> None:
    before = read_tree(Path(pets))
    for name, change in CHANGES.items():
        verb = "writes to" if name == "shard" else "changes"
        with open_change(pets):
            assert refusal(DataError, change, pets) == f"Another process {verb} {pets}; wait until it is done."
    assert read_tree(Path(pets)) == before
    for change in CHANGES.values():
        change(pets)
    assert not Path(pets, ".tfpipe").exists()


LINKS = {
    "views": "view",
    "index": "view delete shard",
    "columns": "join",
    "columns/captions-0123456789ab": "join",
    "columns/captions-0123456789ab.tfpipe-write": "join",
    "layers": "delete append",
    "layers/2-0123456789ab": "delete append",
    "layers/2-0123456789ab.tfpipe-new": "append",
    ".tfpipe": "shard",
    "quarantine": "shard",
}


@pytest.mark.parametrize("is_dangling", [False, True])
@pytest.mark.parametrize(("place", "name"), [(place, name) for place, names in LINKS.items() for name in names.split()])
def test_nothing_is_written_through_a_link(pets: str, place: str, name: str, is_dangling: bool) -> None:
    outside = Path(pets).with_name("outside")
    outside.mkdir()
    (outside / "mine").write_text("mine")
    path, target = Path(pets, place), outside / "new" if is_dangling else outside
    if path.is_dir():
        shutil.move(path, outside / "moved")
        target = outside / "moved"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    before = read_tree(outside)
    message = refusal(DataError, CHANGES[name], pets)
    assert read_tree(outside) == before
    if not place.startswith("columns") and place != "layers" and "layers/2/" not in place:
        assert message == (
            f"Nothing is written through a link to another folder, and {path} leads to {target}. Put the folder itself "
            "in its place, or remove the link."
        )


@pytest.mark.parametrize("name", CHANGES)
def test_the_dataset_itself_may_be_a_link(pets: str, name: str) -> None:
    disk = Path(pets).rename(Path(pets).with_name("disk"))
    Path(pets).symlink_to("disk")
    before = read_tree(disk)
    CHANGES[name](pets)
    assert os.path.islink(pets)
    assert read_tree(disk) != before


def test_a_catalog_that_leads_to_nothing_is_a_sentence(pets: str) -> None:
    catalog = Path(pets, "catalog")
    catalog.symlink_to("nothing")
    message = f"{catalog} cannot be read: it is not there. Copy the dataset again."
    assert refusal(FormatError, library.load_manifest, pets) == message


def test_a_file_takes_the_place_of_a_link(pets: str) -> None:
    mine = Path(pets).with_name("mine")
    mine.write_text("mine")
    add_view(pets, "wide", "width > 3")
    made = find_part(pets, "view")
    for name in ("catalog", made):
        Path(pets, name).rename(mine.with_name("moved"))
        Path(pets, name).symlink_to(mine.with_name("moved") if name == "catalog" else mine)
        add_view(pets, "wide", "width > 3")
        assert not Path(pets, name).is_symlink()
    assert mine.read_text() == "mine"
    assert library.load_manifest(f"{pets}@wide").view == "wide"
