"""Batches whose images the native library makes in one call: pixel for pixel those of one call for each image."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe
from tests.engine.test_batch import make_maker
from tests.integrity.made import payload, write_dataset
from tests.native.conftest import Draw
from tests.native.test_pipeline import folder
from tfpipe.engine.batch import BatchMaker
from tfpipe.engine.config.augment_config import AugmentOptions, compute_scaling
from tfpipe.errors import FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.native import batches as native
from tfpipe.native import jpeg

__all__ = ["folder"]  # a fixture


@pytest.fixture
def manifest(folder: Path) -> Manifest:
    return tfpipe.load_manifest(str(folder))


def write_jpegs(folder: Path, payloads: list[bytes]) -> Manifest:
    made = write_dataset(folder, {"train": payloads})
    path = made / "manifest.json"
    path.write_text(path.read_text().replace('"PNG": 8', '"JPEG": 8'))
    return tfpipe.load_manifest(str(made))


def decode_one_by_one(maker: BatchMaker, epoch: int, step: int) -> np.ndarray[Any, Any]:
    config = maker.plan.config
    images = maker.choose_images(maker.read(epoch, step))
    out = np.zeros((len(images), *config.size, 3), {"bfloat16": np.uint16}.get(config.image_dtype, config.image_dtype))
    offset, factor = compute_scaling(config.augment_options.mean, config.augment_options.std)
    options = {} if config.image_dtype == "uint8" else {"offset": offset, "factor": factor}
    for image, box in enumerate(images.boxes.tolist()):
        ratios = [ratio for ratio in (1, 2, 4, 8) if min(box[2] // ratio, box[3] // ratio) >= config.size[0]]
        ratio = max(ratios, default=1) if config.augment_options.dct_scaling is not False else 1
        crop = np.empty((*jpeg.reduce_box(box, ratio), 3), np.uint8)
        jpeg.decode(images.column.get_bytes(image), box, crop, ratio=ratio)
        pixels, sizes = np.array([(crop.ctypes.data, crop.size)]), np.array([crop.shape[:2]], np.int32)
        whole, one = np.array([(0, 0, *crop.shape[:2])], np.int32), slice(image, image + 1)
        native.decode(pixels, whole, images.flips[one], out[one], sizes=sizes, dtype=config.image_dtype, **options)
    return out


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"image_size": 12},  # most crops are reduced while they are decoded
        {"image_size": 12, "augment_options": AugmentOptions(dct_scaling=False)},
        {"augment": "none"},
        {"augment_options": AugmentOptions(flip=False, scale=(0.5, 0.6))},
        {"image_dtype": "float32"},
        {"image_dtype": "bfloat16", "augment_options": AugmentOptions(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))},
        {"training": False},
    ],
    ids=str,
)
def test_a_batch_in_one_call_has_the_pixels_of_single_calls(manifest, options, threads):
    maker = make_maker(manifest, **{"image_size": 40, "batch_size": 6, **options})
    for epoch, step in ((0, 0), (3, 1)):
        images = maker.make(epoch, step, threads)["image"]
        expected = decode_one_by_one(maker, epoch, step)
        np.testing.assert_array_equal(images[: len(expected)], expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_image_that_cannot_be_decoded_names_its_record(tmp_path: Path, draw_jpeg: Draw, threads: int) -> None:
    whole = draw_jpeg(40, 50, subsampling=2)
    payloads = [payload(k, encoded=whole, format="JPEG", height=40, width=50) for k in range(8)]
    payloads[5] = payload(5, encoded=whole[:300], format="JPEG", height=40, width=50)
    maker = make_maker(write_jpegs(tmp_path / "made", payloads), batch_size=8)
    with pytest.raises(FormatError, match=r"^Record 5 of 'train': its image cannot be used, "):
        maker.make(0, 0, threads)


def test_images_of_other_formats_stand_between_jpegs(tmp_path: Path, draw_jpeg: Draw) -> None:
    data = draw_jpeg(8, 8, subsampling=0)
    jpegs = {"encoded": data, "format": "JPEG", "height": 8, "width": 8}
    payloads = [payload(k, **(jpegs if k % 2 else {})) for k in range(8)]
    made = write_dataset(tmp_path / "made", {"train": payloads})
    maker = make_maker(tfpipe.load_manifest(str(made)), batch_size=8, augment="none")
    batch, numbers = maker.make(0, 0), maker.plan.list_numbers(0, 0)
    expected = np.empty((8, 8, 3), np.uint8)
    jpeg.decode(data, (0, 0, 8, 8), expected)
    for row, number in enumerate(numbers.tolist()):
        assert np.array_equal(batch["image"][row], expected) == bool(number % 2)


def test_a_record_that_lies_about_its_size_is_left_to_pillow(tmp_path: Path, draw_jpeg: Draw) -> None:
    data = draw_jpeg(40, 50, subsampling=2)
    payloads = [payload(k, encoded=data, format="JPEG", height=4000, width=5000) for k in range(8)]
    maker = make_maker(write_jpegs(tmp_path / "made", payloads))
    assert maker.make(0, 0, 2)["image"].shape == (4, 8, 8, 3)


def test_tables_of_another_form_are_refused() -> None:
    places, boxes, flips = np.zeros((2, 2), np.int64), np.zeros((2, 4), np.int32), np.zeros(2, np.bool_)
    images = np.zeros((2, 5, 5, 3), np.uint8)
    with pytest.raises(
        ValueError, match=r"^`boxes` must be writable \[2, 4\] of 4 bytes each in C order, got \[3, 4\]"
    ):
        native.decode(places, np.zeros((3, 4), np.int32), flips, images)
    with pytest.raises(ValueError, match=r"^`images` must be writable \[2, 0, 0, 3\] of 1 bytes each"):
        native.decode(places, boxes, flips, images[0])
    with pytest.raises(ValueError, match=r"^`images` must be writable \[2, 5, 5, 3\] of 4 bytes each"):
        native.decode(places, boxes, flips, images, dtype="float32")
    with pytest.raises(ValueError, match=r"^`offset` and `factor` must have three numbers, got 2 and 3\.$"):
        native.decode(places, boxes, flips, images, offset=(1, 2))
    images.flags.writeable = False
    with pytest.raises(ValueError, match=r"^`images` must be writable \[2, 5, 5, 3\] of 1 bytes each"):
        native.decode(places, boxes, flips, images)
