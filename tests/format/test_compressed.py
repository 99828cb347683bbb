"""Compressed TFRecord files: TensorFlow writes them, and what is damaged or hostile ends in one sentence."""

import gzip
import io
import os
import zlib

import pytest
import tensorflow as tf

from tests.integrity.damaged import framed
from tests.memory import peak_memory
from tests.refusals import refusal
from tfpipe.errors import FormatError
from tfpipe.format.compressed import (
    MAX_RECORD_BYTES,
    detect_compression,
    pack_member,
    scan_compressed,
    scan_members,
    unpack_member,
)
from tfpipe.format.tfrecord import record_header

PAYLOADS = [b"one", b"", bytes(range(256)) * 9000, os.urandom(70_000)]


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
@pytest.mark.parametrize("payloads", [PAYLOADS, []])
def test_what_tensorflow_packs_is_unpacked(tmp_path, kind, payloads) -> None:
    path = tmp_path / "packed"
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=kind)) as writer:
        for payload in payloads:
            writer.write(payload)
    data = path.read_bytes()
    assert detect_compression(data[:12]) == kind
    assert list(scan_compressed(io.BytesIO(data), kind)) == payloads


def test_gzip_files_in_a_row_are_one(tmp_path) -> None:
    data = gzip.compress(framed(PAYLOADS[:2])) + gzip.compress(framed(PAYLOADS[2:]))
    (tmp_path / "row").write_bytes(data)
    read = [record.numpy() for record in tf.data.TFRecordDataset(str(tmp_path / "row"), "GZIP")]
    assert list(scan_compressed(io.BytesIO(data), "GZIP")) == read == PAYLOADS


def test_a_record_counts_more_than_two_bytes() -> None:
    for length in (0x8B1F, 0x088B1F, 0x9C78, 0x0178):
        assert detect_compression(record_header(length)) == ""
    assert [detect_compression(head) for head in (b"", b"\x1f", b"x\x9c", b"\x1f\x8b\x08", b"hello world!")] == [
        *("", "", "ZLIB", "GZIP", "")
    ]


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_every_cut_and_every_flip_is_noticed_or_harmless(kind) -> None:
    payloads = [b"one", b"two" * 40, b""]
    data = {"GZIP": gzip.compress, "ZLIB": zlib.compress}[kind](framed(payloads))
    for size in range(1, len(data)):
        with pytest.raises(FormatError, match=r"^Record \d at byte \d+ of the unpacked data (cannot be|is) "):
            list(scan_compressed(io.BytesIO(data[:size]), kind))
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]
        try:
            assert list(scan_compressed(io.BytesIO(changed), kind)) == payloads  # such as a time in the header
        except FormatError as error:
            assert str(error).startswith("Record ")


def test_a_wrong_payload_is_named() -> None:
    data = bytearray(framed([b"one", b"two"]))
    data[-6] ^= 1
    assert refusal(FormatError, list, scan_compressed(io.BytesIO(gzip.compress(bytes(data))), "GZIP")) == (
        "Record 1 at byte 19 of the unpacked data is damaged: the checksum of its 3 bytes of payload is wrong."
    )


def test_a_huge_length_takes_no_memory() -> None:
    data = zlib.compress(record_header(2**60) + bytes(1000))
    message = "must have at most 67,108,864 bytes of payload, got 1,152,921,504,606,846,976"
    assert message in refusal(FormatError, list, scan_compressed(io.BytesIO(data), "ZLIB"))
    bomb = zlib.compress(record_header(MAX_RECORD_BYTES) + bytes(30 << 20))  # 30 MB of zeros in 30 KB
    with peak_memory() as peak:
        with pytest.raises(FormatError, match=r"Record 0 at byte 0 of the unpacked data is cut off"):
            list(scan_compressed(io.BytesIO(bomb), "ZLIB"))
        assert peak() < 100 << 20


SIZES = [0, 1, 100, 2**20, 2**20 - 16, 2**20 - 12, 3 << 20, 5]  # around the pieces that are unpacked at once
MEMBERS = [pack_member(framed([bytes([k]) * size]), 6) for k, size in enumerate(SIZES)]


def test_records_with_a_member_of_their_own_are_known() -> None:
    found = list(scan_members(io.BytesIO(b"".join(MEMBERS))))
    assert [(len(payload), size) for payload, size in found] == list(zip(SIZES, map(len, MEMBERS), strict=True))
    assert [len(unpack_member(member)) for member in MEMBERS] == SIZES
    stream = gzip.compress(framed(PAYLOADS))
    assert list(scan_members(io.BytesIO(stream))) == [(payload, None) for payload in PAYLOADS]
    two, cut, none = gzip.compress(framed([b"a", b"b"])), framed([b"c"]), gzip.compress(b"")
    halves = gzip.compress(cut[:9]) + gzip.compress(cut[9:])
    mixed = b"".join((MEMBERS[1], two, MEMBERS[2], none, MEMBERS[2], halves, MEMBERS[1]))
    sizes = [len(MEMBERS[1]), None, None, len(MEMBERS[2]), None, None, len(MEMBERS[1])]
    assert [size for _, size in scan_members(io.BytesIO(mixed))] == sizes


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (MEMBERS[2][:-1], "The end of record 0 cannot be unpacked: the GZIP data ends too early."),
        (MEMBERS[2] + b"x", "It must be a gzip member that holds this record and nothing else, and it is not."),
        (MEMBERS[2] + MEMBERS[1], "It must be a gzip member that holds this record and nothing else, and it is not."),
        (gzip.compress(b""), "It must be a gzip member that holds this record and nothing else, and it is not."),
        (gzip.compress(b"hello"), "Record 0 at byte 0 of the unpacked data is cut off."),
        (gzip.compress(bytes(1 << 28), 1), "Record 0 at byte 0 of the unpacked data is damaged: the checksum of its"),
    ],
    ids=["cut off", "more bytes", "two members", "empty", "no record", "a bomb"],
)
def test_a_member_with_anything_but_one_record(member: bytes, reason: str) -> None:
    with peak_memory() as peak:
        with pytest.raises(FormatError) as caught:
            unpack_member(member)
        assert peak() < 10 << 20
    assert str(caught.value).startswith(reason)
