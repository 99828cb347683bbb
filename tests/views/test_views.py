"""Views of a dataset: what they choose; every reader reads them, and every command honors or refuses them."""

import json
import os
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tfpipe as library
from tests.beam_jobs.datasets import make_dataset
from tests.conftest import Tfpipe
from tests.flipped_bit import flip_bit
from tests.layers.growth import add_view, find_part, list_names
from tests.refusals import refusal
from tests.service.workers import open_as_worker
from tfpipe.columns.config import TableConfig
from tfpipe.columns.join_table import join_table
from tfpipe.engine.config.pipeline_config import PipelineConfig, ServiceOptions
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.file_names import info_name
from tfpipe.format.view import View
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.layers.delete import delete_records
from tfpipe.profiler.measure.option_costs import sample_records
from tfpipe.readers.data_source import data_source
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.views.choose import _to_units, find_info, make_view, write_view
from tfpipe.views.config import ViewConfig
from tfpipe.writer.record_info import RecordInfo, list_columns

CONFIG = PipelineConfig(image_size=8, batch_size=4, seed=3, extra_features=("image/filename",))


def choose(dataset: str, where: str = "", **options: Any) -> View:
    return make_view(library.load_manifest(dataset), ViewConfig("v", where, **options))


def add(dataset: str, where: str = "", **options: Any) -> str:
    write_view(library.load_manifest(dataset), choose(dataset, where, **options), overwrite=True)
    return f"{dataset}@v"


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("label = 'owl'", ["train/owl/0.jpg", "train/owl/1.png"]),
        ("label_id = 2 AND format = 'PNG'", ["train/owl/1.png"]),
        ("width <= 25", ["train/cat/0.jpg", "train/cat/1.png", "train/owl/0.jpg", "train/owl/1.png"]),
        ("name like '%dog/1%' or name like '%dog/3%'", ["train/dog/1.png", "train/dog/3.png"]),
        ("split = 'train' and height between 17 and 18", ["train/cat/1.png", "train/cat/2.jpg", "train/owl/1.png"]),
    ],
)
def test_a_condition_chooses_records(pets: str, where: str, names: list[str]) -> None:
    assert sorted(list_names(add(pets, where))) == names


def test_a_folder_may_have_any_name(pets: str, tmp_path: Path) -> None:
    folder = "back\\slash\nit's \"both\" [1]*? a' || 'b"
    dataset = str(shutil.move(pets, tmp_path / folder))
    rows = {"name": list_names(dataset), "place": [*range(12)]}
    pq.write_table(pa.table(rows), tmp_path / folder / "places.parquet")
    join_table(dataset, str(tmp_path / folder / "places.parquet"), TableConfig("places", missing="default"))
    assert delete_records(dataset, ["train/cat/0.jpg"]).records == {"train": 1}
    assert list_names(add(dataset, "place < 3")) == [name for name in rows["name"][:3] if name != "train/cat/0.jpg"]


def test_the_facts_agree_with_the_records(pets: str, tmp_path: Path) -> None:
    manifest = library.load_manifest(pets)
    columns = ("name", "label", "label_id", "bytes", "digest", "format", "height", "width", "channels", "colorspace")
    assert tuple(list_columns(manifest)) == columns
    files = find_info(manifest, "train", str(tmp_path / "unused"))
    assert files == [os.path.join(pets, info_name(shard.file)) for shard in manifest.splits["train"].shards]
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    records = list(data_source(manifest, "train"))
    assert [(row["name"], row["label"], row["label_id"], row["bytes"]) for row in rows] == [
        (record.name, record.label_name, record.label, len(record.encoded)) for record in records
    ]
    assert [(row["height"], row["width"]) for row in rows] == [record.image.shape[:2] for record in records]


def test_record_info_is_made_once_and_again_for_another_shard(pets: str) -> None:
    choose(pets)
    file = Path(pets, info_name(library.load_manifest(pets).splits["train"].shards[0].file))
    made = file.stat().st_mtime_ns
    choose(pets)
    assert file.stat().st_mtime_ns == made
    other = Path(pets, info_name(library.load_manifest(pets).splits["train"].shards[1].file))
    shutil.copyfile(other, file)
    for damage in (other.read_bytes(), other.read_bytes()[:100], b""):
        file.write_bytes(damage)
        assert choose(pets, "label = 'cat'").splits["train"].records == 6


