"""The file of losses, the records with the largest of them, and `tfpipe steps --worst`."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tfpipe as library
from tests.conftest import Tfpipe
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.epoch_weights import strip_copies
from tfpipe.engine.plan import BatchPlan
from tfpipe.errors import ConfigError, DataError
from tfpipe.lookups.data_lock import lock_data, write_lock
from tfpipe.lookups.losses import LossFile, rank_by_loss
from tfpipe.readers.data_source import data_source
from tfpipe.views.choose import make_view, write_view
from tfpipe.views.config import ViewConfig

CONFIG = PipelineConfig(batch_size=5, image_size=8, seed=3)


@pytest.fixture(scope="module")
def pets(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The dataset of twelve training images, with the view `heavy`, which reads some twice."""
    folder = str(shutil.copytree(small_dataset, tmp_path_factory.mktemp("losses") / "pets"))
    manifest = library.load_manifest(folder)
    write_view(manifest, make_view(manifest, ViewConfig("heavy", weights="label_id")))
    return folder


def open_plan(data: str, **options: object) -> BatchPlan:
    return lock_data(library.load_manifest(data), "train", replace(CONFIG, **options)).open()


def write_losses(plan: BatchPlan, path: Path, steps: int, losses: dict[int, float]) -> None:
    """Writes the losses of records, by their places in the view; 0.5 for all others."""
    file = LossFile(str(path), plan.batch_size)
    for step in range(steps):
        numbers = strip_copies(plan.list_numbers(*plan.order.locate(step)))
        file.write(step, np.array([losses.get(number, 0.5) for number in numbers.tolist()]))
    file.save()


@pytest.mark.parametrize("view", ["", "@heavy"])
def test_the_largest_means_come_first(pets: str, tmp_path: Path, view: str) -> None:
    plan = open_plan(pets + view)
    order = np.concatenate([strip_copies(plan.list_numbers(*plan.order.locate(step))) for step in range(20)])
    largest, second, unknown = np.unique(order)[:3].tolist()
    write_losses(plan, tmp_path / "l", 20, {largest: 4.0, second: 3.0, unknown: float("nan")})
    assert (tmp_path / "l").stat().st_size == 20 * 5 * 4
    ranked = rank_by_loss(plan, str(tmp_path / "l"), 3)
    records = data_source(pets + view, "train")
    expected = [(records[largest].name, 4.0), (records[second].name, 3.0)]
    assert [(one.record.name, one.loss) for one in ranked[:2]] == expected
    assert ranked[2].loss == 0.5
    assert ranked[0].times == int((order == largest).sum()) > 0


def test_a_loss_counts_by_the_mean_of_its_epoch(pets: str, tmp_path: Path) -> None:
    """One record is hard from the beginning, when all are, and another one once the others are learned."""
    plan = open_plan(pets)
    hard_first, hard_later = plan.list_numbers(0, 0)[:2].tolist()
    losses = np.empty((4 * plan.steps_per_epoch, 5), "<f4")
    seen: dict[int, list[int]] = {hard_first: [], hard_later: []}
    for step in range(len(losses)):
        numbers, epoch = plan.list_numbers(*plan.order.locate(step)).tolist(), step // plan.steps_per_epoch
        for row, number in enumerate(numbers):
            losses[step, row] = [8.0, 0.5][epoch > 0]
            if number in seen:
                seen[number].append(epoch)
        losses[step, [number == hard_first for number in numbers]] = [24.0, 0.5][epoch > 0]
        losses[step, [number == hard_later for number in numbers]] = [8.0, 3.0][epoch > 0]
    losses.tofile(tmp_path / "l")
    first, second = rank_by_loss(plan, str(tmp_path / "l"), 2)
    records, means = data_source(pets, "train"), losses.reshape(4, -1).mean(axis=1, dtype=np.float64)
    assert [first.record.name, second.record.name] == [records[hard_later].name, records[hard_first].name]
    assert first.loss < second.loss
    by_mean = [[8.0, 3.0][epoch > 0] / means[epoch] for epoch in seen[hard_later]]
    assert first.relative == pytest.approx(np.mean(by_mean))


