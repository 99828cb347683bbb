"""Workers that take turns, so that their batches come one by one."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tfpipe.readers import worker_turns
from tfpipe.readers.worker_turns import MOST_WORKERS, take_turns
from tfpipe.system.hash_permutation import IntArray

BATCH = 8


def nobody_yet() -> IntArray:
    return np.zeros(MOST_WORKERS, np.int64)


def rows_of(rows: IntArray, worker: int, workers: int, made: list[int]) -> Iterator[None]:
    """Makes the rows of one batch after another, and notes each in `made`."""
    run = take_turns(rows, BATCH, worker, workers)
    while True:
        yield from run(made.append, range(BATCH))


def advance(rows: Iterator[None], count: int) -> None:
    for _ in range(count):
        next(rows)


def test_a_worker_begins_when_the_one_before_has_made_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_turns, "_FIRST_WAIT_S", 60.0)
    rows = nobody_yet()
    made: list[list[int]] = [[], []]
    first, second = (rows_of(rows, worker, 2, made[worker]) for worker in range(2))
    advance(first, BATCH // 2 - 1)
    thread = threading.Thread(target=advance, args=(second, 1))
    thread.start()
    thread.join(0.05)
    assert made == [[0, 1, 2], []]
    advance(first, 1)
    thread.join(60)
    assert made == [[0, 1, 2, 3], [0]]


def test_the_first_worker_waits_for_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = nobody_yet()
    made: list[int] = []
    run = take_turns(rows, BATCH, 0, 2)
    monkeypatch.setattr(worker_turns.time, "monotonic", lambda: 100.0 * len(made))  # so a batch takes 800 s
    list(run(made.append, range(BATCH)))
    last = take_turns(rows, BATCH, 1, 2)
    thread = threading.Thread(target=lambda: list(run(made.append, range(BATCH))))
    thread.start()
    thread.join(0.05)
    assert len(made) == BATCH
    list(last(lambda row: None, range(BATCH)))
    thread.join(60)
    assert len(made) == 2 * BATCH


def test_a_worker_that_is_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_turns, "_FIRST_WAIT_S", 0.01)
    made: list[int] = []
    advance(rows_of(nobody_yet(), 1, 2, made), 3 * BATCH)
    assert made == [*range(BATCH)] * 3


@pytest.mark.parametrize("workers", [1, 5000])
def test_one_worker_or_very_many_do_not_wait(workers: int) -> None:
    assert take_turns(nobody_yet(), BATCH, 0, workers) is map
