"""Parquet files that hold the images themselves: what becomes of each column, and which files are of the kind."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from beam_jobs.config import ShardConfig, TableColumns
from beam_jobs.inputs.recognize import find_kind
from beam_jobs.plan.image_ref import FileRef, ImageLocation
from tests.beam_jobs.datasets import list_source, make_dataset, read_quarantine, read_records, refuse_source
from tests.beam_jobs.images import make_jpeg, write_files
from tests.beam_jobs.inputs.parquet_files import damage, describe_classes, write_parquet
from tests.export.datasets import describe_records, make_photo_dataset
from tests.mask_files import make_mask
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError
from tfpipe.export.run import ExportConfig, export
from tfpipe.format.schema import FeatureSpec

JPEGS = [make_jpeg(k) for k in range(5)]


def is_recognized(source: Path, **options: Any) -> bool:
    return find_kind(ShardConfig(str(source), "/out", **options)) == "parquet"


def write_hub_folder(folder: Path) -> Path:
    """Writes a folder as Hugging Face's hub has it: two splits, classes with names, captions."""
    classes = describe_classes("owl", "cat")
    for name, numbers in (("train-00000-of-00001", (0, 1, 2)), ("test-00000-of-00001", (3,))):
        images = [{"bytes": JPEGS[k], "path": f"{k}.jpg"} for k in numbers]
        labels, texts = [k % 2 for k in numbers], [f"text {k}" for k in numbers]
        write_parquet(folder / f"data/{name}.parquet", images, metadata=classes, label=labels, text=texts, n=numbers)
    (folder / "README.md").write_text("About.")
    return folder


def test_a_folder_of_the_hub_gives_splits_classes_and_texts(tmp_path: Path) -> None:
    listing = list_source(write_hub_folder(tmp_path / "birds"))
    assert (listing.name, listing.root, listing.skipped) == ("birds", f"{tmp_path}/birds", {})
    assert listing.label_names == ("owl", "cat")
    assert listing.extra == (FeatureSpec.make_text("text"), FeatureSpec("n", "int64", ()))
    test, train = "data/test-00000-of-00001", "data/train-00000-of-00001"
    assert [(ref.path, ref.split, ref.label, ref.extra) for ref in listing.images] == [
        (f"{test}/00000001-3.jpg", "test", "cat", ("text 3", 3)),
        (f"{train}/00000001-0.jpg", "train", "owl", ("text 0", 0)),
        (f"{train}/00000002-1.jpg", "train", "cat", ("text 1", 1)),
        (f"{train}/00000003-2.jpg", "train", "owl", ("text 2", 2)),
    ]
    assert [ref.location for ref in listing.images][1:] == [
        ImageLocation(f"{train}.parquet", 0, row_group=0),
        ImageLocation(f"{train}.parquet", 1, row_group=0),
        ImageLocation(f"{train}.parquet", 0, row_group=1),
    ]
    sizes = [ref.size for ref in listing.images]
    assert sizes[1] == sizes[2] >= (len(JPEGS[0]) + len(JPEGS[1])) // 2  # the mean of a row group with its headers


def test_records_hold_the_bytes_the_class_and_the_text(tmp_path: Path) -> None:
    manifest = make_dataset(write_hub_folder(tmp_path / "birds"), tmp_path / "out")
    records = sorted(read_records(tmp_path / "out"), key=lambda record: record["n"][0])
    assert [record["image/encoded"][0] for record in records] == JPEGS[:3]
    assert [record["image/class/text"] for record in records] == [[b"owl"], [b"cat"], [b"owl"]]
    assert [record["text"] for record in records] == [[b"text 0"], [b"text 1"], [b"text 2"]]
    assert {name: split.records for name, split in manifest.splits.items()} == {"train": 3, "test": 1}


def test_one_file_or_a_pattern_is_an_input_too(tmp_path: Path) -> None:
    folder = write_hub_folder(tmp_path / "birds") / "data"
    one = list_source(folder / "train-00000-of-00001.parquet")
    assert [(ref.path, ref.split, ref.location.file) for ref in one.images][:1] == [
        ("train-00000-of-00001/00000001-0.jpg", "", "train-00000-of-00001.parquet")
    ]
    by_pattern = list_source(folder / "*-of-00001.parquet")
    assert [ref.split for ref in by_pattern.images] == ["test", "train", "train", "train"]


