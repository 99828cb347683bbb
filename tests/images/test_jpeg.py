"""Damaged JPEGs: cut files are refused, a missing end marker is added, and a cheap decode finds all damage."""

import contextlib
import io
import itertools
import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.native.jpeg_writer import segment
from tests.refusals import refusal
from tfpipe.format.image_form import ImageForm
from tfpipe.images import jpeg
from tfpipe.images.normalize import BadImage, check_stored, prepare_image
from tfpipe.native import jpeg as native_jpeg

KEEP = ImageForm()
KINDS: list[dict[str, Any]] = [
    {},
    {"progressive": True},
    {"mode": "L"},
    {"mode": "L", "progressive": True},
    {"subsampling": 0, "quality": 100},
    {"subsampling": 1, "restart_marker_blocks": 2},
    {"width": 43, "height": 29, "optimize": True},
]


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_end_marker_is_appended(make: Any, tf_jpeg: Any, options: dict[str, Any], missing: int) -> None:
    whole = make.jpeg(**options)
    for form in (KEEP, ImageForm(resize_short=12), ImageForm("raw", square=8)):
        got = prepare_image(whole[:-missing], form)
        assert got.changed[0] == "eoi_appended"
        assert got.encoded == (whole if form == KEEP else prepare_image(whole, form).encoded)
    assert (tf_jpeg(prepare_image(whole[:-missing], KEEP).encoded) == tf_jpeg(whole)).all()


