"""A test for each kind of image: the stored bytes, the recorded changes, and the pixels that TensorFlow reads."""

import io
import itertools
import pickle
import random
import struct
import subprocess
import sys
import warnings
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from tests.fuzz.mutate import change
from tests.images.tiff import BEGIN, write_planes, write_tiff
from tests.native.jpeg_writer import draw_jpeg
from tests.refusals import refusal
from tfpipe.format.image_form import ImageForm
from tfpipe.images import jpeg, transcode
from tfpipe.images.decode import decode_pixels
from tfpipe.images.jpeg import read_header
from tfpipe.images.normalize import BadImage, check_stored, get_codec_versions, judge, prepare_image
from tfpipe.images.seekable import has_chosen_interval, is_seekable
from tfpipe.native import jpeg as native_jpeg

KEEP = ImageForm()


def reason(data: bytes, form: ImageForm = KEEP) -> str:
    return refusal(BadImage, prepare_image, data, form)


def is_close(left: Any, right: Any, mean: float = 2.0) -> bool:
    """Returns whether two images agree apart from the losses of JPEG."""
    left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
    return left.shape == right.shape and float(np.abs(left - right).mean()) < mean


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_good_jpeg_stays(make: Any, tf_jpeg: Any, mode: str, progressive: bool) -> None:
    data = make.jpeg(mode=mode, progressive=progressive)
    boxes = [(0.1, 0.2, 0.3, 0.4)]
    for form in (KEEP, ImageForm("jpeg"), ImageForm(resize_short=24), ImageForm(resize_short=400)):
        got = prepare_image(data, form, filename="a.JPEG", boxes=boxes)
        assert got.encoded == data
        assert (got.format, got.height, got.width) == ("JPEG", 24, 40)
        assert (got.channels, got.colorspace) == ((1, "Grayscale") if mode == "L" else (3, "RGB"))
        assert (got.changed, got.noticed) == ((), ("progressive",) if progressive else ())
        assert got.boxes == tuple(boxes)
    square = make.jpeg(32, 32, mode=mode, progressive=progressive)
    assert prepare_image(square, ImageForm(square=32)).encoded == square
    assert np.abs(tf_jpeg(data).astype(int) - np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))).max() <= 1


@pytest.mark.parametrize(("depth", "row"), [(1, b"\xa0"), (2, b"\x1b"), (4, b"\x0f\x80"), (8, b"\x00\x07\xff\x80")])
@pytest.mark.parametrize("palette", [False, True])
def test_a_good_png_stays(make: Any, tf_png: Any, depth: int, row: bytes, palette: bool) -> None:
    if palette:
        chunks = [make.chunk(b"PLTE", bytes(i * 37 % 256 for i in range(3 << depth)))]
        data = make.png((4, 1), depth, 3, [row], *chunks)
    else:
        data = make.png((4, 1), depth, 0, [row])
    got = prepare_image(data, KEEP, filename="x.png")
    assert (got.encoded, got.changed, got.noticed) == (data, (), ())
    assert (got.format, got.channels) == ("PNG", 3 if palette else 1)
    assert (tf_png(data) == np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))).all()


def test_an_animated_png_stays(make: Any, tf_png: Any) -> None:
    frames = [make.image(seed=seed) for seed in (0, 1)]
    data = make.save(frames[0], "PNG", save_all=True, append_images=frames[1:])
    got = prepare_image(data, KEEP)
    assert (got.encoded, got.changed, got.noticed) == (data, (), ("animated",))
    assert (tf_png(data) == np.asarray(frames[0])).all()
    assert prepare_image(data, ImageForm("jpeg")).changed == ("first_frame", "png_to_jpeg")


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("form", [KEEP, ImageForm(reencode_progressive=True)])
def test_a_cmyk_jpeg_becomes_rgb(make: Any, tf_jpeg: Any, form: ImageForm, plain: bool) -> None:
    data = make.save(make.image(64, 64, "CMYK"), "JPEG", quality=95)
    got = prepare_image(data, form, plain=plain)
    assert (got.format, got.channels, got.changed, got.noticed) == ("JPEG", 3, ("cmyk_to_rgb",), ())
    header = read_header(got.encoded, ImageForm().max_pixels)
    assert (header.components, header.progressive) == (3, False)
    assert is_close(tf_jpeg(got.encoded), tf_jpeg(data))