def test_damaged_facts_are_found_and_made_again(pets: str) -> None:
    file = Path(pets, info_name(library.load_manifest(pets).splits["train"].shards[0].file))
    whole, name = file.read_bytes(), "index/train-00000-of-00002.parquet"
    assert verify(pets, VerifyConfig(workers=0)).damaged == []
    manifest = library.load_manifest(pets)
    shard, table = manifest.splits["train"].shards[0], pq.read_table(file)
    found = 0
    for at in range(0, len(whole), 17):
        data = bytearray(whole)
        data[at] ^= 1
        found += bool(RecordInfo(manifest).find_fault(data, shard.sha256, shard.records))
        if not RecordInfo(manifest).find_fault(data, shard.sha256, shard.records):
            assert pq.read_table(pa.BufferReader(data)).equals(table), at  # nobody reads this bit
    assert found > len(whole) // 28
    flip_bit(file, 4 + whole.index(b"train/"))
    (damage,) = verify(pets, VerifyConfig(workers=0)).damaged
    assert (damage.file, damage.kind) == (name, "info")
    assert damage.detail.startswith("it cannot be read: ")
    shutil.copyfile(file.with_name("train-00001-of-00002.parquet"), file)
    shutil.copyfile(file, file.with_name("test-00000-of-00001.parquet"))
    assert [(damage.file, damage.detail) for damage in verify(pets, VerifyConfig(workers=0)).damaged] == [
        ("index/test-00000-of-00001.parquet", "the manifest knows no such index"),
        (name, "it was made for another shard"),
    ]
    choose(pets)
    assert file.read_bytes() == whole


def test_a_dataset_that_is_only_read_gets_no_files(pets: str, monkeypatch) -> None:
    before = sorted(os.listdir(Path(pets, "index")))
    monkeypatch.setattr("tfpipe.format.file_names.info_name", lambda shard: f"missing/{shard}.parquet")
    assert choose(pets, "label = 'dog'").splits["train"].records == 4
    assert sorted(os.listdir(Path(pets, "index"))) == before


def test_a_view_counts_what_it_has(pets: str) -> None:
    whole = library.load_manifest(pets).splits["train"]
    view = choose(pets, "label <> 'dog'").splits["train"]
    assert (view.records, view.stored_records, view.class_counts) == (8, 12, (6, 0, 2))
    assert choose(pets).splits["train"].bytes == whole.bytes
    assert 0 < view.bytes < whole.bytes
    assert library.load_manifest(add(pets, "label <> 'dog'")).splits["train"].records_per_shard == tuple(
        int(((view.numbers >= start) & (view.numbers < start + 6)).sum()) for start in (0, 6)
    )
    assert list(library.load_manifest(add(pets, "split = 'train'")).splits) == ["train"]


def test_duplicates_are_counted_across_splits(draw_images: Any, tmp_path: Path) -> None:
    images = draw_images(tmp_path / "images")
    for copy in ("train/dog/9.jpg", "validation/cat/9.jpg"):
        shutil.copyfile(images / "train/cat/0.jpg", images / copy)
    make_dataset(images, tmp_path / "out")
    numbers = {name: split.records for name, split in choose(str(tmp_path / "out"), "not duplicate").splits.items()}
    assert numbers == {"train": 12, "validation": 3}  # of 13 and 4


def test_a_sample_is_the_share_asked_for(pets: str) -> None:
    drawn = [choose(pets, sample=0.25, seed=seed).splits["train"].numbers.tolist() for seed in range(4)]
    assert {len(numbers) for numbers in drawn} == {3}
    assert len(set(map(tuple, drawn))) > 1
    assert choose(pets, sample=0.25, seed=2).splits["train"].numbers.tolist() == drawn[2]
    counts = {name: split.records for name, split in choose(pets, sample=0.1).splits.items()}
    assert counts == {"train": 1, "validation": 0}  # of 12 and of 3
    assert refusal(DataError, choose, pets, sample=0.01) == (
        f"No record of {pets} is left by `sample`, got 0.01 of 15. Give a larger one."
    )


def test_records_are_left_out_by_name(pets: str) -> None:
    names = list_names(pets)
    assert list_names(add(pets, without=(names[3], names[7]))) == names[:3] + names[4:7] + names[8:]
    message = r"^Each name of `without` must belong to a record, got 1 of \d that do not, such as 'x'\.$"
    with pytest.raises(ConfigError, match=message):
        choose(pets, without=("x", names[0]))


