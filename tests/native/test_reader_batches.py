"""Batches of the readers without TensorFlow, whose images the native library makes in one call."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tfpipe
from tests.integrity.made import payload, write_dataset
from tests.native.conftest import Draw
from tests.native.test_pipeline import BATCH, folder, make_config
from tfpipe.errors import FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.images.decode import resize_crop
from tfpipe.native import batches as native
from tfpipe.pipeline.config.augment_config import AugmentOptions
from tfpipe.readers import native_batch, numpy_crops
from tfpipe.readers.batch_reader import BatchReader, Rank
from tfpipe.readers.jax import DeviceBatches

__all__ = ["folder"]  # a fixture
POSITIONS = [(0, 0), (0, 2), (3, 1)]


@pytest.fixture
def manifest(folder: Path) -> Manifest:
    return tfpipe.load_manifest(str(folder))


def make_reader(manifest: Manifest, **options: object) -> BatchReader:
    return BatchReader(manifest, "train", make_config("native", **options), Rank(), resize_crop)


def write_jpegs(folder: Path, payloads: list[bytes]) -> Manifest:
    """Writes a dataset of eight JPEGs."""
    made = write_dataset(folder, {"train": payloads})
    path = made / "manifest.json"
    path.write_text(path.read_text().replace('"PNG": 8', '"JPEG": 8'))
    return tfpipe.load_manifest(str(made))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"image_size": 12},  # most crops are reduced while they are decoded
        {"image_size": 12, "dct_scaling": False},
        {"augment": "none", "one_hot": True},
        {"augment_options": AugmentOptions(flip=False, scale=(0.5, 0.6))},
        {"extra_features": ("image/filename", "image/height")},
    ],
    ids=str,
)
def test_a_batch_in_one_call_is_the_batch_made_row_by_row(
    manifest: Manifest, options: dict[str, object], threads: int
) -> None:
    reader = make_reader(manifest, **options)
    assert reader.decodes_batches
    for position, batch in zip(POSITIONS, reader.iterate(POSITIONS, threads=threads), strict=True):
        row_by_row = reader.read(*position)
        assert batch.keys() == row_by_row.keys()
        for name, values in batch.items():
            np.testing.assert_array_equal(values, row_by_row[name])


def test_a_map_that_takes_turns_is_called_for_each_part(manifest: Manifest) -> None:
    calls: list[int] = []

    def count(function: Callable[[int], None], numbers: Iterable[int]) -> Iterator[None]:
        for number in numbers:
            calls.append(number)
            function(number)
            yield

    reader = make_reader(manifest, global_batch_size=20)
    for batch in reader.iterate([(0, 0)], count):
        np.testing.assert_array_equal(batch["image"], reader.read(0, 0)["image"])
    assert calls == [0, 8, 16]
    assert reader.calls_per_batch == len(calls)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_image_that_cannot_be_decoded_names_its_record(tmp_path: Path, draw_jpeg: Draw, threads: int) -> None:
    whole = draw_jpeg(40, 50, subsampling=2)
    payloads = [payload(k, encoded=whole, format="JPEG", height=40, width=50) for k in range(8)]
    payloads[5] = payload(5, encoded=whole[:300], format="JPEG", height=40, width=50)
    reader = make_reader(write_jpegs(tmp_path / "made", payloads))
    assert reader.decodes_batches
    with pytest.raises(FormatError) as row_by_row:
        reader.read(0, 0)
    with pytest.raises(FormatError, match=r"^Record 5 of 'train': its image cannot be used, ") as in_one_call:
        list(reader.iterate([(0, 0)], threads=threads))
    assert str(in_one_call.value) == str(row_by_row.value)


def test_a_record_that_lies_about_its_size_is_treated_as_row_by_row(tmp_path: Path, draw_jpeg: Draw) -> None:
    data = draw_jpeg(40, 50, subsampling=2)
    payloads = [payload(k, encoded=data, format="JPEG", height=4000, width=5000) for k in range(8)]
    reader = make_reader(write_jpegs(tmp_path / "made", payloads))
    (batch,) = reader.iterate([(0, 0)], threads=2)
    np.testing.assert_array_equal(batch["image"], reader.read(0, 0)["image"])


@pytest.mark.parametrize("height", [0, -3, 2**40])
def test_a_size_that_no_image_has_names_the_record(tmp_path: Path, draw_jpeg: Draw, height: int) -> None:
    data = draw_jpeg(40, 50, subsampling=2)
    payloads = [payload(k, encoded=data, format="JPEG", height=40, width=50) for k in range(8)]
    payloads[3] = payload(3, encoded=data, format="JPEG", height=height, width=50)
    reader = make_reader(write_jpegs(tmp_path / "made", payloads))
    with pytest.raises(FormatError) as raised:
        list(reader.iterate([(0, 0)], threads=2))
    assert str(raised.value) == (
        f"Record 3 of 'train' must have the height and the width of its image, got {height} x 50."
    )


@pytest.mark.parametrize("stored", [None, (64, 48)])
def test_crops_are_those_of_numpy(stored: tuple[int, int] | None) -> None:
    seed = int(np.random.default_rng().integers(2**31))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    seeds = random.integers(-(2**31), 2**31, (500, 2)).astype(np.int32)
    sizes = random.integers(1, 700, (500, 2)).astype(np.int32)
    options = AugmentOptions(scale=(0.2, 0.9))
    boxes, flips = native_batch.draw_crops(seeds, sizes, stored, options)
    assert flips.tolist() == numpy_crops.sample_flips(seeds)
    first = numpy_crops.draw_first_numbers(seeds)
    for k, (height, width) in enumerate(sizes.tolist()):
        box = numpy_crops.sample_crop_box(seeds[k], first[k], (height, width), options)
        assert tuple(boxes[k]) == numpy_crops.squeeze_crop_box(box, (height, width), stored or (height, width))


def test_an_image_without_a_pixel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Image height and width must be positive\.$"):
        native_batch.draw_crops(np.zeros((1, 2), np.int32), np.array([[0, 5]], np.int32), None, AugmentOptions())


def test_tables_of_another_form_are_refused() -> None:
    places, boxes, flips = np.zeros((2, 2), np.int64), np.zeros((2, 4), np.int32), np.zeros(2, np.bool_)
    images = np.zeros((2, 5, 5, 3), np.uint8)
    with pytest.raises(
        ValueError, match=r"^`boxes` must be writable \[2, 4\] of 4 bytes each in C order, got \[3, 4\]"
    ):
        native.decode(places, np.zeros((3, 4), np.int32), flips, images)
    with pytest.raises(ValueError, match=r"^`images` must be writable \[2, 0, 0, 3\] of 1 bytes each"):
        native.decode(places, boxes, flips, images[0])
    images.flags.writeable = False
    with pytest.raises(ValueError, match=r"^`images` must be writable \[2, 5, 5, 3\] of 1 bytes each"):
        native.decode(places, boxes, flips, images)


def test_jax_goes_on_with_the_next_epoch_meanwhile(manifest: Manifest) -> None:
    batches = DeviceBatches(manifest, "train", make_config("native"), num_threads=2)
    for epoch in range(3):
        for step, batch in enumerate(batches):
            assert batches.position == (epoch + (step == 2), (step + 1) % 3)
            expected = make_reader(manifest).read(epoch, step)["image"]
            np.testing.assert_array_equal(np.asarray(batch["image"]), expected)
        assert any(thread.name.startswith("tfpipe-decode") for thread in threading.enumerate())
    batches.set_epoch(7)
    first = next(iter(batches))
    np.testing.assert_array_equal(np.asarray(first["image"]), make_reader(manifest).read(7, 0)["image"])
    second = next(iter(batches))  # a pass that was left goes on
    np.testing.assert_array_equal(np.asarray(second["image"]), make_reader(manifest).read(7, 1)["image"])
    assert len(list(itertools.islice(batches, BATCH))) == 1