def test_a_ycck_jpeg_becomes_rgb(make: Any, tf_jpeg: Any) -> None:
    data = bytearray(make.save(make.image(64, 64, "CMYK"), "JPEG", quality=95))
    adobe = data.index(b"\xff\xee")
    assert data[adobe + 15] == 0
    data[adobe + 15] = 2  # The samples count as YCCK now, which gives odd colors, but the same ones in every reader.
    got = prepare_image(bytes(data), ImageForm(quality=100))
    assert got.changed == ("cmyk_to_rgb",)
    assert is_close(tf_jpeg(got.encoded), tf_jpeg(bytes(data)), 4)


@pytest.mark.parametrize(
    ("kind", "options", "stored", "change"),
    [
        ("PNG", {}, "PNG", None),
        ("WEBP", {"quality": 90}, "JPEG", "webp_to_jpeg"),
        ("WEBP", {"lossless": True}, "PNG", "webp_to_png"),
        ("GIF", {}, "PNG", "gif_to_png"),
        ("BMP", {}, "PNG", "bmp_to_png"),
        ("TIFF", {}, "PNG", "tiff_to_png"),
        ("TIFF", {"compression": "tiff_lzw"}, "PNG", "tiff_to_png"),
        ("TIFF", {"compression": "jpeg"}, "JPEG", "tiff_to_jpeg"),
        ("PPM", {}, "PNG", "ppm_to_png"),
        ("AVIF", {}, "JPEG", "avif_to_jpeg"),
    ],
)
def test_another_format_with_the_name_of_a_jpeg_is_noticed(make, tf_png, tf_jpeg, kind, options, stored, change):
    Image.init()
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow cannot write {kind}")
    data = make.save(make.image(), kind, **options)
    got = prepare_image(data, KEEP, filename="folder.x/n01.JPEG")
    assert (got.format, got.height, got.width) == (stored, 24, 40)
    assert (got.changed, got.noticed) == ((change,) if change else (), ("name_differs",))
    source = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    if stored == "PNG":
        assert (tf_png(got.encoded) == source).all()
    else:
        assert is_close(tf_jpeg(got.encoded), source, 4)
    as_jpeg = prepare_image(data, ImageForm("jpeg"), filename="x")
    assert (as_jpeg.format, as_jpeg.noticed) == ("JPEG", ())
    assert is_close(tf_jpeg(as_jpeg.encoded), source, 4)


def test_alpha_is_composited_on_white(make: Any, tf_png: Any) -> None:
    pixels = np.dstack([make.pixels(), np.arange(40 * 24, dtype=np.uint8).reshape(24, 40)])
    got = prepare_image(make.save(Image.fromarray(pixels), "PNG"), KEEP)
    assert (got.format, got.channels, got.changed) == ("PNG", 3, ("alpha_composited",))
    alpha = pixels[:, :, 3:] / 255
    assert np.abs(tf_png(got.encoded) - (pixels[:, :, :3] * alpha + 255 * (1 - alpha))).max() <= 0.51
    webp = prepare_image(make.save(Image.fromarray(pixels), "WEBP", lossless=True, exact=True), KEEP)
    assert webp.changed == ("alpha_composited", "webp_to_png")
    assert (tf_png(webp.encoded) == tf_png(got.encoded)).all()


def test_gray_alpha_stays_gray(make: Any, tf_png: Any) -> None:
    got = prepare_image(make.png((3, 1), 8, 4, [bytes([100, 255, 100, 0, 100, 51])]), KEEP)
    assert (got.channels, got.colorspace, got.changed) == (1, "Grayscale", ("alpha_composited",))
    assert tf_png(got.encoded, 1).ravel().tolist() == [100, 255, 224]


def test_transparent_palettes_and_colors_are_composited_on_white(make: Any, tf_png: Any) -> None:
    plte = make.chunk(b"PLTE", bytes([255, 0, 0, 0, 0, 255]))
    got = prepare_image(make.png((2, 1), 8, 3, [b"\0\1"], plte, make.chunk(b"tRNS", bytes([0, 255]))), KEEP)
    assert got.changed == ("alpha_composited",)
    assert tf_png(got.encoded).tolist() == [[[255, 255, 255], [0, 0, 255]]]
    half = make.png((2, 1), 8, 3, [b"\0\1"], plte, make.chunk(b"tRNS", bytes([51, 255])))
    assert tf_png(prepare_image(half, KEEP).encoded).tolist() == [[[255, 204, 204], [0, 0, 255]]]
    rgb = make.png((2, 1), 8, 2, [bytes([9, 8, 7, 9, 8, 6])], make.chunk(b"tRNS", struct.pack(">HHH", 9, 8, 7)))
    assert tf_png(prepare_image(rgb, KEEP).encoded).tolist() == [[[255, 255, 255], [9, 8, 6]]]


