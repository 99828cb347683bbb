"""The exact order: golden values, a second implementation in plain Python, and what must hold for any input."""

import hashlib
import json
import shutil
import subprocess
from collections import Counter
from itertools import permutations
from math import isqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT
from tests.refusals import refusal
from tfpipe.engine.host import Host
from tfpipe.engine.order import ORDER_VERSION, Order, choose_block
from tfpipe.errors import ConfigError

PAGE = ROOT / "docs" / "understand"
SMALL = Order(24, 6, 2, seed=5)

epochs = st.integers(0, 10)


@st.composite
def orders(draw: st.DrawFn) -> Order:
    records = draw(st.integers(1, 400))
    batch_size, block_records = draw(st.integers(1, min(records, 40))), draw(st.integers(1, 20))
    return Order(records, batch_size, block_records, seed=draw(st.integers(-(2**63), 2**64 - 1)))


def list_epoch(order: Order, epoch: int) -> np.ndarray:
    return np.stack([order.list_numbers(epoch, step) for step in range(order.steps_per_epoch)])


# The order can never change silently: a checkpoint's position would mean other records.


def test_golden_batches():
    assert list_epoch(SMALL, 0).tolist() == [
        [11, 19, 23, 2, 10, 14],
        [12, 20, 0, 17, 15, 7],
        [3, 21, 5, 18, 16, 8],
        [4, 22, 6, 1, 9, 13],
    ]


@pytest.mark.parametrize(
    ("block_records", "step", "numbers", "digest"),
    [
        (16, 600, [1263033, 136825, 973769, 396559, 925816], "6cdf2d70178b07e9cd26026b29dcfb24bcb2e048"),
        (16, 4995, [1074919, 736599, 275815, 1184631, 679976], "a2f656267ff0bc8d41f6febeacc922dca9056813"),
        (1, 600, [588870, 32523, 273974, 995412, 405588], "478567a0f6a2cbe52e1a35461cd60a90dc918586"),
    ],
    ids=["in the head", "in the tail", "one by one"],
)
def test_golden_batch(block_records: int, step: int, numbers: list[int], digest: str):
    batch = Order(1_280_000, 256, block_records).list_numbers(89, step)
    assert (batch.shape, batch.dtype) == ((256,), np.int64)
    assert batch[[0, 1, 2, 100, 255]].tolist() == numbers
    assert hashlib.sha256(batch.astype("<i8").tobytes()).hexdigest()[:40] == digest


# Those of the page about the order, with another implementation beside them.


