"""The records of an epoch in which some are read more often than others."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.engine.epoch_weights import RECORD_MASK, EpochWeights
from tfpipe.format.view import ViewSplit

UNIT = 65536
UNEVEN = [UNIT // 3 + 700 * k for k in range(100)]


def make(weights: list[int], seed: int = 0) -> tuple[EpochWeights, int]:
    split = ViewSplit(np.arange(len(weights)), np.array(weights, np.uint32), len(weights), 1, (), "")
    return EpochWeights(split, seed), split.epoch_records


def list_epoch(weights: list[int], epoch: int, seed: int = 0) -> list[int]:
    maker, count = make(weights, seed)
    return maker.list_asked(epoch, np.arange(count)).tolist()


def test_whole_weights_are_rounds() -> None:
    copy = 1 << 40
    assert list_epoch([2 * UNIT, 0, 3 * UNIT, UNIT], 5) == [0, 2, 3, copy, copy + 2, 2 * copy + 2]


def test_a_seed_and_an_epoch_draw_the_same_everywhere() -> None:
    """The numbers are a part of the order: another one would mean other records at the steps of a run."""
    weights = [UNIT // 2] * 12
    drawn = [list_epoch(weights, epoch, seed=7) for epoch in range(3)]
    assert drawn == [[0, 2, 7, 8, 9, 10], [0, 1, 4, 5, 7, 9], [1, 2, 3, 5, 6, 11]]


@given(st.lists(st.integers(0, 4 * UNIT), min_size=1, max_size=30), st.integers(0, 50), st.integers(0, 2**63))
def test_every_epoch_has_as_many_and_each_record_its_weight(weights: list[int], epoch: int, seed: int) -> None:
    maker, count = make(weights, seed)
    asked = maker.list_asked(epoch, np.arange(count))
    assert len(set(asked.tolist())) == count  # each copy has a number of its own
    often = np.bincount(asked & RECORD_MASK, minlength=len(weights))
    rounded = (np.array(weights) // UNIT, -(-np.array(weights) // UNIT))
    assert (often >= rounded[0]).all()
    assert (often <= rounded[1]).all()


def test_the_parts_below_one_are_drawn_as_often_as_they_say() -> None:
    maker, count = make([UNIT // 10, UNIT // 2, 9 * UNIT // 10, 3 * UNIT // 2, UNIT] * 8, 3)
    asked = np.concatenate([maker.list_asked(epoch, np.arange(count)) for epoch in range(2000)])
    often = np.bincount(asked & RECORD_MASK).reshape(8, 5).mean(axis=0) / 2000
    np.testing.assert_allclose(often, [0.1, 0.5, 0.9, 1.5, 1.0], atol=0.02)


def test_an_entry_is_the_same_however_it_is_asked_for_and_by_any_threads() -> None:
    maker, count = make(UNEVEN)
    whole = {epoch: list_epoch(UNEVEN, epoch) for epoch in (0, 1, 5)}
    for epoch in (5, 0, 1, 0, 5):  # tables come and go
        entries = np.array([count - 1, 0, 3])
        assert maker.list_asked(epoch, entries).tolist() == [whole[epoch][k] for k in entries]
    maker, count = make(UNEVEN)
    with ThreadPoolExecutor(20) as pool:
        found = pool.map(lambda epoch: maker.list_asked(epoch, np.arange(count)).tolist(), [*range(20)] * 20)
        assert list(found) == [list_epoch(UNEVEN, epoch) for epoch in range(20)] * 20


@pytest.mark.parametrize("weights", [[0, 0], [100, 200]])
def test_an_epoch_may_be_empty(weights: list[int]) -> None:
    assert list_epoch(weights, 0) == []
