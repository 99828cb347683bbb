"""Batches that are made ahead: the same as one by one, by threads that end with whoever leaves."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe
from tests.beam_jobs.commands import wait_for
from tests.engine.test_batch import make_maker
from tests.refusals import refusal
from tfpipe.engine import ahead
from tfpipe.engine.ahead import Passes, list_positions, make_ahead
from tfpipe.engine.batch import BatchMaker
from tfpipe.engine.position import Position
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError


@pytest.fixture
def maker(small_dataset: Path) -> BatchMaker:
    """Twelve images, four in a batch."""
    return make_maker(tfpipe.load_manifest(str(small_dataset)))


def list_threads() -> set[threading.Thread]:
    """Lists the threads that make batches, of other tests too."""
    names = ("tfpipe-read", "tfpipe-decode")
    return {thread for thread in threading.enumerate() if thread.name.startswith(names)}


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_steps_in_a_row_are_the_steps_one_by_one(maker: BatchMaker, threads: int) -> None:
    for steps in ([0, 1, 2], [2], []):
        batches = list(make_ahead(maker, ((5, step) for step in steps), threads))
        for batch, step in zip(batches, steps, strict=True):
            alone = maker.make(5, step)
            np.testing.assert_array_equal(batch["image"], alone["image"])
            np.testing.assert_array_equal(batch["label"], alone["label"])


def test_records_of_two_steps_are_read_at_once(maker: BatchMaker, monkeypatch) -> None:
    read_block, both = maker._read_block, threading.Barrier(2, timeout=10)

    def meet(*arguments: Any) -> Any:
        both.wait()
        return read_block(*arguments)

    monkeypatch.setattr(maker, "_read_block", meet)
    assert len(list(make_ahead(maker, ((0, step) for step in (0, 1, 2, 0)), 1))) == 4


@pytest.mark.skipif(sys.platform != "linux", reason="the call is Linux's")
def test_storage_is_asked_for_the_records_of_later_steps(maker: BatchMaker, monkeypatch) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, begin, size, advice: asked.append((begin, size, advice)))
    monkeypatch.setattr(ahead, "_STEPS_ANNOUNCED", 1)
    records = RecordReader(maker.manifest.directory, maker.manifest, "train")
    batches = make_ahead(maker, ((epoch, step) for epoch in range(2) for step in range(3)), 1)
    next(batches)
    steps = ((0, 0), (0, 1), (0, 2), (1, 0))  # one that is taken, two that are made, one that is announced
    places = [[records.locate(int(number)) for number in sorted(maker.plan.list_numbers(*step))] for step in steps]
    expected = sorted((place.offset, place.size, os.POSIX_FADV_WILLNEED) for step in places for place in step)
    wait_for(lambda: sorted(asked) == expected)
    batches.close()


def test_who_leaves_early_leaves_no_thread(maker: BatchMaker) -> None:
    before = list_threads()
    batches = make_ahead(maker, ((0, step) for step in range(3)), 1)
    next(batches)
    started = list_threads() - before
    assert started
    batches.close()
    wait_for(lambda: not started & list_threads())


def list_three(position: Position) -> Any:
    """Lists the positions of epochs of three steps."""
    return list_positions(position, 3, goes_on=True)


def take(passes: Passes, count: int) -> list[Any]:
    batches = iter(passes)
    taken = [next(batches) for _ in range(count)]
    batches.close()
    return taken


def test_each_pass_is_the_next_epoch() -> None:
    begins: list[Position] = []
    passes = Passes(lambda one: begins.append(one) or list_three(one), 3, Position(0, 1), goes_on=True)
    assert list(passes) == [(0, 1), (0, 2)]
    assert list(passes) == [(1, 0), (1, 1), (1, 2)]
    assert begins == [(0, 1)]  # all of it was one run of threads
    passes.position = Position(7, 2)
    assert list(passes) == [(7, 2)]
    assert begins == [(0, 1), (7, 2)]
    assert list(passes) == [(8, 0), (8, 1), (8, 2)]


def test_the_pass_after_one_that_was_left_is_whole() -> None:
    passes = Passes(list_three, 3, Position(0, 0), goes_on=True)
    assert take(passes, 2) == [(0, 0), (0, 1)]
    assert passes.position == (0, 2)  # what a state that is saved now goes on with
    assert list(passes) == [(1, 0), (1, 1), (1, 2)]
    assert [take(passes, 2) for _ in range(2)] == [[(2, 0), (2, 1)], [(3, 0), (3, 1)]]
    passes.position = Position(3, 2)  # a state that is loaded counts, also that of this very pass
    assert list(passes) == [(3, 2)]
    passes.position = Position(5, 1)
    assert take(passes, 2) == [(5, 1), (5, 2)]  # all that was left of its epoch
    assert list(passes) == [(6, 0), (6, 1), (6, 2)]


def test_a_look_at_one_batch_changes_nothing() -> None:
    passes = Passes(list_three, 3, Position(4, 1), goes_on=True)
    assert [take(passes, 1) for _ in range(2)] == [[(4, 1)], [(4, 1)]]
    assert passes.position == (4, 2)
    assert list(passes) == [(4, 1), (4, 2)]
    assert take(passes, 1) == [(5, 0)]
    assert take(passes, 2) == [(5, 0), (5, 1)]
    assert take(passes, 1) == [(6, 0)]
    alone = Passes(lambda position: list_positions(position, 1, goes_on=True), 1, Position(0, 0), goes_on=True)
    assert [list(alone) for _ in range(2)] == [[(0, 0)], [(1, 0)]]  # an epoch of one batch is more than a look


def test_a_pass_is_refused_after_a_later_one_began() -> None:
    passes = Passes(list_three, 3, Position(0, 0), goes_on=True)
    outer = iter(passes)
    assert [next(outer), next(outer), *take(passes, 1)] == [(0, 0), (0, 1), (1, 0)]
    assert refusal(ConfigError, lambda: next(outer)) == (
        "In training a pass must end before the next one begins, and a later one has begun, so this pass cannot go on. "
        "Look at batches outside the loop, or with another reader of the same dataset."
    )
    assert list(passes) == [(1, 0), (1, 1), (1, 2)]


def test_after_an_error_the_same_batch_comes_again() -> None:
    errors = [ValueError("once")]

    def start(position: Position) -> Any:
        for one in list_three(position):
            if one == (0, 1) and errors:
                raise errors.pop()
            yield one

    passes = Passes(start, 3, Position(0, 0), goes_on=True)
    given = iter(passes)
    assert next(given) == (0, 0)
    with pytest.raises(ValueError, match="once"):
        next(given)
    assert passes.position == (0, 1)
    assert list(passes) == [(0, 1), (0, 2)]
