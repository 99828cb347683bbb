"""Boxes and masks of photos that EXIF turns: whatever size the annotation declares, they lie where the object is."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.beam_jobs.datasets import make_dataset, read_quarantine, read_records
from tests.beam_jobs.images import make_exif, make_png, save_image, write_files
from tfpipe.format.schema import IMAGE_MASK
from tfpipe.images.exif import match_orientation
from tfpipe.images.masks import read_mask

_STORE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_OBJECT = (3, 30, 12, 42)
_FRACTIONS = [0.1, 30 / 45, 0.4, 42 / 45]

Size = tuple[int, int] | None
Annotate = Callable[[Path, dict[int, tuple[Size, tuple[float, ...]]]], dict[str, Any]]


def make_photo(orientation: int, size: tuple[int, int] = (30, 45)) -> bytes:
    """Returns a photo that shows a red object when it is upright."""
    return save_image(turn(paint(size, "RGB", (255, 0, 0)), orientation), exif=make_exif(orientation))


def paint(size: tuple[int, int], mode: str, color: Any) -> Image.Image:
    image = Image.new(mode, size)
    image.paste(color, _OBJECT)
    return image


def turn(image: Image.Image, orientation: int) -> Image.Image:
    """Returns the pixels in the way in which a photo of this orientation stores them."""
    return image.transpose(_STORE[orientation]) if orientation in _STORE else image


def turn_back(size: tuple[int, int], orientation: int) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Returns the size of the stored pixels, and the place of the object in them."""
    pixels = np.asarray(turn(paint(size, "L", 1), orientation))
    ys, xs = np.nonzero(pixels)
    return pixels.shape[::-1], (int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1)


def write_coco(folder: Path, photos: dict[int, tuple[Size, tuple[float, ...]]]) -> dict[str, Any]:
    """Writes the annotations of photos, each with a declared size and a box; returns options of the job."""
    images: list[dict[str, Any]] = []
    annotations = []
    for k, (size, (left, top, right, bottom)) in photos.items():
        images.append({"id": k, "file_name": f"{k}.png", **dict(zip(("width", "height"), size or (), strict=False))})
        box = {"bbox": [left, top, right - left, bottom - top], "category_id": 1, "image_id": k}
        annotations.append({**box, "segmentation": [[left, top, right, top, right, bottom, left, bottom]]})
    text = json.dumps({"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cat"}]})
    write_files(folder, {"annotations/instances_all.json": text.encode()})
    return {"segmentation_masks": all(size for size, _ in photos.values())}


def write_voc(folder: Path, photos: dict[int, tuple[Size, tuple[float, ...]]]) -> dict[str, Any]:
    """Writes the annotations of photos in the layout of Pascal VOC."""
    for k, (size, (left, top, right, bottom)) in photos.items():
        (folder / "JPEGImages").mkdir(exist_ok=True)
        (folder / f"{k}.png").rename(folder / f"JPEGImages/{k}.png")
        sides = zip(_SIDES, (left + 1, top + 1, right, bottom), strict=True)
        box = "".join(f"<{side}>{x}</{side}>" for side, x in sides)
        declared = f"<size><width>{size[0]}</width><height>{size[1]}</height></size>" if size else ""
        xml = f"<annotation>{declared}<object><name>cat</name><bndbox>{box}</bndbox></object></annotation>"
        write_files(folder, {f"Annotations/{k}.xml": xml.encode()})
    return {}


def read_boxes(output: Path) -> list[list[float]]:
    return [[float(record[f"image/object/bbox/{side}"][0]) for side in _SIDES] for record in read_records(output)]


def shard(tmp_path: Path, annotate: Annotate, photos: dict[int, tuple[Size, tuple[float, ...]]], size: Any) -> Path:
    folder = write_files(tmp_path / "in", {f"{k}.png": make_photo(k, size) for k in photos})
    make_dataset(folder, tmp_path / "out", shuffle=False, max_bad=0, **annotate(folder, photos))
    return tmp_path / "out"


def check_masks(output: Path) -> None:
    for record in read_records(output):
        if record.get(IMAGE_MASK):
            shown = np.asarray(Image.open(io.BytesIO(record["image/encoded"][0])))[..., 0] > 0
            np.testing.assert_array_equal(read_mask(record[IMAGE_MASK][0], 9999) == 1, shown)


@pytest.mark.parametrize("stored", [False, True])
def test_boxes_in_pixels_of_a_table_are_placed_by_its_size(tmp_path: Path, stored: bool) -> None:
    photos: Any = {k: turn_back((30, 45), k) if stored else ((30, 45), _OBJECT) for k in range(5, 9)}
    folder = write_files(tmp_path / "in", {f"{k}.png": make_photo(k) for k in photos})
    rows = [f"{k}.png,{','.join(map(str, (*size, *box)))}" for k, (size, box) in photos.items()]
    (folder / "t.csv").write_text("\n".join(["image,width,height,xmin,ymin,xmax,ymax", *rows]))
    make_dataset(folder / "t.csv", tmp_path / "out", max_bad=0)
    np.testing.assert_allclose(read_boxes(tmp_path / "out"), [_FRACTIONS] * 4, atol=1e-6)


