"""The losses of a run's records: each lies at the step and row of its record, in every framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.conftest import MakeConfig, Train, stop_after
from tfpipe.errors import ConfigError
from tfpipe.lookups.data_lock import read_lock
from tfpipe.lookups.losses import LOSSES, rank_by_loss

FRAMEWORKS = (*(pytest.param(name, marks=pytest.mark.slow) for name in ("tensorflow", "jax")), "torch")
STILL = {"record_losses": True, "learning_rate": 1e-30, "weight_decay": 0.0, "augment": "none"}
"""A training that changes nothing: a record has the same loss in each epoch, and in each row."""


def read_by_record(run: str) -> dict[int, list[float]]:
    """Returns the losses of each record."""
    plan = read_lock(f"{run}/run.json").open()
    rows = np.fromfile(f"{run}/{LOSSES}", "<f4").reshape(-1, plan.batch_size)
    found: dict[int, list[float]] = {}
    for step, losses in enumerate(rows):
        for number, loss in zip(plan.list_numbers(*plan.order.locate(step)).tolist(), losses.tolist(), strict=True):
            found.setdefault(number, []).append(loss)
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_loss_belongs_to_its_record(train: Train, framework: str) -> None:
    run = train(framework, epochs=2, **STILL).output
    found = read_by_record(run)
    twice = [losses for losses in found.values() if len(losses) == 2]
    assert len(twice) >= 16
    np.testing.assert_allclose(*zip(*twice, strict=True), rtol=1e-5)
    firsts = np.array([first for first, _ in twice])
    assert len(np.unique(firsts.round(5))) > len(twice) / 2  # so that a wrong row would show


@pytest.mark.slow
def test_a_run_that_was_stopped_has_the_losses_of_one_that_was_not(train: Train, tmp_path: Path) -> None:
    options: dict[str, Any] = {"framework": "jax", "record_losses": True, "deterministic": True}
    straight = train(output=str(tmp_path / "straight"), **options).output
    for steps in (3, 2):
        assert not train(output=str(tmp_path / "stopped"), stop=stop_after(steps), **options).finished
    stopped = train(output=str(tmp_path / "stopped"), **options).output
    first, second = (np.fromfile(f"{run}/{LOSSES}", "<f4") for run in (straight, stopped))
    assert len(first) == 3 * 8 * read_lock(f"{straight}/run.json").open().steps_per_epoch
    np.testing.assert_allclose(first, second, rtol=1e-4)
    plan = read_lock(f"{straight}/run.json").open()
    ranked = rank_by_loss(plan, f"{straight}/{LOSSES}", 4)
    assert [one.relative for one in ranked] == sorted((one.relative for one in ranked), reverse=True)
    assert read_lock(f"{stopped}/run.json").config == read_lock(f"{straight}/run.json").config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"output": "gs://bucket/run"},
            "`record_losses` needs a folder on this machine, got `output` gs://bucket/run.",
        ),
        ({"steps_per_execution": 5}, "`record_losses` needs `steps_per_execution` 1, got 5."),
        ({"order": "throughput"}, "`record_losses` needs exact order. Leave `order` and `max_bad_records` out."),
    ],
)
def test_what_does_not_go_together(make_config: MakeConfig, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(record_losses=True, **options)
    assert str(caught.value) == message
