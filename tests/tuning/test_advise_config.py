"""The options of a comparison of stored forms."""

from __future__ import annotations

import pytest

from tfpipe.errors import ConfigError
from tfpipe.tuning.advise_config import AdviseConfig


@pytest.mark.parametrize(
    ("mean_bytes", "images"),
    [(110_000, 1000), (2**20, 1000), (2 * 2**20, 512), (100 * 2**20, 64), (0, 1000)],
)
def test_a_sample_takes_a_gibibyte_at_most_and_64_images_at_least(mean_bytes: float, images: int) -> None:
    assert AdviseConfig(100.0).count_sample(mean_bytes) == images
    assert AdviseConfig(100.0, num_images=3).count_sample(mean_bytes) == 3


@pytest.mark.parametrize("rate", [0, -2.5, float("inf"), float("nan")])
def test_a_rate_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError) as caught:
        AdviseConfig(rate)
    assert str(caught.value) == f"`images_per_second` must be above 0, got {rate}."
