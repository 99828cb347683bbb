"""`AugmentOptions` refuses values that cannot be used."""

from typing import Any

import pytest

from tests.refusals import refusal
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "all"}, "`scale` must be a list of finite numbers, got 'all'."),
        ({"ratio": (1.0, float("inf"))}, "`ratio` must be a list of finite numbers, got (1.0, inf)."),
        ({"scale": (0.1, 0.2, 0.3)}, "`scale` must be two rising shares in (0, 1], got (0.1, 0.2, 0.3)."),
        ({"crop_fraction": "most"}, "`crop_fraction` must be in (0, 1], got 'most'."),
        ({"ratio": (2, 1)}, "`ratio` must be two rising numbers above 0, got (2.0, 1.0)."),
        ({"std": (1, 0, 1)}, "`std` must be numbers above 0, one for each channel, got (1.0, 0.0, 1.0)."),
        ({"mean": (0,)}, "`mean` and `std` must have one number for each channel, got (0.0,), (0.229, 0.224, 0.225)."),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    assert refusal(ConfigError, AugmentOptions, **options) == message
