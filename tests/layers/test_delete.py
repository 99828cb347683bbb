"""`tfpipe delete`: hidden records are seen on no way."""

import os
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import tfpipe as library
from tests.beam_jobs.datasets import join_datasets, read_tree
from tests.beam_jobs.images import make_jpeg, write_files
from tests.conftest import Tfpipe
from tests.layers.growth import add_view, append, list_names
from tests.refusals import refusal
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError, FormatError, TfpipeError
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.layers.delete import delete_records
from tfpipe.lookups.data_lock import lock_data
from tfpipe.lookups.steps import find_steps, look_up_step
from tfpipe.readers.data_source import data_source
from tfpipe.readers.grain import GrainBatches
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches
from tfpipe.views.choose import make_view, write_view
from tfpipe.views.config import ViewConfig

NAME = "image/filename"
CONFIG = PipelineConfig(image_size=8, batch_size=4, seed=3, extra_features=(NAME,))


@pytest.fixture
def names(pets: str) -> list[str]:
    return list_names(pets)


@pytest.fixture
def gone(names: list[str]) -> list[str]:
    return [names[2], names[9]]


@pytest.fixture
def thinned(pets: str, gone: list[str]) -> str:
    """The dataset without two records of its training split."""
    delete_records(pets, gone)
    return pets


def test_counts_are_those_of_what_is_left(pets: str, names: list[str], gone: list[str]) -> None:
    before = read_tree(Path(pets))
    whole = library.load_manifest(pets).splits["train"]
    labels = {record.name: record.label for record in data_source(pets, "train")}
    with RecordReader(pets, library.load_manifest(pets), "train") as reader:
        sizes = dict(zip(names, reader.list_sizes(range(12)), strict=True))
    deleted = delete_records(pets, gone)
    assert (deleted.layer, deleted.records, deleted.before) == (2, {"train": 2}, 0)
    left = library.load_manifest(pets).splits["train"]
    assert (left.records, left.stored_records) == (10, 12)
    assert left.bytes == whole.bytes - sum(sizes[name] for name in gone)
    counts = Counter(label for name, label in labels.items() if name not in gone)
    assert left.class_counts == tuple(counts[k] for k in range(3))
    assert left.fingerprint != whole.fingerprint
    after = read_tree(Path(pets))
    assert {path: after[path] for path in before} == before
    assert {path for path in after if path not in before and not path.endswith(".parquet")} == {"catalog"}


def test_no_face_gives_a_hidden_record(thinned: str, names: list[str], gone: list[str]) -> None:
    left = [name for name in names if name not in gone]
    assert list_names(thinned) == left
    config = replace(CONFIG, training=False)
    plain = replace(config, extra_features=())
    expected = [batch["label"].tolist() for batch in NumpyBatches(thinned, "train", plain)]
    faces = {
        "tensorflow": [b["label"].numpy().tolist() for b in library.build_dataset(thinned, "train", plain)],
        "torch": [batch["label"].tolist() for batch in TorchBatches(thinned, "train", plain)],
        "jax": [np.asarray(batch["label"]).tolist() for batch in JaxBatches(thinned, "train", plain)],
        "grain": [batch["label"].tolist() for batch in GrainBatches(thinned, "train", plain, num_epochs=1)],
    }
    for face, read in faces.items():
        assert read == expected, face
    batches = NumpyBatches(thinned, "train", config)
    assert [n.decode() for b in batches for n, real in zip(b[NAME], b["mask"], strict=True) if real] == left
    trained = {name.decode() for step in range(20) for name in NumpyBatches(thinned, "train", CONFIG).read(step)[NAME]}
    assert trained == set(left)