@pytest.mark.parametrize(
    ("depth", "row", "key"), [(1, b"\x80", 1), (2, b"\xc0", 3), (4, b"\xf0", 15), (8, b"\xff\0", 255)]
)
def test_transparent_gray_of_few_bits_becomes_white(make: Any, tf_png: Any, depth: int, row: bytes, key: int) -> None:
    got = prepare_image(make.png((2, 1), depth, 0, [row], make.chunk(b"tRNS", struct.pack(">H", 0))), KEEP)
    assert tf_png(got.encoded, 1).ravel().tolist() == [255, 255]
    # A transparent white pixel stays white, and black stays black.
    got = prepare_image(make.png((2, 1), depth, 0, [row], make.chunk(b"tRNS", struct.pack(">H", key))), KEEP)
    assert got.changed == ("alpha_composited",)
    assert tf_png(got.encoded, 1).ravel().tolist() == [255, 0]


SAMPLES = [0, 127, 128, 129, 300, 32768, 65400, 65535]
SCALED = [round(v * 255 / 65535) for v in SAMPLES]


def test_16_bit_gray_is_scaled(make: Any, tf_png: Any) -> None:
    row = struct.pack(">8H", *SAMPLES)
    sources = [("png", make.png((8, 1), 16, 0, [row])), ("ppm", b"P5 8 1 65535\n" + row)]
    for order, compression in itertools.product("<>", ("raw", "tiff_lzw", "tiff_adobe_deflate")):
        image = Image.fromarray(np.array([SAMPLES], np.dtype(order + "u2")))
        sources.append(("tiff", make.save(image, "TIFF", compression=compression)))
    for kind, data in sources:
        got = prepare_image(data, KEEP)
        assert (got.format, got.channels) == ("PNG", 1)
        assert got.changed == ("depth_16_to_8", f"{kind}_to_png")[: 1 + (kind != "png")]
        assert tf_png(got.encoded, 1).ravel().tolist() == SCALED
    got = prepare_image(make.png((8, 1), 16, 0, [row], make.chunk(b"tRNS", struct.pack(">H", 300))), KEEP)
    assert got.changed == ("depth_16_to_8", "alpha_composited")
    transparent = [255 if value == 300 else scaled for value, scaled in zip(SAMPLES, SCALED, strict=True)]
    assert tf_png(got.encoded, 1).ravel().tolist() == transparent


@pytest.mark.parametrize(("color_type", "channels"), [(2, 3), (6, 4)])
def test_16_bit_color_png_is_scaled(make: Any, tf_png: Any, color_type: int, channels: int) -> None:
    values = np.random.default_rng(5).integers(0, 65536, (6, 5, channels), np.uint16)
    got = prepare_image(make.png((5, 6), 16, color_type, [row.astype(">u2").tobytes() for row in values]), KEEP)
    exact = values.astype(np.float64) / 65535
    if color_type == 6:
        exact = exact[:, :, :-1] * exact[:, :, -1:] + 1 - exact[:, :, -1:]
    assert (got.channels, got.changed) == (3, ("depth_16_to_8", "alpha_composited")[: channels - 2])
    assert np.abs(tf_png(got.encoded) - exact * 255).max() < 0.51


@pytest.mark.parametrize(("order", "inverted"), [("<", False), (">", False), ("<", True)])
def test_a_16_bit_tiff_written_by_hand_is_scaled(tf_png: Any, order: str, inverted: bool) -> None:
    values = [257, 128, 65535, 5, 40000, 300]
    for photometric, width, samples in ((2, 2, 3), (0 if inverted else 1, 6, 1)):
        layout = {256: width, 257: 1, 258: [16] * samples, 259: 1, 262: photometric, 277: samples, 278: 1}
        pixels = struct.pack(order + "6H", *values)
        got = prepare_image(write_tiff(order, {**layout, 273: BEGIN, 279: len(pixels)}, pixels), KEEP)
        assert got.changed == ("depth_16_to_8", "tiff_to_png")
        expected = [65535 - v if photometric == 0 else v for v in values]
        assert tf_png(got.encoded, samples).ravel().tolist() == [round(v / 257) for v in expected]


