"""CSV, JSONL and Parquet manifests: the meaning of every cell, and a message for every mistake."""

import datetime
import decimal
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from beam_jobs.config import ShardConfig, TableColumns
from beam_jobs.inputs.label_file import OF_PANDAS
from beam_jobs.inputs.table_files import is_table
from beam_jobs.plan.listing import Listing
from beam_jobs.shard_job import plan_shards
from tests.beam_jobs.datasets import (
    list_source,
    make_dataset,
    parse_with_tensorflow,
    read_images,
    read_quarantine,
    read_records,
    refuse_source,
)
from tests.beam_jobs.images import make_jpeg, write_files
from tests.beam_jobs.inputs.parquet_files import write_parquet, write_table
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.schema import FeatureSpec

LONG = (64 << 20) + 1
NO_UTF_8 = ", row 1: not valid JSON ('utf-8' codec can't "
MORE = ", row 1: the row has more cells than the header names"
NO_NUMBERS = ", row 1: 'xmin': must be a number or a list of numbers, got"
NESTED = ", row 1: the row cannot be read: it is nested more than 100 levels deep."
KINDS = ("csv", "jsonl", "parquet")
WriteRows = Callable[..., Path]


def list_rows(path: Path, rows: list[dict[str, Any]], **options: Any) -> Listing:
    return list_source(write_table(path, rows), **options)


def test_a_table_in_many_files_is_one_table(tmp_path: Path) -> None:
    """Files come in the order of their names; a folder and a pattern name the same files."""
    rows = [{"image": f"{k}.jpg", "label": "ab"[k % 2], "n": k} for k in range(7)]
    whole = list_rows(tmp_path / "whole.parquet", rows)
    folder = tmp_path / "photos.parquet"
    folder.mkdir()
    for name, part in (("part-2", rows[4:]), ("part-1", rows[:4])):
        write_table(folder / f"{name}.parquet", part)
        write_table(tmp_path / f"photos-{name}.csv", part)
    (folder / "_SUCCESS.parquet").write_bytes(b"")
    for listing in [list_source(folder), list_source(tmp_path / "photos-*.csv")]:
        assert list(listing.images) == list(whole.images)
        assert (listing.name, listing.root, listing.extra) == ("photos", str(tmp_path), whole.extra)
    assert list_source(tmp_path / "[p]hotos-part-?.csv").name == tmp_path.name


def test_faults_name_the_file_and_the_row(tmp_path: Path) -> None:
    write_table(tmp_path / "t-1.csv", [{"image": "1.jpg"}])
    write_table(tmp_path / "t-2.csv", [{"image": "2.jpg"}, {"image": ""}])
    assert refuse_source(tmp_path / "t-*.csv") == f"{tmp_path}/t-2.csv, row 2: 'image' must be a path, got None."
    write_table(tmp_path / "n-1.jsonl", [{"image": "1.jpg", "n": 1}])
    write_table(tmp_path / "n-2.jsonl", [{"image": "2.jpg", "n": "x"}])
    assert refuse_source(tmp_path / "n-*.jsonl") == (
        f"{tmp_path}/n-2.jsonl, row 1: column 'n' must hold numbers or texts of one kind, or lists of them, got 'x'."
    )
    message = f"At least one table must fit the pattern {tmp_path}/m-*.jsonl, but no file of {tmp_path} does."
    assert refuse_source(tmp_path / "m-*.jsonl") == message
    for k in range(2):
        (tmp_path / f"t-{k}.jsonl").write_text('{"image": "1", "x": 1}\n\n[]\n{"image": "1", "x": "%s"}\n' % ("a" * k))
    assert refuse_source(tmp_path / "t-*.jsonl").splitlines() == [
        f"{tmp_path}/t-0.jsonl, row 2: must be a JSON object, got list. So does row 2 of {tmp_path}/t-1.jsonl."
    ]


@pytest.fixture(params=KINDS)
def table(request, tmp_path: Path) -> Path:
    return tmp_path / f"t.{request.param}"


@pytest.fixture
def write_jsonl(tmp_path: Path) -> WriteRows:
    return lambda *rows: write_table(tmp_path / "t.jsonl", [*rows])


def test_tables_are_known_by_their_names() -> None:
    assert all(map(is_table, ("a.csv", "A.CSV", "a.jsonl", "a.ndjson", "a.tsv", "x/a.parquet", "s3://b/a.csv")))
    assert not any(map(is_table, ("a.json", "csv", "a.csv/", "a.csv.gz")))


def test_labels_and_splits_are_read(table: Path) -> None:
    write_files(table.parent, {"x/1.jpg": b"123", "2.jpg": b"45"})
    rows = [
        {"image": "x/1.jpg", "label": "dog", "split": "train"},
        {"image": "./y/../2.jpg", "label": "cat", "split": "test"},
        {"image": str(table.parent / "2.jpg"), "label": "dog", "split": "train"},
        {"image": "gone.jpg", "label": "cat", "split": "train"},
    ]
    listing = list_rows(table, rows)
    assert (listing.name, listing.root, listing.label_names) == ("t", str(table.parent), ("cat", "dog"))
    assert [(ref.path, ref.size, ref.split, ref.label) for ref in listing.images] == [
        ("x/1.jpg", 3, "train", "dog"),
        ("2.jpg", 2, "test", "cat"),
        (str(table.parent / "2.jpg"), 2, "train", "dog"),
        ("gone.jpg", 0, "train", "cat"),
    ]


