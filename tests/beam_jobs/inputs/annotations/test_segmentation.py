"""Segmentations of COCO: the pixels of polygons and runs, which one lies on top, and every mistake.

The expected pixels and packed texts were made by pycocotools 2.0.11 (`frPyObjects` and `decode`).
"""

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from beam_jobs.inputs.annotations import segmentation
from beam_jobs.inputs.annotations.segmentation import Shape, draw_mask, get_runs, pack_shapes
from tests.refusals import refusal
from tfpipe.images.errors import BadImage
from tfpipe.images.masks import read_mask

SIZE = 9, 12
POLYGONS = {
    "triangle": (
        [2, 1, 11.5, 3.2, 4.1, 8.9],
        "c0273N2MO1O1O101N1O7",
        "............ ..##........ ..#######... ...########. ...#######.. ...######... ....###..... ....##...... "
        "....#.......",
    ),
    "crossed": (
        [0, 0, 12, 8, 12, 0, 0, 8],
        "082N2N101Nc00]O2O0O2N2O",
        "#..........# ##........## ####....#### #####..##### #####..##### ####....#### ##........## #..........# "
        "............",
    ),
    "outside": (
        [-4.5, 3, 6, -3, 16, 5, 3, 12],
        "0i22^M0O0",
        "##########.. ############ ############ ############ ############ ############ ############ ###########. "
        "#########...",
    ),
    "closed": (
        [1, 1, 9, 1, 9, 7, 1, 7, 1, 1],
        ":630000000000000j0",
        "............ .########... .########... .########... .########... .########... .########... ............ "
        "............",
    ),
}


def draw(*segmentations: Any, size: tuple[int, int] = SIZE, crowds: tuple[int, ...] = ()) -> NDArray[np.integer[Any]]:
    """Returns the classes of shapes: the first one has class 1, and so on."""
    shapes = [Shape(k, k, k in crowds, json.dumps(value)) for k, value in enumerate(segmentations, start=1)]
    return read_mask(draw_mask(pack_shapes(*size, shapes), 10_000), 10_000)


def parse(rows: str) -> NDArray[np.integer[Any]]:
    return np.array([[sign == "#" for sign in row] for row in rows.split()], np.uint8)


def count_runs(pixels: NDArray[np.integer[Any]]) -> list[int]:
    """Returns the lengths of runs down the columns, of zeros and ones in turns."""
    flat = np.concatenate([[0], pixels.T.ravel(), [1 - pixels[-1, -1]]])
    return np.diff(np.concatenate([[0], np.flatnonzero(np.diff(flat))])).tolist()


@pytest.mark.parametrize("name", POLYGONS)
def test_a_polygon_and_its_runs_give_the_pixels_of_pycocotools(name: str) -> None:
    polygon, packed, rows = POLYGONS[name]
    np.testing.assert_array_equal(draw([polygon]), parse(rows))
    np.testing.assert_array_equal(draw({"size": [*SIZE], "counts": packed}), parse(rows))
    np.testing.assert_array_equal(draw({"size": [*SIZE], "counts": count_runs(parse(rows))}), parse(rows))


def test_runs_of_random_masks_come_back() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        height, width = rng.integers(1, 40, 2).tolist()
        pixels = (rng.random((height, width)) < rng.random()).astype(np.uint8)
        value = {"size": [height, width], "counts": count_runs(pixels)}
        np.testing.assert_array_equal(draw(value, size=(height, width)), pixels)
    assert not draw({"size": [*SIZE], "counts": [108]}).any()
    assert draw({"size": [*SIZE], "counts": [0, 108]}).all()
    assert not draw().any()


def make_square(left: int, top: int, side: int) -> list[list[int]]:
    right, bottom = left + side, top + side
    return [[left, top, right, top, right, bottom, left, bottom]]


