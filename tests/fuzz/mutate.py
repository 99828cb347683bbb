"""Changes to valid inputs: of bytes, of framed records, of JSON, of numbers in text, and of protocol buffers."""

import io
import json
import random
import struct
from typing import Any

from tests.fuzz.seeds import framed
from tfpipe.errors import FormatError
from tfpipe.format.protobuf_wire import varint
from tfpipe.format.tfrecord import record_footer, record_header, scan_records

_INTS = (
    *(0, 1, 2, 15, 16, 127, 128, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1),
    *(2**63, 2**64 - 1),
)
_VALUES: tuple[Any, ...] = (
    *(0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 1e308, float("nan"), float("inf"), 0.5, True, None),
    *("", "../x", "/etc/passwd", "a\0b", "\ud800", "x" * 5000, "train", "GZIP", "raw", "bytes"),
    *([], {}, [[]], [{}], {"": 1}),
)
_WORDS = (
    *(b"\x08", b"\x0a", b"\x12", b"\x1a", b"[", b"{", b'"', b",", b"NaN", b"1e999", b"9" * 5000, b"\n", b" "),
    *(b"\xff", b"-"),
)


def change(data: bytes, kind: str, rng: random.Random) -> bytes:
    """One to four changes of the kind that fits the input, or of its plain bytes."""
    for _ in range(rng.randrange(1, 5)):
        data = _KINDS.get(kind, change_bytes)(data, rng) if rng.random() < 0.6 else change_bytes(data, rng)
    return data


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """One change that knows nothing of what the bytes mean."""
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 8, 16, 60))
    what = rng.randrange(9)
    if what == 0:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if what == 1:
        return data[:at] + (bytes([data[at] ^ 1 << rng.randrange(8)]) if at < len(data) else b"") + data[at + 1 :]
    if what == 2:
        return data[:at] + data[at + size :]
    if what == 3:
        return data[:at] + rng.randbytes(size) + data[at:]
    if what == 4:
        begin = rng.randrange(len(data) + 1)
        return data[:at] + data[begin : begin + size] * rng.choice((1, 1, 3, 50)) + data[at:]
    if what == 5:
        return data[:at] + bytes(min(size, len(data) - at)) + data[at + size :]
    if what == 6:
        return data[:at] + rng.choice(_WORDS) + data[at:]
    if what == 7:
        return data[:at]
    number = rng.choice(_INTS)
    packed = rng.choice((struct.pack("<Q", number), struct.pack("<I", number & 0xFFFFFFFF), varint(number)))
    return data[:at] + packed + data[at + len(packed) :]


def _records(data: bytes, rng: random.Random) -> bytes:
    """Frames whose checksums hold, though their lengths or payloads are others."""
    try:
        payloads = [payload for _, payload in scan_records(io.BytesIO(data))]
    except FormatError:
        payloads = [data[:200]]
    at = rng.randrange(len(payloads) + 1)
    what = rng.randrange(5)
    if what == 0:
        return framed(payloads[:at]) + record_header(rng.choice(_INTS)) + framed(payloads[at:])
    if what == 1:
        payloads.insert(at, framed(payloads[:at])[:2000])
    elif what == 2 and payloads:
        payloads[at - 1] = change_bytes(payloads[at - 1], rng)
    elif what == 3:
        return framed(payloads[:at]) + record_header(3) + b"abc" + record_footer(b"abd") + framed(payloads[at:])
    else:
        rng.shuffle(payloads)
    return framed(payloads)


def _json(data: bytes, rng: random.Random) -> bytes:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return change_bytes(data, rng)
    places: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict | list):
            keys = list(here) if isinstance(here, dict) else range(len(here))
            places += [(here, key) for key in keys]
            waiting += [here[key] for key in keys]
    if not places:
        return json.dumps(rng.choice(_VALUES)).encode()
    here, key = rng.choice(places)
    what = rng.randrange(6)
    if what == 0:
        del here[key]
    elif what == 1 and isinstance(here, dict):
        here[str(rng.choice(_VALUES))[:6000]] = here[key]
    elif what == 2 and isinstance(here, list):
        here += [here[key]] * rng.choice((1, 2, 300))
    elif what == 3:
        nested: Any = here[key]
        for _ in range(rng.choice((1, 40, 900))):
            nested = [nested] if rng.random() < 0.5 else {"features": nested}
        here[key] = nested
    else:
        here[key] = rng.choice(_VALUES)
    try:
        text = json.dumps(document)
    except (ValueError, RecursionError):
        return data
    if rng.random() < 0.1:  # a key twice
        text = text.replace("{", '{"name": 1, ', 1)
    return text.encode()


def _numbers(data: bytes, rng: random.Random) -> bytes:
    words = data.split(b" ")
    words[rng.randrange(len(words))] = str(rng.choice((*_INTS, -1, 10**30, 2**63 + 16))).encode()
    return b" ".join(words)


def _protobuf(data: bytes, rng: random.Random) -> bytes:
    """A message of random fields, beside, around or instead of what is there."""

    def message(depth: int) -> bytes:
        out = []
        for _ in range(rng.randrange(4)):
            field, wire = rng.choice((1, 1, 2, 3, 9, 2**28)), rng.choice((0, 1, 2, 2, 2, 3, 4, 5, 6))
            body = {0: varint(rng.choice(_INTS)), 1: bytes(8), 5: bytes(4)}.get(wire, b"")
            if wire == 2:
                inner = message(depth - 1) if depth else rng.randbytes(rng.randrange(30))
                body = varint(len(inner) if rng.random() < 0.9 else rng.choice(_INTS)) + inner
            out.append(varint(field << 3 | wire) + body)
        return b"".join(out)

    new = message(4)
    what = rng.randrange(3)
    if what == 0:
        return data + new
    if what == 1:
        return b"\n" + varint(len(data)) + data
    return new


def _placed(data: bytes, rng: random.Random) -> bytes:
    return data[:16] + _records(data[16:], rng)


def _indexed(data: bytes, rng: random.Random) -> bytes:
    cut = int.from_bytes(data[:2], "little")
    index, file = data[2 : 2 + cut], data[2 + cut :]
    if rng.random() < 0.3:
        index = _numbers(index, rng)[:60_000]
    else:
        file = _records(file, rng) if rng.random() < 0.4 else change_bytes(file, rng)
    return len(index).to_bytes(2, "little") + index + file


def _headed(data: bytes, rng: random.Random) -> bytes:
    """A line of JSON with what is packed behind it: one of both is changed."""
    head, _, body = data.partition(b"\n")
    if rng.random() < 0.7:
        return _json(head, rng) + b"\n" + body
    return head + b"\n" + change_bytes(body, rng)


_KINDS = {
    "headed": _headed,
    "records": _records,
    "placed": _placed,
    "indexed": _indexed,
    "json": _json,
    "numbers": _numbers,
    "protobuf": _protobuf,
}