def test_weights_balance_the_classes(pets: str) -> None:
    split = choose(pets, weights="class_balanced").splits["train"]
    assert split.epoch_records == 12
    labels = np.array([record.label for record in data_source(pets, "train")])
    sums = [int(split.weights[labels == label].sum()) for label in range(3)]
    assert sums == pytest.approx([4 * 65536] * 3, abs=6)
    batches = make(add(pets, weights="class_balanced"))
    read = Counter(
        label for epoch in range(60) for step in range(3) for label in batches.read(3 * epoch + step)["label"].tolist()
    )
    assert [read[label] / 720 for label in range(3)] == pytest.approx([1 / 3] * 3, abs=0.01)


def test_weights_come_from_a_column(pets: str) -> None:
    split = choose(pets, weights="label_id").splits["train"]
    assert Counter((split.weights / 65536).tolist()) == {0: 6, 1: 4, 2: 2}
    names = Counter(name for batch in make(add(pets, weights="label_id")) for name in batch["image/filename"])
    assert sorted(names.values()) == [1, 1, 1, 1, 2, 2]
    address = add(pets, "name = 'train/owl/0.jpg'", weights="label_id")
    images = [batch["image"] for batch in make(address, batch_size=2)]
    assert len(images) == 1
    assert (images[0][0] != images[0][1]).any()


COLUMNS = "split, name, label, label_id, bytes, digest, format, height, width, channels, colorspace, duplicate"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"where": "widht > 3"},
            f"`where` must be a condition over the columns {COLUMNS}; got 'widht > 3'. DuckDB says: Binder Error: "
            'Referenced column "widht" not found in FROM clause!',
        ),
        (
            {"where": 'label = "owl"'},
            f"`where` must be a condition over the columns {COLUMNS}; got 'label = \"owl\"'. Text stands in single "
            'quotes. DuckDB says: Binder Error: Referenced column "owl" not found in FROM clause!',
        ),
        ({"weights": "widht"}, f"`weights` must be class_balanced or a column, of {COLUMNS}; got 'widht'."),
        ({"sample": 0.0}, "`sample` must be in (0, 1], got 0.0."),
        ({"seed": -1}, "`seed` must be at least 0, got -1."),
    ],
)
def test_wrong_options(pets: str, options: dict[str, Any], message: str) -> None:
    assert refusal(ConfigError, choose, pets, **options) == message


def test_conditions_and_weights_that_do_not_fit(pets: str) -> None:
    sentence, _, of_duckdb = refusal(ConfigError, choose, pets, where="label = 1").partition(". ")
    assert sentence == "`where` must compare like with like: `label` is text, `label_id` a number"
    assert re.fullmatch("Conversion Error: .*'(cat|dog|owl)' to INT32 .* column label", of_duckdb)
    with pytest.raises(ConfigError, match=r"^`weights` must be a column of numbers, got 'name', and `where` must"):
        choose(pets, weights="name")
    with pytest.raises(ConfigError, match=r"^`weights` must be numbers from 0 to 1,000, got -1\.0 in a record of 't"):
        _to_units(np.array([1.0, -1.0]), "train")
    with pytest.raises(DataError, match=r"^No record of .*/pets fulfills the condition, got 'width > 9000'\.$"):
        choose(pets, "width > 9000")


def test_features_may_have_the_names_of_other_columns(draw_images: Any, tmp_path: Path) -> None:
    folder, dataset = draw_images(tmp_path / "in"), str(tmp_path / "out")
    images = ["train/cat/0.jpg", "train/cat/1.png", "train/cat/2.jpg"]
    cells = [f"\n{image},cat{f',{10 * k}' * 12}" for k, image in enumerate(images)]
    own = "name,Digest,filename,file_row_number,Split,width,score,Score,shard_,row_number_,start,shard"
    (folder / "t.csv").write_text(f"image,label,{own}{''.join(cells)}")
    make_dataset(folder / "t.csv", dataset)
    shown = "name_ Digest_ filename_ file_row_number_ Split_ width_ score_ Score__ shard__ row_number__ start shard"
    (file,) = Path(dataset, "index").glob("*.parquet")
    pq.write_table(pq.read_table(file).drop_columns(["name_"]), file)  # as another version wrote it
    assert list_names(add(dataset, " and ".join(f"{name} = 20" for name in shown.split()))) == images[2:]
    assert list_names(add(dataset, f"name = '{images[1]}' and Width < 100")) == images[1:2]
    assert ", score_, Score__, " in refusal(ConfigError, choose, dataset, where="score = 20")
    library.add_column(dataset, "WIDTH", lambda record: record.index, library.fields.Values("int64"))
    assert list_names(add(dataset, "WIDTH__ = 1 and width_ >= 0")) == list_names(dataset)[1:2]
    assert delete_records(dataset, images[1:2]).records == {"train": 1}
    assert sorted(list_names(dataset)) == [images[0], images[2]]


