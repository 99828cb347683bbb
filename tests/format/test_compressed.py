"""Compressed TFRecord files: TensorFlow writes them, and what is damaged or hostile ends in one sentence."""

import gzip
import io
import os
import tracemalloc
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
import tensorflow as tf

from tests.integrity.damaged import framed
from tfpipe.errors import FormatError
from tfpipe.format.compressed import MAX_RECORD_BYTES, detect_compression, scan_compressed
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
    with pytest.raises(FormatError) as caught:
        list(scan_compressed(io.BytesIO(gzip.compress(bytes(data))), "GZIP"))
    assert str(caught.value) == (
        "Record 1 at byte 19 of the unpacked data is damaged: the checksum of its 3 bytes of payload is wrong."
    )


def test_a_huge_length_takes_no_memory() -> None:
    data = zlib.compress(record_header(2**60) + bytes(1000))
    with pytest.raises(
        FormatError, match=r"must have at most 67,108,864 bytes of payload, got 1,152,921,504,606,846,976"
    ):
        list(scan_compressed(io.BytesIO(data), "ZLIB"))
    bomb = zlib.compress(record_header(MAX_RECORD_BYTES) + bytes(30 << 20))  # 30 MB of zeros in 30 KB
    tracemalloc.start()
    with pytest.raises(FormatError, match=r"Record 0 at byte 0 of the unpacked data is cut off"):
        list(scan_compressed(io.BytesIO(bomb), "ZLIB"))
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()
