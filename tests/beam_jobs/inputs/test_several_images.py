"""Several images a record: from tars of pairs, and from lists in Parquet files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from beam_jobs.shards import output_dir
from tests.beam_jobs.datasets import list_source, make_dataset, read_quarantine, read_records, refuse_source
from tests.beam_jobs.images import make_jpeg, make_png, write_files, write_tar
from tests.beam_jobs.inputs.parquet_files import IMAGE, write_columns, write_table
from tfpipe.format.manifest import ImagesPerRecord


def make_files(counts: Sequence[int], names: Sequence[str] = "0123456789") -> dict[str, bytes]:
    """Returns the files of pairs with these numbers of images, a caption and a class."""
    files: dict[str, bytes] = {}
    for record, count in enumerate(counts):
        files |= {f"{record:03}.{name}.jpg": make_jpeg(10 * record + k) for k, name in enumerate(names[:count])}
        files |= {f"{record:03}.txt": f"caption {record}".encode(), f"{record:03}.cls": b"%d" % (record % 2)}
    return files


def read_lists(output: Path) -> dict[str, list[bytes]]:
    return {record["caption"][0].decode(): record["image/encoded"] for record in read_records(output)}


def read_reasons(output: Path) -> list[str]:
    return sorted(line["reason"] for line in read_quarantine(output))


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_named_images_of_a_tar_become_a_list(tmp_path: Path, suffix: str) -> None:
    source = write_tar(tmp_path / f"a.{suffix}", make_files([3, 3, 3]), "w:gz" if suffix == "tar.gz" else "w")
    manifest = make_dataset(source, tmp_path / "out")
    assert manifest.schema["image/encoded"].shape == (3,)
    assert manifest.splits["train"].images_per_record == ImagesPerRecord(9, 3, 3)
    assert read_lists(tmp_path / "out") == {
        f"caption {record}": [make_jpeg(10 * record + k) for k in range(3)] for record in range(3)
    }
    for record in read_records(tmp_path / "out"):
        key = int(record["caption"][0].split()[1])
        assert record["image/filename"] == [f"{key:03}.{k}.jpg".encode() for k in range(3)]


def test_images_come_in_the_order_of_their_names_and_numbers(tmp_path: Path) -> None:
    names = ("10", "9", "right", "left", "img2", "img10", "007")
    (image,) = list_source(write_tar(tmp_path / "a.tar", make_files([len(names)], names))).images
    ordered = ("007", "9", "10", "img2", "img10", "left", "right")
    assert [part[0] for part in image.images] == [f"000.{name}.jpg" for name in ordered]
    assert image.size == sum(len(make_jpeg(k)) for k in range(len(names)))
    listing = list_source(write_tar(tmp_path / "b.tar", make_files([2, 3, 1])))
    assert listing.make_schema()["image/encoded"].shape is None
    assert sorted(image.num_images for image in listing.images) == [1, 2, 3]


def test_beside_a_single_image_others_are_no_list(tmp_path: Path) -> None:
    files = {"1.jpg": make_jpeg(1), "1.depth.png": make_png(2), "1.txt": b"a", "2.depth.png": make_png(3), "2.txt": b""}
    write_tar(tmp_path / "in/a.tar", files)
    write_tar(tmp_path / "in/b.tar", {"3.depth.png": make_png(4), "3.txt": b""})
    listing = list_source(tmp_path / "in")
    assert [image.path for image in listing.images] == ["a/1.jpg"]
    assert listing.make_schema()["image/encoded"].shape == ()
    assert listing.skipped == {
        "further file of a pair": 1,
        "pair without an image KEY.jpg (KEY ends at the first dot)": 2,
    }


def test_equal_lists_of_a_tar_are_copies(tmp_path: Path) -> None:
    files = make_files([2, 2, 2])
    files |= {f"001.{k}.jpg": files[f"000.{k}.jpg"] for k in (0, 1)}  # equal to the first
    files |= {f"002.{k}.jpg": files[f"000.{1 - k}.jpg"] for k in (0, 1)}  # the same in another order
    source = write_tar(tmp_path / "a.tar", files)
    manifest = make_dataset(source, tmp_path / "out", drop_duplicates=True)
    assert (manifest.splits["train"].records, manifest.duplicates.dropped) == (2, 1)
    assert make_dataset(source, tmp_path / "kept").duplicates.within == {"train": 1}


def make_lists(counts: Sequence[int]) -> list[list[bytes]]:
    return [[make_jpeg(10 * row + k) for k in range(count)] for row, count in enumerate(counts)]


def write_lists(path: Path, lists: Sequence[Any], **columns: Any) -> Path:
    """Writes rows of images, each with a caption, in row groups of two."""
    rows = [
        images and [{"bytes": image, "path": None} if isinstance(image, bytes) else image for image in images]
        for images in lists
    ]
    captions = [f"caption {row}" for row in range(len(lists))]
    columns = {"images": pyarrow.array(rows, pyarrow.list_(IMAGE)), "caption": captions, **columns}
    return write_columns(path, columns, group_rows=2)


@pytest.mark.parametrize("copies", [False, True])
def test_lists_in_a_parquet_file_become_records(tmp_path: Path, monkeypatch, *, copies: bool) -> None:
    lists = make_lists([3] * 7)
    source = write_lists(tmp_path / "t.parquet", lists)
    monkeypatch.setattr(output_dir, "_COPY_ROWS_FROM_SHARDS", 1 if copies else 99)
    assert make_dataset(source, tmp_path / "out", num_shards=3, workers=1).schema["image/encoded"].shape == (3,)
    assert read_lists(tmp_path / "out") == {f"caption {row}": images for row, images in enumerate(lists)}
    names = sorted(record["image/filename"] for record in read_records(tmp_path / "out"))
    assert names[0] == [b"t/00000001/0", b"t/00000001/1", b"t/00000001/2"]


def test_rows_without_images_and_with_bad_ones_are_quarantined(tmp_path: Path) -> None:
    good = make_lists([2, 2])
    lists = [*good, [], None, [make_jpeg(1), b"damaged"], [{"bytes": None, "path": None}, make_jpeg(2)]]
    manifest = make_dataset(write_lists(tmp_path / "t.parquet", lists), tmp_path / "out", max_bad=4)
    assert (manifest.schema["image/encoded"].shape, manifest.splits["train"].records) == ((2,), 2)
    empty, damaged, *others = read_reasons(tmp_path / "out")
    assert empty == "image 0: the row holds neither bytes nor a path"
    assert damaged.startswith("image 1: ")
    assert others == ["the row holds 0 images, and a record has 1 to 1,024"] * 2


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (pyarrow.large_list(IMAGE), (2,)),
        (pyarrow.list_(IMAGE, 2), (2,)),
        (pyarrow.list_(pyarrow.struct({"bytes": pyarrow.binary()})), None),
    ],
    ids=["large", "fixed", "without paths"],
)
def test_other_kinds_of_lists_are_taken(tmp_path: Path, kind: Any, shape: tuple[int] | None) -> None:
    rows = [[{"bytes": image} for image in images] for images in make_lists([2, 2])]
    pyarrow.parquet.write_table(pyarrow.table({"views": pyarrow.array(rows, kind)}), tmp_path / "t.parquet")
    manifest = make_dataset(tmp_path / "t.parquet", tmp_path / "out")
    assert manifest.schema["image/encoded"].shape == shape
    assert manifest.splits["train"].images_per_record == ImagesPerRecord(4, 2, 2)


def write_paths(path: Path, counts: Sequence[int]) -> Path:
    """Writes a table whose rows name some images each, and the images."""
    rows = [
        {"images": [f"{row}/{k}.jpg" for k in range(count)], "label": f"c{row % 2}", "caption": f"caption {row}"}
        for row, count in enumerate(counts)
    ]
    for row, images in zip(rows, make_lists(counts), strict=True):
        write_files(path.parent, dict(zip(row["images"], images, strict=True)))
    return write_table(path, rows)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_table_may_list_the_images_of_a_record(tmp_path: Path, suffix: str) -> None:
    source, lists = write_paths(tmp_path / f"t.{suffix}", [3] * 5), make_lists([3] * 5)
    manifest = make_dataset(source, tmp_path / "out", num_shards=2, workers=1)
    assert (manifest.schema["image/encoded"].shape, manifest.label_names) == ((3,), ("c0", "c1"))
    assert read_lists(tmp_path / "out") == {f"caption {row}": images for row, images in enumerate(lists)}
    names = sorted(record["image/filename"] for record in read_records(tmp_path / "out"))
    assert names[0] == [b"0/0.jpg", b"0/1.jpg", b"0/2.jpg"]
    assert [image.size for image in list_source(source).images] == [sum(map(len, images)) for images in lists]


def test_a_missing_file_of_a_list_is_named_by_its_number(tmp_path: Path) -> None:
    source = write_paths(tmp_path / "t.csv", [2, 2, 2])
    (tmp_path / "1/1.jpg").unlink()
    manifest = make_dataset(source, tmp_path / "out", max_bad=0, allow_missing=True)
    assert (manifest.splits["train"].records, manifest.quarantined) == (2, 1)
    assert read_reasons(tmp_path / "out") == ["image 1: cannot be read: No such file or directory"]


NOT_PATHS = "a list of images must have 1 to 1,024 paths, got"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"images": []}, f"{NOT_PATHS} []."),
        ({"image": ["a.jpg", 3]}, f"{NOT_PATHS} ['a.jpg', 3]."),
        ({"images": "a.jpg"}, "'images' must be a list of paths, got 'a.jpg'."),
        ({"images": None}, "'images' must be a list of paths, got None."),
        (
            {"images": ["a.jpg"], "mask": "m.png"},
            "a mask belongs to a single image, and this row holds a list of images.",
        ),
    ],
)
def test_a_list_of_a_table_must_be_valid(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(row))
    assert refuse_source(path) == f"{path}, row 1: {message}"


def test_masks_and_boxes_do_not_go_with_lists(tmp_path: Path) -> None:
    mask = pyarrow.array([{"bytes": make_png(1), "path": None}], IMAGE)
    path = write_lists(tmp_path / "t.parquet", make_lists([2]), mask=mask)
    assert refuse_source(path) == (
        f"{path}: a mask belongs to a single image, and column 'images' holds lists of images. Write the table without "
        "the column 'mask'."
    )
    sides = {name: [[0.5]] for name in ("xmin", "ymin", "xmax", "ymax")}
    path = write_lists(tmp_path / "t.parquet", make_lists([2]), **sides)
    assert refuse_source(path) == f"{path}, row 1: boxes belong to a single image, and this row holds a list of images."


def test_all_rows_have_one_image_or_all_a_list(tmp_path: Path) -> None:
    write_lists(tmp_path / "in/a.parquet", make_lists([2]))
    one = pyarrow.array([{"bytes": make_jpeg(1), "path": None}], IMAGE)
    pyarrow.parquet.write_table(pyarrow.table({"image": one}), tmp_path / "in/b.parquet")
    message = refuse_source(tmp_path / "in")
    assert message == f"Every row of {tmp_path / 'in'} must hold one image, or every row a list of images."