@pytest.mark.parametrize("kind", ["binary", "large_binary", "binary_view"])
def test_the_bytes_alone_are_images_too(tmp_path: Path, kind: str) -> None:
    table = pyarrow.table({"image": pyarrow.array(JPEGS[:2], getattr(pyarrow, kind)())})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert [ref.path for ref in list_source(tmp_path / "t.parquet").images] == ["t/00000001", "t/00000002"]
    make_dataset(tmp_path / "t.parquet", tmp_path / "out", shuffle=False)
    assert [record["image/encoded"] for record in read_records(tmp_path / "out")] == [[JPEGS[0]], [JPEGS[1]]]


def test_other_names_are_taken_where_only_one_column_fits(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", JPEGS[:2], y=[1, 0])
    table = pyarrow.parquet.read_table(path).rename_columns(["img", "y"])
    metadata = {"huggingface": describe_classes("a", "b", column="y")}
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), path)
    listing = list_source(path)
    assert ([ref.label for ref in listing.images], listing.label_names, listing.extra) == (["b", "a"], ("a", "b"), ())


@pytest.mark.parametrize(
    "metadata",
    [
        *("", "{", "[]", '{"info": null}', '{"info": {"features": {"label": 1}}}', "[" * 100_000, "\udcff"),
        *(describe_classes(), describe_classes(1, 2), describe_classes("a", "a"), describe_classes("a", "\ud800")),
    ],
    ids=range(11),
)
def test_class_names_that_are_not_valid_are_ignored(tmp_path: Path, metadata: str) -> None:
    data = metadata.encode("utf-8", "surrogateescape") if "\udcff" in metadata else metadata
    path = write_parquet(tmp_path / "t.parquet", JPEGS[:2], metadata=data, label=[1, 0])
    assert list_source(path).label_names == ("0", "1")


