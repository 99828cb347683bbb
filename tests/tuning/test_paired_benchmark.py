"""Turns and what is concluded from them, with rates that are known."""

from __future__ import annotations

import math
import random

import pytest

from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.tuning.paired_benchmark import (
    MAX_PAIRS,
    MIN_PAIRS,
    Interval,
    PairedTurns,
    Turn,
    choose_turn_s,
    compare_with_best,
    get_mean,
    get_paired_ratio,
    get_rate,
    get_ratio_of_means,
    is_better,
    take_turns,
)


def turns(*rates: float) -> list[Turn]:
    return [Turn(round(1000 * one), 1000.0, 1500.0, 0) for one in rates]


def test_the_order_is_turned_round_after_each_round(runner) -> None:
    order: list[str] = []

    class Noting(runner):
        def turn(self, seconds: float) -> Turn:
            order.append(f"{self.rate:.0f}")
            return super().turn(seconds)

    done = take_turns({"a": Noting(1), "b": Noting(2), "c": Noting(3)}, 3, 0.5)
    assert "".join(order) == "123321123"
    assert [turn.images_per_second for turn in done["b"]] == [2, 2, 2]


def test_a_drift_that_is_even_cancels(runner) -> None:
    now = [1.0]

    class Slowing(runner):
        def turn(self, seconds: float) -> Turn:
            now[0] *= 0.99
            self.rate = 1000 * now[0]
            return super().turn(seconds)

    done = take_turns({"a": Slowing(1), "b": Slowing(1)}, 8, 1.0)
    assert get_paired_ratio(done["a"], done["b"]).ratio == pytest.approx(1.0, abs=1e-4)


def test_a_turn_has_three_steps_at_least() -> None:
    assert choose_turn_s(Accelerator(1e-9, 100), 10_000) == 0.5
    assert choose_turn_s(Accelerator(1e-9, 2048), 1024) == 6.0


def test_the_rate_is_that_of_the_middle_turn() -> None:
    assert get_rate(turns(100, 101, 5)) == 100


def test_a_get_paired_ratio() -> None:
    of = turns(110, 112, 109, 111, 110, 113, 108)
    # Seven pairs: the bounds are the least and the greatest of the seven.
    assert get_paired_ratio(of, turns(*[100] * 7)) == Interval(
        pytest.approx(1.1), pytest.approx(1.08), pytest.approx(1.13)
    )
    # Of thirteen, two at either end may be spoiled.
    spoiled = turns(110, 112, 109, 111, 60, 110, 113, 70, 111, 109, 110, 112, 110)
    found = get_paired_ratio(spoiled, turns(*[100] * 13))
    assert found == Interval(pytest.approx(1.1), pytest.approx(1.09), pytest.approx(1.12))
    with pytest.raises(ValueError, match=r"5 pairs have no interval of 97%: 7 are needed\."):
        get_paired_ratio(turns(*[1] * 5), turns(*[1] * 5))


def test_how_often_the_interval_holds_the_truth() -> None:
    """The bounds are pairs, so not quite 97 of 100: 98.4 with seven (2 of 128), 97.9 with ten (2 x 11 of 1024)."""
    rng = random.Random(3)
    for pairs, expected in ((7, 1 - 2 / 2**7), (10, 1 - 22 / 2**10)):
        held = 0
        for _ in range(2000):
            found = get_paired_ratio(
                turns(*[1000 * math.exp(rng.gauss(0, 0.1)) for _ in range(pairs)]), turns(*[1000] * pairs)
            )
            held += found.low <= 1 <= found.high
        assert held / 2000 == pytest.approx(expected, abs=0.01)


def test_a_ratio_of_means_by_welch() -> None:
    # Variances of the logarithms 1 and 8/3, of 3 and 4 figures: errors 1/3 and 2/3, and 4.9 degrees of freedom, so 4.
    found = get_ratio_of_means([math.exp(i) for i in (4, 5, 6)], [math.exp(i) for i in (0, 4, 2, 2)])
    logs = [math.log(value) for value in (found.ratio, found.low, found.high)]
    assert logs == pytest.approx([3, 3 - 2.776, 3 + 2.776])
    assert get_ratio_of_means([2.0, 2.0], [1.0, 1.0]) == Interval(2.0, 2.0, 2.0)


def test_a_mean_by_student() -> None:
    found = get_mean([math.exp(1), math.exp(2), math.exp(3)])
    half = 4.303 / math.sqrt(3)
    assert [math.log(value) for value in (found.ratio, found.low, found.high)] == pytest.approx([2, 2 - half, 2 + half])
    many = get_mean([math.exp(i % 2) for i in range(100)])
    assert math.log(many.high) - 0.5 == pytest.approx(1.96 * 0.5025 / 10, rel=1e-3)


def test_a_comparison_ends_as_soon_as_it_is_clear(runner) -> None:
    for rate, is_kept in ((1100, True), (1000, False), (1010, False)):
        turns = compare_with_best(runner(rate), runner(1000), 0.5)
        assert (len(turns.candidate), len(turns.best)) == (MIN_PAIRS, MIN_PAIRS)
        assert turns.gain is not None
        assert turns.gain.ratio == pytest.approx(rate / 1000)
        assert is_better(turns.gain) is is_kept


def test_a_comparison_ends_where_there_is_no_time(runner) -> None:
    candidate = runner(2000)
    turns = compare_with_best(candidate, runner(1000), 0.5, lambda: candidate.turns >= 3)
    assert turns == PairedTurns([candidate.turn(0.5)] * 3, turns_of(1000, 3), None)


def turns_of(rate: float, count: int) -> list[Turn]:
    return [Turn(round(rate * 500), 500.0, 750.0, 10**8)] * count


# The share of candidates that is kept, out of 1,500 comparisons each.
PLAYED = (
    # scatter, spoiled turns, candidate's rate, share kept: at least, at most
    (0.01, 0.0, 1.00, 0.0, 0.005),
    (0.05, 0.0, 1.00, 0.0, 0.035),
    (0.05, 0.1, 1.00, 0.0, 0.035),
    (0.20, 0.1, 1.00, 0.0, 0.04),
    (0.05, 0.1, 0.95, 0.0, 0.01),
    (0.01, 0.0, 1.10, 0.999, 1.0),
    (0.05, 0.0, 1.10, 0.97, 1.0),
    (0.05, 0.05, 1.10, 0.9, 1.0),
    (0.05, 0.1, 1.25, 0.97, 1.0),
)


@pytest.mark.parametrize(("scatter", "spoiled", "share", "least", "most"), PLAYED)
def test_how_often_a_candidate_is_kept(
    runner, scatter: float, spoiled: float, share: float, least: float, most: float
) -> None:
    rng = random.Random(11)
    kept, comparisons = 0, 1500
    for _ in range(comparisons):
        candidate, best = runner(1000 * share, scatter, spoiled, rng), runner(1000, scatter, spoiled, rng)
        turns = compare_with_best(candidate, best, 1.0)
        assert turns.gain is not None
        assert MIN_PAIRS <= len(turns.candidate) <= MAX_PAIRS
        kept += is_better(turns.gain)
    assert least <= kept / comparisons <= most
