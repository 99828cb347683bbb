"""The order of an evaluation: every record once, in the order of the files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpipe.errors import ConfigError
from tfpipe.order import evaluation_order, expand_runs

shards = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any).map(tuple)


def pairs(array: np.ndarray) -> list[tuple[int, int]]:
    return [tuple(row) for row in array.tolist()]


@given(shards, st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_evaluation_reads_each_record_once_in_file_order(records: tuple[int, ...], num_hosts: int):
    parts = [expand_runs(evaluation_order(records, num_hosts, host)) for host in range(num_hosts)]
    everything = [(shard, i) for shard, count in enumerate(records) for i in range(count)]
    assert pairs(np.concatenate(parts)) == everything
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_evaluation_cuts_shards_where_hosts_meet():
    assert evaluation_order((5, 0, 6, 2)).tolist() == [[0, 0, 5], [2, 0, 6], [3, 0, 2]]
    assert evaluation_order((5, 0, 6, 2), 2, 0).tolist() == [[0, 0, 5], [2, 0, 1]]
    assert evaluation_order((5, 0, 6, 2), 2, 1).tolist() == [[2, 1, 5], [3, 0, 2]]
    assert evaluation_order((1,), 2, 0).shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluation_order((4, -1)), "`shard_records` must not be negative, got -1 for shard 1."),
        (lambda: evaluation_order((0,)), "`shard_records` must hold a record, got 1 shards without any."),
        (lambda: evaluation_order((3,), 0), "`num_hosts` must be at least 1, got 0."),
        (lambda: evaluation_order((3,), 2, -1), "`host` must be between 0 and 1, got -1."),
    ],
)
def test_errors_say_what_must_hold_and_what_came(call, message: str):
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value) == message
