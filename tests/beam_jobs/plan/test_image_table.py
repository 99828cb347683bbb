"""The table of images against a list of tuples, and the lines of the plan, which are read back as they were written."""

import pickle
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.plan import image_table
from beam_jobs.plan.image_ref import WHOLE_FILE, ImageLocation, ImageRef, PlannedImage, decode_line, encode_line
from beam_jobs.plan.image_table import ImageTable, ImageTableBuilder
from tests.refusals import refusal
from tfpipe.errors import FormatError

few = settings(max_examples=30)
NAMES = st.sampled_from(["", "a", "b"])
BOXES = st.sampled_from([(), ((0, 0.5, 1, 1.0),), ((0.0, 0, 1.0, 1), (0, 0, 1, 1))])
EXTRA = st.sampled_from([(), (1, [1.0, 2], "x"), (2.0, [], "\udcff")])
PATHS = st.one_of(st.text(st.characters(codec="utf-8"), max_size=5), st.just("caf\udce9"))
SIZES = st.integers(0, 2**40)
FILES = st.tuples(PATHS, SIZES, NAMES).map(lambda fields: ImageRef(fields[0], fields[1], label=fields[2]))
OFFSETS = st.integers(-1, 9)
LOCATIONS = st.tuples(NAMES, OFFSETS, OFFSETS, OFFSETS, OFFSETS).map(ImageLocation._make)
DETAILS = ("boxes", "box_labels", "extra", "mask", "images", "frame")
LABELS = st.one_of(st.none(), NAMES)
BOX_LABELS = st.sampled_from([(), (1,), (2, 3)])
MASKS = st.sampled_from([(), ("a.mask.png", 7, "", -1, -1, -1), ("b.png", 0, "x.tar", 512, -1, -1)])
IMAGES = st.sampled_from([(), (("a.0.jpg", 7, "", -1, -1, -1), ("a.1.jpg", 9, "x.tar", 512, -1, -1))])
FRAMES = st.sampled_from([(), (640, 480), (0.0, 0.0)])
ANY = st.tuples(
    *(PATHS, SIZES, LOCATIONS, NAMES, LABELS, NAMES, BOXES, BOX_LABELS, EXTRA, MASKS, IMAGES, FRAMES),
    st.integers(-2, 3),
).map(ImageRef._make)


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    """Lets a few rows fill a part, so that tables have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_table, "_ROWS_AT_ONCE", 3)
        yield


@few
@given(st.lists(FILES, max_size=5), st.lists(ANY, max_size=10))
def test_a_table_is_a_sequence_of_its_images(files: list[ImageRef], others: list[ImageRef]) -> None:
    """Checks also that the first image with a group, a box or an offset may come late."""
    refs = files + others
    table = ImageTable.from_refs(refs)
    assert list(table) == refs
    assert list(pickle.loads(pickle.dumps(table))) == refs
    assert table.details == {name for name in DETAILS if any(getattr(ref, name) for ref in refs)}
    assert table.get_numbers("num_images").tolist() == [ref.num_images for ref in refs]
    taken = table.take(np.arange(len(refs))[::-2])
    assert list(taken) == refs[::-2]
    assert taken.details == {name for name in DETAILS if any(getattr(ref, name) for ref in refs[::-2])}
    masks = [ref.mask or ("b.png", 1, "", -1, -1, -1) for ref in reversed(refs)]
    masked = table.replace_tuples("mask", masks)
    assert list(masked) == [ref._replace(mask=mask) for ref, mask in zip(refs, masks, strict=True)]
    assert table.get_numbers("size").tolist() == [ref.size for ref in refs]
    assert list(table.iterate_paths()) == [ref.path for ref in refs]
    assert table.get_paths(np.arange(len(refs))[::-1]) == [ref.path for ref in refs[::-1]]
    for name in ("split", "label"):
        texts = [getattr(ref, name) for ref in refs]
        assert table.count_values(name) == {text: texts.count(text) for text in texts}
        codes, different = table.get_codes(name)
        assert [different[code] for code in codes.tolist()] == texts
        assert len(different) == len(set(different))


def test_tables_without_images_and_without_archives() -> None:
    table = ImageTable.make_empty({"boxes"})
    assert (len(table), table.details, list(table)) == (0, {"boxes"}, [])
    table = ImageTable.from_refs([ImageRef("1.jpg", 1), ImageRef("2.jpg", 2)])
    assert all(image.location is WHOLE_FILE for image in table)


@few
@given(st.lists(st.lists(ANY, max_size=4), max_size=4), st.lists(ANY, max_size=4))
def test_a_builder_takes_tables_and_images(tables: list[list[ImageRef]], refs: list[ImageRef]) -> None:
    builder = ImageTableBuilder()
    for ref in refs:
        builder.append(ref)
    for table_refs in tables:
        builder.extend(ImageTable.from_refs(table_refs))
    expected = refs + [ref for table_refs in tables for ref in table_refs]
    assert len(builder) == len(expected)
    assert list(builder.finish()) == expected
    assert len(builder) == 0


IN_TARS = st.tuples(
    PATHS, SIZES, st.tuples(NAMES, OFFSETS).map(lambda place: ImageLocation(*place)), NAMES, LABELS
).map(lambda fields: ImageRef(*fields))


@few
@given(st.lists(FILES, max_size=5), st.lists(IN_TARS, max_size=5), st.lists(ANY, max_size=10))
def test_lines_of_the_plan_are_those_of_single_images(
    files: list[ImageRef], in_tars: list[ImageRef], others: list[ImageRef]
) -> None:
    numbers = {"b": 0, "a": 1, "": 2, None: -1}
    for refs in (files, files + in_tars, files + in_tars + others):
        expected = [
            PlannedImage(ref.path, ref.size, numbers[ref.label], *attrgetter("location", *DETAILS)(ref))
            for ref in refs[::-1]
        ]
        table = ImageTable.from_refs(refs)
        lines, ends = table.encode_lines(np.arange(len(refs))[::-1], table.number_labels(["b", "a", ""]))
        assert [bytes(lines[begin:end]) for begin, end in pairwise(ends.tolist())] == list(map(encode_line, expected))
        assert len(lines) == ends[-1]


def test_replaced_columns_leave_the_first_table_alone() -> None:
    refs = [ImageRef("1.jpg", 1, label="a"), ImageRef("2.jpg", 2, label="b"), ImageRef("3.jpg", 3, label="c")]
    table = ImageTable.from_refs(refs)
    codes, texts = table.get_codes("label")
    assert texts == ["a", "b", "c"]
    other = table.replace_sizes(np.array([7, 8, 9])).replace_texts("split", np.zeros(3, np.int64), ["train"])
    other = other.replace_texts("label", codes, ["x", None, "x"])
    assert list(other) == [
        ImageRef("1.jpg", 7, split="train", label="x"),
        ImageRef("2.jpg", 8, split="train"),
        ImageRef("3.jpg", 9, split="train", label="x"),
    ]
    assert other.count_values("label") == {"x": 2, None: 1}
    assert other.count_values("split") == {"train": 3}
    assert list(table) == refs
    other = ImageTable.from_refs([ImageRef(f"{i}.jpg", extra=(str(i), "x")) for i in range(4)])
    assert list(other.iterate_extras()) == [("0", "x"), ("1", "x"), ("2", "x"), ("3", "x")]
    upper = other.replace_tuples("extra", ((int(k), x.upper()) for k, x in other.iterate_extras()))
    assert [ref.extra for ref in upper] == [(0, "X"), (1, "X"), (2, "X"), (3, "X")]


def test_numbers_become_arrow_arrays() -> None:
    for values in (np.arange(10)[::3], np.arange(5, dtype=np.int32), np.arange(11) % 3 == 0, np.zeros(0, np.int64)):
        assert image_table.wrap(values).to_pylist() == values.tolist()
        assert image_table.wrap(values).equals(pa.array(values))


# Any name that Linux allows: bytes that are not UTF-8 become surrogates.
names = st.binary(min_size=1).map(lambda raw: raw.decode("utf-8", "surrogateescape")) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1
)
numbers = st.integers(-(2**63), 2**63 - 1)
fractions = st.floats(0, 1)
values = names | numbers | st.floats(allow_nan=False) | st.lists(numbers) | st.lists(names)
files = st.tuples(names, st.integers(0, 2**50), names, *[st.integers(-1, 2**32 - 1)] * 3)
images = st.builds(
    PlannedImage,
    path=names,
    size=st.integers(0, 2**50),
    label=st.integers(-1, 10**7),
    location=st.tuples(st.just("") | names, *[st.integers(-1, 2**32 - 1)] * 4).map(ImageLocation._make),
    boxes=st.lists(st.tuples(fractions, fractions, fractions, fractions), max_size=3),
    box_labels=st.lists(st.integers(0, 100), max_size=3),
    extra=st.lists(values, max_size=4),
    mask=st.just(()) | files,
    images=st.just(()) | st.lists(files, min_size=1, max_size=3),
    frame=st.just(()) | st.tuples(numbers, st.floats(1, 9999)),
)


def to_lists(value: Any) -> Any:
    """Returns a value with lists in place of tuples, because JSON has no tuples."""
    return [to_lists(element) for element in value] if isinstance(value, (list, tuple)) else value


@given(images)
def test_a_line_is_read_back_as_it_was(image: PlannedImage) -> None:
    line = encode_line(image)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert line.splitlines() == [line[:-1]]  # no character in a name ends a line of the plan
    back = decode_line(line)
    assert to_lists(back) == to_lists(image)
    assert back.path.encode("utf-8", "surrogateescape") == image.path.encode("utf-8", "surrogateescape")


def test_trailing_defaults_are_dropped() -> None:
    assert encode_line(PlannedImage("cat/1.jpg", 5)) == b'["cat/1.jpg",5]\n'
    assert encode_line(PlannedImage("cat/1.jpg", 0)) == b'["cat/1.jpg",0]\n'
    assert encode_line(PlannedImage("cat/1.jpg", 5, 3)) == b'["cat/1.jpg",5,3]\n'
    assert encode_line(PlannedImage("a", 5, -1, ImageLocation("x.tar", 512))) == b'["a",5,-1,"x.tar",512]\n'
    assert encode_line(PlannedImage("a", 5, extra=(7,))) == b'["a",5,-1,"",-1,-1,-1,[],[],[7]]\n'
    row = PlannedImage("a", 5, -1, ImageLocation("x.parquet", 17, row_group=0))
    assert encode_line(row) == b'["a",5,-1,"x.parquet",17,-1,-1,[],[],[],0]\n'
    assert decode_line(b'["cat/1.jpg",5,3]\n') == PlannedImage("cat/1.jpg", 5, 3)


def test_a_damaged_line_is_refused() -> None:
    comma = "Expecting ',' delimiter: line 1 column 7 (char 6)"
    for line, why in ((b'["a",1', comma), (b"7", "cannot unpack non-iterable int object")):
        message = f"A line of the plan cannot be read ({why}); run again with --overwrite."
        assert refusal(FormatError, decode_line, line) == message