@pytest.mark.parametrize(
    ("labels", "expected", "classes"),
    [
        ([3, 0], ["3", "0"], ("0", "1", "2", "3")),
        (["94105", "02134"], ["94105", "02134"], ("02134", "94105")),  # with leading zeros they are names
        (["2", "cat"], ["2", "cat"], ("2", "cat")),  # beside names they are names
        ([99_999], ["99999"], tuple(map(str, range(100_000)))),
        *(([n, "5", "99999"], [n, "5", "99999"], ("5", "99999", n)) for n in ("100000", "9780131103627", f"{10**30}")),
    ],
    ids="numbers zeros names highest large larger largest".split(),
)
def test_numbers_are_labels(table: Path, labels: list[Any], expected: list[str], classes: tuple[str, ...]) -> None:
    listing = list_rows(table, [{"image": f"{k}.jpg", "label": label} for k, label in enumerate(labels)])
    assert listing.label_names == classes
    assert [ref.label for ref in listing.images] == expected


def test_boxes_can_be_given_by_lists(table: Path) -> None:
    box = {"xmin": 0.25, "ymin": 0.5, "xmax": 0.75, "ymax": 1}
    (ref,) = list_rows(table, [{"image": "1.jpg", **box, "box_label": 4}]).images  # a number is a list of one
    assert (ref.boxes, ref.box_labels) == (((0.25, 0.5, 0.75, 1),), (4,))
    two = {"xmin": [0.0, 0.25], "ymin": [0.5, 0.0], "xmax": [0.5, 1.0], "ymax": [1.0, 0.25], "box_label": [7, 0]}
    none: dict[str, Any] = {"xmin": [], "ymin": [], "xmax": [], "ymax": [], "box_label": []}
    first, second = list_source(write_table(table, [{"image": "1.jpg", **two}, {"image": "2.jpg", **none}])).images
    assert (first.boxes, first.box_labels) == (((0.0, 0.5, 0.5, 1.0), (0.25, 0.0, 1.0, 0.25)), (7, 0))
    assert (second.boxes, second.box_labels) == ((), ())


def test_captions_are_text(table: Path) -> None:
    rows = [{"image": "1.jpg", "caption": "Größe", "note": "a"}, {"image": "2.jpg", "caption": None, "note": "b"}]
    listing = list_rows(table, rows)
    assert listing.extra == (FeatureSpec.make_text("caption"), FeatureSpec("note", "bytes", ()))
    assert [ref.extra for ref in listing.images] == [("Größe", "a"), ("", "b")]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_an_image_may_have_several_captions(tmp_path: Path, kind: str) -> None:
    write_files(tmp_path, {f"{k}.jpg": make_jpeg(k) for k in range(3)})
    captions = [["a dog", "ein Hündchen"], [], ["a cat"]]
    rows = [{"image": f"{k}.jpg", "caption": texts} for k, texts in enumerate(captions)]
    manifest = make_dataset(write_table(tmp_path / f"t.{kind}", rows), tmp_path / "out", shuffle=False)
    spec = manifest.schema["caption"]
    assert (spec.kind, spec.shape) == ("text", None)
    assert [spec.decode(record) for record in read_records(tmp_path / "out")] == captions


def test_group_by_names_a_column(table: Path) -> None:
    rows = [{"image": f"{i}.jpg", "who": f"p{i % 2}"} for i in range(3)]
    listing = list_rows(table, rows, group_by="who", splits={"a": 1.0})
    assert [ref.group for ref in listing.images] == ["p0", "p1", "p0"]
    assert listing.extra == (FeatureSpec("who", "bytes", ()),)
    for missing in ({"who": None}, {"who": ""}):
        listing = list_rows(table, [*rows, {"image": "3.jpg", **missing}], group_by="who", splits={"a": 1.0})
        assert [ref.group for ref in listing.images] == ["p0", "p1", "p0", ""]
    message = f"`group_by` must name a column of {table}, got 'whom'."
    assert refuse_source(table, ConfigError, group_by="whom", splits={"a": 1.0}) == message


def test_parquet_keeps_kinds_that_text_cannot_tell(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    columns = {
        "image": ["1.jpg", "2.jpg"],
        "label": pyarrow.array(["cat", "dog"]).dictionary_encode(),
        "raw": pyarrow.array([b"\xff\xfe", b"ok"]),
        "small": pyarrow.array([1, 2], pyarrow.int8()),
        "half": pyarrow.array(np.array([0.5, 2], np.float16)),
        "tags": pyarrow.array([["a", "b"], []]),
        "when": [datetime.datetime(2020, 1, 2, 3)] * 2,
        "price": [decimal.Decimal("1.50")] * 2,
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    listing = list_source(path)
    assert [(spec.name, spec.dtype, spec.shape) for spec in listing.extra] == [
        ("raw", "bytes", ()),
        ("small", "int64", ()),
        ("half", "float", ()),
        ("tags", "bytes", None),
        ("when", "bytes", ()),
        ("price", "bytes", ()),
    ]
    texts = ("2020-01-02 03:00:00", "1.50")
    assert [ref.extra for ref in listing.images] == [
        ("\udcff\udcfe", 1, 0.5, ["a", "b"], *texts),
        ("ok", 2, 2.0, [], *texts),
    ]


OBJECTS = [{"bbox": [[1, 2, 3, 4]], "categories": [0]}, {"bbox": [], "categories": []}]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "embedded"])
def test_structs_and_lists_of_lists_are_json_in_every_table(tmp_path: Path, kind: str) -> None:
    rows = [{"image": f"{k}.jpg", "objects": OBJECTS[k], "corners": [[1.5, k]]} for k in range(2)]
    if kind == "embedded":
        images = [make_jpeg(k) for k in range(2)]
        columns = {name: [row[name] for row in rows] for name in ("objects", "corners")}
        listing = list_source(write_parquet(tmp_path / "t.parquet", images, **columns))
    else:
        listing = list_rows(tmp_path / f"t.{kind}", rows)
    assert [(spec.name, spec.dtype, spec.shape) for spec in listing.extra] == [
        ("objects", "bytes", ()),
        ("corners", "bytes", ()),
    ]
    assert [[json.loads(cell) for cell in ref.extra] for ref in listing.images] == [
        [row["objects"], row["corners"]] for row in rows
    ]


