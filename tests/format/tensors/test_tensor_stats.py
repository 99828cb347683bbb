"""`tfpipe.format.tensors.tensor_stats`, compared with NumPy."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from tests.refusals import refusal
from tfpipe.errors import FormatError
from tfpipe.format.json_reader import read
from tfpipe.format.tensors.tensor_stats import MaskStats, TensorStats
from tfpipe.format.tensors.tensor_type import DTYPES, TensorType, get_numpy_dtype


def make_stats(dtype: str, values: np.ndarray) -> TensorStats:
    kind, stats = TensorType(dtype, (None,)), TensorStats()
    stats.add(kind, np.frombuffer(values.astype(get_numpy_dtype(dtype)).tobytes(), kind.bits))
    return stats


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_range_is_that_of_numpy(dtype: str) -> None:
    values = np.array([3, 0, 1, 100]) if dtype[0] in "bu" and dtype != "bfloat16" else np.array([-7, 3, -0.0, 100])
    expected = values.astype(get_numpy_dtype(dtype)).astype(float)
    stats = make_stats(dtype, values)
    assert (stats.low, stats.high) == (expected.min(), expected.max())
    assert (stats.records, stats.values, stats.nan, stats.infinite) == (1, 4, 0, 0)
    assert (stats.min_sizes, stats.max_sizes) == ((4,), (4,))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("odd", [math.nan, -math.nan, math.inf, -math.inf])
def test_odd_values_are_counted_and_do_not_hide_the_others(dtype: str, odd: float) -> None:
    with np.errstate(invalid="ignore"):
        stats = make_stats(dtype, np.array([2, odd, -5, odd]))
        alone = make_stats(dtype, np.array([odd]))
    assert (stats.low, stats.high) == (-5, 2)
    assert (stats.nan, stats.infinite, stats.nan_records) == ((2, 0, 1) if math.isnan(odd) else (0, 2, 0))
    assert (alone.low, alone.high) == (None, None)


def test_shards_are_merged() -> None:
    total = make_stats("float32", np.array([1.0, math.nan]))
    total.merge(make_stats("float32", np.array([-2.0, 5, 3])))
    total.merge(TensorStats())
    total.merge(make_stats("float32", np.array([])))
    assert total == TensorStats(3, 5, 1, 1, 0, -2.0, 5.0, (0,), (3,))


def test_json_comes_back_and_is_checked() -> None:
    stats = make_stats("int64", np.array([-(2**63), 2**63 - 1]))
    document = json.loads(json.dumps(asdict(stats)))
    assert read(document, TensorStats) == stats
    for change, message in (
        ({"nan": -1}, "nan must be a whole number of at least 0, got -1."),
        ({"low": "1"}, "low must be a number or null, got '1'."),
        ({"min_sizes": [1] * 9}, "min_sizes must be a list of at most 8 sizes, got"),
        ({"min_sizes": []}, ": `low` and `high`, and `min_sizes` and `max_sizes`, must belong together, got -9223"),
        ({"nan": 3}, ": `nan` and `nan_records` must be at most 2 and 1, got 3 and 0."),
        ({"low": None}, ": `low` and `high`, and `min_sizes` and `max_sizes`, must belong together, got None and 9223"),
    ):
        assert refusal(FormatError, read, document | change, TensorStats).startswith(message)
    masks = asdict(MaskStats(2, [5, 6], [1, 2], 0))
    assert read(masks, MaskStats) == MaskStats(2, [5, 6], [1, 2], 0)
    for change, message in (
        ({"pixels": [1] * 257}, "pixels must be a list of at most 256 counts, got [1, 1"),
        ({"images": [1]}, ": `images` must be 2 counts, as `pixels` are, each at most 2, got [1]."),
        ({"images": [1, 3]}, ": `images` must be 2 counts, as `pixels` are, each at most 2, got [1, 3]."),
    ):
        assert refusal(FormatError, read, masks | change, MaskStats).startswith(message)