def test_the_vectors_of_the_page_hold():
    file = json.loads((PAGE / "order_vectors.json").read_text())
    assert file["order"] == ORDER_VERSION
    for vector in file["vectors"]:
        names = ("num_records", "batch_size", "block_records")
        order = Order(*(vector[name] for name in names), seed=int(vector["seed"]))
        assert order.list_numbers(vector["epoch"], vector["step"]).tolist() == vector["numbers"], vector


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_vectors_hold_in_another_language(tmp_path: Path):
    def check(vectors: Path) -> tuple[int, str, str]:
        command = ["node", str(PAGE / "order.mjs"), str(vectors)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout, done.stderr[:6]

    text = (PAGE / "order_vectors.json").read_text()
    assert check(PAGE / "order_vectors.json") == (0, f"{text.count('num_records')} vectors hold.\n", "")
    (tmp_path / "wrong.json").write_text(text.replace("[11, 19,", "[19, 11,"))
    assert check(tmp_path / "wrong.json") == (1, "", "Wrong:")


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
    if size > 1024:
        return [plain_network(size, key, place) for place in range(size)]
    hashes = [plain_mix((key + i * 0x9E3779B97F4A7C15) % 2**64) for i in range(size)]
    return sorted(range(size), key=hashes.__getitem__)


def plain_hash(key: int, number: int) -> int:
    """Hashes a number to 63 bits with the last step of the mixing alone."""
    return plain_mix((number - 1) * 0x9E3779B97F4A7C15 + key) >> 1


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


def plain_epoch(order: Order, epoch: int) -> list[list[int]]:
    """The rule as the documentation tells it, with lists: the batches of an epoch."""
    records, size, rows = order.num_records, order.block_records, order.batch_size
    lead = (plain_key(1, order.seed, epoch) >> 1) % records
    circle = [*range(lead, records), *range(lead)]
    blocks = [circle[at : at + size] for at in range(0, records, size)]
    short = blocks.pop() if records % size else []
    blocks = [blocks[number] for number in plain_permuted(len(blocks), plain_key(2, order.seed, epoch))]
    per_row = len(blocks) // rows
    read, left = blocks[: per_row * rows], blocks[per_row * rows :]
    tracks = []
    for row in range(rows):
        track = [record for block in read[row::rows] for record in block]
        begin = row * size // rows
        tracks.append(track[begin:] + track[:begin])
    batches = [list(batch) for batch in zip(*tracks, strict=True)]
    tail = [record for column in zip(*left, strict=True) for record in column] + short
    return batches + [tail[at : at + rows] for at in range(0, len(tail) - rows + 1, rows)]


@given(orders(), epochs)
@settings(max_examples=80, deadline=None)
def test_a_second_implementation_agrees(order: Order, epoch: int):
    assert list_epoch(order, epoch).tolist() == plain_epoch(order, epoch)


def test_a_second_implementation_agrees_where_blocks_are_too_many_to_be_sorted():
    order = Order(3 * 1024 + 7, 50, 2, seed=8)
    assert list_epoch(order, 4).tolist() == plain_epoch(order, 4)


@given(orders(), epochs, st.data())
@settings(max_examples=40, deadline=None)
def test_the_global_batch_is_the_same_for_any_number_of_hosts(order: Order, epoch: int, data: st.DataObject):
    step = data.draw(st.integers(0, order.steps_per_epoch - 1))
    whole = order.list_numbers(epoch, step)
    for num_hosts in (n for n in range(1, order.batch_size + 1) if order.batch_size % n == 0):
        rows = [Host(host, num_hosts, num_hosts).share(order.batch_size) for host in range(num_hosts)]
        parts = [order.list_numbers(epoch, step, some) for some in rows]
        assert {len(part) for part in parts} == {order.batch_size // num_hosts}
        assert np.array_equal(np.concatenate(parts), whole)


@given(orders(), epochs)
@settings(max_examples=80, deadline=None)
def test_a_record_is_found_at_its_step(order: Order, epoch: int):
    read = {
        number: (step, row)
        for step in range(order.steps_per_epoch)
        for row, number in enumerate(order.list_numbers(epoch, step).tolist())
    }
    for number in range(order.num_records):
        assert order.find_step(epoch, number) == read.get(number)


def test_a_record_of_a_billion_is_found_at_its_step():
    order = Order(10**9, 1024, 16, seed=3)
    for epoch in range(5):
        found = order.find_step(epoch, 123_456_789)
        step, row = found
        assert order.list_numbers(epoch, step)[row] == 123_456_789


def test_any_rows_of_a_batch_and_a_block_no_longer_than_an_epoch():
    whole = SMALL.list_numbers(3, 1)
    assert SMALL.list_numbers(3, 1, range(5, 0, -2)).tolist() == whole[[5, 3, 1]].tolist()
    assert SMALL.list_numbers(3, 1, range(2, 2)).shape == (0,)
    order = Order(100, 30, 16)
    assert (order.block_records, order.head_steps, order.steps_per_epoch) == (3, 3, 3)
    assert order == Order(100, 30, 3)


@pytest.mark.parametrize(
    ("record_bytes", "num_records", "batch_size", "block_records"),
    [
        (110_000.0, 1_281_167, 256, 4),
        (30_000.0, 1_281_167, 256, 14),
        (1000.0, 1_281_167, 256, 16),
        (399_999.0, 1_281_167, 256, 2),
        (400_000.0, 1_281_167, 256, 1),
        (1e9, 1_281_167, 256, 1),
        (1000.0, 6400, 100, 16),
        (1000.0, 6399, 100, 15),
        (1000.0, 799, 100, 1),
        (1000.0, 10, 100, 1),
    ],
)
def test_choose_block(record_bytes: float, num_records: int, batch_size: int, block_records: int):
    assert choose_block(record_bytes, num_records, batch_size) == block_records


# Is it random enough? The seeds are fixed, so these pass or fail for good; 1 in 1,000 seeds would fail each.


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def test_all_orders_of_records_are_equally_likely():
    order = Order(4, 1, 1, seed=2)
    counts = Counter(tuple(list_epoch(order, epoch)[:, 0].tolist()) for epoch in range(2400))
    assert set(counts) == set(permutations(range(4)))
    assert chi_square(np.array(list(counts.values()))) < 49.7  # 23 degrees of freedom


def test_no_record_is_left_out_for_good():
    order = Order(23, 6, 2)
    read = Counter(number for epoch in range(300) for number in list_epoch(order, epoch).reshape(-1).tolist())
    assert len(read) == 23
    assert chi_square(np.array(list(read.values()))) < 48.3  # 22 degrees of freedom
    assert max(read.values()) < 300


AT_MOST = "`batch_size` must be at most the"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Order(9, 1, seed=2**64), f"`seed` must fit into 64 bits, got {2**64}."),
        (lambda: Order(9, 1, seed=-(2**63) - 1), f"`seed` must fit into 64 bits, got {-(2**63) - 1}."),
        (lambda: Order(0, 1), "`num_records` must be at least 1, got 0."),
        (lambda: Order(9, 0), "`batch_size` must be at least 1, got 0."),
        (lambda: Order(9, 1, 0), "`block_records` must be at least 1, got 0."),
        (lambda: Order(24, 26), f"{AT_MOST} 24 records of an epoch, got 26. Use 24 or less, or more data."),
        (lambda: Order(1, 2), f"{AT_MOST} 1 record of an epoch, got 2. Use 1 or less, or more data."),
        (lambda: SMALL.list_numbers(-1, 0), "`epoch` must be at least 0, got -1."),
        (lambda: SMALL.list_numbers(0, 4), "`step` must be between 0 and 3, got 4."),
        (lambda: SMALL.list_numbers(0, -1), "`step` must be between 0 and 3, got -1."),
        (lambda: SMALL.list_numbers(0, 0, range(-4, 0)), "`rows` must be between 0 and 5, got -4."),
        (lambda: SMALL.list_numbers(0, 0, range(4, 8)), "`rows` must be between 0 and 5, got 7."),
        (lambda: SMALL.locate(-1), "`global_step` must be at least 0, got -1."),
    ],
)
def test_errors_say_what_must_hold_what_came_and_what_to_do(call, message: str):
    assert refusal(ConfigError, call) == message
