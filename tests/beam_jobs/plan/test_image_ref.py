"""Lines of the plan: short, safe for any file name, and read back as they were written."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.plan.image_ref import ImageLocation, PlannedImage, decode_line, encode_line
from tfpipe.errors import FormatError

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
    location=st.builds(
        ImageLocation,
        file=st.just("") | names,
        offset=st.integers(-1, 2**50),
        packed=st.integers(-1, 2**50),
        crc=st.integers(-1, 2**32 - 1),
        row_group=st.integers(-1, 2**31),
    ),
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


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'["a",1', "Expecting ',' delimiter: line 1 column 7 (char 6)"),
        (b"[]", "not enough values to unpack (expected at least 2, got 0)"),
        (b"7", "cannot unpack non-iterable int object"),
        (
            b'["a",1,2,3,4,5,6,7,8,9,10,11,12,13,14]',
            "PlannedImage.__new__() takes from 3 to 11 positional arguments but 12 were given",
        ),
    ],
)
def test_a_damaged_line_is_refused(line: bytes, why: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_line(line)
    assert str(caught.value) == f"A line of the plan cannot be read ({why}); run again with --overwrite."
