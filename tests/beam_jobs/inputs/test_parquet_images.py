"""Images in rows of Parquet files: each row group is read once, in small batches, with a reason for what is not."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.config import USUAL_COLUMNS
from beam_jobs.inputs import parquet_images
from beam_jobs.inputs.parquet_images import Cell, CopiedRows, copy_rows, list_cells, read_cells
from beam_jobs.inputs.parquet_rows import read_batches
from beam_jobs.inputs.read_image import UnreadableError
from beam_jobs.plan.image_ref import ImageLocation, ImageRef
from beam_jobs.shards import image_files, output_dir
from tests.beam_jobs.datasets import list_source, make_dataset, read_tree, refuse_source
from tests.beam_jobs.images import make_jpeg, write_files
from tests.beam_jobs.inputs.parquet_files import damage, write_parquet
from tests.mask_files import make_mask
from tests.refusals import refusal
from tfpipe.system.budget import Budget, OverBudget

JPEGS = [make_jpeg(k, size=(16 + 8 * k, 16)) for k in range(9)]


@pytest.fixture
def groups(monkeypatch) -> list[int]:
    """The row groups that were read, in their order."""
    numbers: list[int] = []
    read = parquet_images._read_members

    def read_members(table: Any, columns: Any, cells: list[Cell], positions: list[int], *others: Any) -> Iterator[Any]:
        numbers.append(cells[positions[0]].row_group)
        yield from read(table, columns, cells, positions, *others)

    monkeypatch.setattr(parquet_images, "_read_members", read_members)
    return numbers


def read_all(path: Path, refs: list[ImageRef]) -> list[bytes | str]:
    """Returns the bytes of each image, or the reason why there are none."""
    found = dict(read_cells(str(path.parent), USUAL_COLUMNS, list_cells(refs)))
    assert sorted(found) == list(range(len(refs)))
    return [str(data) if isinstance(data, UnreadableError) else data for _, data in sorted(found.items())]


def list_refs(path: Path) -> list[ImageRef]:
    return list(list_source(path).images)


def copy_all(folder: Path) -> CopiedRows:
    """Copies the rows of `t.parquet` and opens the copy."""
    copy_rows(str(folder), USUAL_COLUMNS, ("t.parquet", str(folder / "t.rows")))
    return CopiedRows(str(folder / "t.rows"))


def test_images_come_in_any_order_and_a_row_group_is_read_once(tmp_path: Path, groups: list[int], monkeypatch) -> None:
    path = write_parquet(tmp_path / "t.parquet", JPEGS, group_rows=4)
    refs = list_refs(path)
    order = [7, 0, 3, 1, 6, 5]
    assert read_all(path, [refs[k] for k in order]) == [JPEGS[k] for k in order]
    assert groups == [0, 1]
    monkeypatch.setattr(parquet_images, "_BATCH_BYTES", 1)
    path = write_parquet(tmp_path / "t.parquet", JPEGS, group_rows=9)
    assert read_all(path, list_refs(path)[::-1]) == JPEGS[::-1]


def test_a_row_without_bytes_names_a_file_beside_the_table(tmp_path: Path, monkeypatch) -> None:
    write_files(tmp_path, {"data/x/1.jpg": JPEGS[1], "2.jpg": JPEGS[2]})
    rows = [
        *({"bytes": JPEGS[0], "path": "x/1.jpg"}, {"bytes": None, "path": "x/1.jpg"}),
        *({"bytes": None, "path": str(tmp_path / "data/x/1.jpg")}, {"bytes": None, "path": "gone.jpg"}),
        *({"bytes": None, "path": str(tmp_path / "2.jpg")}, {"bytes": None, "path": "../2.jpg"}),
        *({"bytes": None, "path": None}, None, {"bytes": b"", "path": "a\0b"}),
    ]
    path = write_parquet(tmp_path / "data/t.parquet", rows)
    assert read_all(path, list_refs(path)) == [
        *(JPEGS[0], JPEGS[1], JPEGS[1], "cannot be read: No such file or directory"),
        f"the row holds no bytes, and its path {tmp_path}/2.jpg lies outside of the table's folder",
        "the row holds no bytes, and its path ../2.jpg lies outside of the table's folder",
        *("the row holds neither bytes nor a path", "the row holds neither bytes nor a path", b""),
    ]
    path = write_parquet(tmp_path / "t.parquet", [JPEGS[0], {"bytes": None, "path": "2.jpg"}])
    monkeypatch.setattr(parquet_images, "MAX_SOURCE_BYTES", 99)
    assert read_all(path, list_refs(path)) == [
        f"{len(data)} bytes, more than the 99 that one record can hold" for data in (JPEGS[0], JPEGS[2])
    ]


def test_a_file_that_has_changed_is_told(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", JPEGS[:3])
    places = [ImageLocation("t.parquet", 5, row_group=0), ImageLocation("t.parquet", 0, row_group=7)]
    refs = [ImageRef("a", 1, place) for place in places]
    assert read_all(path, refs) == [f"t.parquet has changed: row group {k} has no such row" for k in (0, 7)]
    path.write_bytes(b"x")
    (reason,) = read_all(path, refs[:1])
    assert str(reason).startswith("cannot be read: t.parquet is damaged (")
    path.unlink()
    assert read_all(path, refs[:1]) == ["cannot be read: No such file or directory"]


def test_shards_are_the_same_whatever_is_read_at_once(tmp_path: Path, monkeypatch, groups: list[int]) -> None:
    path = write_parquet(tmp_path / "t.parquet", JPEGS, group_rows=2)
    make_dataset(path, tmp_path / "at_once", num_shards=1)
    assert groups == [0, 1, 2, 3, 4]
    for limit, value in (("_BLOCK_BYTES", 1), ("_BLOCK_BYTES", 1000), ("_MAX_BLOCK_IMAGES", 1)):
        monkeypatch.setattr(image_files, limit, value)
        make_dataset(path, tmp_path / f"{limit}{value}", num_shards=1)
        assert read_tree(tmp_path / f"{limit}{value}") == read_tree(tmp_path / "at_once")


NAMES = [f"train-{k:05}-of-00004.tfrecord" for k in range(4)]


def test_many_shuffled_shards_read_each_row_group_once(tmp_path: Path, monkeypatch, groups: list[int]) -> None:
    masks = [{"bytes": make_mask(k, size=(16 + 8 * k, 16)), "path": None} for k in range(9)]
    rows = [*JPEGS[:6], {"bytes": None, "path": "x.jpg"}, {"bytes": None, "path": "gone.jpg"}, None]
    write_files(tmp_path, {"x.jpg": JPEGS[6]})
    for number in (1, 2):
        write_parquet(tmp_path / f"t-{number}.parquet", rows, group_rows=3, mask=masks)
    damage(tmp_path / "t-2.parquet", "image.bytes", 1)
    options = {"num_shards": 4, "max_bad": 1.0, "workers": 1}
    make_dataset(tmp_path / "t-*.parquet", tmp_path / "copied", **options)
    assert groups[:6] == [0, 1, 2, 0, 1, 2]
    assert set(groups[6:]) == {1, 2}  # again for what could not be read
    monkeypatch.setattr(output_dir, "_COPY_ROWS_FROM_SHARDS", 99)
    make_dataset(tmp_path / "t-*.parquet", tmp_path / "direct", **options)
    copied, direct = read_tree(tmp_path / "copied"), read_tree(tmp_path / "direct")
    assert copied.keys() == direct.keys()
    same = [*NAMES, "quarantine/quarantined.jsonl"]
    assert {name: copied[name] for name in same} == {name: direct[name] for name in same}
    quarantined = copied["quarantine/quarantined.jsonl"].decode()
    assert len(quarantined.splitlines()) == 2 * 2 + 3
    assert quarantined.count('"reason": "row group 1 of t-2.parquet is damaged (') == 3


def test_rows_are_copied_only_where_it_pays(tmp_path: Path, monkeypatch) -> None:
    path = write_parquet(tmp_path / "t.parquet", JPEGS)
    copied: list[str] = []
    monkeypatch.setattr(output_dir, "copy_rows", lambda root, mask, file: copied.append(file[0]))
    make_dataset(path, tmp_path / "few", num_shards=3)
    make_dataset(path, tmp_path / "in_order", num_shards=9, shuffle=False)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2 * len(b"".join(JPEGS))))
    make_dataset(path, tmp_path / "full", num_shards=9)
    assert copied == []


def test_a_copy_is_used_again_and_knows_what_it_lacks(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", [*JPEGS[:2], None])
    copy_all(tmp_path)
    path.unlink()
    copy = copy_all(tmp_path)
    cell = Cell("t.parquet", 0, 1, 1)
    assert copy.read(cell) == JPEGS[1]
    missing = {"row_group": 1}, {"row_group": 2}, {"row": 2}, {"is_mask": True}
    assert [copy.read(cell._replace(**{"row": 0, **change})) for change in missing] == [None] * 4
    (tmp_path / "t.rows").write_bytes(JPEGS[0])  # it was cut
    assert (copy.read(cell._replace(row=0)), copy.read(cell)) == (JPEGS[0], None)


def test_of_a_file_that_is_damaged_or_lies_the_copy_is_empty(tmp_path: Path, groups: list[int]) -> None:
    path = write_parquet(tmp_path / "t.parquet", [None] * 100_000, group_rows=100_000)
    assert path.stat().st_size < 100_000  # more rows than bytes are not believed
    assert copy_all(tmp_path).read(Cell("t.parquet", 0, 0, 1)) is None
    path.write_bytes(b"x")
    (tmp_path / "t.rows").unlink()
    assert copy_all(tmp_path).read(Cell("t.parquet", 0, 0, 1)) is None
    assert groups == []


LONG = "x" * (1 << 20)


def repeat(text: Any, rows: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def count_rows(path: Path, *, with_file: bool = True, **limits: int) -> list[int]:
    with path.open("rb") as file:
        table = pq.ParquetFile(file)
        given = file if with_file else None
        return [batch.num_rows for batch in read_batches(table, given, [0], None, Budget(**limits), 1000)]


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
    assert refusal(OverBudget, count_rows, tmp_path / "t.parquet", bytes=99 << 20) == "it takes too many bytes"
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
