"""The prices of cores and storage, given by the user. No price is built in, because it would go out of date.

The command line loads this module with its options, so it stays apart from `estimate`, which loads NumPy and Arrow.
"""

from dataclasses import dataclass

from tfpipe.system.options import Number, check_options, option

Range = tuple[float, float]

HOURS_PER_MONTH = 730.0
"""The hours of a mean month: 365 days in 12 months."""


@dataclass(frozen=True)
class PriceConfig:
    """The prices of a core and of storage, in any one currency.

    Attributes:
        price_per_vcpu_hour: The price of one core of a worker for an hour, its memory included. None: the cost of the
            job is not estimated. At least 0. Default: None.
        price_per_gib_month: The price of 2^30 bytes in the store for a month. None: the cost of storage is not
            estimated. At least 0. Default: None.

    Raises:
        ConfigError: A price is below 0 or not finite.
    """

    price_per_vcpu_hour: float | None = option(Number(at_least=0), None)
    price_per_gib_month: float | None = option(Number(at_least=0), None)

    def __post_init__(self) -> None:
        check_options(self)

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

    def estimate_cores_cost(self, cores: float) -> float | None:
        """Returns the price of cores that work for a month without a break, or None without a price."""
        return None if self.price_per_vcpu_hour is None else cores * HOURS_PER_MONTH * self.price_per_vcpu_hour
