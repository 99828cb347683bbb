"""The prices of cores and storage, given by the user. No price is built in, because it would go out of date.

The command line loads this module with its options, so it stays apart from `estimate`, which loads NumPy and Arrow.
"""

from dataclasses import dataclass

from tfpipe.errors import ConfigError

Range = tuple[float, float]


@dataclass(frozen=True)
class Prices:
    """The prices of a core and of storage, in any one currency.

    Attributes:
        price_per_vcpu_hour: The price of one core of a worker for an hour, its memory included; None if the job's
            cost is not asked for.
        price_per_gib_month: The price of 2^30 bytes in the store for a month; None if the cost of storage is not
            asked for.
    """

    price_per_vcpu_hour: float | None = None
    price_per_gib_month: float | None = None

    def __post_init__(self) -> None:
        for name, price in vars(self).items():
            if price is not None and not 0 <= price < float("inf"):
                raise ConfigError(f"`{name}` must be at least 0, got {price:g}.")

    def estimate_job_cost(self, cpu_s: Range, held_s: Range) -> Range | None:
        """Returns the least and the most that the job may cost, or None without a price.

        Args:
            cpu_s: The least and the most seconds of work; a job costs at least its work.
            held_s: The least and the most seconds for which cores are held; a job costs at most the cores it holds.
        """
        if self.price_per_vcpu_hour is None:
            return None
        return cpu_s[0] / 3600 * self.price_per_vcpu_hour, max(cpu_s[1], held_s[1]) / 3600 * self.price_per_vcpu_hour

    def estimate_storage_cost(self, num_bytes: Range) -> Range | None:
        """Returns the least and the most that a month of storage may cost, or None without a price."""
        if self.price_per_gib_month is None:
            return None
        low, high = (size / 2**30 * self.price_per_gib_month for size in num_bytes)
        return low, high