def test_a_byte_order_mark_quotes_short_rows_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbfimage,note\r\n"a,b.jpg","two\nlines"\r\nc.jpg\r\n')
    listing = list_source(path)
    assert [(ref.path, ref.extra) for ref in listing.images] == [("a,b.jpg", (["two\nlines"],)), ("c.jpg", ([],))]
    path = tmp_path / "t.ndjson"
    path.write_bytes(b'\xef\xbb\xbf{"image": "a.jpg"}\n\n{"image": "b.jpg"}')
    assert [ref.path for ref in list_source(path).images] == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (",image,label\n0,1.jpg,cat\n1,2.jpg,dog\n", ["column_1"]),  # the index of pandas
        ("image;label;;\r\n1.jpg;cat;;\r\n2.jpg;dog;;\r\n;;;\r\n;;;\r\n", []),  # a spreadsheet
        ("image, label, note\n1.jpg, cat, a\n2.jpg, dog,b\n", ["note"]),  # by hand
        ("\ufeff\n \nimage,label\n1.jpg,cat\n2.jpg,dog\n", []),  # an editor
        ('image,label,"width, px"\n1.jpg,cat,3\n2.jpg,dog,4\n', ["width, px"]),  # a space inside a name
    ],
)
def test_a_csv_of_pandas_of_a_spreadsheet_and_by_hand(tmp_path: Path, text: str, columns: list[str]) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode())
    listing = list_source(tmp_path / "t.csv")
    assert [(ref.path, ref.label) for ref in listing.images] == [("1.jpg", "cat"), ("2.jpg", "dog")]
    assert listing.label_names == ("cat", "dog")
    assert [spec.name for spec in listing.extra] == columns


def test_paths_lead_below_the_table(write_jsonl: WriteRows, tmp_path: Path) -> None:
    inside = [f"{tmp_path}//x/../1.jpg", f"../{tmp_path.name}/2.jpg", "..3.jpg", "x/../4.jpg"]
    listing = list_source(write_jsonl(*({"image": path} for path in inside)), allow_missing=True)
    paths = [f"{tmp_path}/1.jpg", f"../{tmp_path.name}/2.jpg", "..3.jpg", "4.jpg"]
    assert [ref.path for ref in listing.images] == paths


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("../1.jpg", "../1.jpg"),
        ("x/../../1.jpg", "../1.jpg"),
        ("..", ".."),
        ("/etc//passwd", "/etc/passwd"),
        ("gs://bucket/1.jpg", "gs://bucket/1.jpg"),
    ],
)
def test_a_path_outside_of_the_folder_is_refused(write_jsonl: WriteRows, tmp_path: Path, path: str, shown: str) -> None:
    for rows in (
        [{"image": "0.jpg"}, {"image": path}],
        [{"image": "0.jpg", "mask": "0.png"}, {"image": "1.jpg", "mask": path}],
        [{"images": ["0.jpg"]}, {"images": ["1.jpg", path]}],
    ):
        assert refuse_source(write_jsonl(*rows), allow_missing=True) == (
            f"{tmp_path}/t.jsonl, row 2: a path must lead below {tmp_path}, got {shown}. Name the folder of all images "
            "and masks with `image_root`."
        )


def test_the_option_names_another_folder(tmp_path: Path) -> None:
    write_files(tmp_path, {"photos/a/1.jpg": make_jpeg(1), "photos/2.jpg": make_jpeg(2)})
    (tmp_path / "tables").mkdir()
    table = write_table(tmp_path / "tables/t.csv", [{"image": "a/1.jpg"}, {"image": f"{tmp_path}/photos/2.jpg"}])
    listing = list_source(table, image_root=f"{tmp_path}/photos")
    assert listing.root == f"{tmp_path}/photos"
    assert [(ref.path, ref.size) for ref in listing.images] == [
        ("a/1.jpg", len(make_jpeg(1))),
        (f"{tmp_path}/photos/2.jpg", len(make_jpeg(2))),
    ]
    outside = write_table(table, [{"image": "../tables/t.csv"}])
    assert refuse_source(outside, image_root=f"{tmp_path}/photos").startswith(
        f"{table}, row 1: a path must lead below {tmp_path}/photos, got ../tables/t.csv."
    )
    assert len(list_source(outside, image_root="/tmp/..", allow_missing=True).images) == 1
    embedded = write_parquet(tmp_path / "t.parquet", [make_jpeg(1)])
    message = f"`image_root` is for tables that name files, and {embedded} holds the images. Leave it out."
    assert refuse_source(embedded, ConfigError, image_root="/") == message


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/1.jpg?X-Amz-Signature=SECRET", "s3://bucket/1.jpg"),
        ("az://box/1.jpg?sig=SECRET more", "az://box/1.jpg"),
        ("s3://key:SECRET@bucket/1.jpg", "s3://...@bucket/1.jpg"),
    ],
)
def test_an_address_with_a_secret_is_refused_without_showing_it(write_jsonl: WriteRows, url: str, shown: str) -> None:
    table = write_jsonl({"image": "0.jpg"}, {"image": url})
    assert refuse_source(table, image_root="/", allow_missing=True) == (
        f"{table}, row 2: the address of a file must have no password and no query, which are secrets, got {shown}. "
        "Name the object alone, as in s3://BUCKET/NAME."
    )