@pytest.mark.parametrize("annotate", [write_coco, write_voc])
@pytest.mark.parametrize("factor", [1, 2, 0.5, None])
def test_annotations_of_the_upright_photo_stay(tmp_path: Path, annotate: Annotate, factor: float | None) -> None:
    scale = factor or 1
    size = None if factor is None else (round(30 * scale), round(45 * scale))  # 45 * 0.5 is rounded
    photos = {k: (size, tuple(x * scale for x in _OBJECT)) for k in range(1, 9)}
    output = shard(tmp_path, annotate, photos, (30, 45))
    np.testing.assert_allclose(read_boxes(output), [_FRACTIONS] * 8, atol=0.03 if factor == 0.5 else 1e-6)
    if factor != 0.5:
        check_masks(output)


@pytest.mark.parametrize("annotate", [write_coco, write_voc])
def test_annotations_of_stored_pixels_turn_and_those_of_squares_stay(tmp_path: Path, annotate: Annotate) -> None:
    turned: Any = {k: turn_back((30, 45), k) for k in range(5, 9)}
    square = dict.fromkeys(range(1, 9), ((45, 45), _OBJECT))
    for photos, size, expected in (
        (turned, (30, 45), [_FRACTIONS] * 4),
        (square, (45, 45), [[3 / 45, 30 / 45, 12 / 45, 42 / 45]] * 8),
    ):
        output = shard(tmp_path / str(len(photos)), annotate, photos, size)
        np.testing.assert_allclose(read_boxes(output), expected, atol=1e-6)
        check_masks(output)


def test_masks_of_voc_are_those_of_the_upright_photos(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "in", {f"{k}.png": make_photo(k) for k in range(1, 9)})
    write_voc(folder, dict.fromkeys(range(1, 9), ((30, 45), _OBJECT)))
    write_files(folder, {f"SegmentationClass/{k}.png": save_image(paint((30, 45), "L", 1)) for k in range(1, 9)})
    make_dataset(folder, tmp_path / "out", max_bad=0)
    assert len(read_records(tmp_path / "out")) == 8
    check_masks(tmp_path / "out")
    # An image without boxes is stored whatever size its annotation declares.
    xml = b"<annotation><size><width>9</width><height>99</height></size></annotation>"
    folder = write_files(tmp_path / "bare", {"JPEGImages/1.png": make_png(1), "Annotations/1.xml": xml})
    make_dataset(folder, tmp_path / "other", max_bad=0)
    assert len(read_records(tmp_path / "other")) == 1


@pytest.mark.parametrize("annotate", [write_coco, write_voc])
def test_annotations_of_another_shape_are_named(tmp_path: Path, annotate: Annotate) -> None:
    photos: Any = {1: ((45, 30), _OBJECT), 2: ((496, 350), _OBJECT), 5: (None, (3, 50, 12, 60)), 6: ((30, 45), _OBJECT)}
    folder = write_files(tmp_path / "in", {f"{k}.png": make_photo(k) for k in photos})
    make_dataset(folder, tmp_path / "out", max_bad=3, **annotate(folder, photos))
    assert sorted((Path(row["path"]).name, row["reason"]) for row in read_quarantine(tmp_path / "out")) == [
        ("1.png", "its annotation is for 45 x 30 pixels, but it has 30 x 45"),
        ("2.png", "its annotation is for 496 x 350 pixels, but it has 30 x 45"),
        ("5.png", "its box 3, 50, 12, 60 lies outside of its 30 x 45 pixels"),
    ]
    assert len(read_records(tmp_path / "out")) == 1


@pytest.mark.parametrize(
    ("given", "stored", "orientation", "turn"),
    [
        ((4000, 3000), (4000, 3000), 6, 6),
        ((3000, 4000), (4000, 3000), 6, 1),
        ((640, 480), (4000, 3000), 6, 6),
        ((480, 640), (4000, 3000), 6, 1),
        ((682, 511), (4000, 3000), 3, 1),  # rounded down
        ((700, 500), (4000, 3000), 3, None),
        ((3000, 3000), (4000, 3000), 6, None),
        ((3000, 4000), (4000, 3000), 1, None),
        ((3000, 4000), (4000, 3000), 2, None),
        ((101, 100), (101, 100), 6, 6),  # of a nearly square photo the nearer shape counts
        ((100, 101), (101, 100), 6, 1),
        ((50, 50), (101, 100), 6, 1),
    ],
)
def test_the_declared_size_says_what_was_annotated(given, stored, orientation: int, turn: int | None) -> None:
    assert match_orientation(given, stored, orientation) == turn
    if given == (50, 50):
        assert match_orientation(given, stored, orientation, is_upright=False) == 6
