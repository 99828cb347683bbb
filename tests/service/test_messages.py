"""Batches as messages: what is sent comes back, and what does not fit is refused."""

import json
import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tfpipe.service import messages
from tfpipe.service.messages import BrokenAnswer, receive, send

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
            check_same(dict(enumerate(given[name])), dict(enumerate(values)))
        else:
            assert given[name] == values


def take(sent: Iterable[Any]) -> Any:
    """Receives messages as a client of Flight sees them."""
    pairs = [message if isinstance(message, tuple) else (message, b"") for message in sent]
    return receive(
        SimpleNamespace(data=data, app_metadata=pa.py_buffer(text) if text else None) for data, text in pairs
    )


@pytest.mark.parametrize("piece_bytes", [messages._PIECE_BYTES, 16])
def test_a_batch_comes_back(piece_bytes: int, monkeypatch) -> None:
    monkeypatch.setattr(messages, "_PIECE_BYTES", piece_bytes)
    sent = list(send({"release": "0.1"}, BATCH))
    assert (len(sent) > 1 + len(BATCH)) == (piece_bytes == 16)
    info, batch = take(sent)
    check_same(batch, BATCH)
    assert info == {"release": "0.1"}
    assert batch["image"].flags.writeable
    assert batch["image"].ctypes.data % 64 == 0
    assert np.shares_memory(batch["image"], batch["image"][:1])


def test_a_sender_copies_no_large_array() -> None:
    _, data = send({}, {"image": (image := np.zeros((2, 3), np.float32))})
    assert data.column(0).buffers()[1].address == image.ctypes.data


ARRAY = {"dtype": "int32", "shape": [1]}


@pytest.mark.parametrize(
    "text",
    [
        *("", "end", "[]", "{}", '{"layout": []}', "[" * 60000),
        *(
            json.dumps({"layout": {"x": array}})
            for array in (
                *({**ARRAY, "shape": [2]}, {**ARRAY, "shape": None}, {**ARRAY, "shape": [[1]]}),
                *(
                    {**ARRAY, "shape": [-1]},
                    {**ARRAY, "shape": [1.0]},
                    {**ARRAY, "shape": [0, 2**70]},
                    {"dtype": "int32"},
                ),
                *(
                    {**ARRAY, "shape": [messages.MOST_BYTES // 4 + 1]},
                    {**ARRAY, "dtype": "object"},
                    [ARRAY, ARRAY],
                    [[[]]],
                ),
                *(3, 5, -4, 2**70, 4.0, True, "4", None, [4, 1], [[3], []]),
            )
        ),
    ],
    ids=lambda text: text[:60],
)
def test_what_is_no_batch_is_refused(text: str) -> None:
    """Four bytes come; what is said of them does not fit."""
    (nothing, _), four = send({}, {"x": np.zeros(4, np.uint8)})
    with pytest.raises(BrokenAnswer):
        take([(nothing, text.encode()), four])


def test_an_answer_that_ends_early_is_refused() -> None:
    sent = list(send({}, BATCH))
    for count in range(len(sent)):
        with pytest.raises(BrokenAnswer):
            take(sent[:count])


def test_random_damage_is_a_batch_or_refused(rng: random.Random) -> None:
    broken = 0
    (nothing, text), *data = send({"release": "0.1"}, BATCH)
    for _ in range(300):
        damaged = bytearray(text)
        for _ in range(rng.choice((1, 2, 5))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            _, batch = take([(nothing, bytes(damaged)), *data[: rng.choice((len(data), rng.randrange(len(data))))]])
            assert isinstance(batch, dict)
        except BrokenAnswer:
            broken += 1
    assert broken > 100