BOX = {"xmin": 0.0, "ymin": 0.0, "xmax": 1.0, "ymax": 1.0}
SPLIT = "A split's name must be letters, digits and underscores and begin with a letter"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"image": 7}, "'image' must be a path, got 7."),
        ({"image": ""}, "'image' must be a path, got ''."),
        ({"image": "a\0b"}, "'image' must be a path, got 'a\\x00b'."),
        ({"image": None}, "'image' must be a path, got None."),
        ({"image": "1", "label": 1.5}, "'label' must be a name or a number from 0, got 1.5."),
        ({"image": "1", "label": True}, "'label' must be a name or a number from 0, got True."),
        ({"image": "1", "label": [1.5]}, "'label' must be a name or a number from 0, got 1.5."),
        ({"image": "1", **BOX, "xmin": "x"}, "'xmin': must be a number or a list of numbers, got 'x'."),
        ({"image": "1", **BOX, "xmin": [0, 0]}, "xmin, ymin, xmax and ymax must hold equally many numbers."),
        ({"image": "1", **BOX, "box_label": 1.0}, "'box_label' must be whole numbers or names, got 1.0."),
        ({"image": "1", **BOX, "box_label": [1, "a"]}, "'box_label' must be whole numbers or names, got [1, 'a']."),
        (
            {"image": "1", **BOX, "box_label": [1, 2]},
            "'box_label' must hold one number for each of the 1 boxes, got 2.",
        ),
        *(({"image": "1", "split": split}, f"{SPLIT}, got {str(split)!r}.") for split in ("a b", 7, "1")),
    ],
)
def test_a_wrong_cell_is_refused(write_jsonl: WriteRows, row: dict[str, Any], message: str) -> None:
    path = write_jsonl(row)
    assert refuse_source(path) == f"{path}, row 1: {message}"


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        ({"xmin": -0.1}, "-0.1, 0.0, 1.0, 1.0."),
        ({"ymax": 1.1}, "0.0, 0.0, 1.0, 1.1."),
        ({"xmin": 0.9, "xmax": 0.1}, "0.9, 0.0, 0.1, 1.0."),
        ({"ymin": 1, "ymax": 0.5}, "0.0, 1, 1.0, 0.5."),
        ({"xmin": [None]}, "None, 0.0, 1.0, 1.0."),
        ({"ymax": 10**400}, f"0.0, 0.0, 1.0, {10**400}. Pixels need the columns `width` and `height`."),
    ],
)
def test_a_box_outside_the_image_is_refused(write_jsonl: WriteRows, wrong: dict[str, Any], shown: str) -> None:
    path = write_jsonl({"image": "0.jpg", **BOX}, {"image": "1.jpg", **BOX, **wrong})
    assert refuse_source(path) == (
        f"{path}, row 2: a box must be fractions of width and height, 0 <= xmin <= xmax <= 1 and "
        f"0 <= ymin <= ymax <= 1, got xmin, ymin, xmax, ymax = {shown}"
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"file": "1", "label": "a"}],
            "{} must have a column 'image', got file, label. Say which one holds the images with `image_column`.",
        ),
        ([{"a/1.jpg": "2.jpg", "0": "1"}], "{} must begin with a line that names its columns, got a/1.jpg, 0."),
        (
            [{"image": "1", "xmin": 0, "ymax": 1}],
            "Boxes need the columns xmin, ymin, xmax and ymax; {} has only xmin, ymax.",
        ),
        (
            [{"image": "1"}, {"image": "2", "more": 1}],
            "{}, row 2: column 'more' is not in the first row; every row needs the same columns.",
        ),
        ([{"image": "1", **{f"c{k}": k for k in range(4096)}}], "{} must have at most 4,096 columns, got 4,097."),
    ],
    ids=range(5),
)
def test_a_wrong_table_is_refused(write_jsonl: WriteRows, rows: list[dict[str, Any]], message: str) -> None:
    path = write_jsonl(*rows)
    assert refuse_source(path) == message.format(path)


def test_all_faulty_rows_of_a_table_come_in_one_list(tmp_path: Path) -> None:
    path = write_text(
        tmp_path / "t.csv",
        "image,label,split,xmin,ymin,xmax,ymax\n"
        "1.jpg,cat,train\n"
        "1.jpg,cat, train \n"
        "1.jpg,cat,test,0,0,9,9\n"
        ",cat,test,0,0,8,8,more\n"
        ", dog ,a b,0,0,8,8\n"
        "2.jpg,1.0,\n",
    )
    box = "fractions of width and height, 0 <= xmin <= xmax <= 1 and 0 <= ymin <= ymax <= 1"
    assert refuse_source(path).splitlines() == [
        f"{path} has 5 faults:",
        f"- {path}, row 2: {SPLIT}, got ' train '.",
        f"- {path}, row 3: a box must be {box}, got xmin, ymin, xmax, ymax = 0, 0, 9, 9. Pixels "
        "need the columns `width` and `height`.",
        f"- {path}, row 4: the row has more cells than the header names.",
        f"- {path}, row 5: 'image' must be a path, got None.",
        f"- {path}, row 6: 'label' must be a name or a number from 0, got '1.0'. {OF_PANDAS} If it is a name, "
        "give a file with all names as `labels`.",
    ]