def test_rare_samples_of_more_than_8_bits_are_refused(make: Any) -> None:
    for kind in ("i4", "f4"):
        samples = Image.fromarray(np.array([[0, 1]], kind))
        sentence = "samples of 32 bits, whose white nobody knows; save them with 8 or 16 bits"
        assert reason(make.save(samples, "TIFF")) == sentence
    gray_alpha = make.png((1, 1), 16, 4, [bytes(4)])
    assert reason(gray_alpha) == "a PNG of 16-bit gray with alpha, which is not read; save it with 8 bits a sample"
    assert prepare_image(gray_alpha, KEEP, plain=True).encoded == gray_alpha
    sentence = "a TIFF of 16-bit samples in separate planes, which is not read; save it with interleaved samples"
    assert reason(write_planes([bytes(12)] * 3, (3, 2))) == sentence


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_exif_orientation_turns_pixels_and_boxes(make: Any, orientation: int, kind: str) -> None:
    # A red rectangle on black: the box must enclose it before and after.
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[8:24, 16:64] = (255, 0, 0)
    box = (16 / 96, 8 / 64, 64 / 96, 24 / 64)
    image = Image.fromarray(pixels)
    if kind == "TIFF":
        data = make.save(image, kind, tiffinfo={274: orientation})
    else:
        exif = make.exif(orientation, "<>"[orientation % 2])
        special: dict[str, dict[str, Any]] = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95, "subsampling": 0}}
        data = make.save(image, kind, exif=exif, **special.get(kind, {}))
    got = prepare_image(data, KEEP, boxes=[box])
    assert ("exif_rotated" in got.changed) == (orientation != 1)
    if kind in ("JPEG", "PNG") and orientation == 1:
        assert got.encoded == data
    assert (got.height, got.width) == ((96, 64) if orientation >= 5 else (64, 96))
    stored = Image.open(io.BytesIO(got.encoded))
    red = np.asarray(stored.convert("RGB"))[:, :, 0] > 128
    rows, columns = np.flatnonzero(red.any(axis=1)), np.flatnonzero(red.any(axis=0))
    corners = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
    assert got.boxes[0] == pytest.approx(corners / (got.width, got.height, got.width, got.height), abs=1e-12)
    assert stored.getexif().get(274, 1) == 1
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")  # Pillow turns it in the same way
    assert is_close(stored.convert("RGB"), upright)
    small = prepare_image(data, ImageForm(resize_short=16), boxes=[box])
    assert (small.height, small.width) == ((24, 16) if orientation >= 5 else (16, 24))
    assert small.boxes == got.boxes
    assert is_close(
        Image.open(io.BytesIO(small.encoded)).convert("RGB"), upright.resize((small.width, small.height), 3), 6
    )
    square = prepare_image(data, ImageForm("raw", square=16), boxes=[box])
    assert (square.height, square.width) == (got.height, got.width)
    assert is_close(np.frombuffer(square.encoded, np.uint8).reshape(16, 16, 3), upright.resize((16, 16), 3), 6)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_plain_image_lies_as_it_is_stored(make: Any, kind: str) -> None:
    image = make.image(24, 16)
    data = make.save(image, kind, exif=make.exif(6, "<"))
    kept = prepare_image(data, KEEP, plain=True)
    assert (kept.encoded, kept.width, kept.height, kept.changed, kept.noticed) == (data, 24, 16, (), ("turned",))
    smaller = prepare_image(data, ImageForm(resize_short=8), plain=True)
    upright = prepare_image(make.save(image, kind), ImageForm(resize_short=8))
    assert (smaller.encoded, smaller.changed, smaller.noticed) == (upright.encoded, ("resized",), ())


def test_hostile_exif_is_ignored(make: Any) -> None:
    rng = random.Random(11)
    plain = make.jpeg()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(200):
            block = make.exif(1, rng.choice("<>"))
            body = (block[:10] + change(block[10:], "bytes", rng))[:60_000]
            data = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + plain[2:]
            got = prepare_image(data, KEEP)
            assert got.encoded == data or got.changed == ("exif_rotated",)