def test_small_shapes_lie_on_large_ones_and_crowds_below_all() -> None:
    small, large, crowd = make_square(2, 2, 2), make_square(1, 1, 6), make_square(3, 3, 1)
    classes = draw(small, large, crowd, crowds=(3,))
    assert np.bincount(classes.ravel(), minlength=4).tolist() == [108 - 36, 4, 32, 0]
    classes = draw(small, large, crowd)
    assert np.bincount(classes.ravel(), minlength=4).tolist() == [108 - 36, 3, 32, 1]
    equal = draw(make_square(0, 0, 3), make_square(1, 0, 3))
    assert equal[0].tolist() == [1, 2, 2, 2, *[0] * 8]  # of equal ones the later lies on top
    assert np.bincount(draw([*make_square(0, 0, 2), *make_square(4, 4, 2)]).ravel()).tolist() == [100, 8]
    packed = pack_shapes(*SIZE, [Shape(1, 300, False, json.dumps(make_square(0, 0, 2)))])
    classes = read_mask(draw_mask(packed, 10_000), 10_000)
    assert (classes.dtype, int(classes[0, 0]), int(classes[8, 8])) == (np.uint16, 300, 0)


CORNERS = "must have polygons of 3 or more corners, each an x and a y, got"
SUM = "must have 'counts' from 0 that add up to the 108 pixels of its image"
PACKED = "must have packed runs as 'counts', got"
COUNTS = "must have a text or whole numbers from 0 as 'counts', got"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("polygon", "must be polygons or runs, got 'polygon'"),
        ([[1, 2, 3, 4]], f"{CORNERS} [1, 2, 3, 4]"),
        ([[1, 2, 3, 4, 5, 6, 7]], f"{CORNERS} [1, 2, 3, 4, 5, 6, 7]"),
        ([1, 2, 3, 4, 5, 6], f"{CORNERS} 1"),
        ([[1, 2, 3, 4, 5, True]], f"{CORNERS} [1, 2, 3, 4, 5, True]"),
        ([[1, 2, 3, 4, 5, float("nan")]], f"{CORNERS} [1, 2, 3, 4, 5, nan]"),
        ([[1, 2, 3, 4, 5, 1e300]], f"{CORNERS} [1, 2, 3, 4, 5, 1e+300]"),
        ([[1, 2, 3, 4, 5, 30.5]], "must lie in its image of 12 x 9 pixels, but has a corner at 5, 30.5"),
        ({"counts": [108]}, "must have the 'size' [9, 12] of its image, got None"),
        ({"size": [12, 9], "counts": [108]}, "must have the 'size' [9, 12] of its image, got [12, 9]"),
        ({"size": [9, 12], "counts": [107]}, SUM),
        ({"size": [9, 12], "counts": [2**62, 2**62, 2**62, 2**62]}, f"{COUNTS} [{2**62}, {2**62}"),
        ({"size": [9, 12], "counts": [-1, 109]}, f"{COUNTS} [-1, 109]"),
        ({"size": [9, 12], "counts": []}, f"{COUNTS} []"),
        ({"size": [9, 12]}, f"{COUNTS} None"),
        ({"size": [9, 12], "counts": ""}, f"{PACKED} ''"),
        ({"size": [9, 12], "counts": "a b"}, f"{PACKED} 'a b'"),
        ({"size": [9, 12], "counts": "aé"}, f"{PACKED} 'aé'"),
        ({"size": [9, 12], "counts": "aP"}, f"{PACKED} 'aP'"),
        ({"size": [9, 12], "counts": "P" * 12 + "1"}, f"{PACKED} 'PPPPPPPPPPPP1'"),
        ({"size": [9, 12], "counts": "5"}, SUM),
        ({"size": [9, 12], "counts": "O"}, SUM),
    ],
)
def test_a_wrong_segmentation_is_refused(value: Any, message: str) -> None:
    with pytest.raises(BadImage) as caught:
        draw([[0, 0, 3, 0, 3, 3]], value)
    assert caught.value.reason.startswith(f"the segmentation of annotation 2 {message}")


def test_what_would_take_much_memory_is_refused(monkeypatch) -> None:
    assert "200 x 100 pixels, more than 10000" in refusal(BadImage, draw, size=(100, 200))
    monkeypatch.setattr(segmentation, "_MAX_BORDER", 100)
    with pytest.raises(ValueError, match="must have polygons with less than 20 pixels of border"):
        get_runs(make_square(0, 0, 8), *SIZE)
