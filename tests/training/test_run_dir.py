"""The folder of a run: begun once, resumed, and refused where it belongs to another run; and its checkpoints."""

import errno
import json
import logging
import os
import random
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.training.run_dir import RunDir, Saved, State

OPTIONS = {"model": "small_cnn", "epochs": 3, "scale": (0.08, 1.0)}


def test_a_run_begins_and_goes_on_and_only_the_chief_writes(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "one"
    RunDir(str(path)).begin(OPTIONS)
    begun = json.loads((path / "run.json").read_text())
    assert begun == {"version": 1, "model": "small_cnn", "epochs": 3, "scale": [0.08, 1.0], "lock": None}
    (path / "run.json.123.tmp").write_text("{")  # of a run that was killed
    RunDir(str(path)).begin(OPTIONS, {"seed": 3})
    assert RunDir(str(path)).read_options() == begun  # what it was begun with stays
    assert restore(path) == (None, [])
    run_dir = RunDir(str(tmp_path / "run"), is_chief=False)
    run_dir.begin(OPTIONS)
    run_dir.save((0, 1, np.zeros(3)), [])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_damaged_description_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(FormatError, match=r"run\.json is damaged\. Delete .* to begin again\."):
        RunDir(str(tmp_path)).begin(OPTIONS)


def test_other_options_are_refused_with_both_values(tmp_path: Path) -> None:
    RunDir(str(tmp_path)).begin(OPTIONS)
    assert refusal(ConfigError, RunDir(str(tmp_path)).begin, {**OPTIONS, "model": "resnet50"}) == (
        f"The run in {tmp_path} was begun with model small_cnn, got resnet50. Ask for the same to go on, or choose "
        "another folder."
    )
    (tmp_path / "file").write_text("")
    assert "file/run" in refusal(DataError, RunDir(str(tmp_path / "file" / "run")).begin, OPTIONS)


def fill(step: int) -> State:
    return [np.full(shape, step, np.float32) for shape in ((3, 5), ())]


def save(tmp_path: Path, count: int) -> list[Path]:
    run_dir = RunDir(str(tmp_path))
    for step in range(1, count + 1):
        run_dir.metrics.append({"step": step})
        run_dir.save((7, step, np.full((2, 4), step + 0.1)), fill(step))
    return sorted((tmp_path / "checkpoints").iterdir())


def restore(tmp_path: Path) -> tuple[Saved | None, State]:
    state: State = []
    return RunDir(str(tmp_path)).restore(state.extend), state


def check_restored(tmp_path: Path, step: int) -> None:
    saved, state = restore(tmp_path)
    assert saved[:2] == (7, step)
    assert saved[2].tolist() == [[step + 0.1] * 4] * 2
    assert [values.tolist() for values in state] == [values.tolist() for values in fill(step)]


def test_the_last_of_two_kept_checkpoints_is_restored(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ckpt-000007-000000001.npz.123.tmp").write_text("of a process that was killed")
    assert [path.name for path in save(tmp_path, 4)] == [f"ckpt-000007-00000000{step}.npz" for step in (3, 4)]
    check_restored(tmp_path, 4)


def test_lines_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    run_dir = RunDir(str(tmp_path))
    run_dir.begin(OPTIONS)
    save(tmp_path, 3)[-1].unlink()
    run_dir.begin(OPTIONS)
    assert len(run_dir.metrics) == 3
    run_dir.restore(lambda _: None)
    assert run_dir.metrics == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("damage", ["bit", "cut", "empty", "missing"])
def test_the_checkpoint_before_a_damaged_one_is_used(tmp_path: Path, caplog, damage: str):
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


def test_any_flipped_bit_is_found_or_changes_no_value(rng: random.Random, tmp_path: Path, caplog) -> None:
    """Nobody reads some bits, such as those of a time."""
    path = save(tmp_path, 3)[-1]
    whole = path.read_bytes()
    for _ in range(8):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tfpipe"):
            saved, _ = restore(tmp_path)
            check_restored(tmp_path, saved[1])


def test_checkpoints_that_are_of_no_use_are_refused(tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tfpipe.training.run_dir.ORDER_VERSION", 2)
        paths = save(tmp_path, 2)
    assert "000002.npz must be of a run in order version 1, got version 2" in refusal(ConfigError, restore, tmp_path)
    for path in paths:
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"None of the 2 checkpoints in .* can be read. Delete the folder"):
        restore(tmp_path)


def test_a_checkpoint_that_cannot_be_written_leaves_the_earlier_ones(tmp_path: Path, monkeypatch):
    paths = save(tmp_path, 3)
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(DataError, match=r"^Could not write .*: No space left on device\. Free some and run the same"):
        RunDir(str(tmp_path)).save((7, 4, np.zeros((2, 4))), fill(4))
    assert sorted((tmp_path / "checkpoints").iterdir()) == paths
    check_restored(tmp_path, 3)