def test_an_animated_gif_becomes_a_png(make: Any, tf_png: Any) -> None:
    frames = [make.image(mode="P"), make.image(mode="P", seed=1)]
    got = prepare_image(make.save(frames[0], "GIF", save_all=True, append_images=frames[1:]), KEEP)
    assert got.changed == ("first_frame", "gif_to_png")
    assert (tf_png(got.encoded) == np.asarray(frames[0].convert("RGB"))).all()


def test_a_transparent_gif_is_composited_on_white(make: Any, tf_png: Any) -> None:
    image = Image.fromarray(np.array([[0, 1]], np.uint8))
    image.putpalette([255, 0, 0, 0, 0, 255])
    got = prepare_image(make.save(image, "GIF", transparency=0), KEEP)
    assert got.changed == ("alpha_composited", "gif_to_png")
    assert tf_png(got.encoded).tolist() == [[[255, 255, 255], [0, 0, 255]]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\0" * 700, "not an image: it begins with zero bytes"),
        (b"\n<!DOCTYPE html><html>", "not an image: it begins like HTML"),
        (b"\xef\xbb\xbf<HTML>", "not an image: it begins like HTML"),
        (b'<?xml version="1.0"?><svg>', "an SVG drawing, not an image that can be read"),
        (b'{"error": 404}', "not an image: it begins like JSON"),
        (b"Not found\n", "not an image: it begins like text"),
        (b"BMX", "BMP that cannot be decoded: "),
        (b"\xff\x4f\xff\x51", "a JPEG 2000, which is not read; convert it to PNG"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000, which is not read; convert it to PNG"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "a JPEG XL, which is not read; convert it to PNG"),
        (b"PK\3\4....", "a ZIP archive, not an image that can be read"),
        (b"\0\0\0\x18ftypmp42", "not an image: it begins like a video"),
        (bytes(range(130, 150)), "not an image of a known format: it begins with the bytes 82 83 84 85 86 87 88 89"),
    ],
)
def test_files_that_are_not_images_are_named(data: bytes, message: str) -> None:
    assert reason(data).startswith(message)


def test_a_header_with_too_many_pixels_is_refused(make: Any) -> None:
    jpeg = bytearray(make.jpeg())
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 30000, 30000)
    png = make.png((30000, 30000), 8, 2, [b""])
    translucent = make.image(mode="RGBA")
    translucent.putalpha(99)
    webp = bytearray(make.save(translucent, "WEBP"))
    webp[24:30] = (9999).to_bytes(3, "little") * 2
    gif = bytearray(make.save(make.image(mode="P"), "GIF"))
    gif[6:10] = struct.pack("<HH", 30000, 30000)
    bmp = bytearray(make.save(make.image(), "BMP"))
    bmp[18:26] = struct.pack("<ii", 30000, 30000)
    message = "30000 x 30000 pixels, more than `max_pixels` 64000000 allows"
    for data in (jpeg, png, gif, bmp, b"P6 30000 30000 255\n"):
        assert reason(bytes(data)) == message
    assert reason(bytes(webp)) == message.replace("30000", "10000")
    assert reason(make.jpeg(), ImageForm(max_pixels=959)) == "40 x 24 pixels, more than `max_pixels` 959 allows"
    assert prepare_image(make.jpeg(), ImageForm(max_pixels=960)).width == 40


