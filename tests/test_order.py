"""The exact order: golden values, a second implementation in plain Python, and what must hold for any input."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import chain, combinations, permutations
from math import isqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpipe.errors import ConfigError
from tfpipe.order import ExactOrder, evaluation_order, expand_runs, host_rows, mixing_score
from tfpipe.system.hash_permutation import key_of, permute

IMAGENET = (1250,) * 1024
SMALL = ExactOrder((7, 0, 12, 5), seed=3, num_streams=2, run_records=4, lanes=2)

shards = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any).map(tuple)
epochs = st.integers(0, 10)


@st.composite
def orders(draw: st.DrawFn) -> ExactOrder:
    records = draw(shards)
    turn_records = draw(st.integers(1, min(4, sum(records))))
    return ExactOrder(
        records,
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        num_streams=draw(st.integers(1, min(8, sum(records) // turn_records))),
        run_records=draw(st.integers(1, 20)) * turn_records,
        lanes=draw(st.integers(1, 12)),
        turn_records=turn_records,
    )


def pairs(array: np.ndarray) -> list[tuple[int, int]]:
    return [tuple(row) for row in array.tolist()]


def epoch_records(order: ExactOrder, epoch: int) -> np.ndarray:
    return np.concatenate([order.records(epoch, stream) for stream in range(order.num_streams)])


# The order can never change silently: a checkpoint's position would mean other records.


def test_golden_records():
    assert pairs(SMALL.records(0, 0)) == [
        *[(0, 6), (0, 0), (2, 0), (0, 1), (2, 1), (3, 3), (2, 2), (3, 4)],  # from the second lane its last half first
        *[(2, 11), (3, 0), (3, 1), (3, 2)],  # a run that is one too few for two lanes
    ]
    assert pairs(SMALL.records(1, 1)) == [
        *[(3, 1), (0, 6), (3, 2), (2, 0), (3, 3), (0, 4), (3, 4), (0, 5)],
        *[(2, 9), (2, 10), (2, 11), (3, 0)],
    ]


@pytest.mark.parametrize(
    ("options", "rows", "digest"),
    [
        (
            {},
            [[152, 329], [414, 750], [773, 1009], [599, 543], [522, 372]],
            "ba4404dfc896ff30fa2a69372cf62fddf275622462e8d4114d4b64d952ab88fd",
        ),
        (
            {"run_records": 1},
            [[610, 103], [927, 1216], [843, 452], [834, 1160], [796, 1077]],
            "5518e4acada1bc9df9ab5632f9e6b113ab314278a71967d1676208a6b771ade6",
        ),
    ],
    ids=["in lanes", "one by one"],
)
def test_golden_batch(options: dict[str, int], rows: list[list[int]], digest: str):
    batch = ExactOrder(IMAGENET, **options).batch(89, 600, 256)
    assert batch.shape == (256, 2)
    assert batch.dtype == np.int64
    assert batch[[0, 1, 2, 100, 255]].tolist() == rows
    assert hashlib.sha256(batch.astype("<i8").tobytes()).hexdigest() == digest


def plain_mix(state: int) -> int:
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def plain_key(*parts: int) -> int:
    key = 0
    for part in parts:
        key = plain_mix(key ^ (part % 2**64))
    return key


def plain_permuted(size: int, key: int) -> list[int]:
    hashes = [plain_mix((key + i * 0x9E3779B97F4A7C15) % 2**64) for i in range(size)]
    return sorted(range(size), key=hashes.__getitem__)


def plain_hash(key: int, number: int) -> int:
    """Hashes a number to 63 bits with the last step of the mixing alone."""
    z = (number * 0x9E3779B97F4A7C15 + key) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) >> 1


def plain_network(size: int, key: int, number: int) -> int:
    """Returns what stands at a place of a permutation that is too large to be sorted."""
    side = isqrt(size - 1) + 1
    keys = [plain_mix(key ^ index) for index in range(6)]
    while True:
        left, right = divmod(number, side)
        for round_key in keys:
            left, right = right, (left + plain_hash(round_key, right)) % side
        number = left * side + right
        if number < size:
            return number


def plain_epoch(order: ExactOrder, epoch: int) -> list[list[tuple[int, int]]]:
    """The rule as the documentation tells it, without NumPy: the records of each stream."""
    records = [(shard, record) for shard, count in enumerate(order.shard_records) for record in range(count)]
    lead = (plain_key(1, order.seed, epoch) >> 1) % len(records)
    circle = records[lead:] + records[:lead]
    size, turn, lanes = order.run_records, order.turn_records, order.lanes
    runs = [circle[at : at + size] for at in range(0, len(circle), size)]
    whole = len(circle) // size
    key = plain_key(2, order.seed, epoch)
    shuffled = plain_permuted(whole, key) if whole <= 1024 else [plain_network(whole, key, at) for at in range(whole)]
    sequence = [runs[number] for number in shuffled]
    share = whole // order.num_streams
    rest = list(chain.from_iterable([*sequence[share * order.num_streams :], *runs[whole:]]))
    rest_share = len(rest) // order.num_streams // turn * turn
    streams = []
    for stream in range(order.num_streams):
        own = sequence[stream * share : (stream + 1) * share]
        laned, late = own[: share // lanes * lanes], own[share // lanes * lanes :]
        by_lane = []
        for lane in range(lanes):
            track = list(chain.from_iterable(laned[lane::lanes]))
            begin = lane * max(size // turn // lanes, 1) % (size // turn) * turn
            by_lane.append(turns(track[begin:] + track[:begin], turn))
        dealt = [*zip(*by_lane, strict=True), *zip(*(turns(run, turn) for run in late), strict=True)]
        in_runs = list(chain.from_iterable(chain.from_iterable(dealt)))
        streams.append(in_runs + rest[stream * rest_share : (stream + 1) * rest_share])
    return streams


def turns(records: list[tuple[int, int]], turn: int) -> list[list[tuple[int, int]]]:
    return [records[at : at + turn] for at in range(0, len(records), turn)]


@given(orders(), epochs)
@settings(max_examples=60, deadline=None)
def test_a_second_implementation_agrees(order: ExactOrder, epoch: int):
    assert [pairs(order.records(epoch, stream)) for stream in range(order.num_streams)] == plain_epoch(order, epoch)


# What holds for any input.


@given(orders(), epochs)
@settings(max_examples=60, deadline=None)
def test_an_epoch_reads_all_records_but_a_few_once(order: ExactOrder, epoch: int):
    read = pairs(epoch_records(order, epoch))
    assert len(set(read)) == len(read) == order.num_streams * order.records_per_stream
    assert order.num_records - len(read) < order.num_streams * order.turn_records
    assert sorted(order.numbers(epoch, np.arange(order.num_records)).tolist()) == list(range(order.num_records))


@given(orders(), epochs)
def test_rising_numbers_are_the_same_records_and_rise_in_every_run(order: ExactOrder, epoch: int):
    positions = np.arange(order.num_records)
    rising = order.rising_numbers(epoch, positions)
    np.testing.assert_array_equal(rising % order.num_records, order.numbers(epoch, positions))
    within = positions[1:] % order.run_records != 0
    assert (np.diff(rising)[within] == 1).all()


@given(orders(), epochs, st.data())
@settings(max_examples=60, deadline=None)
def test_a_part_of_a_stream_is_the_slice_of_the_whole(order: ExactOrder, epoch: int, data: st.DataObject):
    stream = data.draw(st.integers(0, order.num_streams - 1))
    start = data.draw(st.integers(0, order.records_per_stream))
    stop = data.draw(st.integers(start, order.records_per_stream))
    part, whole = order.records(epoch, stream, start, stop), order.records(epoch, stream)
    assert part.shape == (stop - start, 2)
    assert part.dtype == np.int64
    assert np.array_equal(part, whole[start:stop])


@given(st.integers(0, 2**32), epochs)
@settings(max_examples=20, deadline=None)
def test_a_turn_of_all_lanes_has_records_of_different_runs(seed: int, epoch: int):
    order = ExactOrder((403,), seed, num_streams=2, run_records=5, lanes=8)
    assert order.turns_per_lane == 25
    records = order.records(epoch, 1)[: 25 * 8, 1].reshape(25, 8)
    neighbors = [abs(one - other) % 402 < 5 for turn in records.tolist() for one, other in combinations(turn, 2)]
    assert np.mean(neighbors) < 0.05  # runs may lie side by side
    begins = (np.arange(1, 25)[:, None] + np.arange(8) % 5) % 5 == 0  # each lane begins one record further on
    assert begins.sum(axis=1).max() == 2  # few runs begin together
    follows = np.diff(records, axis=0) % 403 == 1
    assert follows[~begins].all()
    assert follows[begins].mean() < 0.3  # a run that comes next may lie next, too


@given(st.integers(0, 2**32), epochs, st.data())
@settings(max_examples=30, deadline=None)
def test_the_global_batch_is_the_same_for_any_number_of_hosts(seed: int, epoch: int, data: st.DataObject):
    order = ExactOrder((30, 50, 41), seed=seed, run_records=4, lanes=2)
    step = data.draw(st.integers(0, order.steps_per_epoch(16) - 1))
    whole = order.batch(epoch, step, 16)
    for num_hosts in (1, 2, 4, 8, 16):
        parts = [order.batch(epoch, step, 16, host_rows(16, num_hosts, host)) for host in range(num_hosts)]
        assert {len(part) for part in parts} == {16 // num_hosts}
        assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("num_hosts", [1, 2, 3, 5, 6, 7, 12, 96, 128])
def test_any_number_of_hosts_reads_the_same_global_batches(num_hosts: int):
    batch = 128 * 3 * 5 * 7
    order = ExactOrder(IMAGENET, seed=3, lanes=24, turn_records=4)
    whole = order.batch(2, 30, batch)
    parts = [order.batch(2, 30, batch, host_rows(batch, num_hosts, host)) for host in range(num_hosts)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_a_batch_alone_is_the_batch_of_a_run_from_the_beginning():
    order = ExactOrder((30, 50, 41), seed=5, num_streams=4, run_records=4, lanes=2)
    assert order.steps_per_epoch(12) == 10
    for epoch in range(3):
        streams = [order.records(epoch, stream) for stream in range(4)]
        for step in range(10):
            expected = np.concatenate([stream[3 * step : 3 * step + 3] for stream in streams])
            assert np.array_equal(order.batch(epoch, step, 12), expected)


def test_locate():
    order = ExactOrder((30, 50, 41), num_streams=4)
    assert [order.locate(step, 12) for step in (0, 9, 10, 25)] == [(0, 0), (0, 9), (1, 0), (2, 5)]


def test_a_batch_of_no_rows_is_empty():
    assert SMALL.batch(0, 0, 2, range(0)).shape == (0, 2)


def test_epochs_and_seeds_and_streams_differ():
    base = ExactOrder((100,) * 10, num_streams=2)
    seen = [pairs(base.records(epoch, 0)) for epoch in range(20)]
    seen += [pairs(ExactOrder((100,) * 10, seed=seed, num_streams=2).records(0, 0)) for seed in range(1, 20)]
    assert len({tuple(one) for one in seen}) == 39


def test_a_list_of_shards_will_do_and_what_comes_out_may_be_written_to():
    order = ExactOrder([7, 0, 12, 5], seed=3, num_streams=2, run_records=4, lanes=2)  # type: ignore[arg-type]
    assert order == SMALL
    order.records(0, 1)[:] = 0
    test_golden_records()


# Is it random enough? The seeds are fixed, so these pass or fail for good; 1 in 1,000 seeds would fail each.


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def test_a_record_comes_anywhere_in_an_epoch():
    order = ExactOrder((40,) * 5, seed=1, num_streams=2, run_records=4, lanes=4)
    numbers = np.array([epoch_records(order, epoch) @ (40, 1) for epoch in range(600)])
    positions = np.argsort(numbers, axis=1)  # [epoch, record]
    for record in (0, 3, 77, 100, 199):
        counts = np.bincount(positions[:, record] // 20, minlength=10)
        assert chi_square(counts) < 27.9  # 9 degrees of freedom


def test_all_orders_of_runs_are_equally_likely():
    order = ExactOrder((1,) * 4, seed=2, num_streams=1, run_records=1)
    counts = Counter(tuple(order.records(epoch, 0)[:, 0].tolist()) for epoch in range(2400))
    assert set(counts) == set(permutations(range(4)))
    assert chi_square(np.array(list(counts.values()))) < 49.7  # 23 degrees of freedom


def test_places_of_a_large_permutation_are_random():
    drawn = np.array([permute(key_of(key), 1500, np.arange(1500)) for key in range(300)])
    assert all(len(set(one)) == 1500 for one in drawn.tolist())
    for place in (0, 1, 749, 1499):
        assert chi_square(np.bincount(drawn[:, place] // 150, minlength=10)) < 27.9  # 9 degrees of freedom
    neighbors = (drawn[:, 1:] - drawn[:, :-1]) % 1500  # as far apart as any two
    assert chi_square(np.bincount(neighbors.ravel() // 150, minlength=10)) < 27.9


def test_no_record_is_left_out_for_good():
    order = ExactOrder((12,), num_streams=8)  # one run, so fixed cuts would leave out the same four each time
    read = Counter(record for epoch in range(300) for record in epoch_records(order, epoch)[:, 1].tolist())
    assert len(read) == 12
    assert 50 < min(read.values()) <= max(read.values()) < 300


# Evaluation.


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


# The mixing score.


@pytest.mark.parametrize(
    ("options", "score"),
    [
        ({"num_streams": 1, "run_records": 10**6, "lanes": 1}, 0.0055),
        ({"run_records": 160_000, "lanes": 1}, 0.0359),
        ({"lanes": 2}, 0.0852),
        ({"lanes": 8}, 0.2691),
        ({}, 0.9976),
        ({"run_records": 4}, 1.0),
        ({"run_records": 1}, 0.9956),
    ],
)
def test_mixing_score_of_the_documentation(options: dict[str, int], score: float):
    assert mixing_score(ExactOrder(IMAGENET, **options), 256) == pytest.approx(score, abs=5e-5)


def test_mixing_score_is_one_over_the_variance_of_class_counts():
    """Each shard is a class: how much more often do its images come together than in a uniform draw?"""
    order = ExactOrder((50,) * 20, seed=4, num_streams=2, run_records=5, lanes=8)
    counts = np.array(
        [
            np.bincount(order.batch(epoch, step, 40)[:, 0], minlength=20)
            for epoch in range(40)
            for step in range(order.steps_per_epoch(40))
        ]
    )
    uniform = 40 * (1 / 20) * (19 / 20) * (1000 - 40) / (1000 - 1)  # hypergeometric
    # A draw without replacement has the same factor of a finite population in both variances, nearly.
    assert mixing_score(order, 40) == pytest.approx(uniform / counts.var(axis=0).mean(), rel=0.15)


def test_mixing_score_where_there_is_nothing_to_compare():
    assert mixing_score(ExactOrder((5, 5), num_streams=1), 1) == 1
    assert mixing_score(ExactOrder((500,)), 8) == 1  # one group
    assert mixing_score(ExactOrder((500,), lanes=1), 80, group_records=100) < 0.5
    assert mixing_score(ExactOrder((500,)), 8, group_records=1) == 1  # no two records are alike
    assert mixing_score(ExactOrder((5, 0, 5), num_streams=1), 10) == 1  # a batch is the whole epoch


# Errors.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ExactOrder((4, -1)), "`shard_records` must not be negative, got -1 for shard 1."),
        (lambda: ExactOrder((0, 0)), "`shard_records` must hold a record, got 2 shards without any."),
        (lambda: ExactOrder(()), "`shard_records` must hold a record, got 0 shards without any."),
        (lambda: ExactOrder((9,), seed=2**64), f"`seed` must fit into 64 bits, got {2**64}."),
        (lambda: ExactOrder((9,), num_streams=0), "`num_streams` must be at least 1, got 0."),
        (lambda: ExactOrder((9,), run_records=0), "`run_records` must be at least 1, got 0."),
        (lambda: ExactOrder((9,), lanes=-2), "`lanes` must be at least 1, got -2."),
        (
            lambda: ExactOrder((9,), run_records=6, turn_records=4),
            "`run_records` must be a multiple of `turn_records`, got 6 and 4.",
        ),
        (
            lambda: ExactOrder((2, 3)),
            "Each of the 8 streams needs 1 record or more, got 5 records. Use num_streams=5 or more data.",
        ),
        (lambda: SMALL.records(-1, 0), "`epoch` must be at least 0, got -1."),
        (lambda: SMALL.records(0, 2), "`stream` must be between 0 and 1, got 2."),
        (lambda: SMALL.batch(-1, 0, 8), "`epoch` must be at least 0, got -1."),
        (lambda: SMALL.batch(0, 0, 8, range(-4, 0)), "`stream` must be between 0 and 1, got -1."),
        (lambda: SMALL.records(0, 0, 5, 4), "`start` and `stop` must be ordered and between 0 and 12, got 5 and 4."),
        (lambda: SMALL.records(0, 0, 5, 13), "`start` and `stop` must be ordered and between 0 and 12, got 5 and 13."),
        (lambda: SMALL.batch(0, 3, 8), "`step` must be between 0 and 2, got 3."),
        (lambda: SMALL.locate(-1, 8), "`global_step` must be at least 0, got -1."),
        (
            lambda: SMALL.steps_per_epoch(7),
            "`global_batch_size` must be a multiple of the 2 streams, got 7. Use 8.",
        ),
        (
            lambda: SMALL.steps_per_epoch(0),
            "`global_batch_size` must be a multiple of the 2 streams, got 0. Use 2.",
        ),
        (
            lambda: SMALL.steps_per_epoch(26),
            "`global_batch_size` must be at most the 24 records of an epoch, got 26. Use 24 or less, or more data.",
        ),
        (
            lambda: host_rows(64, 3, 0),
            "`global_batch_size` must be a multiple of the number of hosts, got 64 for 3 hosts. Use 66.",
        ),
        (lambda: host_rows(8, 0, 0), "`num_hosts` must be at least 1, got 0."),
        (lambda: host_rows(8, 2, 2), "`host` must be between 0 and 1, got 2."),
        (lambda: evaluation_order((0,)), "`shard_records` must hold a record, got 1 shards without any."),
        (lambda: evaluation_order((3,), 2, -1), "`host` must be between 0 and 1, got -1."),
        (lambda: mixing_score(SMALL, 8, group_records=0), "`group_records` must be at least 1, got 0."),
    ],
)
def test_errors_say_what_must_hold_what_came_and_what_to_do(call, message: str):
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value) == message
