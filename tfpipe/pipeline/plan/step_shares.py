"""Which steps a trainer makes itself, and which the workers of a service make. Loads no TensorFlow.

shares = StepShares.from_share(0.25)      # one step of four
shares.local                              # (0,): steps 0, 4, 8, ... are made here
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from fractions import Fraction

_MAX_PERIOD = 20


@dataclass(frozen=True)
class StepShares:
    """A pattern of steps that repeats without end. It depends on nothing but the share, so any run has the same.

    Attributes:
        period: The number of steps after which the pattern repeats.
        local: The steps of a period that the trainer makes itself, in rising order.
    """

    period: int
    local: tuple[int, ...]

    @classmethod
    def from_share(cls, share: float) -> StepShares:
        """Spreads the trainer's share of the steps evenly, in a period of at most 20 steps."""
        fraction = min(Fraction(share).limit_denominator(_MAX_PERIOD), Fraction(_MAX_PERIOD - 1, _MAX_PERIOD))
        period, count = fraction.denominator, fraction.numerator
        return cls(period, tuple(place * period // count for place in range(count)))

    @classmethod
    def from_rates(cls, local: float, remote: float) -> StepShares:
        """Divides the steps in the ratio of the rates at which the trainer and all workers make them side by side."""
        return cls.from_share(local / (local + remote) if local else 0.0)

    def __str__(self) -> str:
        return f"{len(self.local)} of {self.period}"

    @property
    def remote(self) -> tuple[int, ...]:
        """The steps of a period that workers make."""
        return tuple(step for step in range(self.period) if step not in self.local)

    def count_remote(self, step: int) -> int:
        """Returns the number of steps before this one that workers make: its place among them."""
        periods, rest = divmod(step, self.period)
        return periods * len(self.remote) + bisect.bisect_left(self.remote, rest)

    def find_worker(self, step: int, num_workers: int) -> int | None:
        """Returns the number of the worker that makes a step; None if the trainer makes it itself."""
        return None if step % self.period in self.local else self.count_remote(step) % num_workers
