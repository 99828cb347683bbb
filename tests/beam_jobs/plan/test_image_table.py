"""The list of images in columns against a list of tuples."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.plan.columnar import CodedColumn, NumberColumn
from beam_jobs.plan.image_ref import ImageRef, PlannedImage, encode_line
from beam_jobs.plan.image_table import RefList

NAMES = st.sampled_from(["", "a", "b"])
BOXES = st.sampled_from([(), ((0, 0.5, 1, 1.0),), ((0.0, 0, 1.0, 1), (0, 0, 1, 1))])
EXTRA = st.sampled_from([(), (1, [1.0, 2], "x"), (2.0, [], "\udcff")])
PATHS = st.text(st.characters(codec="utf-8"), max_size=5)
SIZES = st.integers(0, 2**40)
PLAIN = st.tuples(PATHS, SIZES, NAMES).map(lambda one: ImageRef(one[0], one[1], label=one[2]))
PLACES = st.integers(-1, 9)
BOX_LABELS = st.sampled_from([(), (1,), (2, 3)])
LABELS = st.one_of(st.none(), NAMES)
ANY = st.tuples(
    *(PATHS, SIZES, NAMES, PLACES, PLACES, PLACES),
    *(NAMES, LABELS, NAMES, BOXES, BOX_LABELS, EXTRA),
).map(ImageRef._make)


@given(st.lists(PLAIN, max_size=5), st.lists(ANY, max_size=10))
def test_what_goes_in_comes_out(plain: list[ImageRef], odd: list[ImageRef]) -> None:
    """Also where the first with a group, a box or a place comes late."""
    expected = plain + odd
    refs = RefList(expected)
    assert list(refs) == expected
    assert refs[1:] == expected[1:]
    assert list(pickle.loads(pickle.dumps(refs))) == expected
    assert refs.has_boxes == any(ref.boxes for ref in expected)
    assert refs.has_box_labels == any(ref.box_labels for ref in expected)
    taken = refs.take(np.arange(len(expected))[::2])
    assert list(taken) == expected[::2]
    assert taken.has_boxes == any(ref.boxes for ref in expected[::2])
    assert taken.has_box_labels == any(ref.box_labels for ref in expected[::2])


@given(st.lists(ANY, max_size=10))
def test_lines_of_the_plan(expected: list[ImageRef]) -> None:
    labels = ["b", "a", ""]
    lines = [
        PlannedImage(
            ref.path,
            ref.size,
            -1 if ref.label is None else labels.index(ref.label),
            *(ref.location, ref.offset, ref.packed, ref.crc),
            *(ref.boxes, ref.box_labels, ref.extra),
        )
        for ref in expected[::-1]
    ]
    found = list(RefList(expected).planned(np.arange(len(expected))[::-1], labels))
    assert found == lines
    # 1 and 1.0 are equal, but not as text, and the text is what the fingerprint covers.
    assert list(map(encode_line, found)) == list(map(encode_line, lines))


def test_other_columns_leave_the_first_list_alone() -> None:
    refs = RefList([ImageRef("1.jpg", 1, label="a"), ImageRef("2.jpg", 2, label="b")])
    other = refs.replaced(
        sizes=NumberColumn.of(np.array([7, 8]), 0),
        splits=CodedColumn.constant("train", 2),
        labels=refs.labels.renamed(["x", "y"]),
    )
    assert list(other) == [
        ImageRef("1.jpg", 7, split="train", label="x"),
        ImageRef("2.jpg", 8, split="train", label="y"),
    ]
    assert list(refs) == [ImageRef("1.jpg", 1, label="a"), ImageRef("2.jpg", 2, label="b")]


def test_further_columns_are_converted() -> None:
    refs = RefList([ImageRef("1.jpg"), ImageRef("2.jpg", extra=("1", "x")), ImageRef("3.jpg", extra=("2", "y"))][1:])
    assert list(refs.extras(0)) == ["1", "2"]
    refs.replace_extras([int, str.upper])
    assert [ref.extra for ref in refs] == [(1, "X"), (2, "Y")]


def test_the_end_of_an_archive() -> None:
    refs = RefList([ImageRef("1", 5, "a.tar", 10), ImageRef("2", 7, "b.tar", 90), ImageRef("3", 2, "a.tar", 20)])
    assert (refs.locations(), refs.end_in("a.tar"), refs.end_in("b.tar")) == (["a.tar", "b.tar"], 22, 97)


def test_an_index_beyond_the_end() -> None:
    with pytest.raises(IndexError):
        RefList()[0]