def test_a_view_that_is_not_there(pets: str) -> None:
    sentence = f"{pets} has no view 'big'; it has none. `tfpipe view {pets} ... --name big` makes one."
    assert refusal(DataError, library.load_manifest, f"{pets}@big") == sentence
    add(pets)
    assert "has no view 'big'; it has v." in refusal(DataError, library.load_manifest, f"{pets}@big")
    with pytest.raises(ConfigError, match=r"^A view is made of a dataset and not of the view 'v'\. Leave the @ out\.$"):
        choose(f"{pets}@v")
    shutil.copytree(pets, f"{pets}@v")
    assert library.load_manifest(f"{pets}@v").directory == f"{pets}@v"


def test_a_view_of_other_shards_is_refused(pets: str, draw_images: Any, tmp_path: Path) -> None:
    make_dataset(draw_images(tmp_path / "images"), tmp_path / "out", seed=1)
    write_view(library.load_manifest(pets), choose(str(tmp_path / "out")))
    message = f"The view 'v' was made for other shards than those of 'train' in {pets}. Make it again by `tfpipe view`."
    assert refusal(FormatError, library.load_manifest, f"{pets}@v") == message


def make(address: str, split: str = "train", **options: Any) -> NumpyBatches:
    return NumpyBatches(address, split, replace(CONFIG, **options))


def read_names(batches: Any) -> list[str]:
    return [name.decode() for batch in batches for name in batch["image/filename"]]


@pytest.fixture
def cats(pets: str) -> str:
    """The view of six cats and two owls."""
    return add(pets, "label in ('cat', 'owl')")


def test_an_epoch_has_the_records_of_the_view(cats: str) -> None:
    batches = make(cats)
    epochs = [read_names(batches) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(list_names(cats))] * 3
    assert len(set(map(tuple, epochs))) == 3


@pytest.mark.parametrize(("hosts", "weights"), [(2, None), (4, "label_id")])
def test_hosts_share_the_same_batches(pets: str, hosts: int, weights: str | None) -> None:
    address = add(pets, "label <> 'cat'", weights=weights)
    whole = make(address)
    parts = [NumpyBatches(address, "train", CONFIG, rank=(rank, hosts)) for rank in range(hosts)]
    for step in (0, 1, 5):
        images = np.concatenate([part.read(step)["image"] for part in parts])
        np.testing.assert_array_equal(images, whole.read(step)["image"])


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({"cache": "decoded"}, None),
        ({"cache": "bytes"}, "label_id"),
        ({"cache": "decoded", "cache_bytes": 2000}, "label_id"),
        ({"cache_dir": ""}, None),
    ],
)
def test_caches_give_the_same_batches(pets: str, tmp_path: Path, options: dict[str, Any], weights: str | None) -> None:
    address = add(pets, "label <> 'dog'", weights=weights)
    if "cache_dir" in options:
        options = {"cache": "decoded", "cache_dir": str(tmp_path / "cache")}
    plain = [make(address, decoded_size=16, augment="none").read(step)["label"].tolist() for step in range(6)]
    for _ in range(2):
        cached = make(address, decoded_size=16, augment="none", **options)
        assert [cached.read(step)["label"].tolist() for step in range(6)] == plain


def test_an_evaluation_reads_each_record_once(pets: str) -> None:
    address = add(pets, "label <> 'cat'", weights="label_id")
    batches = make(address, training=False)
    names = [
        name.decode()
        for batch in batches
        for name, real in zip(batch["image/filename"], batch["mask"].tolist(), strict=True)
        if real
    ]
    assert names == list_names(address)


def test_a_position_belongs_to_the_view(pets: str, cats: str) -> None:
    batches = make(cats)
    steps = [batch["image"] for _ in range(3) for batch in batches]
    again = make(cats)
    again.load_state_dict({**again.state_dict(), "epoch": 1, "step": 1})
    np.testing.assert_array_equal(next(iter(again))["image"], steps[3])
    whole, view = (library.load_manifest(address).splits["train"].fingerprint for address in (pets, cats))
    assert whole != view


def test_views_mix(pets: str, cats: str) -> None:
    shutil.copytree(pets, f"{pets}2")
    names = read_names(NumpyBatches(library.mix({cats: 0.5, f"{pets}2": 0.5}), "train", CONFIG))
    assert len(names) == 20
    assert {name for name in names if "dog" in name}


@pytest.fixture
def owls(pets: str) -> str:
    """The view of all but the dogs: 8 of 12 records for training, 2 of 3 for validation, in two shards each."""
    add_view(pets, "owls", "label <> 'dog'", weights="label_id")
    return f"{pets}@owls"


