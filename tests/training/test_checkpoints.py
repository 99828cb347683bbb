"""Checkpoints: the last few are kept, and a damaged one costs only the steps since the one before."""

from __future__ import annotations

import errno
import logging
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfpipe.errors import ConfigError, DataError
from tfpipe.training.checkpoints import Checkpoints, Position, State

SEED = 2**64 - 1  # the largest seed


class Model:
    """A model of two arrays, which all hold one number."""

    def __init__(self) -> None:
        self.state: State = {"weights/0": np.zeros((3, 5), np.float32), "steps": np.array(0)}

    def get_state(self) -> State:
        return self.state

    def set_state(self, state: State) -> None:
        self.state = {name: state[name] for name in self.state}

    def fill(self, number: int) -> None:
        self.state = {name: np.full_like(values, number) for name, values in self.state.items()}


def open_run(tmp_path: Path) -> tuple[Model, Checkpoints]:
    model = Model()
    return model, Checkpoints(str(tmp_path / "checkpoints"), model, 3)


def save(tmp_path: Path, count: int) -> list[Path]:
    """Saves `count` checkpoints; in each, all arrays hold the number of its step. Returns those that are kept."""
    model, checkpoints = open_run(tmp_path)
    for step in range(1, count + 1):
        model.fill(step)
        checkpoints.save(Position(SEED, 7, step), np.full((2, 4), step + 0.1))
    return sorted((tmp_path / "checkpoints").iterdir())


def check_restored(tmp_path: Path, step: int) -> None:
    model, checkpoints = open_run(tmp_path)
    saved = checkpoints.restore(SEED)
    assert saved is not None
    position, sums = saved
    assert position == Position(SEED, 7, step)
    assert sums.tolist() == [[step + 0.1] * 4] * 2
    assert {name: set(values.ravel().tolist()) for name, values in model.state.items()} == {
        "weights/0": {float(step)},
        "steps": {step},
    }


def test_a_run_without_checkpoints_restores_nothing(tmp_path: Path) -> None:
    assert open_run(tmp_path)[1].restore(SEED) is None


def test_the_last_of_three_kept_checkpoints_is_restored(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ckpt-000007-000000001.npz.123.tmp").write_text("of a process that was killed")
    names = [path.name for path in save(tmp_path, 5)]
    assert names == [f"ckpt-000007-00000000{step}.npz" for step in (3, 4, 5)]
    check_restored(tmp_path, 5)


@pytest.mark.parametrize("damage", ["bit", "cut", "empty", "missing"])
def test_the_checkpoint_before_a_damaged_one_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    path = save(tmp_path, 3)[-1]
    data = bytearray(path.read_bytes())
    data[data.index(np.full(15, 3, np.float32).tobytes())] ^= 1
    path.write_bytes({"bit": bytes(data), "cut": data[: len(data) // 2], "empty": b"", "missing": b""}[damage])
    if damage == "missing":
        path.unlink()
    with caplog.at_level(logging.WARNING, "tfpipe"):
        check_restored(tmp_path, 2)
    assert caplog.text.count("ckpt-000007-000000003.npz cannot be read (") == (damage != "missing")
    assert caplog.text.count("the one before it is used.") == (damage != "missing")


def test_any_flipped_bit_is_found_or_changes_no_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody reads some bits, such as those of a time."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    path = save(tmp_path, 3)[-1]
    whole = path.read_bytes()
    for _ in range(40):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tfpipe"):
            check_restored(tmp_path, step=2 if is_refused(tmp_path) else 3)


def is_refused(tmp_path: Path) -> bool:
    saved = open_run(tmp_path)[1].restore(SEED)
    assert saved is not None
    return saved[0].step == 2


def test_checkpoints_that_are_of_no_use_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = save(tmp_path, 2)
    with pytest.raises(DataError, match=r"000002\.npz belongs to a run with another seed\. Choose another folder"):
        open_run(tmp_path)[1].restore(7)
    with monkeypatch.context() as patch:
        patch.setattr("tfpipe.training.checkpoints.ORDER_VERSION", 2)
        save(tmp_path, 2)
    with pytest.raises(ConfigError, match=r"000002\.npz must be of a run in order version 1, got version 2"):
        open_run(tmp_path)[1].restore(SEED)
    for path in paths:
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"None of the 2 checkpoints in .* can be read. Delete the folder"):
        open_run(tmp_path)[1].restore(SEED)


def test_a_checkpoint_that_cannot_be_written_leaves_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = save(tmp_path, 3)

    def fill_disk(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fill_disk)
    with pytest.raises(DataError) as caught:
        open_run(tmp_path)[1].save(Position(SEED, 7, 4), np.zeros((2, 4)))
    assert str(caught.value) == "A checkpoint cannot be written: [Errno 28] No space left on device."
    assert sorted((tmp_path / "checkpoints").iterdir()) == paths
    check_restored(tmp_path, 3)
