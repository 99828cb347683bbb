"""Damaged PNGs: TensorFlow reads every file that is kept."""

import random
import struct
import zlib
from typing import Any

import numpy as np
import pytest

from tests.fuzz.mutate import change
from tests.refusals import refusal
from tfpipe.format.image_form import ImageForm
from tfpipe.images.normalize import BadImage, prepare_image

KEEP = ImageForm(max_pixels=1_000_000)


def reason(data: bytes) -> str:
    return refusal(BadImage, prepare_image, data, KEEP)


def split(data: bytes) -> list[tuple[bytes, bytes]]:
    chunks, position = [], 8
    while position < len(data):
        (length,) = struct.unpack_from(">I", data, position)
        chunks.append((data[position + 4 : position + 8], data[position + 8 : position + 8 + length]))
        position += 12 + length
    return chunks


def test_a_wrong_checksum_is_refused(make: Any) -> None:
    data = bytearray(make.save(make.image(), "PNG"))
    for name in (b"IHDR", b"IDAT", b"IEND"):
        damaged = bytearray(data)
        start = damaged.index(name)
        (length,) = struct.unpack_from(">I", damaged, start - 4)
        damaged[start + 4 + length] ^= 1
        assert reason(bytes(damaged)) == f"damaged PNG: wrong checksum in chunk {name.decode()}"


def test_a_cut_anywhere_is_refused(make: Any) -> None:
    data = make.save(make.image(), "PNG")
    for place in random.Random(30).sample(range(8, len(data)), 100):
        assert reason(data[:place]) == "truncated PNG"


def test_short_image_data_is_refused(make: Any, tf_png: Any) -> None:
    assert reason(make.png((4, 4), 8, 0, [b"abcd"] * 3)) == "damaged PNG: incomplete image data"
    whole = make.png((4, 4), 8, 0, [b"abcd"] * 4)
    for damage in (lambda z: z[:-1], lambda z: z[:-1] + b"!", lambda z: b"", lambda z: b"no zlib"):
        chunks = [(name, damage(body) if name == b"IDAT" else body) for name, body in split(whole)]
        assert reason(whole[:8] + b"".join(make.chunk(*chunk) for chunk in chunks)).startswith("damaged PNG: ")
    rows = make.png((1, 1), 8, 0, [b"\0"]).replace(zlib.compress(b"\0\0"), zlib.compress(b"\5\0"))
    assert reason(rows[:8] + b"".join(make.chunk(*chunk) for chunk in split(rows))) == "damaged PNG: unknown filter"
    # Surplus bytes disturb no reader.
    surplus = make.png((4, 4), 8, 0, [b"abcd"] * 5)
    assert prepare_image(surplus, KEEP).encoded == surplus
    assert tf_png(surplus, 1).shape == (4, 4, 1)


def test_chunks_in_the_wrong_order_are_refused(make: Any) -> None:
    palette = make.chunk(b"PLTE", bytes(6))
    assert reason(make.png((1, 1), 8, 3, [b"\0"])) == "damaged PNG: chunk IDAT in the wrong place"
    assert reason(make.png((1, 1), 8, 3, [b"\0"], palette, palette)) == "damaged PNG: chunk PLTE in the wrong place"
    assert reason(make.png((1, 1), 1, 3, [b"\0"], make.chunk(b"PLTE", bytes(9)))).endswith("impossible length")
    assert reason(make.png((1, 1), 8, 0, [b"\0"], make.chunk(b"ABCD", b""))).startswith("damaged PNG: unknown critical")
    assert reason(make.png((1, 1), 3, 0, [b"\0"])) == "damaged PNG: impossible values in its header"
    assert reason(make.png((0, 1), 8, 0, [b"\0"])) == "0 x 1 pixels, which is not a valid size"


def test_a_text_that_expands_enormously_is_refused(make: Any) -> None:
    bomb = make.chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(50_000_000)))
    message = "PNG whose texts, up to a zTXt chunk, expand to more than 8000000 bytes"
    assert reason(make.png((1, 1), 8, 0, [b"\0"], bomb)) == message


def test_an_interlaced_png_stays(make: Any, tf_png: Any) -> None:
    rng = np.random.default_rng(3)
    steps = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    for width, height in [(1, 1), (3, 5), (9, 8), (700, 511)]:
        pixels = rng.integers(0, 256, (height, width), np.uint8)
        rows = [row.tobytes() for x, y, dx, dy in steps for row in pixels[y::dy, x::dx] if row.size]
        data = bytearray(make.png((width, height), 8, 0, rows))
        data[28] = 1
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
        assert prepare_image(bytes(data), KEEP).encoded == bytes(data)
        assert (tf_png(bytes(data), 1)[:, :, 0] == pixels).all()


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1"])
@pytest.mark.parametrize("checksums", ["stale", "fresh"])
def test_tensorflow_decodes_every_accepted_file(make: Any, tf_png: Any, mode: str, checksums: str) -> None:
    whole = make.save(make.image(mode=mode), "PNG")
    rng = random.Random(31)
    accepted = 0
    for _ in range(300):
        if checksums == "stale":
            data = change(whole, "bytes", rng)
        else:
            chunks = split(whole)
            k = rng.choice([k for k, (_, body) in enumerate(chunks) if body])
            name, body = chunks[k]
            if name == b"IDAT" and rng.random() < 0.7:
                chunks[k] = name, zlib.compress(change(zlib.decompress(body), "bytes", rng))
            else:
                chunks[k] = name, change(body, "bytes", rng)
            if rng.random() < 0.1:
                chunks.insert(rng.randrange(1, len(chunks)), rng.choice(chunks))
            data = whole[:8] + b"".join(make.chunk(*chunk) for chunk in chunks)
        try:
            got = prepare_image(data, KEEP)
        except BadImage:
            continue
        accepted += 1
        assert tf_png(got.encoded).shape == (got.height, got.width, 3)
    assert checksums == "stale" or accepted > 5
