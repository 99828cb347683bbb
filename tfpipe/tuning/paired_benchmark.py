"""Turns of several pipelines on one machine, and how their rates compare. Pure but for who is asked for a turn.

Machines drift: other work comes and goes, processors heat up. Whoever measures first A and then B measures that too. So
they take turns, forwards and backwards (A B, B A, ...), which cancels a drift that is even, and what is compared is
each turn with its neighbour in time. Now and then other work takes half of a turn, which spoils a mean; so the ratio is
the median of the pairs, between the bounds of the sign test (M. Hollander, D. Wolfe and E. Chicken, "Nonparametric
Statistical Methods", 2014, section 3.6): every second pair may be spoiled.

A duel looks again and again and stops when it likes what it sees, which errs more often than one look does. So each
look uses an interval of 97 %: of challengers that are no better 3 in 100 are kept, of those that are 5 % worse 1 in 100
at most, and 98 in 100 that are 10 % better are found where turns scatter by 5 %.
`tests/tuning/test_paired_benchmark.py` plays it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

MIN_ROUNDS, MAX_ROUNDS = 7, 20
"""Of a duel. With seven, all on one side are a chance of 1 in 128; what twenty do not show is not worth more time."""
MIN_GAIN = 0.02
"""A change that gives less is not worth keeping."""
HOPE = 0.1
"""One that is behind is given up, unless noise might hide that it gives more than this."""
_LEVEL = 0.97
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t for 95 %, for 1 to 30 degrees of freedom; beyond that the normal distribution's 1.96 is near enough."""


@dataclass(frozen=True)
class Turn:
    """What a pipeline did in one turn."""

    images: int
    wall_s: float
    cpu_s: float
    """Processor time of its process."""
    peak_memory_bytes: int

    @property
    def images_per_second(self) -> float:
        """By the clock."""
        return self.images / self.wall_s


@dataclass(frozen=True)
class Interval:
    """A figure, or a ratio of two, with its bounds."""

    ratio: float
    low: float
    high: float


class TakesTurns(Protocol):
    """What can be measured in turns: `contestant.Contestant`, or a stand-in for it."""

    def turn(self, seconds: float) -> Turn:
        """Runs for so long."""


def take_turns(contestants: Mapping[str, TakesTurns], rounds: int, seconds: float) -> dict[str, list[Turn]]:
    """Lets all of them run, one at a time, in an order that is turned round after each round.

    Args:
        contestants: By name.
        rounds: Turns of each.
        seconds: Of a turn.

    Returns:
        The turns of each, by name and in order of time.
    """
    names, turns = list(contestants), {name: list[Turn]() for name in contestants}
    for _ in range(rounds):
        for name in names:
            turns[name].append(contestants[name].turn(seconds))
        names.reverse()
    return turns


def duel(
    challenger: TakesTurns, champion: TakesTurns, seconds: float, stop: Callable[[], bool] = lambda: False
) -> tuple[list[Turn], list[Turn], Interval | None]:
    """Lets two run in turns until it is clear which is faster, or likely that it does not matter.

    Args:
        challenger: Who is compared.
        champion: With whom.
        seconds: Of a turn.
        stop: Asked before each further round, of each one turn: whether there is no time for it.

    Returns:
        The turns of both, and the first one's rate by the second one's; None where there was no time for an interval.
    """
    first, second = list[Turn](), list[Turn]()
    pair = {"challenger": challenger, "champion": champion}
    while len(first) < MAX_ROUNDS and not stop():
        turns = take_turns(pair, 1, seconds)
        first, second = first + turns["challenger"], second + turns["champion"]
        pair = dict(reversed(pair.items()))
        if len(first) >= MIN_ROUNDS:
            interval = paired_ratio(first, second)
            if is_better(interval) or interval.high < 1 + (HOPE if interval.ratio <= 1 else MIN_GAIN):
                break
    return first, second, paired_ratio(first, second) if len(first) >= MIN_ROUNDS else None


def is_better(interval: Interval) -> bool:
    """Whether that is more than noise, and worth a change."""
    return interval.low > 1 and interval.ratio >= 1 + MIN_GAIN


def rate(turns: Sequence[Turn]) -> float:
    """Images a second: of the middle one of all turns, since other work spoils some."""
    return statistics.median(turn.images_per_second for turn in turns)


def paired_ratio(of: Sequence[Turn], to: Sequence[Turn]) -> Interval:
    """How much faster `of` is than `to`: turn for turn, since neighbours in time saw the same machine.

    Args:
        of: At least seven turns, from `take_turns`.
        to: As many.

    Returns:
        With the bounds of its 97 % interval.
    """
    logs = sorted(math.log(a.images_per_second / b.images_per_second) for a, b in zip(of, to, strict=True))
    out = _pairs_outside(len(logs))
    return Interval(*(math.exp(value) for value in (statistics.median(logs), logs[out], logs[-1 - out])))


def ratio(of: Sequence[float], to: Sequence[float]) -> Interval:
    """The ratio of two means of what was measured apart, by Welch's test: the spreads need not be alike.

    Args:
        of: Figures above 0, at least two.
        to: Likewise.

    Returns:
        With the bounds of its 95 % interval.
    """
    logs = [[math.log(value) for value in values] for values in (of, to)]
    errors = [statistics.variance(values) / len(values) for values in logs]
    terms = sum(error**2 / (len(values) - 1) for error, values in zip(errors, logs, strict=True))
    freedom = sum(errors) ** 2 / terms if terms else 1.0
    return _students(statistics.fmean(logs[0]) - statistics.fmean(logs[1]), sum(errors), freedom)


def mean(figures: Sequence[float]) -> Interval:
    """The geometric mean of at least two figures above 0, with the bounds of its 95 % interval."""
    logs = [math.log(figure) for figure in figures]
    return _students(statistics.fmean(logs), statistics.variance(logs) / len(logs), len(logs) - 1)


def _students(mean_log: float, variance: float, freedom: float) -> Interval:
    whole = max(math.floor(freedom), 1)  # between whole degrees of freedom the lower one, whose interval is wider
    half = (_T_975[whole - 1] if whole <= len(_T_975) else 1.96) * math.sqrt(variance)
    return Interval(math.exp(mean_log), math.exp(mean_log - half), math.exp(mean_log + half))


def _pairs_outside(pairs: int) -> int:
    """How many of the pairs lie outside the interval, at either end.

    As many as the lesser side of the truth can have with a chance of no more than 1.5 %, each pair falling on either
    side alike.
    """
    chance, outside = 0.0, -1
    while chance <= (1 - _LEVEL) / 2:
        outside += 1
        chance += math.comb(pairs, outside) / 2**pairs
    if outside == 0:
        raise ValueError(f"{pairs} pairs have no interval of {_LEVEL:.0%}: {MIN_ROUNDS} are needed.")
    return outside - 1
