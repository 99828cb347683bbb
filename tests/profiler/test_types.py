"""Spread: the median and the percentiles of a few values."""

from tfpipe.profiler.types import Spread


def test_a_spread_has_the_median_and_both_percentiles() -> None:
    assert Spread.from_values([3.0]).median == 3
    spread = Spread.from_values([float(i) for i in range(11)])
    assert (spread.low, spread.median, spread.high) == (1, 5, 9)


def test_the_figure_of_the_whole_takes_the_place_of_the_median() -> None:
    assert Spread.from_values([1.0, 2.0], 1.8).median == 1.8


def test_the_figure_of_the_whole_lies_inside_its_spread() -> None:
    """A few parts can make up most of a run."""
    assert Spread.from_values([1.0, 2.0], 2.5) == Spread(2.5, 1.1, 2.5)
    assert Spread.from_values([1.0, 2.0], 0.5) == Spread(0.5, 0.5, 1.9)
