"""Every command honors a view, or refuses it with a sentence: none reads the whole dataset in its place."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import tfpipe as library
from tests.conftest import Tfpipe
from tests.flipped_bit import flip_bit
from tests.layers.growth import add_view, find_part, list_names
from tests.refusals import refusal
from tests.service.workers import open_as_worker
from tfpipe.engine.config.pipeline_config import PipelineConfig, ServiceOptions
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.profiler.measure.option_costs import sample_records
from tfpipe.readers.data_source import data_source
from tfpipe.readers.numpy import NumpyBatches

CONFIG = PipelineConfig(batch_size=4, image_size=8)


@pytest.fixture(scope="module")
def owls_once(small_dataset: Path, tmp_path_factory) -> Path:
    folder = shutil.copytree(small_dataset, tmp_path_factory.mktemp("owls") / "pets")
    add_view(folder, "owls", "label <> 'dog'", weights="label_id")
    return folder


@pytest.fixture
def owls(owls_once: Path, tmp_path: Path) -> str:
    """The view of all but the dogs: 8 of 12 records for training, 2 of 3 for validation, in two shards each."""
    return f"{shutil.copytree(owls_once, tmp_path / 'pets')}@owls"


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
    images = draw_images(tmp_path / "images")  # type: ignore[operator]
    ran = tfpipe("shard", images, folder, "--seed", 5, "--overwrite")
    assert ran.code == 0, ran.err
    assert "is complete" in ran.out
    assert not Path(folder, "views").exists()
    assert not Path(folder, "catalog").exists()
