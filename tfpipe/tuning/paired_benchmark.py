"""Pipelines that run in turns on one machine, and how their rates compare. Pure but for the turns themselves.

Machines drift: other work comes and goes, processors heat up. A measurement of first A and then B measures that too.
So A and B take turns, forwards and backwards (A B, B A, ...), which cancels a drift that is even, and each turn is
compared with its neighbor in time. Now and then other work takes half of a turn, which spoils a mean. So the ratio is
the median of the pairs, between the bounds of the sign test (M. Hollander, D. Wolfe and E. Chicken, "Nonparametric
Statistical Methods", 2014, section 3.6): every second pair may be spoiled.

`compare_with_best` looks after each pair and stops when it likes the result, which errs more often than one look does.
So each look uses an interval of 97 %. Of candidates that are no better, 3 in 100 are kept; of those that are 5 % worse,
1 in 100 at most; and 98 in 100 that are 10 % better are found where turns scatter by 5 %.
`tests/tuning/test_paired_benchmark.py` simulates it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tfpipe.profiler.diagnose.fixes import MIN_GAIN
from tfpipe.profiler.measure.simulated_accelerator import Accelerator

# With seven pairs, all on one side are a chance of 1 in 128. What twenty pairs do not show is not worth more time.
MIN_PAIRS, MAX_PAIRS = 7, 20

# A candidate that is behind is given up, unless noise might hide that it gains more than this.
_POSSIBLE_GAIN = 0.1

_LEVEL = 0.97

MIN_TURN_S = 0.5
_MIN_STEPS_PER_TURN = 3

# Student's t for 95 % and 1 to 30 degrees of freedom: column 0.975 of the NIST/SEMATECH e-Handbook of Statistical
# Methods, section 1.3.6.7.2. Beyond that the normal distribution's 1.96 is near enough.
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL_975 = 1.96


@dataclass(frozen=True)
class Turn:
    """The work of one pipeline in one turn.

    Attributes:
        images: The images that the pipeline handed out.
        wall_s: The seconds by the clock.
        cpu_s: The processor time of the pipeline's process.
        peak_memory_bytes: The most memory that the process has held so far.
    """

    images: int
    wall_s: float
    cpu_s: float
    peak_memory_bytes: int

    @property
    def images_per_second(self) -> float:
        """The rate by the clock."""
        return self.images / self.wall_s


@dataclass(frozen=True)
class Interval:
    """A figure, or a ratio of two figures, with the bounds of its interval.

    Attributes:
        ratio: The figure or the ratio itself.
        low: The lower bound.
        high: The upper bound.
    """

    ratio: float
    low: float
    high: float


class TurnTaker(Protocol):
    """A pipeline that can run in turns: a `PipelineProcess`, or a stand-in for one."""

    def turn(self, seconds: float) -> Turn:
        """Runs for this time."""


@dataclass(frozen=True)
class PairedTurns:
    """The turns of a candidate and of the best, pair by pair.

    Attributes:
        candidate: The turns of the candidate, in order of time.
        best: The turns of the best, one for each of the candidate.
        gain: The candidate's rate divided by that of the best; None if there was no time for an interval.
    """

    candidate: Sequence[Turn] = ()
    best: Sequence[Turn] = ()
    gain: Interval | None = None


def choose_turn_s(accelerator: Accelerator, images_per_second: float) -> float:
    """Returns the seconds of a turn: at least three steps, since fewer say little."""
    return max(MIN_TURN_S, _MIN_STEPS_PER_TURN * accelerator.images_per_step / images_per_second)


def take_turns(pipelines: Mapping[str, TurnTaker], rounds: int, seconds: float) -> dict[str, list[Turn]]:
    """Lets pipelines run one at a time, in an order that is reversed after each round.

    Args:
        pipelines: The pipelines by name.
        rounds: The number of turns of each.
        seconds: The length of a turn.

    Returns:
        The turns of each pipeline by name, in order of time.
    """
    names, turns = list(pipelines), {name: list[Turn]() for name in pipelines}
    for _ in range(rounds):
        for name in names:
            turns[name].append(pipelines[name].turn(seconds))
        names.reverse()
    return turns


def compare_with_best(
    candidate: TurnTaker, best: TurnTaker, seconds: float, is_over: Callable[[], bool] = lambda: False
) -> PairedTurns:
    """Lets a candidate and the best run in turns until the faster one is known, or the difference hardly matters.

    Args:
        candidate: The pipeline with a change.
        best: The pipeline without it.
        seconds: The length of a turn.
        is_over: A function that tells, before each further pair, whether there is no time for it.
    """
    candidate_turns, best_turns = list[Turn](), list[Turn]()
    pair = {"candidate": candidate, "best": best}
    while len(candidate_turns) < MAX_PAIRS and not is_over():
        turns = take_turns(pair, 1, seconds)
        candidate_turns += turns["candidate"]
        best_turns += turns["best"]
        pair = dict(reversed(pair.items()))
        if len(candidate_turns) >= MIN_PAIRS:
            gain = get_paired_ratio(candidate_turns, best_turns)
            if is_better(gain) or gain.high < 1 + (_POSSIBLE_GAIN if gain.ratio <= 1 else MIN_GAIN):
                break
    enough = len(candidate_turns) >= MIN_PAIRS
    return PairedTurns(candidate_turns, best_turns, get_paired_ratio(candidate_turns, best_turns) if enough else None)


def is_better(gain: Interval) -> bool:
    """Returns whether a gain exceeds the noise and is worth a change."""
    return gain.low > 1 and gain.ratio >= 1 + MIN_GAIN


def get_rate(turns: Sequence[Turn]) -> float:
    """Returns the images per second of the median turn, since other work spoils some turns."""
    return statistics.median(turn.images_per_second for turn in turns)


def get_paired_ratio(turns: Sequence[Turn], others: Sequence[Turn]) -> Interval:
    """Returns how much faster `turns` are than `others`, turn by turn: neighbors in time saw the same machine.

    Args:
        turns: The turns of one pipeline, at least seven, from `take_turns`.
        others: The turns of the other pipeline, one for each.

    Returns:
        The ratio with the bounds of its 97 % interval.
    """
    logs = sorted(math.log(a.images_per_second / b.images_per_second) for a, b in zip(turns, others, strict=True))
    outside = _count_pairs_outside(len(logs))
    return Interval(*(math.exp(value) for value in (statistics.median(logs), logs[outside], logs[-1 - outside])))


def get_ratio_of_means(figures: Sequence[float], others: Sequence[float]) -> Interval:
    """Returns the ratio of two means that were measured apart, by Welch's test: the spreads may differ.

    Args:
        figures: The figures, at least two, all above 0.
        others: The figures to compare with, also at least two.

    Returns:
        The ratio with the bounds of its 95 % interval.
    """
    logs = [[math.log(value) for value in values] for values in (figures, others)]
    errors = [statistics.variance(values) / len(values) for values in logs]
    terms = sum(error**2 / (len(values) - 1) for error, values in zip(errors, logs, strict=True))
    freedom = sum(errors) ** 2 / terms if terms else 1.0
    return _get_t_interval(statistics.fmean(logs[0]) - statistics.fmean(logs[1]), sum(errors), freedom)


def get_mean(figures: Sequence[float]) -> Interval:
    """Returns the geometric mean of at least two figures above 0, with the bounds of its 95 % interval."""
    logs = [math.log(figure) for figure in figures]
    return _get_t_interval(statistics.fmean(logs), statistics.variance(logs) / len(logs), len(logs) - 1)


def _get_t_interval(mean_log: float, variance: float, freedom: float) -> Interval:
    whole = max(math.floor(freedom), 1)  # between whole degrees of freedom the lower one has the wider interval
    t = _T_975[whole - 1] if whole <= len(_T_975) else _NORMAL_975
    half = t * math.sqrt(variance)
    return Interval(math.exp(mean_log), math.exp(mean_log - half), math.exp(mean_log + half))


def _count_pairs_outside(pairs: int) -> int:
    """Returns how many of the pairs lie outside the interval, at either end.

    If the pairs fall on either side of the truth alike, the lesser side has this many with a chance of at most 1.5 %.
    """
    chance, outside = 0.0, -1
    while chance <= (1 - _LEVEL) / 2:
        outside += 1
        chance += math.comb(pairs, outside) / 2**pairs
    if outside == 0:
        raise ValueError(f"{pairs} pairs have no interval of {_LEVEL:.0%}: {MIN_PAIRS} are needed.")
    return outside - 1
