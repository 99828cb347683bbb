"""Checkpoints: the last few are kept, and a damaged one costs only the steps since the one before."""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfpipe.errors import DataError  # noqa: E402
from tfpipe.training.checkpoints import Position  # noqa: E402
from tfpipe.training.tensorflow.checkpoints import TensorFlowCheckpoints  # noqa: E402

SEED = 2**64 - 1  # the largest seed

OpenRun = Callable[[], tuple[Any, TensorFlowCheckpoints]]
"""Builds the model of a run, and opens its checkpoints."""


@pytest.fixture
def open_run(tmp_path: Path) -> OpenRun:
    def make() -> tuple[Any, TensorFlowCheckpoints]:
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(3), tf.keras.layers.Dropout(0.5)])
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
        return model, TensorFlowCheckpoints(str(tmp_path / "checkpoints"), model, optimizer, 3, (2, 4))

    return make


def save(open_run: OpenRun, count: int) -> None:
    """Saves `count` checkpoints; in each, all weights are the number of its step."""
    model, checkpoints = open_run()
    for step in range(1, count + 1):
        model.set_weights([np.full_like(weight, step) for weight in model.get_weights()])
        model(np.zeros((1, 2)), training=True)
        checkpoints.save(Position(SEED, 7, step), np.full((2, 4), step + 0.1))


def test_a_run_without_checkpoints_restores_nothing(open_run: OpenRun) -> None:
    assert open_run()[1].restore(SEED) is None


def test_the_last_of_three_kept_checkpoints_is_restored(open_run: OpenRun, tmp_path: Path) -> None:
    save(open_run, 5)
    assert len(list((tmp_path / "checkpoints").glob("*.index"))) == 3
    model, checkpoints = open_run()
    position, sums = checkpoints.restore(SEED)
    assert position == Position(SEED, 7, 5)
    assert (sums == 5.1).all()
    assert (model.get_weights()[0] == 5).all()
    assert [variable.value[1].numpy() for variable in model.non_trainable_variables] == [5]  # the dropout's draws


SUFFIXES = [".index", ".data-00000-of-00001"]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("damage", ["bit", "cut", "missing"])
def test_the_checkpoint_before_a_damaged_one_is_used(
    open_run: OpenRun, tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, damage: str
) -> None:
    save(open_run, 3)
    path = tmp_path / "checkpoints" / f"ckpt-3{suffix}"
    data = bytearray(path.read_bytes())
    if damage == "bit":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.unlink()
    model, checkpoints = open_run()
    with caplog.at_level(logging.WARNING, "tfpipe"):
        position, sums = checkpoints.restore(SEED)
    assert position.step == 2
    assert (sums == 2.1).all()
    assert (model.get_weights()[0] == 2).all()
    assert "ckpt-3 cannot be read (" in caplog.text
    assert "the one before it is used." in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_any_flipped_bit_is_found_or_changes_no_value(
    open_run: OpenRun, tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str
) -> None:
    """Nobody reads some bits: an index ends with a footer that is filled up with zeros."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    save(open_run, 3)
    path = tmp_path / "checkpoints" / f"ckpt-3{suffix}"
    whole = path.read_bytes()
    model, checkpoints = open_run()
    for _ in range(20):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tfpipe"):
            position, sums = checkpoints.restore(SEED)
        assert position.step == (2 if "ckpt-3 cannot be read (" in caplog.text else 3)
        assert position == Position(SEED, 7, position.step)
        assert (sums == position.step + 0.1).all()
        assert all((weight == position.step).all() for weight in model.get_weights())


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(open_run: OpenRun, tmp_path: Path) -> None:
    save(open_run, 2)
    for path in (tmp_path / "checkpoints").glob("*.index"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"None of the 2 checkpoints in .* can be read. Delete the folder"):
        open_run()[1].restore(SEED)