@pytest.mark.parametrize("options", KINDS)
def test_a_cut_anywhere_else_is_refused(make: Any, options: dict[str, Any]) -> None:
    whole = make.jpeg(**{"width": 90, "height": 70, **options})
    rng = random.Random(20)
    places = {len(whole) // 2, *range(len(whole) - 40, len(whole) - 2), *rng.sample(range(1, len(whole) - 2), 200)}
    starts = [at for at in range(3, len(whole) - 2) if whole[at : at + 2] in (b"\xff\xda", b"\xff\xc4")]
    places |= {*starts, *(at + 1 for at in starts)}  # between scans
    for place, form in itertools.product(places, (KEEP, ImageForm(seekable=True))):
        with pytest.raises(BadImage) as caught:
            prepare_image(whole[:place], form)
        if place < 3:  # the first bytes that tell the format
            assert caught.value.reason.startswith("not an image of a known format")
        else:
            assert caught.value.reason in ("truncated JPEG", "truncated JPEG: it ends before the image data")


SURPLUS = (
    "damaged JPEG: it has more data than blocks, as after a flipped bit; if a viewer shows it whole, save it anew there"
)
SCANS: list[dict[str, Any]] = [
    {},
    {"mode": "L"},
    {"progressive": True},
    *({"restart_marker_blocks": blocks} for blocks in (1, 2, 3)),
    {"restart_marker_rows": 1, "progressive": True},
    {"restart_marker_blocks": 1, "mode": "L", "optimize": True},
]


def find_ends(data: bytes) -> list[int]:
    """Returns the offset of each marker behind entropy-coded data."""
    ends, kind, at = list[int](), 0xDA, data.index(b"\xff\xda")
    while kind != 0xD9:
        is_restart = 0xD0 <= kind <= 0xD7
        at += 2 if is_restart else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if is_restart or kind == 0xDA:
            while data[at] != 0xFF or data[at + 1] == 0:
                at += 1
            ends.append(at)
        kind = data[at + 1]
    return ends


def put(data: bytes, places: list[int], surplus: bytes) -> bytes:
    return b"".join(data[a:b] + surplus for a, b in itertools.pairwise((0, *places))) + data[places[-1] :]


@pytest.mark.parametrize("options", SCANS, ids=str)
def test_zeros_before_a_marker_are_dropped(make: Any, tf_jpeg: Any, options: dict[str, Any]) -> None:
    whole = make.jpeg(**options)
    ends = find_ends(whole)
    for zeros in (1, 2, 7, 512):
        for places in (ends, ends[-1:], ends[:1], ends[1::2] or ends):
            padded = put(whole, places, bytes(zeros))
            assert (tf_jpeg(padded) == tf_jpeg(whole)).all()
            for seekable in (False, True):
                expected = prepare_image(whole, ImageForm(seekable=seekable))
                got = prepare_image(padded, ImageForm(seekable=seekable))
                assert (got.encoded, got.changed) == (expected.encoded, ("surplus_dropped", *expected.changed))
            assert check_stored(padded, "JPEG", KEEP)[:2] == (40, 24)
    filled = put(whole, ends, b"\xff\xff")  # which the standard allows
    assert prepare_image(filled, KEEP).encoded == filled
    assert prepare_image(put(whole, ends, b"\0\0\xff\xff") + b"behind", KEEP).encoded == filled + b"behind"


@pytest.mark.parametrize("options", SCANS, ids=str)
def test_other_bytes_before_a_marker_are_refused(make: Any, tf_jpeg: Any, options: dict[str, Any]) -> None:
    whole = make.jpeg(**options)
    ends = find_ends(whole)
    for surplus in (b"\x12", b"\0\x01", b"\x01\0", b"\xff\0", b"\0" * 100 + b"\x80", b"\xa5" * 600):
        for places in (ends, ends[-1:], ends[:1]):
            data = put(whole, places, surplus)
            assert (tf_jpeg(data) == tf_jpeg(whole)).all()  # as it would be after many a flipped bit
            for form in (KEEP, ImageForm(seekable=True)):
                assert refusal(BadImage, prepare_image, data, form) == SURPLUS
            assert refusal(BadImage, check_stored, data, "JPEG", KEEP) == SURPLUS


@pytest.mark.parametrize("options", SCANS, ids=str)
def test_zeros_in_place_of_the_last_data_are_refused(make: Any, options: dict[str, Any]) -> None:
    """A cut file whose rest a file system filled with zeros: decoders take them for blocks, and some are left over."""
    whole = make.jpeg(160, 120, **options)
    begin, end = whole.index(b"\xff\xda") + 14, len(whole) - 2
    between = [at + 1 for at in find_ends(whole)[:-1]]  # within a marker
    for cut in (*range(begin, end - 16, 11), *between):
        with contextlib.suppress(BadImage):
            got = prepare_image(whole[:cut] + bytes(end - cut) + whole[end:], KEEP)
            assert "surplus_dropped" not in got.changed, cut


@pytest.mark.parametrize("flips", [200, pytest.param(2500, marks=pytest.mark.slow)])
def test_flipped_bits_are_not_taken_for_padding(rng: random.Random, make: Any, flips: int) -> None:
    mended = 0
    for options in SCANS:
        whole = make.jpeg(120, 90, **options)
        begin = whole.index(b"\xff\xda")
        for _ in range(flips):
            data = bytearray(whole)
            data[rng.randrange(begin, len(data))] ^= 1 << rng.randrange(8)
            with contextlib.suppress(BadImage):
                mended += "surplus_dropped" in prepare_image(bytes(data), KEEP).changed
    assert mended <= 1 + flips * len(SCANS) // 2000


def test_a_missing_end_marker_is_noticed_whatever_the_last_bits_are(make: Any) -> None:
    # Pillow accepts about one such file in twenty, and TensorFlow none.
    for seed in range(100):
        whole = make.save(make.image(20, 20, seed=seed), "JPEG")
        got = prepare_image(whole[:-2], KEEP)
        assert (got.encoded, got.changed) == (whole, ("eoi_appended",))
        assert prepare_image(whole + b"\0\0tail", KEEP).encoded == whole + b"\0\0tail"
        with pytest.raises(BadImage):
            prepare_image(whole[:-3], KEEP)


@pytest.mark.parametrize("options", KINDS[:3])
def test_a_cheap_decode_refuses_the_same_files_as_a_full_one(make: Any, options: dict[str, Any]) -> None:
    whole = make.jpeg(**{"width": 60, "height": 44, **options})
    rng = random.Random(21)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.randrange(0, 4)):
            data[rng.randrange(2, len(data))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.3:
            del data[rng.randrange(2, len(data)) :]
        try:
            header = jpeg.read_header(bytes(data), 10_000_000)
        except BadImage:
            continue
        outcome = []
        for check in (jpeg.verify_by_pillow, jpeg.decode_jpeg):
            try:
                check(header)
                outcome.append(True)
            except Exception:
                outcome.append(False)
        assert outcome[0] == outcome[1]
        refused += not outcome[0]
    assert refused > 40


def _insert(data: bytes, segment: bytes) -> bytes:
    return data[:2] + segment + data[2:]


@pytest.mark.parametrize(
    ("segment", "is_plain", "reason"),
    [
        (b"", True, None),
        (b"\xff\xfe\0\2", True, None),
        (b"\xff\xe1\0\4xy", True, None),
        (b"\xff\xe0\0\x0bJFIF\0\1\1\0\0", True, None),
        (b"\xff\xe0\0\x07JFIF\0", False, "JPEG that cannot be decoded: unpack_from requires"),
        (b"\xff\xee\0\x07Adobe", False, "JPEG that cannot be decoded: unpack_from requires"),
        (b"\xff\xdc\0\4\0\0", False, None),
        (b"\xff", False, None),
    ],
)
def test_pillow_reads_all_headers_but_plain_ones(
    make: Any, monkeypatch: pytest.MonkeyPatch, segment: bytes, is_plain: bool, reason: str | None
) -> None:
    data, opened = _insert(make.jpeg(), segment), []
    assert jpeg.read_header(data, 10_000_000).is_plain == is_plain
    real = jpeg.open_jpeg
    monkeypatch.setattr(jpeg, "open_jpeg", lambda header: opened.append(header) or real(header))
    if reason is None:
        assert prepare_image(data, KEEP).encoded == data
    else:
        with pytest.raises(BadImage, match=reason):
            prepare_image(data, KEEP)
    assert len(opened) == (not is_plain)


@pytest.mark.parametrize("options", KINDS)
def test_pillow_takes_each_plain_header_that_the_native_library_takes(make: Any, options: dict[str, Any]) -> None:
    whole, rng, taken = make.jpeg(**options), random.Random(5), 0
    segments = (b"\xff\xe0\0\2", b"\xff\xdb\0\2", b"\xff\xdd\0\2", b"\xff\xcc\0\4\0\1", b"\xff\xde\0\4\0\1")
    for _ in range(300):
        data = bytearray(_insert(whole, rng.choice((b"", *segments))))
        data[rng.randrange(2, 300)] ^= 1 << rng.randrange(8)
        with contextlib.suppress(BadImage, native_jpeg.BadJpeg, native_jpeg.UnsupportedJpeg):
            header = jpeg.read_header(bytes(data), 10_000_000)
            if header.is_plain:
                native_jpeg.check(header.decodable)
                assert jpeg.open_jpeg(header).size == (header.width, header.height)
                taken += 1
    assert taken > 20


def test_application_data_does_not_change_the_pixels(make: Any, tf_jpeg: Any) -> None:
    plain = make.jpeg()
    bodies = {0xE1: b"Exif\0\0II*\0\xff", 0xE2: b"MPF\0II*\0\xff\xff", 0xED: b"Photoshop 3.0\0", 0xFE: b"x"}
    data = _insert(plain, b"".join(segment(kind, body) for kind, body in bodies.items()))
    assert prepare_image(data, KEEP).encoded == data
    assert (tf_jpeg(data) == tf_jpeg(plain)).all()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d, f: d.__setitem__(f + 4, 12), "JPEG of 12 bits a sample; 8 can be read"),
        (lambda d, f: d.__setitem__(f + 1, 0xC3), "JPEG of a rare kind (SOF3), which decoders do not read"),
        (lambda d, f: d.__setitem__(slice(f + 5, f + 9), bytes(4)), "0 x 0 pixels, which is not a valid size"),
        (lambda d, f: d.__setitem__(slice(f + 2, f + 4), b"\0\1"), "damaged JPEG: a segment of impossible length"),
        (lambda d, f: d.__setitem__(f + 1, 0xD9), "damaged JPEG: no image data"),
        (lambda d, f: d.__setitem__(f + 1, 0xE5), "damaged JPEG: no frame header"),
        (lambda d, f: d.__setitem__(f + 9, 2), "damaged JPEG: a frame header of impossible length"),
        (lambda d, f: d.__delitem__(slice(f + 8, None)), "truncated JPEG: it ends before the image data"),
    ],
)
def test_damaged_headers_are_refused(make: Any, edit: Any, message: str) -> None:
    data = bytearray(make.jpeg())
    edit(data, data.index(b"\xff\xc0"))
    assert refusal(BadImage, prepare_image, bytes(data), KEEP) == message


