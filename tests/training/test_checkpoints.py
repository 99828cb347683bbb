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
from tfpipe.training.run_dir import RunDir, Saved, State

SEED = 2**64 - 1  # the largest seed


SHAPES = {"weights/0": (3, 5), "steps": ()}


def fill(step: int) -> State:
    """Returns two arrays that all hold the number of a step."""
    return {name: np.full(shape, step, np.float32) for name, shape in SHAPES.items()}


def save(tmp_path: Path, count: int) -> list[Path]:
    """Saves `count` checkpoints, each filled with its step. Returns those that are kept."""
    for step in range(1, count + 1):
        RunDir(str(tmp_path)).save(SEED, (7, step, np.full((2, 4), step + 0.1)), fill(step), 3)
    return sorted((tmp_path / "checkpoints").iterdir())


def restore(tmp_path: Path, seed: int = SEED) -> tuple[Saved | None, State]:
    """Returns what `RunDir.restore` gives, and the arrays that it sets."""
    state: State = {}
    return RunDir(str(tmp_path)).restore(seed, state.update), state


def check_restored(tmp_path: Path, step: int) -> None:
    saved, state = restore(tmp_path)
    assert saved is not None
    assert saved[:2] == (7, step)
    assert saved[2].tolist() == [[step + 0.1] * 4] * 2
    assert {name: values.tolist() for name, values in state.items()} == {
        name: values.tolist() for name, values in fill(step).items()
    }


def test_a_run_without_checkpoints_restores_nothing(tmp_path: Path) -> None:
    assert restore(tmp_path) == (None, {})


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
            saved, _ = restore(tmp_path)
            assert saved is not None
            check_restored(tmp_path, saved[1])


def test_checkpoints_that_are_of_no_use_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = save(tmp_path, 2)
    with pytest.raises(DataError, match=r"000002\.npz belongs to a run with another seed\. Choose another folder"):
        restore(tmp_path, 7)
    with monkeypatch.context() as patch:
        patch.setattr("tfpipe.training.run_dir.ORDER_VERSION", 2)
        save(tmp_path, 2)
    with pytest.raises(ConfigError, match=r"000002\.npz must be of a run in order version 1, got version 2"):
        restore(tmp_path)
    for path in paths:
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"None of the 2 checkpoints in .* can be read. Delete the folder"):
        restore(tmp_path)


def test_a_checkpoint_that_cannot_be_written_leaves_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = save(tmp_path, 3)

    def fill_disk(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fill_disk)
    with pytest.raises(DataError) as caught:
        RunDir(str(tmp_path)).save(SEED, (7, 4, np.zeros((2, 4))), fill(4), 3)
    assert str(caught.value) == "A checkpoint cannot be written: [Errno 28] No space left on device."
    assert sorted((tmp_path / "checkpoints").iterdir()) == paths
    check_restored(tmp_path, 3)
