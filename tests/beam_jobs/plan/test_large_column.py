"""A column of bytes in memory and in a temporary file."""

import errno
import mmap
import os
import tempfile
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from beam_jobs.plan import large_column
from beam_jobs.plan.image_ref import ImageRef
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.large_column import LargeColumn
from tfpipe.errors import DataError

VALUES = [b"", b"one", b"two" * 100, b"", b"three", b"four" * 50, b""]


def to_array(values: list[bytes]) -> Any:
    return pa.array(values, pa.large_binary())


@pytest.mark.parametrize("memory_bytes", [1 << 20, 4])
def test_parts_are_joined(memory_bytes: int, monkeypatch) -> None:
    monkeypatch.setattr(large_column, "_MEMORY_BYTES", memory_bytes)
    column = LargeColumn()
    column.append(to_array(VALUES))
    column.append(to_array([]))
    column.append(to_array(VALUES).slice(2, 3))
    column.append(to_array([b"", b""]))
    offsets, values = column.finish()
    expected = [*VALUES, *VALUES[2:5], b"", b""]
    assert offsets.tolist() == [0, *accumulate(map(len, expected))]
    assert bytes(values) == b"".join(expected)
    assert isinstance(values, mmap.mmap) == (memory_bytes == 4)


def test_nothing_is_a_column_too() -> None:
    offsets, values = LargeColumn().finish()
    assert (offsets.tolist(), values) == ([0], b"")


def test_a_table_whose_details_are_in_a_file_is_that_in_memory(monkeypatch) -> None:
    refs = [ImageRef(f"{k}.jpg", k, extra=(k, "x" * k), boxes=((0.0, 0.0, 1.0, 1.0),) * (k % 2)) for k in range(50)]
    in_memory = ImageTable.from_refs(refs)
    monkeypatch.setattr(large_column, "_MEMORY_BYTES", 4)
    in_file = ImageTable.from_refs(refs)
    assert list(in_file) == list(in_memory) == refs
    order = [7, 0, 49]
    assert list(in_file.take(np.array(order))) == [refs[k] for k in order]
    changed = in_file.replace_extras((number + 1, text) for number, text in in_file.iterate_extras())
    assert [ref.extra for ref in changed] == [(k + 1, "x" * k) for k in range(50)]


def test_a_full_disk_is_named(monkeypatch) -> None:
    class FullFile:
        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(large_column.tempfile, "SpooledTemporaryFile", lambda size: FullFile())
    column = LargeColumn()
    with pytest.raises(DataError) as error:
        column.append(to_array(VALUES))
    assert str(error.value) == (
        f"Could not write to the temporary folder {tempfile.gettempdir()}: No space left on device. "
        "Free some, or set TMPDIR to a folder with more room, and run the same command again."
    )