def test_too_many_scans_are_refused(make: Any) -> None:
    whole = make.jpeg(progressive=True)
    data = whole[:-2] + whole[whole.rindex(b"\xff\xda") : -2] * 300 + whole[-2:]
    with pytest.raises(BadImage, match=r"^progressive JPEG of 3\d\d scans of \d+ x \d+ pixels, more than are decoded$"):
        prepare_image(data, KEEP)


def test_few_scans_of_many_pixels_are_refused(make: Any) -> None:
    whole = make.jpeg(progressive=True)
    last, frame = whole.rindex(b"\xff\xda"), whole.index(b"\xff\xc2")
    large = whole[: frame + 5] + bytes.fromhex("1b581b58") + whole[frame + 9 :]  # 7,000 x 7,000 pixels
    data = large[:-2] + large[last:-2] * 60 + large[-2:]
    scans = data.count(b"\xff\xda")
    sentence = f"progressive JPEG of {scans} scans of 7,000 x 7,000 pixels, more than are decoded"
    assert refusal(BadImage, prepare_image, data, KEEP) == sentence


def test_a_jpeg_in_rgb_stays(make: Any, tf_jpeg: Any) -> None:
    data = make.save(make.image(), "JPEG", keep_rgb=True, quality=95)
    assert prepare_image(data, KEEP).encoded == data
    assert np.abs(tf_jpeg(data).astype(int) - np.asarray(Image.open(io.BytesIO(data)))).max() <= 1
