"""Checkpoints: the last few are kept, and one that is broken costs no more than the way from the one before."""

import logging
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfpipe.errors import DataError  # noqa: E402
from tfpipe.training.checkpoints import Checkpoints, Position  # noqa: E402

SEED = 2**64 - 1  # the largest there is

Open = Callable[[], tuple[object, Checkpoints]]


@pytest.fixture
def open_run(tmp_path: Path) -> Open:
    def make() -> tuple[object, Checkpoints]:
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(3), tf.keras.layers.Dropout(0.5)])
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
        return model, Checkpoints(str(tmp_path / "checkpoints"), model, optimizer, 3, (2, 4))

    return make


def save(open_run: Open, count: int) -> None:
    """At each step all weights are its number."""
    model, checkpoints = open_run()
    for step in range(1, count + 1):
        model.set_weights([np.full_like(weight, step) for weight in model.get_weights()])
        model(np.zeros((1, 2)), training=True)
        checkpoints.save(Position(SEED, 7, step), np.full((2, 4), step + 0.1))


def test_nothing_was_saved(open_run: Open) -> None:
    assert open_run()[1].restore(SEED) is None


def test_all_comes_back_and_three_are_kept(open_run: Open, tmp_path: Path) -> None:
    save(open_run, 5)
    assert len(list((tmp_path / "checkpoints").glob("*.index"))) == 3
    model, checkpoints = open_run()
    position, sums = checkpoints.restore(SEED)
    assert position == Position(SEED, 7, 5)
    assert (sums == 5.1).all()
    assert (model.get_weights()[0] == 5).all()
    assert [one.value[1].numpy() for one in model.non_trainable_variables] == [5]  # of the dropout


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
@pytest.mark.parametrize("damage", ["bit", "cut", "missing"])
def test_of_a_broken_one_the_one_before_is_taken(
    open_run: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, damage: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    save(open_run, 3)
    path = tmp_path / "checkpoints" / f"ckpt-3{suffix}"
    data = bytearray(path.read_bytes())
    if damage == "bit":
        data[random.Random(seed).randrange(len(data))] ^= 1 << random.Random(seed).randrange(8)
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


def test_where_all_are_broken_nothing_begins_anew_unasked(open_run: Open, tmp_path: Path) -> None:
    save(open_run, 2)
    for path in (tmp_path / "checkpoints").glob("*.index"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"None of the 2 checkpoints in .* can be read. Delete the folder"):
        open_run()[1].restore(SEED)
