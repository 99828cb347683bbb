"""The contact sheet: its layout, and what is drawn over an image."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.refusals import refusal
from tfpipe.errors import DataError
from tfpipe.images.contact_sheet import Tile, draw_contact_sheet

RED, WELL = (255, 0, 0), (0xEC, 0xEE, 0xF1)
CENTER = 8 + 80, 8 + 80  # of the first tile: gap, half of 160 px


@pytest.mark.parametrize(
    ("count", "columns", "size"),
    [(1, None, (176, 208)), (6, None, (512, 408)), (12, None, (680, 608)), (2, 5, (344, 208))],
)
def test_the_sheet_is_as_large_as_its_tiles(count: int, columns: int | None, size: tuple[int, int]) -> None:
    drawn = draw_contact_sheet([Tile(Image.new("RGB", (300, 200), RED), "cat")] * count, columns)
    assert (drawn.mode, drawn.size) == ("RGB", size)


def test_a_wide_image_is_fitted_and_centered_and_stays_as_it_was() -> None:
    image = Image.new("RGB", (400, 200), RED)
    drawn = draw_contact_sheet([Tile(image, "cat\n" * 100, "train:0", (400, 200))])
    x, y = CENTER
    assert drawn.getpixel((x, y)) == drawn.getpixel((x - 79, y)) == drawn.getpixel((x, y + 39)) == RED
    assert drawn.getpixel((x, y - 42)) == drawn.getpixel((x, y + 42)) == WELL
    assert image.size == (400, 200)
    assert (np.asarray(drawn)[:, -8:] == 255).all()  # the caption ends with its tile


def test_a_very_small_image_shows_its_pixels() -> None:
    image = Image.new("RGB", (2, 2), RED)
    image.putpixel((1, 0), (0, 0, 255))
    drawn = draw_contact_sheet([Tile(image, "cat")])
    x, y = CENTER
    assert (drawn.getpixel((x - 1, y - 1)), drawn.getpixel((x, y - 1))) == (RED, (0, 0, 255))


def test_a_tile_without_image_is_empty_and_none_at_all_is_refused() -> None:
    assert draw_contact_sheet([Tile(None, "cat"), None]).getpixel(CENTER) == WELL
    assert "at least one image" in refusal(DataError, draw_contact_sheet, [])


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
