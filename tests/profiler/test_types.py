"""Spread: the median and the percentiles of a few values."""

import pytest

from tfpipe.profiler.model import Demand
from tfpipe.profiler.types import Spread


def test_a_spread_has_the_median_and_both_percentiles() -> None:
    assert Spread.from_values([3.0]) == Spread(3, 3, 3)
    assert Spread.from_values([float(i) for i in range(11)]) == Spread(5, 1, 9)
    # The figure of the whole takes the median's place. It lies inside: a few parts can make up most of a run.
    assert Spread.from_values([1.0, 2.0], 2.5) == Spread(2.5, 1.1, 2.5)
    assert Spread.from_values([1.0, 2.0], 0.5) == Spread(0.5, 0.5, 1.9)


def test_threads_that_wait_and_compute_share_the_cores() -> None:
    """On one core an image waits 1 s and computes for 1 s: by mean value analysis 1/2, 4/5, 15/16 and so on a second.

    With two threads the second one finds half an image at the core, so it takes 1.5 s there: 2 / 2.5.
    """
    demand = Demand(1, {"decode": 0.75, "ask": 0.25}, {"ask": 1.0}, {"ask": 1}, {"ask": ("decode",)})
    rates = [demand.widen("ask", threads).limit for threads in (1, 2, 3, 64)]
    assert rates == pytest.approx([1 / 2, 4 / 5, 15 / 16, 1.0], rel=1e-9)


def test_threads_have_the_time_of_one_stage_or_of_a_lock() -> None:
    demand = Demand(4, {"decode": 0.75, "ask": 0.25}, {"ask": 1.0}, {"ask": 1})
    assert (demand.limit, demand.widen("ask", 8).limit) == (1 / 1.25, 4)  # at last that of the cores
    passes = {"ask": ("decode",)}
    demand = Demand(4, {"decode": 5.0, "ask": 0.25}, {"ask": 1.0}, {"ask": 1}, passes, frozenset({"ask"}))
    assert demand.get_service_s("ask") == (0.25, 1.0)
    assert demand.get_stage_limit("ask") == 1 / 1.25
