"""The records of any step, and the steps of any record."""

import json
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe
from tests.conftest import Tfpipe
from tests.refusals import refusal
from tfpipe import fields
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.lookups.data_lock import DataLock, lock_data, read_lock
from tfpipe.lookups.steps import find_number, find_steps, look_up_step
from tfpipe.readers.data_source import data_source
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.views.choose import make_view, write_view
from tfpipe.views.config import ViewConfig

CONFIG = PipelineConfig(batch_size=5, image_size=8, seed=3)


@pytest.fixture(scope="module")
def pets(small_dataset: Path, tmp_path_factory) -> str:
    """The dataset of twelve training images, with views: `dogs`, and `heavy` by weights of the class."""
    folder = str(shutil.copytree(small_dataset, tmp_path_factory.mktemp("lookups") / "pets"))
    manifest = tfpipe.load_manifest(folder)
    for config in (ViewConfig("few", "label <> 'dog'"), ViewConfig("heavy", weights="label_id")):
        write_view(manifest, make_view(manifest, config))
    return folder


def lock(data: str, **options: Any) -> DataLock:
    return lock_data(tfpipe.load_manifest(data), "train", replace(CONFIG, **options))


@pytest.mark.parametrize("view", ["", "@few", "@heavy"])
def test_a_step_has_the_records_that_a_trainer_gets(pets: str, view: str) -> None:
    names = ("image/filename", "image/height")
    batches = NumpyBatches(pets + view, "train", replace(CONFIG, extra_features=names[:1]))
    whole = list(data_source(pets, "train"))
    for step in (0, 1, 9):
        batch, rows = batches.read(step), look_up_step(lock(pets + view).open(), step)
        assert [row.row for row in rows] == list(range(5))
        assert [row.name.encode() for row in rows] == list(batch["image/filename"])
        assert [row.label for row in rows] == batch["label"].tolist()
        for row in rows:
            record = whole[row.number]
            assert (record.name, record.label, record.label_name) == (row.name, row.label, row.label_name)


def test_a_row_says_its_crop(pets: str) -> None:
    """A crop that is cut and resized by hand is the batch's image, but for the rounding of the resize."""
    from PIL import Image

    options = {"image_size": 48, "augment_options": replace(CONFIG.augment_options, dct_scaling=False)}
    image = NumpyBatches(pets, "train", replace(CONFIG, **options)).read(4)["image"]
    whole = list(data_source(pets, "train"))
    for row in look_up_step(lock(pets, **options).open(), 4):
        y, x, height, width = row.box
        crop = Image.fromarray(whole[row.number].image[y : y + height, x : x + width])
        made = np.asarray(crop.resize((48, 48), Image.Resampling.BILINEAR), np.int64)
        made = made[:, ::-1] if row.flip else made
        assert np.abs(made - image[row.row]).mean() < 12


