"""`tfpipe.format.duplicates`; what it says of whole datasets is tested with the job and with repair."""

import numpy as np

from tfpipe.format.duplicates import equal_rows


def test_equal_beginnings_are_not_enough() -> None:
    table = np.zeros((6, 32), np.uint8)
    table[[1, 4], 31] = 7
    table[2, 0] = 1
    table[3, 31] = 8
    assert equal_rows(table) == [[0, 5], [1, 4]]
    assert equal_rows(np.zeros((0, 32), np.uint8)) == []
    assert equal_rows(np.zeros((1, 32), np.uint8)) == []