def test_an_export_has_the_records_of_the_view(owls: str, tmp_path: Path, tfpipe: Tfpipe) -> None:
    ran = tfpipe("export", owls, tmp_path / "out", "--to", "webdataset", "--workers", 0, "--json")
    assert (ran.code, ran.err) == (0, "")
    records = {name: split["records"] for name, split in json.loads(ran.out)["splits"].items()}
    assert records == {"train": 8, "validation": 2}


@pytest.mark.parametrize("command", ["reshard", "merge"])
def test_a_new_dataset_has_the_records_of_the_view(owls: str, tmp_path: Path, tfpipe: Tfpipe, command: str) -> None:
    output = tmp_path / "out"
    sources = [owls] if command == "reshard" else [owls, owls]
    ran = tfpipe(command, *sources, output, "--no-shuffle", "--num-shards", 3)
    assert ran.code == 0, ran.err
    assert sorted(list_names(str(output))) == sorted(len(sources) * list_names(owls))
    assert library.load_manifest(str(output)).splits["train"].class_counts == (6 * len(sources), 0, 2 * len(sources))
    assert verify(str(output), VerifyConfig(workers=0, allow_duplicates=True)).damaged == []


def test_a_record_is_shown_by_its_number_in_the_view(owls: str, tfpipe: Tfpipe) -> None:
    shown = json.loads(tfpipe("inspect", owls, "--record", "train:5", "--json").out)
    assert shown["features"]["image/filename"] == list_names(owls)[5]
    said = "Records, size and classes are those that are read; the rest is that of all stored records."
    assert said in " ".join(tfpipe("inspect", owls).out.split())
    assert said not in " ".join(tfpipe("inspect", owls.rpartition("@")[0]).out.split())
    summary = json.loads(tfpipe("inspect", owls, "--json").out)
    assert {name: split["records"] for name, split in summary["splits"].items()} == {"train": 8, "validation": 2}


def test_a_profile_samples_the_view(owls: str) -> None:
    source = Source.from_manifest(library.load_manifest(owls), "train")
    assert source.shard_records == library.load_manifest(owls).splits["train"].records_per_shard
    assert sum(source.shard_records) == source.num_records == 8
    chosen = {record.name.encode() for record in data_source(owls, "train")}
    for payload in sample_records(source):
        assert any(name in payload for name in chosen)


def test_a_worker_of_a_service_opens_the_view(owls: str) -> None:
    reader = NumpyBatches(owls, "train", replace(CONFIG, service=ServiceOptions()))
    maker = open_as_worker(reader._maker.plan)
    assert maker.plan.source.name == f"'train' of {owls}"
    assert maker.plan.list_numbers(3, 0).tolist() == reader._maker.plan.list_numbers(3, 0).tolist()


@pytest.mark.parametrize("training", [True, False])
def test_the_textbook_pipeline_refuses_a_view(owls: str, training: bool) -> None:
    """It reads whole files, so it would give records that the view leaves out."""
    config = replace(CONFIG, order="throughput", training=training)
    assert refusal(ConfigError, library.build_dataset, owls, "train", config) == (
        f"'train' of {owls} is a view: that is for batches by their steps, and `order` is throughput. Use "
        "order='exact', in which stages of your own get whole batches."
    )


def test_the_views_of_a_dataset_are_verified_with_it(owls: str, tfpipe: Tfpipe) -> None:
    folder = owls.partition("@")[0]
    file = Path(folder, find_part(folder, "view"))
    assert verify(folder, VerifyConfig(quick=True, workers=0)).damaged == []
    flip_bit(file, -1)
    detail = f"{file} is damaged: its bytes have another checksum. Make the view again by `tfpipe view`"
    assert verify(folder, VerifyConfig(quick=True, workers=0)).damaged == [
        Damage(find_part(folder, "view"), "view", detail)
    ]
    ran = tfpipe("verify", owls)
    assert (ran.code, ran.err) == (
        2,
        f"Error: All records are checked, with all views of them, got {owls!r}. Give {folder}.\n",
    )


def test_a_dataset_with_views_is_overwritten(owls: str, tmp_path: Path, draw_images: object, tfpipe: Tfpipe) -> None:
    folder = owls.partition("@")[0]
    ran = tfpipe("shard", draw_images(tmp_path / "images"), folder, "--seed", 5, "--overwrite")
    assert ran.code == 0, ran.err
    assert "is complete" in ran.out
    assert not Path(folder, "views").exists()
    assert not Path(folder, "catalog").exists()
