"""The contact sheet: its layout, and every kind of image on it."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tfpipe.errors import ConfigError
from tfpipe.images import contact_sheet as contact_sheet_module
from tfpipe.images.contact_sheet import Tile, draw_contact_sheet, make_raw_image, open_thumbnail
from tfpipe.images.errors import BadImage

RED, WELL = (255, 0, 0), (0xEC, 0xEE, 0xF1)
CENTER = (26 + 8 + 80, 26 + 8 + 80)  # the center of the first tile: margin, padding, half of 160 px


def encode(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("count", "columns"), [(1, 1), (2, 2), (4, 2), (6, 3), (7, 4), (12, 4), (24, 6), (25, 5), (1000, 40)]
)
def test_columns_leave_few_places_empty(count: int, columns: int) -> None:
    assert contact_sheet_module._choose_columns(count) == columns


@pytest.mark.parametrize(("count", "columns", "size"), [(1, None, (228, 272)), (6, 3, (606, 505)), (2, 5, (417, 272))])
def test_the_sheet_is_as_large_as_its_tiles(count: int, columns: int | None, size: tuple[int, int]) -> None:
    drawn = draw_contact_sheet([Tile(Image.new("RGB", (300, 200), RED), "cat")] * count, columns)
    assert (drawn.mode, drawn.size) == ("RGB", size)


def test_a_wide_image_is_fitted_and_centered_and_stays_as_it_was() -> None:
    image = Image.new("RGB", (400, 200), RED)
    drawn = draw_contact_sheet([Tile(image, "cat", "train:0", "400 x 200")])
    x, y = CENTER
    assert drawn.getpixel((x, y)) == drawn.getpixel((x - 79, y)) == drawn.getpixel((x, y + 39)) == RED
    assert drawn.getpixel((x, y - 42)) == drawn.getpixel((x, y + 42)) == WELL
    assert image.size == (400, 200)


def test_a_very_small_image_shows_its_pixels() -> None:
    image = Image.new("RGB", (2, 2), RED)
    image.putpixel((1, 0), (0, 0, 255))
    drawn = draw_contact_sheet([Tile(image, "cat")])
    x, y = CENTER
    assert (drawn.getpixel((x - 1, y - 1)), drawn.getpixel((x, y - 1))) == (RED, (0, 0, 255))


@pytest.mark.parametrize(
    ("image", "color"),
    [
        (Image.new("L", (40, 40), 90), (90, 90, 90)),
        (Image.new("RGBA", (40, 40), (255, 0, 0, 0)), (255, 255, 255)),
        (Image.new("LA", (40, 40), (10, 255)), (10, 10, 10)),
        (Image.new("RGB", (40, 40), RED).convert("P"), RED),
        (Image.new("1", (40, 40), 1), (255, 255, 255)),
        (Image.fromarray(np.full((40, 40), 257 * 7, np.uint16)), (7, 7, 7)),
    ],
    ids=["gray", "transparent", "gray and alpha", "palette", "bilevel", "16 bits"],
)
def test_every_mode_is_drawn(image: Image.Image, color: tuple[int, int, int]) -> None:
    assert draw_contact_sheet([Tile(image, "cat")]).getpixel(CENTER) == color


def test_a_tile_without_image_is_not_blank() -> None:
    empty, full = (
        draw_contact_sheet([Tile(None, "cat")]),
        draw_contact_sheet([Tile(Image.new("RGB", (9, 9), WELL), "cat")]),
    )
    box = (34, 34, 194, 194)
    assert empty.getpixel((35, 35)) == WELL
    assert empty.crop(box).tobytes() != full.crop(box).tobytes()


def test_a_long_caption_ends_in_an_ellipsis_within_its_tile() -> None:
    font = contact_sheet_module._load_font(13)
    cut = contact_sheet_module._shorten("a very long name of a class, and more of it", font, 160)
    assert cut == "a very long name of a cla…"
    assert font.getlength(cut) <= 160 < font.getlength("a very long name of a clas…")
    assert contact_sheet_module._shorten("short", font, 160) == "short"
    assert contact_sheet_module._shorten("two\nlines\x1b[31m", font, 160) == "two?lines?[31m"
    assert contact_sheet_module._shorten("nothing fits", font, 3) == ""


@pytest.mark.parametrize(
    ("kind", "mode", "size"), [("JPEG", "RGB", (900, 600)), ("JPEG", "L", (30, 20)), ("PNG", "L", (600, 900))]
)
def test_stored_images_are_decoded_and_reduced(kind: str, mode: str, size: tuple[int, int]) -> None:
    image, original = open_thumbnail(encode(Image.new(mode, size, 128 if mode == "L" else RED), kind), kind, 160)
    assert original == size
    assert image.mode == mode
    assert max(image.size) == min(160, *[max(size)])


def test_raw_pixels_are_a_square() -> None:
    pixels = np.arange(4 * 4 * 3, dtype=np.uint8)
    image, size = open_thumbnail(pixels.tobytes(), "RAW", 160)
    assert size == (4, 4)
    assert (
        np.asarray(image).ravel().tolist()
        == pixels.tolist()
        == np.asarray(make_raw_image(pixels.tobytes())).ravel().tolist()
    )


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"", "RAW", "RAW cannot be decoded: 0 bytes are not a square of RGB pixels"),
        (bytes(13), "RAW", "RAW cannot be decoded: 13 bytes are not a square of RGB pixels"),
        (b"not a jpeg", "JPEG", "JPEG cannot be decoded: it has another format"),
        (encode(Image.new("RGB", (9, 9)), "PNG"), "JPEG", "JPEG cannot be decoded: it has another format"),
    ],
    ids=["empty", "not a square", "text", "png"],
)
def test_bytes_that_cannot_be_decoded_are_refused(data: bytes, kind: str, message: str) -> None:
    with pytest.raises(BadImage) as caught:
        open_thumbnail(data, kind, 160)
    assert caught.value.reason == message


@pytest.mark.parametrize(
    ("count", "columns", "tile_px", "message"),
    [
        (0, None, 160, "A contact sheet must have from 1 to 1000 images, got 0."),
        (1001, None, 160, "A contact sheet must have from 1 to 1000 images, got 1001."),
        (1, 0, 160, "`columns` must be from 1 to 40, got 0."),
        (1, None, 8, "`tile_px` must be from 32 to 1024, got 8."),
    ],
)
def test_numbers_out_of_range_are_refused(count: int, columns: int | None, tile_px: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        draw_contact_sheet([Tile(None, "cat")] * count, columns, tile_px)
    assert str(caught.value) == message


def test_masks_boxes_and_captions_are_drawn() -> None:
    classes = np.zeros((4, 4), np.uint8)
    classes[:, 2:] = 2
    plain = Tile(Image.new("RGB", (160, 160), (100, 100, 100)), "cat", text="a caption")
    sheet = draw_contact_sheet([plain])
    assert sheet.height == draw_contact_sheet([Tile(plain.image, "cat")]).height + 16
    masked = np.asarray(draw_contact_sheet([replace(plain, classes=classes)]))
    drawn = np.asarray(sheet)
    changed = (masked != drawn).any(axis=-1)
    rows, columns = np.nonzero(changed)
    assert changed.sum() == 160 * 80
    assert columns.min() - np.nonzero((drawn == 100).all(axis=-1))[1].min() == 80  # class 0 is clear
    assert masked[rows[0], columns[0]].tolist() == [92, 144, 173]
    boxes = ((0.25, 0.25, 0.75, 0.75), (0.5, 0.5, float("nan"), 2.0))
    framed = np.asarray(draw_contact_sheet([replace(plain, boxes=boxes)]))
    assert (framed != drawn).any(axis=-1).sum() == 81 * 81 - 77 * 77  # 2 px wide