def test_losses_below_zero_keep_their_order(pets: str, tmp_path: Path) -> None:
    """Those of densities, which a trainer of one's own may write."""
    plan = open_plan(pets)
    write_losses(plan, tmp_path / "l", 20, dict.fromkeys(range(12), -3.0) | {4: -1.0, 7: -2.0})
    assert [one.record.index for one in rank_by_loss(plan, str(tmp_path / "l"), 2)] == [4, 7]
    write_losses(plan, tmp_path / "l", 20, dict.fromkeys(range(12), 0.0))
    assert rank_by_loss(plan, str(tmp_path / "l"), 1)[0].relative == 0


def test_steps_are_written_over_and_a_broken_one_is_left_out(pets: str, tmp_path: Path) -> None:
    plan, path = open_plan(pets), tmp_path / "l"
    write_losses(plan, path, 4, {2: 9.0})
    with path.open("ab") as file:
        file.write(b"\0" * 11)  # a killed run
    write_losses(plan, path, 2, {2: 7.0})
    (first,) = rank_by_loss(plan, str(path), 1)
    seen = [2 in plan.list_numbers(*plan.order.locate(step)) for step in range(4)]
    assert first.times == sum(seen)
    assert first.loss == pytest.approx((7 * sum(seen[:2]) + 9 * sum(seen[2:])) / sum(seen))


def test_what_cannot_be_ranked(pets: str, tmp_path: Path) -> None:
    plan = open_plan(pets)
    with pytest.raises(DataError, match=r"^There is no file .*none\. Train with --record-losses\.$"):
        rank_by_loss(plan, str(tmp_path / "none"), 1)
    (tmp_path / "short").write_bytes(b"\0" * 19)
    with pytest.raises(DataError, match=r"short holds no losses of batches of 5 rows\.$"):
        rank_by_loss(plan, str(tmp_path / "short"), 1)
    with pytest.raises(ConfigError, match=r"^Losses belong to no certain record where `max_bad_records`"):
        rank_by_loss(open_plan(pets, max_bad_records=1), str(tmp_path / "short"), 1)


def test_the_command(pets: str, tmp_path: Path, tfpipe: Tfpipe) -> None:
    lock = lock_data(library.load_manifest(pets), "train", CONFIG)
    write_lock(str(tmp_path / "lock"), lock)
    write_losses(lock.open(), tmp_path / "l", 20, {3: 4.0, 1: 3.0})
    options = ("--worst", 2, "--losses", tmp_path / "l", "--show", tmp_path / "s.png", "--save", tmp_path / "n.txt")
    done = tfpipe("steps", tmp_path / "lock", *options)
    assert done.code == 0, done.err
    records = data_source(pets, "train")
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["loss", "4.0000", "3.0000"]
    assert lines[1].split()[3:] == ["train:3", records[3].label_name, records[3].name]
    assert lines[3:] == [f"Wrote {tmp_path / 's.png'}: 2 records.", f"Wrote {tmp_path / 'n.txt'}: 2 records."]
    assert (tmp_path / "n.txt").read_text().splitlines() == [records[3].name, records[1].name]
    assert Image.open(tmp_path / "s.png").width > 320
    facts = json.loads(tfpipe("steps", tmp_path / "lock", *options[:4], "--json").out)
    assert [(one["number"], one["loss"]) for one in facts["worst"]] == [(3, 4.0), (1, 3.0)]
    done = tfpipe("view", pets, "--name", "clean", "--without", tmp_path / "n.txt")
    assert done.code == 0, done.err
    assert library.load_manifest(f"{pets}@clean").splits["train"].records == 10


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--worst", "2"], "{} is not the folder of a run, so --worst needs --losses FILE."),
        (["--step", "1", "--save", "a"], "--save goes with --worst N. Leave it out."),
        (["--step", "1", "--losses", "a"], "--losses goes with --worst N. Leave it out."),
    ],
)
def test_wrong_use(pets: str, tfpipe: Tfpipe, args: list[str], message: str) -> None:
    done = tfpipe("steps", pets, "--batch-size", 5, *args)
    assert (done.code, done.err) == (2, f"Error: {message.format(pets)}\n")
