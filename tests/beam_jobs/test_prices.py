"""The costs of jobs and storage, by hand."""

from __future__ import annotations

import pytest

from beam_jobs.prices import PriceConfig
from tfpipe.errors import ConfigError


def test_a_job_costs_its_work_at_least_and_its_machines_at_most() -> None:
    cost = PriceConfig(price_per_vcpu_hour=0.1).estimate_job_cost(cpu_s=(3600, 7200), held_s=(10_800, 36_000))
    assert cost == pytest.approx((0.1, 1.0))


def test_storage_costs_its_bytes_by_the_month() -> None:
    assert PriceConfig(price_per_gib_month=0.02).estimate_storage_cost((2**30, 2**31)) == (0.02, 0.04)


def test_cores_cost_their_hours_in_a_month() -> None:
    assert PriceConfig(price_per_vcpu_hour=0.04).estimate_cores_cost(2.5) == pytest.approx(73.0)


def test_nothing_is_counted_without_a_price() -> None:
    assert PriceConfig().estimate_job_cost((1, 1), (1, 1)) is None
    assert PriceConfig().estimate_storage_cost((1, 1)) is None
    assert PriceConfig().estimate_cores_cost(1) is None


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_a_price_that_cannot_be_is_refused(price: float) -> None:
    with pytest.raises(ConfigError) as caught:
        PriceConfig(price_per_vcpu_hour=price)
    assert str(caught.value) == f"`price_per_vcpu_hour` must be at least 0, got {price}."
