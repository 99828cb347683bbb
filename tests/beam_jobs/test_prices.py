"""What a job costs, by hand."""

from __future__ import annotations

import pytest

from beam_jobs.prices import Prices
from tfpipe.errors import ConfigError


def test_a_job_costs_its_work_at_least_and_its_machines_at_most() -> None:
    assert Prices(per_vcpu_hour=0.1).of_job((3600, 7200), (10_800, 36_000)) == (pytest.approx(0.1), pytest.approx(1.0))


def test_storage() -> None:
    assert Prices(per_gib_month=0.02).of_storage((2**30, 2**31)) == (0.02, 0.04)


def test_nothing_is_counted_without_a_price() -> None:
    assert Prices().of_job((1, 1), (1, 1)) is None
    assert Prices().of_storage((1, 1)) is None


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_a_price_that_is_none(price: float) -> None:
    with pytest.raises(ConfigError) as caught:
        Prices(per_vcpu_hour=price)
    assert str(caught.value) == f"--price-per-vcpu-hour must be at least 0, got {price:g}."