def test_an_empty_text_is_no_label(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.jsonl", [{"image": f"{k}.jpg", "label": ""} for k in range(2)])
    assert list_source(path).label_names == ()
    path.write_text(path.read_text().replace('""', '["cat", ""]'))
    assert refuse_source(path).startswith(f"{path}, row 1: 'label' must be a name or a number from 0, got ''.")


def test_missing_labels_splits_and_files_of_a_table_are_refused(tmp_path: Path) -> None:
    path = write_text(
        tmp_path / "t.csv", "image,label,split\n1.jpg,cat,train\n2.jpg,,train\n2.jpg,,\ngone.jpg,cat,train\n"
    )
    config = ShardConfig(str(path), str(tmp_path / "out"))
    assert refusal(DataError, plan_shards, config) == (
        f"{path}: every row must have a 'label' or none may, but 2 of 4 have none, such as 2.jpg. Give them one, or "
        "take these rows out."
    )
    path.write_text(path.read_text().replace(",,", ",cat,"))
    write_files(tmp_path, {"1.jpg": b"", "2.jpg": b""})
    assert refusal(DataError, plan_shards, config) == (
        f"{path} names 4 images, and 1 of their files does not exist: {tmp_path}/gone.jpg. Correct the paths, "
        "or leave these images out with `allow_missing`."
    )
    write_files(tmp_path, {"gone.jpg": b""})
    message = "Every image must have a split or none may, but 1 of 4 have none, such as 2.jpg."
    assert refusal(DataError, plan_shards, config) == message


def test_a_fault_of_many_rows_is_told_once(write_jsonl: WriteRows) -> None:
    path = write_jsonl(*({"image": "1", "label": k + 0.5} for k in range(9)), *({"image": 7},) * 2)
    assert refuse_source(path).splitlines() == [
        f"{path} has 2 faults:",
        f"- {path}, row 1: 'label' must be a name or a number from 0, got 0.5. So do rows 2, 3, 4, 5 and 4 more.",
        f"- {path}, row 10: 'image' must be a path, got 7. So does row 11.",
    ]


@pytest.mark.parametrize("label", "1.0 1.5 -1 +2 .5 2. -0.5 1.0E3 nan NaN <NA>".split())
def test_numbers_that_no_class_has_are_no_labels(tmp_path: Path, label: str) -> None:
    for other in ("0", "cat"):
        (tmp_path / "t.csv").write_text(f"image,label\n1.jpg,{other}\n2.jpg,{label}\n")
        assert refuse_source(tmp_path / "t.csv").startswith(
            f"{tmp_path}/t.csv, row 2: 'label' must be a name or a number from 0, got {label!r}. "
        )
    (tmp_path / "names.txt").write_text(f"{label}\ncat\n")
    listing = list_source(tmp_path / "t.csv", labels=str(tmp_path / "names.txt"))
    assert [ref.label for ref in listing.images] == ["cat", label]


@pytest.mark.parametrize("label", "1st 1x 1.2.3 1e3 - 1-2 None Inf Nan inf ١".split())
def test_names_may_look_like_numbers(tmp_path: Path, label: str) -> None:
    (tmp_path / "t.csv").write_text(f"image,label\n1.jpg,{label}\n")
    assert list_source(tmp_path / "t.csv").label_names == (label,)


def test_numbers_keep_their_zeros(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("image,label\n1.jpg,0012345678905\n2.jpg,0002345678905\n")
    assert list_source(tmp_path / "t.csv").label_names == ("0002345678905", "0012345678905")
    for one, other in (("0012345678905", "12345678905"), ("007", "7")):
        (tmp_path / "t.csv").write_text(f"image,label\n1.jpg,{other}\n2.jpg,5\n3.jpg,{one}\n")
        assert refuse_source(tmp_path / "t.csv") == (
            f"{tmp_path}/t.csv: labels must be different numbers or the same text, got {one!r} and {other!r}."
        )


def test_more_classes_than_a_manifest_holds_are_refused_before_an_image_is_read(tmp_path: Path, monkeypatch):
    write_files(tmp_path, {"1.jpg": b""})
    (tmp_path / "t.csv").write_text("image,label\n" + "".join(f"1.jpg,c{k}\n" for k in range(6)))
    monkeypatch.setattr("beam_jobs.shard_job.MAX_ITEMS", 20)
    assert refusal(DataError, plan_shards, ShardConfig(str(tmp_path / "t.csv"), str(tmp_path / "out"))) == (
        "A dataset with 1 split must have at most 5 classes, got 6. Labels that say something else of each image can "
        "be a column of another name."
    )


MATCHES = [
    # The names of classes, the labels, and the classes of these: with `labels`, and in a dataset that has the names.
    ("1 2 10", "1 2", "1 2", "1 2"),
    ("1 10 2", "10 2", "10 2", "10 2"),
    ("01 02 03", "01 02", "01 02", "01 02"),
    ("01 02 03", "1 2", None, None),
    ("01 02 03", "0 1", None, None),
    ("1 2 3", "01", None, None),
    ("1 2 3", "0", "1", None),
    ("1 2 3", "0 1", None, None),
    ("1 2 3 10", "4", None, "4"),
    ("1 2 3 10", "3 4", None, "3 4"),
    ("1 2 3 10", "04", None, "04"),
    ("1 2 3 10", "010", None, None),
    ("20 30 stop", "0 2", "20 stop", None),
    ("20 30 stop", "20 30", "20 30", "20 30"),
    ("20 30 stop", "20 2", None, "20 2"),
    ("red blue", "0 1", "red blue", "red blue"),
    ("red blue", "2", None, None),
    ("0 1 2", "2 0", "2 0", "2 0"),
    ("0 1 2", "02 0", "2 0", "2 0"),
    ("0 1 2", "4", None, "4"),
    ("0 1 2", "04", None, "04"),
    ("007 7", "7 007", "7 007", "7 007"),
    ("2 1 0", "2 0", "2 0", "2 0"),
    ("5 900000", "900000", "900000", "900000"),
    ("5 900000", "5 7000000", None, "5 7000000"),
]


@pytest.mark.parametrize(("names", "labels", "by_file", "by_dataset"), MATCHES)
def test_numbers_are_names_before_they_are_places(tmp_path: Path, names: str, labels: str, by_file, by_dataset):
    """None: they are neither, or could be both."""
    rows = "".join(f"{k}.jpg,{label}\n" for k, label in enumerate(labels.split()))
    (tmp_path / "t.csv").write_text("image,label\n" + rows)
    (tmp_path / "names.txt").write_text("\n".join(names.split()))
    for expected, options in (
        (by_file, {"labels": str(tmp_path / "names.txt")}),
        (by_dataset, {"known_labels": tuple(names.split())}),
    ):
        if isinstance(expected, str):
            listing = list_source(tmp_path / "t.csv", **options)
            assert [ref.label for ref in listing.images] == expected.split(), options
            assert listing.label_names[: len(names.split())] == tuple(names.split())
        else:
            refuse_source(tmp_path / "t.csv", **options)


def test_a_number_that_could_be_two_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("image,label\n0.jpg,1\n1.jpg,2\n")
    advice = "Write the labels as the classes are named, or give a file with all names, new ones too, as `labels`."
    assert refuse_source(tmp_path / "t.csv", known_labels=("01", "02", "03")) == (
        "The dataset names classes by numbers, so each label must be one of these names; '1' is none, and could mean "
        f"'01' or '02'. {advice}"
    )
    (tmp_path / "names.txt").write_text("1\n3\n")
    assert refuse_source(tmp_path / "t.csv", labels=str(tmp_path / "names.txt")) == (
        f"{tmp_path}/names.txt names classes by numbers, so each label must be one of these names; '2' is none. "
        f"{advice}"
    )


RACCOONS = """filename,width,height,class,xmin,ymin,xmax,ymax
a.jpg,200,100,raccoon,20,10,200,100
b.jpg,50,40,dog,0,0,1,1
a.jpg,200,100,cat,0,50,100,75
b.jpg,50,40,raccoon,5,4,25,20
c.jpg,30,30,,,,,
"""
RACCOON_COLUMNS = TableColumns(image_column="filename", box_label_column="class")


def write_text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_rows_of_one_image_are_its_boxes(tmp_path: Path) -> None:
    listing = list_source(write_text(tmp_path / "t.csv", RACCOONS), columns=RACCOON_COLUMNS)
    assert listing.box_names == ("cat", "dog", "raccoon")
    assert [spec.name for spec in listing.extra] == ["width", "height"]
    assert [(ref.path, ref.boxes, ref.box_labels, ref.extra) for ref in listing.images] == [
        ("a.jpg", ((0.1, 0.1, 1.0, 1.0), (0.0, 0.5, 0.5, 0.75)), (2, 0), (200, 100)),
        ("b.jpg", ((0.0, 0.0, 0.02, 0.025), (0.1, 0.1, 0.5, 0.5)), (1, 2), (50, 40)),
        ("c.jpg", (), (), (30, 30)),
    ]
    (tmp_path / "names.txt").write_text("raccoon\ncat\ndog\n")
    listing = list_source(tmp_path / "t.csv", labels=str(tmp_path / "names.txt"), columns=RACCOON_COLUMNS)
    assert listing.box_names == ("raccoon", "cat", "dog")
    assert [ref.box_labels for ref in listing.images] == [(0, 1), (2, 0), ()]


def test_rows_of_one_image_become_one_record(tmp_path: Path) -> None:
    for k, name in enumerate("abc"):
        write_files(tmp_path, {f"{name}.jpg": make_jpeg(k, ((200, 100), (50, 40), (30, 30))[k])})
    write_text(tmp_path / "t.csv", RACCOONS)
    for options in ({}, {"drop_duplicates": True}):
        output = tmp_path / f"out{len(options)}"
        make_dataset(tmp_path / "t.csv", output, shuffle=False, columns=RACCOON_COLUMNS, **options)
        assert [list(map(bytes, record["image/object/class/text"])) for record in read_records(output)] == [
            [b"raccoon", b"cat"],
            [b"dog", b"raccoon"],
            [],
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_each_box_become_lists(tmp_path: Path, kind: str) -> None:
    box = {"xmin": 0.0, "ymin": 0.25, "xmax": 0.5, "ymax": 1.0}
    rows = [
        {"image": "1.jpg", "label": "cat", "split": "train", **box, "box_label": 3, "score": 0.5, "place": "a"},
        {"image": "2.jpg", "label": "dog", "split": "test", **box, "box_label": 4, "score": 1.5, "place": "b"},
        {"image": "1.jpg", "label": "cat", "split": "train", **box, "box_label": 5, "score": 2.5, "place": "a"},
    ]
    listing = list_rows(tmp_path / f"t.{kind}", rows)
    assert listing.extra == (FeatureSpec("score", "float", None), FeatureSpec("place", "bytes", ()))
    assert [(ref.path, ref.label, ref.split, ref.box_labels, ref.extra) for ref in listing.images] == [
        ("1.jpg", "cat", "train", (3, 5), ([0.5, 2.5], "a")),
        ("2.jpg", "dog", "test", (4,), ([1.5], "b")),
    ]


FRACTIONS = "0 <= xmin <= xmax <= 1 and 0 <= ymin <= ymax <= 1, got xmin, ymin, xmax, ymax = 1, 1, 2, 2"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,9,9,cat,1,1,2,2 a,9,9,,1,1,2,2", ": every box of a must have a class or none may."),
        ("a,9,9,cat,1,1,2,2 a,9,9,7,1,1,2,2", ": the classes of boxes must be all names or all numbers, got 'cat'."),
        (
            "a,9,9,cat,1,1,2,2 b,9,9,cat,0.5,0.5,1,1",
            ": boxes must be all in pixels or all fractions, got [0.5, 0.5, 1, 1] of b.",
        ),
        ("a,9,9,cat,1,1,2,2 a,9,,cat,1,1,1,1", ": boxes in pixels need the width and height of a."),
        (
            "a,9,9,cat,1,1,2,2 a,9,8,cat,1,1,2,2",
            ": the rows of a must have the same width and height, got [(9.0, 8.0), (9.0, 9.0)].",
        ),
        (
            "a,9,9,cat,0,0,1,1 a,,9,cat,0,0,1,1",
            ": every row of a must have a value in the same columns, or none may, got ['9', None].",
        ),
        (
            "a,9,9,cat,1,1,10,2 b,,9,cat,1,1,2,2",
            " has 2 faults:\n- {0}, row 1: a box must be fractions, or lie in the 9 x 9 pixels of its image, got xmin, "
            f"ymin, xmax, ymax = 1, 1, 10, 2.\n- {{0}}, row 2: a box must be fractions of width and height, {FRACTIONS}"
            ". Pixels need the columns `width` and `height`.",
        ),
    ],
)
def test_rows_of_one_image_that_do_not_go_together(tmp_path: Path, rows: str, message: str) -> None:
    path = write_text(tmp_path / "t.csv", "\n".join([RACCOONS.splitlines()[0], *rows.split()]))
    assert refuse_source(path, columns=RACCOON_COLUMNS) == f"{path}{message.format(path)}"


def test_rows_of_one_image_have_one_label(tmp_path: Path) -> None:
    path = write_text(tmp_path / "t.csv", RACCOONS)
    assert refuse_source(path, columns=TableColumns(image_column="filename", label_column="class")) == (
        f"{path}: the rows of a.jpg have a box each, so they must have the same 'label', got 'raccoon' and 'cat'. If "
        "it is the class of each box, name its column by `box_label_column`."
    )


def test_some_images_may_have_boxes_without_a_class(write_jsonl: WriteRows) -> None:
    path = write_jsonl({"image": "1", **BOX, "box_label": 1}, {"image": "2", **BOX, "box_label": None})
    assert [ref.box_labels for ref in list_source(path).images] == [(1,), ()]


def test_a_missing_table_is_refused(table: Path) -> None:
    assert refuse_source(table) == f"Could not read {table}: No such file or directory."


BOX_LINE = b'image,xmin,ymin,xmax,ymax\na.jpg,"'
DEEP, LATE = b"[" * 900 + b"]" * 900, b"a long note " * 80_000 + b"\n"
DAMAGED = {
    "t.csv": {
        b"image\ncaf\xe9.jpg\n": " is not a CSV file in UTF-8 ('utf-8' codec can't decode byte 0xe9 in position 9: inv",
        b"image,,\na.jpg,,\nb.jpg,,x\n": ", row 2: the row has more cells than the header names.",
        b"# by hand\nimage,label\n": f"{MORE}, which names '# by hand' alone.",
        b"image,label,label\na.jpg,1,2\n": " must name each column once, got 'label' twice.",
        b"": " holds no rows.",
        b"image\n": " holds no rows.",
        BOX_LINE + DEEP + b'",1,1,1\n': f"{NO_NUMBERS} '[[[",
        b'image,note\na.jpg,"' + LATE * 70: ", row 1: it takes too many bytes; a row has at most 64 MiB.",
    },
    "t.jsonl": {
        b"\n\n": " holds no rows.",
        b'{"image"\n': ", row 1: not valid JSON (Expecting ':' delimiter: line 2 column 1 (char 9)).",
        b"[" * 100_000: NESTED,
        b'{"image": "a.jpg", "x": ' + DEEP + b"}\n": NESTED,
        b'{"image": "a.jpg"}\n' + b" " * LONG: ", line 2: it is too long; a row has at most 64 MiB.",
        b'{"image": "caf\xe9.jpg"}\n': NO_UTF_8,
        b'{"image": "\\ud800.jpg"}\n': NO_UTF_8,
        b'{"image": "a", "note": "\\ud800"}\n': NO_UTF_8,
        b'{"image": "\xed\xa0\x80"}\n': NO_UTF_8,
    },
    "t.parquet": {b"no parquet": " is damaged or is not a Parquet file (Parquet magic bytes not found in footer."},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_table_is_refused(tmp_path: Path, name: str) -> None:
    for data, message in DAMAGED[name].items():
        (tmp_path / name).write_bytes(data)
        assert refuse_source(tmp_path / name).startswith(f"{tmp_path}/{name}{message}")


def test_images_on_the_web_and_in_other_stores_are_refused(write_jsonl: WriteRows) -> None:
    for url, shown in (
        ("http://example.com/1.jpg", "http://example.com/1.jpg"),
        ("https://me:SECRET@example.com/1.jpg?sig=SECRET", "https://...@example.com/1.jpg?..."),
    ):
        assert refuse_source(write_jsonl({"image": "0.jpg"}, {"image": url})) == (
            f"Files must be on a disk, or at gs://, s3://, az:// or hf://, got {shown}. Mount its store as a folder, "
            "or download it first: img2dataset downloads the images that a table names into tars, which `tfpipe shard` "
            "reads."
        )
    table = write_jsonl({"image": "nosuch://bucket/1.jpg"})
    assert "got nosuch://bucket/1.jpg. Mount" in refuse_source(table, image_root="nosuch://bucket")
    for url in ("nosuch://bucket/t.csv", "nosuch://bucket/photos", "nosuch://bucket/a.tar"):
        assert f", got {url}" in refuse_source(url)


def test_every_kind_of_column_is_read_back_by_tensorflow(table: Path) -> None:
    import tensorflow as tf

    images = {f"{i}.jpg": make_jpeg(i) for i in range(2)}
    write_files(table.parent, images)
    one, some, box = tf.io.FixedLenFeature, tf.io.RaggedFeature, "image/object/bbox"
    # Of each column its cells, its feature, how TensorFlow reads it, and the values that come back.
    columns: list[tuple[str, list[Any], str, Any, list[Any]]] = [
        ("image", [*images], "image/encoded", one((), tf.string), [*images.values()]),
        ("label", ["cat", "dog"], "image/class/text", one((), tf.string), [b"cat", b"dog"]),
        ("xmin", [[0.25], [0.25]], f"{box}/xmin", some(tf.float32), [[0.25], [0.25]]),
        ("ymin", [[0.5], [0.5]], f"{box}/ymin", some(tf.float32), [[0.5], [0.5]]),
        ("xmax", [[0.75], [0.75]], f"{box}/xmax", some(tf.float32), [[0.75], [0.75]]),
        ("ymax", [[1.0], [1.0]], f"{box}/ymax", some(tf.float32), [[1.0], [1.0]]),
        ("box_label", [4, 5], "image/object/class/label", some(tf.int64), [[4], [5]]),
        ("age", [40, 41], "age", one((), tf.int64), [40, 41]),
        ("weight", [1.5, 2.5], "weight", one((), tf.float32), [1.5, 2.5]),
        ("note", ["grün 0", "grün 1"], "note", one((), tf.string), ["grün 0".encode(), "grün 1".encode()]),
        ("empty", [None, 7], "empty", some(tf.int64), [[], [7]]),
    ]
    if table.suffix != ".csv":
        columns += [
            ("point", [[1.0, 2.0], [2.0, 2.0]], "point", one((2,), tf.float32), [[1.0, 2.0], [2.0, 2.0]]),
            ("tags", [["a"], ["b", "c"]], "tags", some(tf.string), [[b"a"], [b"b", b"c"]]),
            ("ids", [[], [1, 2]], "ids", some(tf.int64), [[], [1, 2]]),
        ]
    rows = [{name: cells[i] for name, cells, *_ in columns} for i in range(2)]
    manifest = make_dataset(write_table(table, rows), table.parent / "out", shuffle=False)
    spec = {name: kind for _, _, name, kind, _ in columns} | {"image/class/label": one((), tf.int64)}
    records = parse_with_tensorflow(table.parent / "out", spec)
    for name, expected in [*((name, values) for _, _, name, _, values in columns), ("image/class/label", [0, 1])]:
        assert [np.asarray(record[name], object).tolist() for record in records] == expected
    assert manifest.splits["train"].class_counts == (1, 1)


def test_a_column_named_like_our_own(write_jsonl: WriteRows, tmp_path: Path) -> None:
    write_files(tmp_path, {"1.jpg": make_jpeg(0)})
    path = write_jsonl({"image": "1.jpg", "image/height": 3})
    message = "An extra column must not be named 'image' or begin with 'image/', got 'image/height'."
    assert refusal(ConfigError, make_dataset, path, tmp_path / "out") == message


def test_devices_and_pipes_are_quarantined(write_jsonl: WriteRows, tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.jpg")
    write_files(tmp_path / "in", {"1.jpg": make_jpeg(0)})
    names = "pipe.jpg", "in", "gone.jpg", "in/1.jpg", "in/../in/1.jpg"
    path = write_jsonl(*({"image": name} for name in ("/dev/zero", *(f"{tmp_path}/{name}" for name in names))))
    make_dataset(path, tmp_path / "out", shuffle=False, allow_missing=True, image_root="/")
    assert {line["path"]: line["reason"] for line in read_quarantine(tmp_path / "out")} == {
        "/dev/zero": "is not a regular file",
        f"{tmp_path}/pipe.jpg": "is not a regular file",
        f"{tmp_path}/in": "is not a regular file",
        f"{tmp_path}/gone.jpg": "cannot be read: No such file or directory",
    }
    assert read_images(tmp_path / "out") == {f"{tmp_path}/in/1.jpg": make_jpeg(0)}


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a\\1.jpg", "They exist with / in place of \\. "),
        ("a/u\u0308.jpg", "They exist with letters such as é in Unicode's form NFC. "),
        ("a/1", "They exist with the ending .jpg. "),
        ("a/2", ""),
        ("b/1.jpg", ""),
        ("1.jpg", "They exist in {folder}/a, which `image_root` can name. "),
        ("1", "They exist with the ending .jpg in {folder}/a, which `image_root` can name. "),
    ],
)
def test_the_fault_of_missing_files_is_named(tmp_path: Path, name: str, advice: str) -> None:
    write_files(tmp_path, {"a/1.jpg": b"", "a/\xfc.jpg": b"", "t.csv": f"image\n{name}\n".encode()})
    path = tmp_path / "t.csv"
    assert refusal(DataError, plan_shards, ShardConfig(str(path), str(tmp_path / "out"))) == (
        f"{path} names 1 image, and 1 of their files does not exist: {tmp_path}/{name}. "
        f"{advice.format(folder=tmp_path)}Correct the paths, or leave these images out with `allow_missing`."
    )
    if "image_root" in advice:  # which names one folder for all images, so there is no such advice if they lie in two
        write_files(tmp_path, {"b/2.jpg": b"", "t.csv": f"image\n{name}\n{name.replace('1', '2')}\n".encode()})
        assert "They exist" not in refusal(DataError, plan_shards, ShardConfig(str(path), str(tmp_path / "out")))
