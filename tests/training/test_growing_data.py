"""A dataset that grows while a run is stopped: the run holds the layer it began with, less what was deleted."""

import json
import logging
import shutil
from pathlib import Path

import pytest

from tests.beam_jobs.images import make_jpeg, write_files
from tests.conftest import Tfpipe
from tests.layers.growth import add_view, append, list_names
from tests.training.conftest import Train, read_lines, stop_after
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.layers.delete import delete_records
from tfpipe.lookups.data_lock import lock_data, read_lock
from tfpipe.lookups.steps import look_up_step
from tfpipe.training.train import find_begun_layer


@pytest.fixture
def growing(colors: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(colors, tmp_path / "growing"))


def grow(dataset: Path, images: Path) -> None:
    append(dataset, write_files(images, {f"train/red/x{k}.jpg": make_jpeg(k, (24, 24)) for k in range(9)}))


@pytest.mark.usefixtures("without_export")
def test_a_run_goes_on_with_the_layer_it_began_with(train: Train, growing: Path, undisturbed: Path, tmp_path: Path):
    run = str(tmp_path / "run")
    assert not train(growing, stop=stop_after(12))["finished"]  # amid the second epoch
    grow(growing, tmp_path / "more")
    begun = find_begun_layer(load_manifest(str(growing)), run, "train")
    assert begun is not None
    assert begun.note == f"The run holds layer 1 of {growing}, which it began with; the newest is 2."
    assert train(growing)["finished"]
    assert read_lines(run) == read_lines(undisturbed)


@pytest.mark.usefixtures("without_export")
def test_a_run_goes_on_without_what_was_deleted(train: Train, growing: Path, tmp_path: Path, tfpipe: Tfpipe, caplog):
    options = {"dataset": growing, "epochs": 2}
    run = str(tmp_path / "run")
    assert not train(output=run, stop=stop_after(3), **options)["finished"]
    rows = look_up_step(read_lock(f"{run}/run.json").open(), 1)
    victims = [rows[0].name, rows[3].name]
    grow(growing, tmp_path / "more")
    delete_records(str(growing), victims)
    begun = find_begun_layer(load_manifest(str(growing)), run, "train")
    assert begun is not None
    assert begun.note == (
        f"The run holds layer 1 of {growing}, which it began with; the newest is 3. 2 records of those it began with "
        "were deleted since, so it reads them no more."
    )
    assert list(begun.manifest.splits) == ["train", "validation"]
    assert begun.manifest.splits["train"].records == 48
    assert train(output=run, **options)["finished"]
    saved = json.loads(Path(run, "run.json").read_text())
    assert saved["dataset"].startswith(begun.manifest.splits["train"].fingerprint[:16])
    assert [old["until_step"] for old in saved["earlier_locks"]] == [3]
    # A step of then shows where the deleted records stood, and nothing else of them.
    with caplog.at_level(logging.WARNING):
        old = look_up_step(read_lock(f"{run}/run.json", step=1).open(), 1)
    assert [one.getMessage() for one in caplog.records if one.name == "tfpipe.lookups.data_lock"] == [begun.note]
    assert [row.number for row in old] == [row.number for row in rows]
    assert [row.deleted for row in old] == [row.name in victims for row in rows]
    assert [(row.name, row.label, row.box) for row in old if row.deleted] == [("", None, None)] * 2
    assert [row for row in old if not row.deleted] == [row for row in rows if row.name not in victims]
    new = look_up_step(read_lock(f"{run}/run.json", step=7).open(), 7)
    assert not any(row.deleted or row.name in victims for row in new)
    ran = tfpipe("steps", run, "--step", 1, "--show", tmp_path / "step.png")
    assert ran.code == 0, ran.err
    assert ran.out.count("deleted since") == 2
    assert not any(name in ran.out for name in victims)


def test_a_lock_of_a_view_finds_its_layer(growing: Path, tmp_path: Path) -> None:
    add_view(growing, "warm", "label in ('red', 'yellow')")
    lock = lock_data(load_manifest(f"{growing}@warm"), "train", PipelineConfig(batch_size=4, image_size=8))
    rows = look_up_step(lock.open(), 5)
    grow(growing, tmp_path / "more")
    assert look_up_step(lock.open(), 5) == rows
    delete_records(str(growing), [rows[1].name])
    assert [row.deleted for row in look_up_step(lock.open(), 5)] == [False, True, False, False]
    assert rows[1].name not in list_names(f"{growing}@warm")
