"""`tfpipe.format.tfrecord` against TensorFlow's writer and reader, and against damaged files."""

import io
import os

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integrity.damaged import framed
from tests.refusals import refusal
from tfpipe.errors import FormatError
from tfpipe.format import tfrecord

PAYLOADS = st.lists(st.binary(max_size=300), max_size=8)


@settings(deadline=None, max_examples=8)
@given(payloads=PAYLOADS)
def test_tensorflow_reads_what_is_written(tmp_path_factory, payloads):
    path = str(tmp_path_factory.mktemp("read") / "a.tfrecord")
    with open(path, "wb") as file:
        file.write(framed(payloads))
    assert list(tf.data.TFRecordDataset(path).as_numpy_iterator()) == payloads


@settings(deadline=None, max_examples=8)
@given(payloads=PAYLOADS)
def test_reads_what_tensorflow_writes(tmp_path_factory, payloads):
    path = str(tmp_path_factory.mktemp("written") / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for payload in payloads:
            writer.write(payload)
    with open(path, "rb", buffering=0) as file:
        found = list(tfrecord.scan_records(file))
        assert file.read() == b""
        assert [payload for _, payload in found] == payloads
        for offset, payload in found:
            assert tfrecord.read_record(file, offset, len(payload) + tfrecord.FRAME_BYTES) == payload
    with open(path, "rb") as file:
        assert file.read() == framed(payloads)


def test_a_scan_begins_where_the_file_stands():
    file = io.BytesIO(framed([b"one", b"three"]))
    file.seek(19)
    assert list(tfrecord.scan_records(file)) == [(19, b"three")]


class _Trickle(io.BytesIO):
    """A file that returns a byte at a time, as an unbuffered one may."""

    def read(self, size=-1):
        return super().read(min(size, 1))


def test_short_reads_are_completed():
    data = framed([b"one", b"three"])
    assert list(tfrecord.scan_records(_Trickle(data))) == [(0, b"one"), (19, b"three")]
    assert tfrecord.read_record(_Trickle(data), 19, 21) == b"three"


def changed(data, at, new):
    return data[:at] + new + data[at + len(new) :]


TWO = framed([b"one", b"three"])
ENDLESS = tfrecord.record_header(2**64 - 1) + bytes(20)
TOO_FEW = "the file ends at byte 40 and framing alone takes 16."


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (changed(TWO, 19, b"\x06"), (), "1 at byte 19 is damaged: the checksum of its length is wrong."),
        (changed(TWO, 32, b"x"), (), "1 at byte 19 is damaged: the checksum of its 5 bytes of payload is wrong."),
        (TWO[:-1], (), "1 at byte 19 is cut off: it has 5 bytes of payload, 4 are there."),
        (TWO[:35], (), "1 at byte 19 is cut off: it has 5 bytes of payload, 0 are there."),
        (TWO[:31], (), "1 at byte 19 is cut off: it has 5 bytes of payload, 0 are there."),
        (TWO[:30], (), "1 at byte 19 is cut off: 11 of 12 header bytes are there."),
        (ENDLESS, (), "0 at byte 0 is cut off: it has 18446744073709551615 bytes of payload, 16 are there."),
        (TWO, (0, 15), f"at byte 0 cannot have 15 bytes: {TOO_FEW}"),
        (TWO, (19, 22), f"at byte 19 cannot have 22 bytes: {TOO_FEW}"),
        (TWO, (19, 2**70), f"at byte 19 cannot have 1180591620717411303424 bytes: {TOO_FEW}"),
        (TWO, (-5, 20), f"at byte -5 cannot have 20 bytes: {TOO_FEW}"),
        (TWO, (19, 20), "at byte 19 has 5 bytes, but the index says 4; the index belongs to another file."),
        (TWO, (1, 19), "at byte 1 is damaged: the checksum of its length is wrong."),
        (changed(TWO, 12, b"x"), (0, 19), "at byte 0 is damaged: the checksum of its 3 bytes of payload is wrong."),
    ],
)
def test_damage_and_a_wrong_place_are_named(data, place, message):
    def read():
        file = io.BytesIO(data)
        return tfrecord.read_record(file, *place) if place else list(tfrecord.scan_records(file))

    assert refusal(FormatError, read) == f"Record {message}"


def test_a_frame_in_memory():
    whole = framed([b"payload"])
    assert tfrecord.unframe(memoryview(whole)) == b"payload"
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        assert tfrecord.unframe(memoryview(damaged)) is None
    for size in range(len(whole)):
        assert tfrecord.unframe(memoryview(whole)[:size]) is None


def test_large_payloads_are_checked_before_memory_is_taken(tmp_path):
    data = bytes(range(256)) * (80 << 10)
    large = framed([data, b"next"])
    file = io.BytesIO(large)
    assert [payload == data for _, payload in tfrecord.scan_records(file)] == [True, False]
    assert tfrecord.read_record(file, 0, len(data) + 16) == data
    damaged = changed(large, 5 << 20, b"x")
    message = f"Record {{}}at byte 0 is damaged: the checksum of its {len(data)} bytes of payload is wrong."
    assert refusal(FormatError, list, tfrecord.scan_records(io.BytesIO(damaged))) == message.format("0 ")
    assert refusal(FormatError, tfrecord.read_record, io.BytesIO(damaged), 0, len(data) + 16) == message.format("")
    path = tmp_path / "hole"
    path.write_bytes(tfrecord.record_header(2**31 + 1))
    os.truncate(path, 2**31 + 17)
    with path.open("rb") as file:
        most = "Record at byte 0 must have at most 2,147,483,648 bytes of payload, got 2,147,483,649."
        assert refusal(FormatError, tfrecord.read_record, file, 0, 2**31 + 17) == most
