"""Batches of Parquet files whose values stand once in the file and in every row."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.inputs.parquet_rows import read_batches
from tests.beam_jobs.datasets import refuse_source
from tfpipe.system.budget import Budget, OverBudget

LONG = "x" * (1 << 20)


def repeat(text: Any, rows: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def count_rows(path: Path, *, with_file: bool = True, **limits: int) -> list[int]:
    with path.open("rb") as file:
        table = pq.ParquetFile(file)
        given = file if with_file else None
        return [batch.num_rows for batch in read_batches(table, given, [0], None, 1000, Budget(**limits))]


@pytest.mark.parametrize(
    "column",
    [
        repeat(LONG, 100),
        repeat(LONG, 100).cast(pa.string()),
        pa.ListArray.from_arrays(pa.array(np.arange(101, dtype=np.int32)), repeat(LONG, 100)),
        pa.StructArray.from_arrays([repeat(LONG.encode(), 100), pa.array(["p"] * 100)], ["bytes", "path"]),
    ],
    ids=["dictionary", "text", "list", "struct"],
)
def test_a_batch_has_as_many_rows_as_the_memory_allows(tmp_path: Path, column: Any) -> None:
    pq.write_table(pa.table({"c": column}), tmp_path / "t.parquet", compression="zstd")
    rows = count_rows(tmp_path / "t.parquet")
    assert sum(rows) == 100
    assert max(rows) <= 64
    with pytest.raises(OverBudget, match=r"^it takes too many bytes$"):
        count_rows(tmp_path / "t.parquet", bytes=99 << 20)
    assert sum(count_rows(tmp_path / "t.parquet", with_file=False)) == 100


def test_usual_columns_come_in_large_batches(tmp_path: Path) -> None:
    table = pa.table({"c": [f"caption {k}" for k in range(3000)], "l": ["cat", "dog", "owl"] * 1000, "n": range(3000)})
    pq.write_table(table, tmp_path / "t.parquet")
    assert count_rows(tmp_path / "t.parquet") == [1000, 1000, 1000]


LIST_ENDS = np.arange(0, 12_000_001, 1_000_000, np.int32)


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        (20_000, repeat(LONG, 20_000)),
        # 92 MB of numbers, which would be 0.5 GB of Python's.
        (12, pa.ListArray.from_arrays(pa.array(LIST_ENDS), pa.array(np.full(12_000_000, 7)))),
    ],
    ids=["texts", "numbers"],
)
def test_a_small_table_that_decodes_to_gigabytes_is_refused(tmp_path: Path, rows: int, column: Any) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"image": ["a.jpg"] * rows, "more": column}), path, compression="zstd")
    assert path.stat().st_size < 2000
    assert refuse_source(path) == (
        f"{path} decodes to more than 200 times its bytes, as if it were made to fill the memory. Write it anew "
        "without repeated values, if it is meant so."
    )