@pytest.mark.parametrize("options", [(), ("--no-shuffle", "--num-shards", 2, "--resize-short", 16)])
def test_a_new_dataset_has_neither_bytes_nor_name_of_a_hidden_record(grown, tmp_path, tfpipe, options):
    """The records are of two layers and two splits, one is a copy of another, and one is in a view."""
    append(grown, write_files(tmp_path / "more", {"train/cat/copy.jpg": make_jpeg(501, (31, 21))}))
    manifest = library.load_manifest(grown)
    add_view(grown, "owls", "label = 'owl'")
    library.add_column(grown, "note", lambda record: f"note on {record.name}".encode(), library.fields.Values("bytes"))
    victims = [
        record
        for split in manifest.splits
        for k, record in enumerate(data_source(grown, split))
        if k in (1, 12) or record.name == "train/cat/copy.jpg"
    ]
    names = [record.name for record in victims]
    delete_records(grown, names)
    ran = tfpipe("reshard", grown, tmp_path / "new", "--workers", 1, *options)
    assert ran.code == 0, ran.err
    files = read_tree(tmp_path / "new")
    tables = [pq.read_table(tmp_path / "new" / path) for path in files if path.endswith(".parquet")]
    texts = [*files.values(), *(str(table.to_pydict()).encode() for table in tables)]
    pixels = [record.encoded for record in victims if record.name != "train/cat/copy.jpg"]
    for secret in (*(name.encode() for name in names), *pixels):
        assert not any(secret in text for text in texts)
    new = library.load_manifest(str(tmp_path / "new"))
    assert (new.layer, new.columns, sorted(os.listdir(tmp_path))) == (1, (), ["grown", "more", "new"])
    assert sorted(list_names(tmp_path / "new")) == sorted(list_names(grown))
    shutil.rmtree(grown)
    assert verify(str(tmp_path / "new"), VerifyConfig(workers=0)).damaged == []


def test_lookups_know_no_hidden_record(thinned: str, gone: list[str], tfpipe: Tfpipe) -> None:
    plan = lock_data(library.load_manifest(thinned), "train", CONFIG).open()
    assert not {row.name for step in range(8) for row in look_up_step(plan, step)} & set(gone)
    assert {row.number for step in range(8) for row in look_up_step(plan, step)} <= set(range(12)) - {2, 9}
    with pytest.raises(ConfigError, match=r"^Record 9 was deleted from 'train' of .*/pets\.$"):
        find_steps(plan, 9, range(2))
    ran = tfpipe("inspect", thinned, "--record", f"train:{gone[0]}", "--json")
    assert ran.code != 0
    ran_all = [tfpipe("inspect", thinned, "--record", f"train:{k}", "--json").json for k in (0, 9)]
    assert [ran["features"]["image/filename"] for ran in ran_all] == [list_names(thinned)[k] for k in (0, 9)]


def test_views_show_no_hidden_record(pets: str, gone: list[str]) -> None:
    add_view(pets, "old", weights="label_id")
    before = library.load_manifest(f"{pets}@old").splits["train"]
    shown = list_names(f"{pets}@old")
    delete_records(pets, gone)
    after = library.load_manifest(f"{pets}@old")
    assert list_names(f"{pets}@old") == [name for name in shown if name not in gone]
    split = after.splits["train"]
    assert (len(split.chosen.weights), split.records) == (10, 10)
    assert sum(split.class_counts) == sum(before.class_counts) - 2
    manifest = library.load_manifest(pets)
    made = make_view(manifest, ViewConfig("new", "label_id >= 0"))
    assert made.splits["train"].numbers.tolist() == [k for k in range(12) if k not in (2, 9)]
    write_view(manifest, made)
    assert list_names(f"{pets}@new") == list_names(pets)
    delete_records(pets, [list_names(pets)[0]])
    assert list_names(f"{pets}@new") == list_names(pets)


def test_what_was_hidden_before_is_said(thinned: str, gone: list[str], names: list[str], pets: str) -> None:
    again = delete_records(thinned, gone)
    assert (again.layer, again.records, again.before) == (2, {}, 2)
    more = delete_records(thinned, [gone[0], names[0]])
    assert (more.layer, more.records, more.before) == (3, {"train": 1}, 1)
    victims = [list_names(thinned, split)[-1] for split in ("train", "validation")]
    assert delete_records(thinned, victims).records == {"train": 1, "validation": 1}
    assert len(list_names(thinned, "validation")) == 2


