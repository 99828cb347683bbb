"""A dataset from elsewhere may hold links: no command writes or deletes through one to another folder."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tfpipe as library
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.layers.growth import add_view, append, draw_more, find_part, list_names
from tests.refusals import refusal
from tfpipe.columns.config import TableConfig
from tfpipe.columns.join_table import join_table
from tfpipe.errors import DataError, FormatError
from tfpipe.layers.delete import delete_records


def add(dataset: str) -> None:
    names = [name for split in ("train", "validation") for name in list_names(dataset, split)]
    table = f"{dataset}.parquet"
    pq.write_table(pa.table({"name": names, "caption": ["x"] * len(names)}), table)
    join_table(dataset, table, TableConfig("words", replace=True))


def view(dataset: str) -> None:
    add_view(dataset, "wide", "width > 3")


def delete(dataset: str) -> None:
    delete_records(dataset, list_names(dataset)[:1])


def grow(dataset: str) -> None:
    append(dataset, draw_more(Path(f"{dataset}-more")))


def shard(dataset: str) -> None:
    make_dataset(draw_more(Path(f"{dataset}-more")), dataset, num_shards=1, overwrite=True)


Change = Callable[[str], None]
PLACES: list[tuple[str, list[Change]]] = [
    ("views", [view]),
    ("index", [view, delete, shard]),
    ("columns", [add]),
    ("columns/words-0123456789ab", [add]),
    ("columns/words-0123456789ab.tfpipe-write", [add]),
    ("layers", [delete, grow]),
    ("layers/2-0123456789ab", [delete, grow]),
    ("layers/2-0123456789ab.tfpipe-new", [grow]),
    (".tfpipe", [shard]),
    ("quarantine", [shard]),
]


@pytest.mark.parametrize("is_dangling", [False, True])
@pytest.mark.parametrize(("place", "change"), [(place, change) for place, changes in PLACES for change in changes])
def test_nothing_is_written_through_a_link(pets: str, place: str, change: Change, is_dangling: bool) -> None:
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
    message = refusal(DataError, change, pets)
    assert read_tree(outside) == before
    if not place.startswith("columns") and place != "layers" and "layers/2/" not in place:
        assert message == (
            f"Nothing is written through a link to another folder, and {path} leads to {target}. Put the folder itself "
            "in its place, or remove the link."
        )


@pytest.mark.parametrize("change", [add, view, delete, grow, shard])
def test_the_dataset_itself_may_be_a_link(pets: str, change: Change) -> None:
    disk = Path(pets).rename(Path(pets).with_name("disk"))
    Path(pets).symlink_to("disk")
    before = read_tree(disk)
    change(pets)
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
    view(pets)
    made = find_part(pets, "view")
    for name in ("catalog", made):
        Path(pets, name).rename(mine.with_name("moved"))
        Path(pets, name).symlink_to(mine.with_name("moved") if name == "catalog" else mine)
        view(pets)
        assert not Path(pets, name).is_symlink()
    assert mine.read_text() == "mine"
    assert library.load_manifest(f"{pets}@wide").view == "wide"
