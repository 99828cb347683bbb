"""Messages: what is sent comes back, and what is damaged is refused whatever it is."""

import random
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import google_crc32c
import numpy as np
import pytest

from tfpipe.service import wire
from tfpipe.service.wire import BrokenMessage, Limits, decode_batch, encode_batch, receive, send

BATCH: dict[str, Any] = {
    "image": np.arange(4 * 5 * 3, dtype=np.uint8).reshape(1, 4, 5, 3),
    "label": np.array([-1, 2**40], np.int64),
    "weight": np.array([[0.5, -2.0]], np.float32),
    "mask": np.array([True, False, True]),
    "bits": np.array([1, 65535], np.uint16),
    "none": np.zeros((0, 7), np.int32),
    "ragged": [np.arange(3, dtype=np.int64), np.zeros(0, np.int64), np.arange(1, dtype=np.int64)],
    "tensors": [np.ones((2, 3), np.float16), np.zeros((1, 3), np.float16)],
    "text": [b"one", b"", "zwölf".encode()],
    "words": [[b"a", b"bc"], [b"", b"d"]],
}


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as one, listener.accept()[0] as other:
        wire.prepare(one)
        wire.prepare(other)
        yield one, other


def give_up(seconds: float) -> None:
    raise TimeoutError("nothing came")


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


def exchange(pair: tuple[socket.socket, socket.socket], batch: dict[str, Any]) -> dict[str, Any]:
    parts, pieces = encode_batch(batch)
    sender = threading.Thread(target=send, args=(pair[0], {"parts": parts}, pieces, lambda _: None))
    sender.start()
    message = receive(pair[1], Limits(), give_up)
    sender.join()
    return decode_batch(message.header["parts"], message.payload)


def test_every_kind_of_part_comes_back(pair: tuple[socket.socket, socket.socket]) -> None:
    check_same(exchange(pair, BATCH), BATCH)


def test_large_arrays_lie_in_the_payload_and_small_ones_do_not(pair: tuple[socket.socket, socket.socket]) -> None:
    batch = {"label": np.arange(8), "image": np.random.default_rng(1).integers(0, 256, (8, 400, 400, 3), np.uint8)}
    given = exchange(pair, batch)
    check_same(given, batch)
    assert given["image"].ctypes.data % 64 == 0
    assert not np.shares_memory(given["image"], given["label"])
    assert given["label"].base is None or given["label"].base.nbytes < 100


def test_arrays_that_are_not_contiguous_come_back(pair: tuple[socket.socket, socket.socket]) -> None:
    batch = {"image": np.arange(24).reshape(4, 6)[::2, ::3], "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T}
    check_same(exchange(pair, batch), batch)


@pytest.mark.parametrize("seed", range(20))
def test_random_batches_come_back(pair: tuple[socket.socket, socket.socket], seed: int) -> None:
    drawn = random.Random(seed)
    print(seed)
    batch: dict[str, Any] = {}
    for part in range(drawn.randrange(5)):
        rows = drawn.randrange(1, 6)
        shape = [drawn.randrange(4) for _ in range(drawn.randrange(3))]
        kind = drawn.choice(("array", "ragged", "text"))
        dtype = np.dtype(drawn.choice(sorted(wire._DTYPES)))
        if kind == "array":
            batch[str(part)] = np.ones((rows, *shape), dtype)
        elif kind == "ragged":
            batch[str(part)] = [np.full([drawn.randrange(4), *shape], 1, dtype) for _ in range(rows)]
        else:
            batch[str(part)] = [drawn.randbytes(drawn.randrange(9)) for _ in range(rows)]
    check_same(exchange(pair, batch), batch)


def make_message(header: bytes = b"{}", payload: bytes = b"", **changes: Any) -> bytes:
    values = {
        "magic": b"tfpS",
        "header": len(header),
        "payload": len(payload),
        "header_crc": google_crc32c.value(header),
        "payload_crc": google_crc32c.value(payload),
    } | changes
    return struct.pack("<4sIQII", *values.values()) + header + payload


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (make_message(magic=b"HTTP"), "something else than tfpipe answers"),
        (make_message(header=b"{}", header_crc=1), "a header is damaged"),
        (make_message(payload=b"abc", payload_crc=1), "a payload is damaged"),
        (make_message(b"[1]"), "a header is not a JSON object"),
        (make_message(b"{"), "a header is not a JSON object"),
        (make_message(b"\xff\xfe"), "a header is not a JSON object"),
        (make_message(b"[" * 100_000), "a header is not a JSON object"),
        (make_message(payload=b"abc")[:-1], "the connection was closed"),
        (make_message()[:10], "the connection was closed"),
        (b"", "the connection was closed"),
        (struct.pack("<4sIQII", b"tfpS", 2, 2**40, 0, 0), "a message of 2 and 1,099,511,627,776 bytes is too large"),
        (struct.pack("<4sIQII", b"tfpS", 2**31, 0, 0, 0), "a message of 2,147,483,648 and 0 bytes is too large"),
    ],
)
def test_what_is_no_message_is_refused(pair: tuple[socket.socket, socket.socket], data: bytes, reason: str) -> None:
    pair[0].sendall(data)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(BrokenMessage) as caught:
        receive(pair[1], Limits(1 << 20), give_up)
    assert str(caught.value) == reason


