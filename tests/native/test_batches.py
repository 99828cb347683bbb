"""Batches whose images the native library makes in one call: the pixels of single calls, and of TensorFlow."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import tfpipe
from tests.engine.test_batch import make_maker
from tests.integrity.made import payload, write_dataset
from tests.native.conftest import Draw
from tests.refusals import refusal
from tfpipe.engine.batch import BatchMaker
from tfpipe.engine.config.augment_config import AugmentOptions, compute_scaling
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.errors import FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.native import batches as native
from tfpipe.native import jpeg
from tfpipe.native.jpeg import make_seekable
from tfpipe.pipeline.build import build_dataset, build_stages
from tfpipe.readers.base import open_data

KINDS = (
    {"subsampling": 0},
    {"subsampling": 1},
    {"subsampling": 2},
    {"mode": "L"},
    {"subsampling": 2, "progressive": True},
)
SIZES = ((97, 64), (180, 250), (31, 33), (16, 16), (201, 120))
BATCH, STEPS = 8, 7  # two epochs and a part


def make_payload(draw_jpeg: Draw, k: int) -> bytes:
    height, width = SIZES[k // len(KINDS) % len(SIZES)]
    data = draw_jpeg(height, width, **KINDS[k % len(KINDS)])
    if k % 3 == 0:
        data = make_seekable(data)
    return payload(k, encoded=data, format="JPEG", height=height, width=width)


def write_jpegs(folder: Path, *shards: list[bytes]) -> Manifest:
    path = write_dataset(folder / "made", {f"train:{k}": shard for k, shard in enumerate(shards)}) / "manifest.json"
    path.write_text(path.read_text().replace('"PNG": ', '"JPEG": '))
    return tfpipe.load_manifest(str(path.parent))


@pytest.fixture(scope="module")
def manifest(tmp_path_factory, draw_jpeg: Draw) -> Manifest:
    """25 JPEGs of all kinds and sizes, with and without restart markers."""
    payloads = [make_payload(draw_jpeg, k) for k in range(25)]
    return write_jpegs(tmp_path_factory.mktemp("kinds"), payloads[:13], payloads[13:])


def make_config(**options: object) -> PipelineConfig:
    return PipelineConfig(**{"batch_size": BATCH, "image_size": (48, 40), "seed": 5, **options})


def list_batches(manifest: Manifest, start_step: int = 0, **options: object) -> list[dict[str, np.ndarray]]:
    dataset = build_dataset(manifest, "train", make_config(**options), start_step=start_step)
    return list(dataset.take(STEPS).as_numpy_iterator())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"image_dtype": "float32", "cache": "bytes", "extra_features": ("image/filename", "image/height")},
        {"image_dtype": "bfloat16", "augment_options": AugmentOptions(mean=(0.1, 0.2, 0.3), flip=False)},
        {"image_size": 12, "batch_size": 4, "one_hot": True},
        {"augment": "none", "cache": "decoded"},
    ],
    ids=str,
)
def test_an_evaluation_has_the_pixels_of_tensorflows_operations(manifest: Manifest, options: dict[str, object]) -> None:
    """The textbook pipeline decodes by stock operations, and an evaluation takes records in the order of both."""
    augmented = dataclasses.replace(options.get("augment_options", AugmentOptions()), dct_scaling=False)
    options = {"training": False, **options, "augment_options": augmented}
    native = list_batches(manifest, **options)
    stock = list_batches(manifest, order="throughput", **options)
    assert sum(batch["mask"].sum() for batch in native) == 25
    for ours, theirs in zip(native, stock, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert ours[name].dtype == theirs[name].dtype
            np.testing.assert_array_equal(ours[name][ours["mask"]], theirs[name][theirs["mask"]], name)


@pytest.mark.parametrize(
    ("image_size", "image_dtype"), [((48, 40), "float32"), ((200, 230), "uint8"), ((12, 9), "uint8")], ids=str
)
def test_antialiasing_gives_the_pixels_of_tensorflows(manifest: Manifest, image_size: object, image_dtype: str) -> None:
    """It rounds columns before it adds up rows, as Pillow does, and each weight: to a level at most."""
    augmented = AugmentOptions(dct_scaling=False, antialias=True)
    options = {"training": False, "image_size": image_size, "image_dtype": image_dtype, "augment_options": augmented}
    level = 1 if image_dtype == "uint8" else 1 / 255 / 0.224
    for ours, theirs in zip(
        list_batches(manifest, **options), list_batches(manifest, order="throughput", **options), strict=True
    ):
        difference = np.abs(ours["image"].astype(float) - theirs["image"])
        assert difference.max() <= 1.01 * level
        assert difference.mean() < 0.3 * level


def test_evaluation_has_the_pixels_that_weights_of_timm_saw(tmp_path: Path) -> None:
    """Pillow's resizing of the short side, then a center crop, where that begins at a whole pixel of the original."""
    pixels = np.random.default_rng(3).integers(0, 256, (64, 96, 3), np.uint8)
    encoded = tf.io.encode_png(pixels).numpy()
    folder = write_dataset(
        tmp_path / "made", {"train": [payload(0, encoded=encoded, format="PNG", height=64, width=96)]}
    )
    config = {"batch_size": 1, "image_size": 28, "training": False, "augment_options": AugmentOptions(antialias=True)}
    found = tfpipe.NumpyBatches(str(folder), "train", **config).read(0)["image"][0]
    expected = np.asarray(Image.fromarray(pixels).resize((48, 32), Image.Resampling.BILINEAR))[2:30, 10:38]
    difference = np.abs(found.astype(int) - expected)[1:-1, 1:-1]  # at the crop's edge it knows nothing beyond
    assert difference.max() <= 1