def test_wrong_deletions(pets: str, names: list[str], tmp_path: Path) -> None:
    cases: list[tuple[str, list[str], str]] = [
        (pets, [], "`names` must be a list of one name or more, got []."),
        (pets, names[0], f"`names` must be a list of one name or more, got {names[0]!r}."),
        (pets, ["x", names[0]], f"Each name must belong to a record of {pets}, got 1 of 2 that do not, such as 'x'. "),
        (f"{pets}@v", ["x"], f"Layers belong to a dataset and not to {pets}@v. Leave the @ out."),
        ("gs://bucket/pets", ["x"], "A dataset is read from a local directory, got 'gs://bucket/pets'. Copy it to "),
        (str(tmp_path / "no"), ["x"], f"{tmp_path}/no does not exist."),
    ]
    for dataset, given, message in cases:
        assert refusal(TfpipeError, delete_records, dataset, given).startswith(message)
    assert not Path(pets, "catalog").exists()
    assert sorted(os.listdir(tmp_path)) == ["pets"]


def test_an_old_layer_is_read_by_its_number(thinned: str, names: list[str]) -> None:
    assert list_names(f"{thinned}@1") == names
    assert list_names(f"{thinned}@2") == list_names(thinned)
    manifest = library.load_manifest(f"{thinned}@1")
    assert (manifest.address, manifest.layer) == (f"{thinned}@1", 1)
    with pytest.raises(DataError, match=r"/pets has no layer 3; its layers are 1 to 2\.$"):
        library.load_manifest(f"{thinned}@3")
    with pytest.raises(ConfigError, match=r"^A view's name must have more than digits, because @7 is a layer, got '7'"):
        ViewConfig("7")


def test_the_commands_print_what_they_did(pets: str, gone: list[str], tmp_path: Path, tfpipe: Tfpipe) -> None:
    file = tmp_path / "names.txt"
    file.write_text("\n".join([*gone, "", ""]))
    ran = tfpipe("delete", pets, file)
    assert (ran.code, ran.lines) == (
        0,
        ["train: 2 records hidden", f"{pets} is at layer 2; tfpipe reshard {pets} OUTPUT writes it without the bytes"],
    )
    assert tfpipe("delete", pets, file).lines == [
        "2 records with these names were hidden before",
        f"There is nothing to hide in {pets}",
    ]
    assert tfpipe("delete", pets, file, "--json").json == {"dataset": pets, "layer": 2, "hidden": {}, "before": 2}
    ran = tfpipe("delete", pets, tmp_path / "no.txt")
    assert (ran.code, ran.err) == (1, f"Error: {tmp_path}/no.txt cannot be read: No such file or directory.\n")
    file.write_bytes(b"\xff\n")
    assert tfpipe("delete", pets, file).err == f"Error: {file} cannot be read: it is not a text in UTF-8.\n"


def test_inspect_shows_the_layer(thinned: str, tfpipe: Tfpipe) -> None:
    document = tfpipe("inspect", thinned, "--json").json
    assert (document["layer"], document["hidden"]) == (2, {"train": 2, "validation": 0})
    assert re.search(r"^Layer +2, with 2 hidden records *$", tfpipe("inspect", thinned).out, re.MULTILINE)
    assert "layer" not in tfpipe("inspect", f"{thinned}@1", "--json").json


def test_an_entry_for_other_records_is_refused(thinned: str, pets: str, small_dataset: Path, tmp_path: Path) -> None:
    join_datasets([small_dataset], tmp_path / "other", num_shards=1)
    shutil.copy(Path(thinned, "catalog"), tmp_path / "other")
    with pytest.raises(FormatError, match=r"^Layer 2 of .*/other was made for other records than those below it\."):
        library.load_manifest(str(tmp_path / "other"))