@pytest.mark.parametrize("view", ["", "@few", "@heavy"])
def test_the_steps_of_a_record_are_those_that_have_it(pets: str, view: str) -> None:
    training = lock(pets + view)
    steps = training.open().steps_per_epoch
    expected = defaultdict(set)
    for step in range(3 * steps):
        for row in look_up_step(training.open(), step):
            expected[row.number].add((step // steps, step, row.row))
    numbers = list(expected) if view else list(range(12))
    assert len(numbers) >= 6
    for number in numbers:
        found = find_steps(training.open(), number, range(3))
        assert {(seen.epoch, seen.step, seen.row) for seen in found} == expected[number]
        assert len(found) == len(expected[number])
        assert [seen.step for seen in found] == sorted(seen.step for seen in found)


def test_a_record_is_found_by_its_name(pets: str) -> None:
    names = [record.name for record in data_source(pets, "train")]
    assert [find_number(lock(f"{pets}@few").open(), name) for name in names] == list(range(12))
    with pytest.raises(ConfigError, match=r"^No record of 'train' of .*pets has the name 'x'\.$"):
        find_number(lock(pets).open(), "x")


def test_a_record_outside_the_view_is_refused(pets: str) -> None:
    dog = find_number(lock(pets).open(), "train/dog/0.jpg")
    with pytest.raises(ConfigError, match=rf"^Record {dog} is not in the view 'train' of .*pets@few\.$"):
        find_steps(lock(f"{pets}@few").open(), dog, range(3))
    with pytest.raises(ConfigError, match=r"^A record of 'train' of .*pets must have a number from 0 to 11, got 12\.$"):
        find_steps(lock(pets).open(), 12, range(3))
    assert refusal(ConfigError, look_up_step, lock(pets).open(), -1) == "`step` must be at least 0, got -1."


def save(training: DataLock, folder: Path) -> str:
    path = folder / "run.json"
    path.write_text(json.dumps({"lock": training.to_json()}))
    return str(path)


def test_a_lock_comes_back_from_its_file(pets: str, tmp_path: Path) -> None:
    augment_options = replace(CONFIG.augment_options, scale=(0.5, 1.0))
    training = lock(f"{pets}@heavy", pad_to={"a": 3}, augment_options=augment_options, cache="bytes")
    assert read_lock(save(training, tmp_path)) == replace(training, config=replace(training.config, cache="none"))


def test_a_lock_keeps_the_length_of_blocks(pets: str) -> None:
    """Else a release that chooses another one would find other records."""
    assert lock(pets).config.block_records == lock(pets).open().order.block_records


def test_other_records_are_refused(pets: str, tmp_path: Path, draw_images: Any) -> None:
    from tests.beam_jobs.datasets import make_dataset

    copy = str(shutil.copytree(pets, tmp_path / "copy"))
    training = lock(copy)
    shutil.rmtree(copy)
    make_dataset(draw_images(tmp_path / "images"), copy, seed=1)
    assert refusal(DataError, lambda: look_up_step(training.open(), 0)).startswith(
        f"'train' of {copy} must have the records of the lock, {training.fingerprint[:16]}, and has others, "
    )


def test_a_lock_names_the_column_that_has_other_values(pets: str, tmp_path: Path, caplog) -> None:
    copy = str(shutil.copytree(pets, tmp_path / "copy"))
    for name in ("score", "other"):
        tfpipe.add_column(copy, name, lambda record: record.index, fields.Values("int64"))
    training = lock(copy, extra_features=("score",))
    (score,) = (column for column in tfpipe.load_manifest(copy).columns if column.name == "score")
    assert training.columns == {"score": score.splits["train"].fingerprint}
    path = save(training, tmp_path)
    assert read_lock(path) == training
    assert lock(copy).columns == {}
    rows = look_up_step(training.open(), 3)
    tfpipe.add_column(copy, "other", lambda record: -record.index, fields.Values("int64"), replace=True)
    assert look_up_step(read_lock(path).open(), 3) == rows
    assert caplog.messages == []
    tfpipe.add_column(copy, "score", lambda record: -record.index, fields.Values("int64"), replace=True)
    assert look_up_step(read_lock(path).open(), 3) == rows
    assert caplog.messages == [
        f"The column 'score' of {copy} has other values than those of the lock. The steps have the same records."
    ]


def test_a_damaged_lock_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    damaged = {"{": "missing", "[]": "missing", '{"lock": 1}': "not whole", '{"lock": {"data": "x"}}': "not whole"}
    for text, fault in damaged.items():
        path.write_text(text)
        assert refusal(FormatError, read_lock, str(path)) == f"{path} is damaged: the lock of the run is {fault}."


@pytest.mark.parametrize("options", [{"order": "throughput"}, {"training": False}])
def test_a_training_without_exact_order_has_no_lock(pets: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^Steps are looked up in a training in exact order\. Leave `order` and"):
        lock(pets, **options)


def test_the_command(pets: str, tmp_path: Path, tfpipe: Tfpipe) -> None:
    sheet = tmp_path / "sheet.png"
    options = ("steps", pets, "--batch-size", 5, "--seed", 3, "--step", 4)
    ran = tfpipe(*options, "--show", sheet, columns=120)
    rows = look_up_step(lock(pets, image_size=224).open(), 4)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == f"Step 4 of 'train' in {pets}: epoch 2, step 1 of 2, 5 records"
    assert [line.split()[-1] for line in lines[2:7]] == [row.name for row in rows]
    assert lines[7:] == [f"Wrote {sheet}: 5 images."]
    assert sheet.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    again = json.loads(tfpipe(*options, "--record", rows[0].name, "--json").out)
    assert [row["number"] for row in again["rows"]] == [row.number for row in rows]
    assert {"epoch": 2, "step": 4, "row": 0} in again["seen"]
    places = [f"step {place['step']} in row {place['row']}" for place in again["seen"] if place["epoch"] == 0]
    assert tfpipe(*options, "--record", rows[0].name).out.splitlines()[7:9] == [
        f"{rows[0].name} is record {rows[0].number} of 'train' in {pets}",
        f"epoch 0: {', '.join(places) or 'left out'}",
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{pets}"], "Say what to look up: --step N or --record NAME."),
        (
            ["{pets}", "--step", "1", "--show", "x.jpg"],
            "--show draws the images of --step N into a file whose name ends in .png, got 'x.jpg'.",
        ),
        (["{run}", "--step", "1", "--seed", "2"], "{run} says itself how it was trained, got --seed. Leave it out."),
        (["{pets}", "--step", "1", "--split", "tset"], "The dataset has no split 'tset'; it has train, validation."),
    ],
)
def test_wrong_use(pets: str, tmp_path: Path, tfpipe: Tfpipe, args: list[str], message: str) -> None:
    places = {"pets": pets, "run": str(tmp_path)}
    save(lock(pets), tmp_path)
    ran = tfpipe("steps", *(arg.format(**places) for arg in args))
    assert (ran.code, ran.err) == (2, f"Error: {message.format(**places)}\n")
