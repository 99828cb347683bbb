"""Columns against plain lists."""

from __future__ import annotations

import pickle
from hashlib import blake2b

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.plan.columnar import CodedColumn, NumberColumn, TextColumn

TEXTS = st.lists(st.one_of(st.text(st.characters(codec="utf-8"), max_size=5), st.just("caf\udce9")), max_size=20)
NUMBERS = st.lists(st.sampled_from([-1, -1, -1, 0, 5, 2**40]), max_size=20)
NAMES = st.lists(st.sampled_from(["a", "b", "", None]), max_size=20)


def texts(values: list[str]) -> TextColumn:
    column = TextColumn()
    for value in values:
        column.append(value)
    return column


def numbers(values: list[int]) -> NumberColumn:
    column = NumberColumn(-1)
    for value in values:
        column.append(value)
    return column


def coded(values: list[str | None]) -> CodedColumn:
    column = CodedColumn()
    for value in values:
        column.append(value)
    return column


def backwards(count: int) -> np.ndarray:
    return np.arange(count)[::-1]


@given(TEXTS, TEXTS)
def test_texts(first: list[str], second: list[str]) -> None:
    column = texts(first)
    column.extend(texts(second))
    column.append_empty(2)
    expected = [*first, *second, "", ""]
    assert list(column) == expected
    assert list(column.at(backwards(len(column)))) == expected[::-1]
    assert list(pickle.loads(pickle.dumps(column.take(backwards(len(column)))))) == expected[::-1]
    encoded = [text.encode("utf-8", "surrogateescape") for text in expected]
    assert column.lengths().tolist() == [len(text) for text in encoded]
    hashes = [int.from_bytes(blake2b(text, digest_size=8, key=b"k").digest(), "little") for text in encoded]
    assert column.hashes(b"k").tolist() == hashes


@given(NUMBERS, NUMBERS)
def test_numbers(first: list[int], second: list[int]) -> None:
    column = numbers(first)
    column.extend(numbers(second))
    expected = first + second
    assert len(column) == len(expected)
    assert [column[i] for i in range(len(column))] == column.values().tolist() == expected
    assert column.at(backwards(len(column))) == expected[::-1]
    assert column.take(backwards(len(column))).values().tolist() == expected[::-1]
    assert column.is_default() == (set(expected) <= {-1})


@given(NAMES, NAMES)
def test_coded(first: list[str | None], second: list[str | None]) -> None:
    column = coded(first)
    column.extend(coded(second))
    expected = first + second
    assert [column[i] for i in range(len(column))] == expected
    assert column.at(backwards(len(column))) == expected[::-1]
    assert column.take(backwards(len(column))).at(np.arange(len(column))) == expected[::-1]
    assert column.counts() == {name: expected.count(name) for name in expected}
    renamed = column.renamed(["x" if name else name for name in column.texts])
    assert renamed.at(np.arange(len(column))) == ["x" if name else name for name in expected]
    assert len(renamed.texts) == len(set(renamed.texts))


def test_one_text_for_all() -> None:
    assert CodedColumn.constant("train", 3).counts() == {"train": 3}