def test_large_images_raise_no_warning(make: Any, monkeypatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("JPEG", "PNG", "BMP", "WEBP"):
            assert prepare_image(make.save(make.image(), kind), KEEP).width == 40


def test_progressive_files_are_reencoded_where_asked(make: Any, tf_jpeg: Any) -> None:
    data = make.jpeg(progressive=True)
    got = prepare_image(data, ImageForm(reencode_progressive=True))
    assert (got.changed, got.noticed) == (("progressive_reencoded",), ())
    assert b"\xff\xc2" not in got.encoded
    assert is_close(tf_jpeg(got.encoded), tf_jpeg(data))


def test_a_jpeg_is_resized_to_the_bytes_of_pillow_in_every_direction(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = [ImageForm(resize_short=24), ImageForm(square=33), ImageForm(resize_short=20, seekable=True)]
    images = [make.jpeg(200, 90, exif=make.exif(turn)) for turn in range(1, 9)]
    images += [make.jpeg(61, 400, progressive=True), make.jpeg(90, 90, subsampling=0)]
    natively = [prepare_image(data, form) for data in images for form in forms]
    monkeypatch.setattr(transcode, "resize_jpeg", lambda header, size: None)
    assert natively == [prepare_image(data, form) for data in images for form in forms]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [(333, 250), (250, 333), (1000, 70), (65, 64)])
def test_the_short_side_is_resized(make: Any, tf_jpeg: Any, tf_png: Any, kind: str, size: tuple[int, int]) -> None:
    data = make.save(make.image(*size), kind, **({"quality": 95} if kind == "JPEG" else {}))
    got = prepare_image(data, ImageForm(resize_short=64))
    short, long = min(size), max(size)
    if short <= 64:
        assert got.encoded == data
        return
    size_in_form = tuple(64 if side == short else round(long * 64 / short) for side in size)
    assert (got.width, got.height) == size_in_form
    assert (got.format, got.changed) == (kind, ("resized",))
    exact = Image.open(io.BytesIO(data)).resize(size_in_form, Image.Resampling.BICUBIC)
    if kind == "PNG":
        assert (tf_png(got.encoded) == np.asarray(exact)).all()
    else:  # only the brightness, since JPEG halves the resolution of color
        assert is_close(Image.fromarray(tf_jpeg(got.encoded)).convert("L"), exact.convert("L"))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_raw_pixels_are_a_square(make: Any, mode: str) -> None:
    data = make.jpeg(100, 70, mode=mode)
    got = prepare_image(data, ImageForm("raw", square=32))
    assert (got.format, got.height, got.width, got.channels, got.colorspace) == ("RAW", 70, 100, 3, "RGB")
    assert got.changed == ("resized", "jpeg_to_raw")
    pixels = np.frombuffer(got.encoded, np.uint8).reshape(32, 32, 3)
    assert is_close(pixels, Image.open(io.BytesIO(data)).convert("RGB").resize((32, 32), Image.Resampling.BICUBIC))
    same = prepare_image(make.save(make.image(32, 32), "PNG"), ImageForm("raw", square=32))
    assert same.changed == ("png_to_raw",)
    assert same.encoded == make.pixels(32, 32).tobytes()


def test_a_new_encoding_has_no_metadata(make: Any) -> None:
    image = make.image(mode="CMYK")
    data = make.save(image, "JPEG", comment=b"by me", icc_profile=b"profile", exif=make.exif(6), dpi=(72, 72))
    got = prepare_image(data, KEEP)
    assert got.changed == ("cmyk_to_rgb", "exif_rotated")
    for metadata in (b"by me", b"profile", b"Exif"):
        assert metadata not in got.encoded
    assert got == prepare_image(data, KEEP)


def test_codec_versions_are_texts_and_errors_can_be_pickled() -> None:
    versions = get_codec_versions()
    assert {"pillow", "zlib"} <= versions.keys()
    assert all(isinstance(value, str) and value for value in versions.values())
    assert pickle.loads(pickle.dumps(BadImage("why"))).reason == "why"


@pytest.mark.parametrize("options", [{"square": 100}, {"resize_short": 64}, {"encoding": "jpeg"}], ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_an_image_that_is_encoded_anew_gets_markers(make: Any, mode: str, options: dict[str, Any]) -> None:
    data = make.save(make.image(500, 300, mode), "JPEG" if mode != "RGBA" and "encoding" not in options else "PNG")
    form = ImageForm(**{"encoding": "jpeg", **options})
    plain, got = prepare_image(data, form), prepare_image(data, replace(form, seekable=True))
    assert not is_seekable(plain.encoded)
    assert has_chosen_interval(got.encoded)
    assert (got.changed, got.noticed, got.format, got.height) == (plain.changed, plain.noticed, "JPEG", plain.height)
    np.testing.assert_array_equal(*[np.asarray(Image.open(io.BytesIO(image.encoded))) for image in (plain, got)])


@pytest.mark.parametrize("seekable", [False, True])
def test_a_progressive_jpeg_that_lacks_bits_is_encoded_anew(make: Any, seekable: bool) -> None:
    data = make.jpeg(200, 120, progressive=True)
    second_scan = data.index(b"\xff\xda", data.index(b"\xff\xda") + 2)
    cut = data[: data.rindex(b"\xff\xc4", 0, second_scan)] + b"\xff\xd9"
    pixels = np.asarray(Image.open(io.BytesIO(cut)))
    got = prepare_image(cut, ImageForm(seekable=seekable))
    assert (got.changed, got.noticed) == (("progressive_reencoded",), ())
    assert has_chosen_interval(got.encoded) == seekable
    assert is_close(Image.open(io.BytesIO(got.encoded)), pixels)


def test_the_import_loads_no_heavy_module() -> None:
    heavy = "{'numpy', 'tensorflow', 'apache_beam', 'PIL.TiffImagePlugin', 'PIL.WebPImagePlugin'}"
    code = f"import sys, tfpipe.images.normalize; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    code = "import sys, tfpipe.format.image_form; print('PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def encode_heic(*images: Image.Image) -> bytes:
    import pillow_heif

    file, buffer = pillow_heif.HeifFile(), io.BytesIO()
    for image in images:
        file.add_from_pillow(image)
    file.save(buffer, quality=95)
    return buffer.getvalue()


@pytest.mark.needs("pillow_heif")
def test_heic_is_converted(make: Any, tf_jpeg: Any, monkeypatch) -> None:
    data = encode_heic(make.image())
    got = prepare_image(data, KEEP, filename="a.heic")
    assert (got.format, got.width, got.height, got.channels) == ("JPEG", 40, 24, 3)
    assert (got.changed, got.noticed) == (("heic_to_jpeg",), ())
    assert is_close(tf_jpeg(got.encoded), make.pixels(), 6)
    assert prepare_image(encode_heic(make.image(mode="L")), KEEP).channels == 1
    clear = make.image().copy()
    clear.putalpha(0)
    got = prepare_image(encode_heic(clear, make.image()), KEEP)
    assert got.changed == ("first_frame", "alpha_composited", "heic_to_jpeg")
    assert tf_jpeg(got.encoded).min() > 250
    assert reason(data, ImageForm(max_pixels=900)) == "40 x 24 pixels, more than `max_pixels` 900 allows"
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    assert reason(data) == "a HEIC image, which needs pillow-heif: pip install '.[heif]' in a checkout of tfpipe"


HEIC = pytest.param("HEIC", marks=pytest.mark.needs("pillow_heif"))


@pytest.mark.parametrize("kind", ["GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF", HEIC])
def test_damaged_files_of_other_formats_raise_only_bad_image(make: Any, kind: str) -> None:
    rng = random.Random(kind)
    Image.init()
    if kind not in (*Image.SAVE, "HEIC"):
        pytest.skip(f"this Pillow cannot write {kind}")
    whole = encode_heic(make.image()) if kind == "HEIC" else make.save(make.image(), kind)
    form = ImageForm(max_pixels=1_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(60):
            try:
                prepare_image(whole[:4] + change(whole[4:], "bytes", rng), form)
            except BadImage as error:
                assert error.reason


KINDS: list[dict[str, Any]] = [
    {},
    {"subsampling": 0},
    {"subsampling": 1, "optimize": True},
    {"mode": "L"},
    {"mode": "CMYK"},
    {"restart_marker_blocks": 2},
    {"progressive": True},
    {"progressive": True, "mode": "L"},
]


def make_damaged(make: Any, rng: random.Random, count: int) -> list[bytes]:
    seeds = [make.jpeg(40 + 3 * k, 30 + k, **options) for k, options in enumerate(KINDS)]
    files = [*seeds, *(data[:-2] for data in seeds), *(data + b"\xff\xd9rest" for data in seeds)]
    files += [change(rng.choice(seeds), "bytes", rng) for _ in range(count)]
    drawn = [draw_jpeg(rng.randrange(2**32)).data for _ in range(count // 8)]
    return files + drawn + [change(data, "bytes", rng) for data in drawn]


@pytest.mark.parametrize("count", [400, pytest.param(8000, marks=pytest.mark.slow)])
def test_every_reader_reads_what_is_stored(rng: random.Random, make: Any, tf_jpeg: Any, count: int) -> None:
    refused = 0
    files = make_damaged(make, rng, count)
    for data in files:
        try:
            stored = prepare_image(data, KEEP)
        except BadImage:
            refused += 1
            continue
        assert check_stored(stored.encoded, stored.format, KEEP) == (stored.width, stored.height, stored.channels)
        pixels = tf_jpeg(stored.encoded).copy()
        assert decode_pixels(stored.encoded, KEEP).shape == (stored.height, stored.width, 3)
        native_jpeg.decode(stored.encoded, (0, 0, stored.height, stored.width), pixels)
    assert 0.2 * len(files) < refused < 0.9 * len(files)


@pytest.mark.parametrize("at", [2, 3, 20])
def test_a_second_beginning_is_refused(make: Any, tf_jpeg: Any, at: int) -> None:
    """Decoders stop at a second SOI, also where only its last byte was inserted."""
    data = make.jpeg(40, 30)
    damaged = data[:at] + (b"\xd8" if at == 3 else b"\xff\xd8") + data[at:]
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf_jpeg(damaged)
    assert refusal(BadImage, prepare_image, damaged, KEEP) == "damaged JPEG: it begins twice"


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_whole_image_is_not_decoded(make: Any, options: dict[str, Any], monkeypatch) -> None:
    monkeypatch.setattr("PIL.JpegImagePlugin.JpegImageFile.load", None)
    assert judge(jpeg.read_header(make.jpeg(**options), KEEP.max_pixels))


def test_pillow_follows_the_segments_of_a_rare_kind_to_the_end(make: Any, monkeypatch) -> None:
    data = make.jpeg()

    def read(middle: bytes) -> jpeg.JpegHeader:
        return jpeg.read_header(data[:-2] + middle + data[-2:], KEEP.max_pixels)

    monkeypatch.setattr(native_jpeg, "check", Mock(side_effect=native_jpeg.UnsupportedJpeg("of a rare kind")))
    assert not judge(read(b""))
    assert not judge(read(b"\xff\xfe\0\4ab"))
    cut = refusal(BadImage, judge, read(b"\xff\xfe\xff\xff"))
    assert cut == "damaged JPEG: a segment among its image data is cut off"


@pytest.mark.parametrize(("comments", "pieces"), [(1, 10_000), (5_001, 1)])
@pytest.mark.parametrize("before", [b"", b"\x00\x01"])
def test_a_gif_of_many_comments_is_refused(comments: int, pieces: int, before: bytes) -> None:
    whole = io.BytesIO()
    Image.new("P", (16, 16)).save(whole, "GIF")
    at = 13 + (3 << (whole.getvalue()[10] & 7) + 1)  # behind the colors
    head, image = whole.getvalue()[:at] + before, whole.getvalue()[at:]
    comment = b"\x21\xfe" + b"\x01a" * pieces + b"\0"
    assert reason(head + comment * comments + image) == "GIF of more than 10,000 blocks of comments and the like"
    few = b"\x21\xfe" + b"\x01a" * (pieces // 2) + b"\0"
    assert prepare_image(head + few * (comments // 2 + 1) + image, KEEP).format == "PNG"


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("big", [False, True])
def test_a_tiff_of_many_strips_is_refused(order: str, big: bool) -> None:
    def make(strips: int) -> bytes:
        sizes = {256: 16, 257: 16, 258: 8, 262: 1, 278: 16}
        return write_tiff(order, {**sizes, 273: [BEGIN] * strips, 279: [256] * strips}, bytes(256), big)

    assert reason(make(500_001)) == "TIFF of more than 500,000 strips or tiles"
    if order == "<" and not big:  # the bytes of the others' numbers are Pillow's matter
        assert prepare_image(make(1), KEEP).format == "PNG"


@pytest.mark.parametrize("shared", [False, True])
def test_a_tiff_whose_tags_share_their_bytes_is_refused(shared: bool) -> None:
    """Pillow copies the bytes of each tag: 65,000 of a megabyte would take 65 GB."""
    sizes = {256: 16, 257: 16, 258: 8, 262: 1, 273: 8, 278: 16, 279: 256}
    begin = 8 + 256 + 2 + 12 * (len(sizes) + 100) + 4
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in sizes.items()]
    entries += [struct.pack("<HHII", 40_000 + k, 7, 1000, begin + (0 if shared else 1000 * k)) for k in range(100)]
    tags = struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4 + (1000 if shared else 100_000))
    data = struct.pack("<2sHI", b"II", 42, 264) + bytes(256) + tags
    if shared:
        assert reason(data) == "TIFF whose tags name more bytes than the file has"
    else:
        assert prepare_image(data, KEEP).format == "PNG"


def test_a_ppm_with_a_long_comment_is_refused() -> None:
    def make(comment: int) -> bytes:
        return b"P6 #" + b"a" * comment + b"\n16 16 #b\n255\n" + bytes(768)

    assert prepare_image(make(60_000), KEEP).format == "PNG"
    assert reason(make(70_000)) == "PPM without a header in its first 65,536 bytes"
