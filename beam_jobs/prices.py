"""What a job costs, given what the user says that a core and a disk cost. No price is built in: it would go stale."""

from dataclasses import dataclass

from tfpipe.errors import ConfigError

Range = tuple[float, float]


@dataclass(frozen=True)
class Prices:
    """In any one currency; None: not to be counted.

    Attributes:
        per_vcpu_hour: Of one core of a worker for an hour, its memory included.
        per_gib_month: Of 2^30 bytes in the store for a month.
    """

    per_vcpu_hour: float | None = None
    per_gib_month: float | None = None

    def __post_init__(self) -> None:
        for name, price in (("vcpu-hour", self.per_vcpu_hour), ("gib-month", self.per_gib_month)):
            if price is not None and not 0 <= price < float("inf"):
                raise ConfigError(f"--price-per-{name} must be at least 0, got {price:g}.")

    def of_job(self, cpu_s: Range, held_s: Range) -> Range | None:
        """What the job costs: at least the cores' work, at most the cores for as long as they are held."""
        if self.per_vcpu_hour is None:
            return None
        return cpu_s[0] / 3600 * self.per_vcpu_hour, max(cpu_s[1], held_s[1]) / 3600 * self.per_vcpu_hour

    def of_storage(self, num_bytes: Range) -> Range | None:
        """What keeping the dataset costs for a month."""
        if self.per_gib_month is None:
            return None
        low, high = (one / 2**30 * self.per_gib_month for one in num_bytes)
        return low, high
