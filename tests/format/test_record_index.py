"""`tfpipe.format.record_index`: the text index and its checks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refusal
from tfpipe.errors import FormatError
from tfpipe.format.record_index import MAX_RECORDS, decode_index, encode_index, max_index_bytes

MEND = "Run the same `tfpipe shard` or `tfpipe index` command again to write it anew."
NUMBERS = f"Every line of the index must be two whole numbers with one space between. {MEND}"


FIVE = encode_index([16, 1000, 17, 123_456, 16])[:-2]  # without the end of its last line


def test_text():
    assert encode_index([20, 16, 100]) == b"0 20\n20 16\n36 100\n"
    assert encode_index([]) == b""
    assert decode_index(b"", 20, 0, is_packed=True).shape == (0, 2)  # of an empty gzip file


@settings(deadline=None)
@given(st.lists(st.integers(16, 2**40), max_size=20))
def test_round_trip(sizes):
    table = decode_index(encode_index(sizes), sum(sizes), len(sizes))
    assert (table.dtype, table.shape) == (np.int64, (len(sizes), 2))
    assert table[:, 1].tolist() == sizes
    assert table[:, 0].tolist() == [sum(sizes[:i]) for i in range(len(sizes))]


@pytest.mark.parametrize(
    ("data", "shard_bytes", "records", "message"),
    [
        (b"0 20\n", 20, 2, f"The index must have 2 whole lines, got 1 in 5 bytes. {MEND}"),
        (b"0 20\n20 16", 36, 1, f"The index must have 1 whole lines, got 1 in 10 bytes. {MEND}"),
        (b"0 2x\n", 20, 1, NUMBERS),
        (b"0 -5\n", 20, 1, NUMBERS),
        (b"020 \n", 20, 1, NUMBERS),
        (b"0  20\n", 20, 1, NUMBERS),
        (b"0 20\n", 21, 1, f"The index ends at byte 20 of a shard of 21 bytes. {MEND}"),
        (b"", 20, 0, f"The index ends at byte 0 of a shard of 20 bytes. {MEND}"),
        (b"1 20\n", 21, 1, f"Line 1 of the index must begin at byte 0, got 1. {MEND}"),
        (b"0 20\n19 20\n", 40, 2, f"Line 2 of the index must begin at byte 20, got 19. {MEND}"),
        (b"0 15\n", 15, 1, f"Line 1 of the index is not possible: offset 0, size 15. {MEND}"),
        (b"0 9223372036854775807\n", 20, 1, f"Line 1 of the index is not possible: offset 0, size {2**63 - 1}. {MEND}"),
        (b"0 9223372036854775808\n", 20, 1, f"The index holds a number beyond int64. {MEND}"),
        (b"0 " + b"9" * 5000 + b"\n", 20, 1, f"The index holds a number beyond int64. {MEND}"),
        (FIVE + b"x\n", 124_505, 5, NUMBERS),
        (FIVE + b" \n", 124_505, 5, NUMBERS),
        (FIVE + b"9" * 5000 + b"\n", 124_505, 5, f"The index holds a number beyond int64. {MEND}"),
    ],
)
def test_what_is_refused(data, shard_bytes, records, message):
    assert refusal(FormatError, decode_index, data, shard_bytes, records) == message


@pytest.mark.parametrize("sizes", [[16], [16] * 20, [2**40, 16], [10**6] * 1000])
def test_no_index_is_larger_than_its_bound(sizes):
    assert len(encode_index(sizes)) <= max_index_bytes(sum(sizes), len(sizes)) <= 40 * len(sizes)


def test_an_index_of_too_many_records_is_not_read():
    assert max_index_bytes(2**40, MAX_RECORDS) > 0
    assert refusal(FormatError, max_index_bytes, 2**40, MAX_RECORDS + 1) == (
        "A shard must have at most 4,194,304 records for its index to be read, got 4,194,305. "
        "Write them into more shards."
    )
