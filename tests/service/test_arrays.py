"""Batches as messages: what is sent comes back, and what does not fit is refused."""

import json
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tfpipe.service import arrays
from tfpipe.service.arrays import BrokenAnswer, make_message, receive, send_batch

BATCH: dict[str, Any] = {
    "image": np.arange(4 * 5 * 3, dtype=np.uint8).reshape(1, 4, 5, 3),
    "label": np.array([-1, 2**40], np.int64),
    "weight": np.array([[0.5, -2.0]], np.float32),
    "mask": np.array([True, False, True]),
    "bits": np.array([1, 65535], np.uint16),
    "none": np.zeros((0, 7), np.int32),
    "scalar": np.array(7, np.int32),
    "ragged": [np.arange(3, dtype=np.int64), np.zeros(0, np.int64), np.arange(1, dtype=np.int64)],
    "tensors": [np.ones((2, 3), np.float16), np.zeros((1, 3), np.float16)],
    "text": [b"one", b"", "zwölf".encode()],
    "words": [[b"a", b"bc"], [b"", b"d"], []],
}


def check_same(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(given) == list(expected)
    for name, values in expected.items():
        if isinstance(values, np.ndarray):
            assert (given[name].dtype, given[name].shape) == (values.dtype, values.shape), name
            np.testing.assert_array_equal(given[name], values)
        elif isinstance(values[0], np.ndarray):
            check_same(dict(enumerate(given[name])), dict(enumerate(values)))  # type: ignore[arg-type]
        else:
            assert given[name] == values


def as_chunks(messages: Any) -> Iterator[Any]:
    """Yields messages as a client of Flight sees them."""
    for data, text in messages:
        yield SimpleNamespace(data=data, app_metadata=pa.py_buffer(text) if text else None)


def take(*messages: Any) -> Any:
    return receive(as_chunks(messages), lambda: None)


def test_a_batch_comes_back() -> None:
    batch, end, num_bytes = take(make_message(), *send_batch(BATCH), make_message(), make_message({"made_s": 0.5}))
    check_same(batch, BATCH)
    assert end == {"made_s": 0.5}
    assert num_bytes == sum(
        len(values.tobytes()) if isinstance(values, np.ndarray) else sum(map(len, map(bytes, values)))
        for name, values in BATCH.items()
        if name != "words"
    ) + len(b"abcd")
    assert batch["image"].flags.writeable


def test_a_part_comes_in_pieces(monkeypatch) -> None:
    monkeypatch.setattr(arrays, "_PIECE_BYTES", 16)
    messages = list(send_batch(BATCH))
    assert len(messages) > len(BATCH)
    check_same(take(*messages, make_message({}))[0], BATCH)


def test_a_sender_copies_no_large_array() -> None:
    data, _ = next(send_batch({"image": (image := np.zeros((2, 3), np.float32))}))
    assert data.column(0).buffers()[1].address == image.ctypes.data


PART = {"name": "x", "bytes": 4, "dtype": "int32", "shapes": [1], "is_list": False}
FOUR = np.zeros(4, np.uint8)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [(PART, FOUR)],
        [({**PART, "bytes": 8}, FOUR), ({}, None)],
        [({**PART, "bytes": 2}, FOUR), ({}, None)],
        [({**PART, "bytes": -4}, FOUR), ({}, None)],
        [({**PART, "bytes": arrays.MOST_BYTES + 1}, FOUR), ({}, None)],
        [({**PART, "bytes": "4"}, FOUR), ({}, None)],
        [({**PART, "dtype": "object"}, FOUR), ({}, None)],
        [({**PART, "shapes": [2]}, FOUR), ({}, None)],
        [({**PART, "shapes": [-1]}, FOUR), ({}, None)],
        [({**PART, "shapes": [[1]], "is_list": False}, FOUR), ({}, None)],
        [({**PART, "shapes": None}, FOUR), ({}, None)],
        [({"name": "x", "bytes": 4, "lengths": [5], "rows": None}, FOUR), ({}, None)],
        [({"name": "x", "bytes": 4, "lengths": [3, 1], "rows": [3]}, FOUR), ({}, None)],
        [({"name": "x", "bytes": 4, "lengths": [-1, 5], "rows": None}, FOUR), ({}, None)],
        [(None, FOUR), ({}, None)],
        [([], None)],
        [("end", None)],
    ],
    ids=lambda messages: json.dumps([text for text, _ in messages])[:60],
)
def test_what_is_no_batch_is_refused(messages: list[Any]) -> None:
    with pytest.raises(BrokenAnswer):
        take(*(make_message(text, data) for text, data in messages))


def test_random_damage_is_a_batch_or_refused() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw, broken = random.Random(seed), 0
    whole = [*send_batch(BATCH), make_message({"made_s": 0.0})]
    for _ in range(300):
        messages = list(whole)
        place = draw.randrange(len(messages))
        data, text = messages[place]
        damaged = bytearray(text)
        for _ in range(draw.choice((1, 2, 5))):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        messages[place] = (data, bytes(damaged))
        try:
            batch, _, _ = take(*messages[: draw.choice((place + 1, len(messages)))])
            assert isinstance(batch, dict)
        except BrokenAnswer:
            broken += 1
    assert broken > 100


def test_nobody_waits_for_a_stream_that_says_it_works() -> None:
    def forever() -> Iterator[Any]:
        while True:
            yield from as_chunks([make_message()])

    heard: list[int] = []

    def alive() -> None:
        heard.append(1)
        if len(heard) == 5:
            raise TimeoutError("left")

    with pytest.raises(TimeoutError, match="left"):
        receive(forever(), alive)