def test_names_of_classes_must_fit(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t-1.parquet", JPEGS[:2], metadata=describe_classes("a", "b"), label=[0, 2])
    message = f"The metadata of {tmp_path}/t-1.parquet names 2 classes, but label 2 occurs."
    assert refuse_source(tmp_path / "t-1.parquet") == message
    write_parquet(tmp_path / "t-2.parquet", JPEGS[:1], metadata=describe_classes("b", "a"), label=[0])
    assert refuse_source(tmp_path / "t-*.parquet") == (
        f"The files of {tmp_path}/t-*.parquet must name the same classes, but one names a, b and one b, a. Give the "
        "names with `labels`."
    )
    (tmp_path / "labels.txt").write_text("x\ny\nz\n")
    assert list_source(tmp_path / "t-*.parquet", labels=str(tmp_path / "labels.txt")).label_names == ("x", "y", "z")


def test_a_class_of_minus_one_is_none(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", JPEGS[:2], metadata=describe_classes("a"), label=[-1, -1])
    assert list_source(path).label_names == ()
    write_parquet(path, JPEGS[:2], metadata=describe_classes("a"), label=[0, -1])
    assert refuse_source(path) == (
        f"{path}: every row must have a 'label' or none may, but 1 of 2 have none, such as t/00000002. "
        "Give them one, or take these rows out."
    )


def test_columns_of_other_types_become_text(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "t.parquet",
        JPEGS[:2],
        caption=["Größe", None],
        captions=[["a", "b"], []],
        objects=[{"id": [1, 2]}, {"id": []}],
        taken=[datetime.date(2026, 1, 2), None],
        kind=pyarrow.array(["x", "y"]).dictionary_encode(),
    )
    listing = list_source(path)
    assert [(spec.name, spec.kind, spec.shape) for spec in listing.extra] == [
        ("caption", "text", ()),
        ("captions", "text", None),
        ("objects", "text", ()),
        ("taken", "text", None),
        ("kind", "text", ()),
    ]
    assert [ref.extra for ref in listing.images] == [
        ("Größe", ["a", "b"], '{"id": [1, 2]}', ["2026-01-02"], "x"),
        ("", [], '{"id": []}', [], "y"),
    ]


def test_parquet_files_without_images_are_named(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "t.parquet")
    assert refuse_source(tmp_path / "t.parquet") == (
        f"{tmp_path}/t.parquet must have a column 'image', got text. Say which one holds the images with "
        "`image_column`. Without images it needs lists of numbers."
    )
    assert refusal(DataError, make_dataset, tmp_path, tmp_path.with_name("out")) == (
        f"No images were found in {tmp_path}. Skipped by name: 1 *.parquet. Parquet files without images need lists of "
        "numbers, and no other files beside them."
    )
    path = write_parquet(tmp_path / "u.parquet", JPEGS[:1], depth=[{"bytes": b"1", "path": "1.png"}])
    assert refuse_source(path) == (
        f"{path}: column 'depth' must hold numbers, texts, or lists and structs of such, got struct<bytes: binary, "
        "path: string>. Only one column can hold images, and one masks, which `mask_column` names; write the table "
        "without the others."
    )


MASKS = [make_mask(k) for k in range(5)]
STRUCTS = [{"bytes": mask, "path": None} for mask in MASKS]


@pytest.mark.parametrize("name", ["image/mask", "mask", "annotation", "label", "segmentation", "segmentation_mask"])
def test_a_column_of_masks_is_recognized(tmp_path: Path, name: str) -> None:
    listing = list_source(write_parquet(tmp_path / "t.parquet", JPEGS, **{name: STRUCTS}, text=["x"] * 5))
    assert (listing.label_names, listing.extra) == ((), (FeatureSpec.make_text("text"),))
    (size,) = {FileRef(*ref.mask).size for ref in list(listing.images)[:2]}
    assert [FileRef(*ref.mask) for ref in listing.images][:2] == [
        FileRef(name, size, "t.parquet", row, row_group=0) for row in (0, 1)
    ]
    assert size >= len(MASKS[0])


def read_pairs(output: Path) -> set[tuple[bytes, bytes]]:
    return {(record["image/encoded"][0], record["image/mask"][0]) for record in read_records(output)}


def test_masks_of_parquet_files_are_stored_with_their_images(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", JPEGS, annotation=STRUCTS, label=[0, 1, 0, 1, 0])
    manifest = make_dataset(path, tmp_path / "out", num_shards=2)
    assert read_pairs(tmp_path / "out") == set(zip(JPEGS, MASKS, strict=True))
    assert manifest.label_names == ("0", "1")
    # With other names only the option can say which column is which.
    table = pyarrow.parquet.read_table(path).rename_columns(["photo", "classes", "label"])
    pyarrow.parquet.write_table(table, tmp_path / "other.parquet")
    assert "must have a column 'image'" in refuse_source(tmp_path / "other.parquet")
    options = {"columns": TableColumns(mask_column="classes"), "drop_duplicates": True}
    make_dataset(tmp_path / "other.parquet", tmp_path / "again", **options)
    assert read_pairs(tmp_path / "again") == set(zip(JPEGS, MASKS, strict=True))


def test_masks_that_are_bytes_or_paths(tmp_path: Path) -> None:
    write_files(tmp_path, {f"{k}.png": mask for k, mask in enumerate(MASKS)})
    for name, values in (("bytes", MASKS), ("paths", [f"{k}.png" for k in range(5)])):
        make_dataset(write_parquet(tmp_path / f"{name}.parquet", JPEGS, mask=values), tmp_path / name)
        assert read_pairs(tmp_path / name) == set(zip(JPEGS, MASKS, strict=True))


def test_a_row_without_a_mask_is_quarantined(tmp_path: Path) -> None:
    masks = [*STRUCTS[:2], None, {"bytes": b"GIF89a", "path": None}, {"bytes": None, "path": "gone.png"}]
    make_dataset(write_parquet(tmp_path / "t.parquet", JPEGS, mask=masks), tmp_path / "out", max_bad=3)
    assert {(line["path"], line["kind"], line["reason"]) for line in read_quarantine(tmp_path / "out")} == {
        ("t/00000003", "unreadable", "its mask: the row holds neither bytes nor a path"),
        ("t/00000004", "bad", "its mask: it is not a PNG"),
        ("t/00000005", "unreadable", "its mask: cannot be read: No such file or directory"),
    }
    write_parquet(tmp_path / "u-1.parquet", JPEGS[:2], mask=STRUCTS[:2])
    write_parquet(tmp_path / "u-2.parquet", JPEGS[2:4])
    make_dataset(tmp_path / "u-*.parquet", tmp_path / "u", max_bad=2)
    assert {row["reason"] for row in read_quarantine(tmp_path / "u")} == {"it has no mask, and other images have one"}


def test_a_missing_column_of_masks_is_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", JPEGS[:1])
    table = tmp_path / "t.csv"
    table.write_text("image,mask,seg\na.jpg,1,a.png\n")
    for source, names in ((path, "image"), (table, "image, mask, seg")):
        message = f"`mask_column` must name a column of {source} ({names}), got 'x'."
        assert refuse_source(source, ConfigError, columns=TableColumns(mask_column="x")) == message
    (ref,) = list_source(table, columns=TableColumns(mask_column="seg")).images
    assert (ref.mask[0], ref.extra) == ("a.png", (1,))


def test_rows_of_a_damaged_row_group_are_counted(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", JPEGS, text=["a" * 50, "b", "c", "d", "e"])
    damage(path, "text", 1)
    listing = list_source(path)
    assert [ref.path for ref in listing.images] == ["t/00000001", "t/00000002", "t/00000005"]
    assert listing.skipped == {"row of a damaged row group": 2}
    assert make_dataset(path, tmp_path / "out").skipped == {"row of a damaged row group": 2}


def test_more_rows_than_bytes_are_refused(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"image": pyarrow.array([b"x"] * 100_000)}), tmp_path / "t.parquet")
    size = (tmp_path / "t.parquet").stat().st_size
    assert size < 100_000
    message = f"{tmp_path}/t.parquet must have a byte for each image at least, but claims 100,000 in {size:,}."
    assert refuse_source(tmp_path / "t.parquet") == message


def test_folders_are_recognized_by_looking(tmp_path: Path) -> None:
    hub = write_hub_folder(tmp_path / "hub")
    assert is_recognized(hub)
    assert is_recognized(hub, input_format="parquet")
    assert not is_recognized(hub, input_format="tree")
    write_files(hub, {"owl/1.jpg": JPEGS[0]})
    assert not is_recognized(hub)  # a class folder
    assert refuse_source(tmp_path / "none").endswith(f"; {tmp_path}/none does not exist.")
    write_files(
        tmp_path / "tars", {"0.tar": bytes(10240), "0.parquet": (hub / "data/test-00000-of-00001.parquet").read_bytes()}
    )
    assert not is_recognized(tmp_path / "tars")
    write_files(tmp_path / "damaged", {"0.parquet": b"x"})
    assert not is_recognized(tmp_path / "damaged")
    assert refuse_source(tmp_path / "damaged", input_format="parquet").startswith(
        f"{tmp_path}/damaged/0.parquet is damaged or is not a Parquet file ("
    )
    (tmp_path / "paths").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"image": ["1.jpg"]}), tmp_path / "paths/0.parquet")
    assert not is_recognized(tmp_path / "paths")
    (tmp_path / "empty").mkdir()
    message = f"{tmp_path}/empty must be a folder with .parquet files, but has none."
    assert refuse_source(tmp_path / "empty", input_format="parquet") == message


def test_an_export_to_parquet_comes_back(tmp_path: Path) -> None:
    """Images, splits, classes, boxes and columns are the same; their order and their names are new."""
    photos = make_photo_dataset(tmp_path)
    export(ExportConfig(str(photos), str(tmp_path / "parquet"), to="parquet", workers=1))
    make_dataset(tmp_path / "parquet", tmp_path / "again")
    for split in ("train", "test"):
        assert describe_records(tmp_path / "again", split) == describe_records(photos, split)