def test_a_silent_end_is_given_up(pair: tuple[socket.socket, socket.socket], monkeypatch) -> None:
    pair[1].settimeout(0.01)
    pair[0].sendall(make_message()[:10])
    with pytest.raises(TimeoutError, match="nothing came"):
        receive(pair[1], Limits(), give_up)


@pytest.mark.parametrize(
    "part",
    [
        None,
        5,
        {"dtype": "uint8", "shape": [4]},
        {"name": "a", "dtype": "object", "shape": [4]},
        {"name": "a", "dtype": "uint8", "shape": [65]},
        {"name": "a", "dtype": "uint8", "shape": [-1]},
        {"name": "a", "dtype": "uint8", "shape": [True]},
        {"name": "a", "dtype": "uint8", "shape": [2.0]},
        {"name": "a", "dtype": "uint8", "shape": [2**40, 2**40]},
        {"name": "a", "dtype": "uint8", "shape": [0, 2**70]},
        {"name": "a", "dtype": "uint8", "shape": [4], "shapes": []},
        {"name": "a", "dtype": "uint8"},
        {"name": "a", "dtype": "uint8", "shapes": [[60], [9]]},
        {"name": "a", "lengths": [64, 1], "rows": None},
        {"name": "a", "lengths": [1, 1], "rows": [3]},
        {"name": "a", "lengths": "ab", "rows": None},
        {"name": "a", "lengths": [1]},
    ],
)
def test_parts_that_do_not_fit_are_refused(part: Any) -> None:
    with pytest.raises(BrokenMessage, match="a batch has a part that is no part"):
        decode_batch([part], np.zeros(64, np.uint8))


def test_a_payload_that_is_too_long_is_refused() -> None:
    with pytest.raises(BrokenMessage, match="a batch of 64 bytes came with 128"):
        decode_batch([{"name": "a", "dtype": "uint8", "shape": [4]}], np.zeros(128, np.uint8))
    with pytest.raises(BrokenMessage):
        decode_batch(None, np.zeros(0, np.uint8))


@pytest.mark.parametrize("seed", range(3))
def test_a_changed_byte_is_always_noticed(pair: tuple[socket.socket, socket.socket], seed: int) -> None:
    drawn = random.Random(seed)
    print(seed)
    message = make_message(b'{"kind":"batch","parts":[]}', drawn.randbytes(40))
    for place in range(len(message)):
        changed = bytearray(message)
        changed[place] ^= 1 << drawn.randrange(8)
        listener = socket.create_server(("127.0.0.1", 0))
        with listener, socket.create_connection(listener.getsockname()) as one, listener.accept()[0] as other:
            wire.prepare(other)
            one.sendall(changed)
            one.shutdown(socket.SHUT_WR)
            with pytest.raises(BrokenMessage):
                receive(other, Limits(1 << 20, 1 << 20), give_up)
