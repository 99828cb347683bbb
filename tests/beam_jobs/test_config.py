"""Every option's bounds, with the sentence that names them."""

import math
from typing import Any

import pytest

from beam_jobs.config import ShardConfig
from tests.refusals import refusal
from tfpipe.errors import ConfigError

NAME_RULE = "A split's name must be letters, digits and underscores and begin with a letter, got "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "a b"}, NAME_RULE + "'a b'."),
        ({"split": ""}, NAME_RULE + "''."),
        ({"split": "a=0.8,b=0.2"}, "`split` must be one name, got 'a=0.8,b=0.2'. Give shares as `splits`."),
        ({"split": "x", "splits": {"a": 1.0}}, "`split` and `splits` exclude each other. Leave one of them out."),
        ({"splits": {"1": 1.0}}, NAME_RULE + "'1'."),
        ({"splits": {"a": 0.0, "b": 1.0}}, "The share of split 'a' must be above 0 and at most 1, got 0.0."),
        ({"splits": {"a": math.nan}}, "The share of split 'a' must be above 0 and at most 1, got nan."),
        ({"splits": {"a": 0.5, "b": 0.4}}, "The shares of `splits` must add up to 1, got 0.9."),
        (
            {"drop_features": ("age",)},
            "`drop_features` are features of `datasets`; leave columns out of the table instead.",
        ),
        ({"group_by": "who"}, "`group_by` needs `splits`, between which it keeps groups together. Give both."),
        ({"num_shards": 0}, "`num_shards` must be at least 1, got 0."),
        ({"shard_size_bytes": 0}, "`shard_size_bytes` must be at least 1, got 0."),
        ({"max_bad": -1}, "`max_bad` must be a count or a share between 0 and 1, got -1."),
        ({"max_bad": 1.5}, "`max_bad` must be a count or a share between 0 and 1, got 1.5."),
        ({"max_bad": math.nan}, "`max_bad` must be a count or a share between 0 and 1, got nan."),
        ({"workers": -1}, "`workers` must be at least 1, or 0 for all cores, got -1."),
        ({"seed": 2**63}, f"`seed` must be a whole number that fits into 64 bits, got {2**63}."),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    assert refusal(ConfigError, ShardConfig, "in", "out", **options) == message


def test_shares_may_be_rounded() -> None:
    assert ShardConfig("in", "out", splits={"a": 1 / 3, "b": 1 / 3, "c": 0.3333333}).splits["c"] == 0.3333333


def test_max_bad_images() -> None:
    few, many = {2: 1, 5: 1, 6: 2, 30: 10}, {1_000: 10, 1_099: 10, 1_100: 11, 100_000: 1_000}
    default = [(None, num_images, allowed) for num_images, allowed in {**few, **many}.items()]
    given = [(0, 100_000, 0), (3, 100_000, 3), (0.0, 100, 0), (0.5, 7, 3), (1.0, 7, 7)]
    for max_bad, num_images, allowed in [*default, *given]:
        assert ShardConfig("in", "out", max_bad=max_bad).max_bad_images(num_images) == allowed