def test_a_damaged_image_has_one_sentence(tmp_path: Path, draw_jpeg: Draw) -> None:
    good = draw_jpeg(60, 50)
    payloads = [payload(k, encoded=good[:-300], format="JPEG", height=60, width=50) for k in range(8)]
    manifest, sentences = write_jpegs(tmp_path, payloads), []
    for antialias in (False, True):
        config = make_config(augment="none", augment_options=AugmentOptions(antialias=antialias))
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            next(iter(build_dataset(manifest, "train", config)))
        sentences.append(str(tfpipe.errors.explain_pipeline_error(error.value)))
        sentences.append(refusal(FormatError, open_data(manifest, "train", config, Host()).make, 0, 0))
    assert re.match(r"Record \d of 'train': its image cannot be used, ", sentences[0])
    assert sentences == [sentences[0]] * 4


def test_what_the_library_does_not_do_is_left_to_pillow(manifest: Manifest) -> None:
    for formats, decoder in (({"JPEG": 24, "PNG": 1}, "native"), ({"PNG": 25}, "pillow")):
        splits = {"train": dataclasses.replace(manifest.splits["train"], formats=formats)}
        other = dataclasses.replace(manifest, splits=splits)
        assert f"decoder={decoder}" in str(build_stages(other, "train", make_config()))


def decode_one_by_one(maker: BatchMaker, epoch: int, step: int) -> np.ndarray[Any, Any]:
    config = maker.plan.config
    images = maker.choose_images(maker.read(epoch, step))
    dtype = {"bfloat16": np.uint16}.get(config.image_dtype, config.image_dtype)
    out = np.zeros((len(images.boxes), *config.size, 3), dtype)
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
    maker = make_maker(write_jpegs(tmp_path, payloads), batch_size=8)
    assert refusal(FormatError, maker.make, 0, 0, threads).startswith("Record 5 of 'train': its image cannot be used, ")


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
    maker = make_maker(write_jpegs(tmp_path, payloads))
    assert maker.make(0, 0, 2)["image"].shape == (4, 8, 8, 3)


def test_tables_of_another_form_are_refused() -> None:
    places, boxes, flips = np.zeros((2, 2), np.int64), np.zeros((2, 4), np.int32), np.zeros(2, np.bool_)
    images, three = np.zeros((2, 5, 5, 3), np.uint8), np.zeros((3, 4), np.int32)
    read_only = images.copy()
    read_only.flags.writeable = False
    must = "must be writable"
    for others, options, message in (
        ((three, flips, images), {}, f"`boxes` {must} [2, 4] of 4 bytes each in C order, got [3, 4]"),
        ((boxes, flips, images[0]), {}, f"`images` {must} [2, 0, 0, 3] of 1 bytes each"),
        ((boxes, flips, images), {"dtype": "float32"}, f"`images` {must} [2, 5, 5, 3] of 4 bytes each"),
        ((boxes, flips, images), {"offset": (1, 2)}, "`offset` and `factor` must have three numbers, got 2 and 3."),
        ((boxes, flips, read_only), {}, f"`images` {must} [2, 5, 5, 3] of 1 bytes each"),
    ):
        assert refusal(ValueError, native.decode, places, *others, **options).startswith(message)
