"""The native library in pipelines: the pixels of TensorFlow, in the same batches by `tf.data`, PyTorch and JAX."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import tfpipe
from tests.integrity.made import payload, write_dataset
from tests.native.conftest import Draw
from tfpipe.engine.config.pipeline_config import AugmentOptions, PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.format.manifest import Manifest
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory, draw_jpeg: Draw) -> Path:
    """25 JPEGs of all kinds and sizes, with and without restart markers."""
    payloads = [make_payload(draw_jpeg, k) for k in range(25)]
    folder = write_dataset(
        tmp_path_factory.mktemp("kinds") / "made", {"train": payloads[:13], "train:1": payloads[13:]}
    )
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"PNG": 25', '"JPEG": 25'))
    return folder


@pytest.fixture(scope="module")
def manifest(folder: Path) -> Manifest:
    return tfpipe.load_manifest(str(folder))


def make_config(**options: object) -> PipelineConfig:
    return PipelineConfig(**{"batch_size": BATCH, "image_size": (48, 40), "seed": 5, **options})  # type: ignore[arg-type]


def list_batches(manifest: Manifest, start_step: int = 0, **options: object) -> list[dict[str, np.ndarray]]:
    dataset = build_dataset(manifest, "train", make_config(**options), start_step=start_step)  # type: ignore[arg-type]
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
    augmented = dataclasses.replace(options.get("augment_options", AugmentOptions()), dct_scaling=False)  # type: ignore[type-var]
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
    folder = write_dataset(tmp_path / "made", {"train": payloads})
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text().replace('"PNG": 8', '"JPEG": 8'))))
    manifest, sentences = tfpipe.load_manifest(str(folder)), []
    for antialias in (False, True):
        config = make_config(augment="none", augment_options=AugmentOptions(antialias=antialias))
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            next(iter(build_dataset(manifest, "train", config)))
        with pytest.raises(tfpipe.FormatError) as refusal:
            open_data(manifest, "train", config, Host()).make(0, 0)
        sentences += [str(tfpipe.errors.explain_pipeline_error(error.value)), str(refusal.value)]
    assert re.match(r"Record \d of 'train': its image cannot be used, ", sentences[0])
    assert sentences == [sentences[0]] * 4


def test_what_the_library_does_not_do_is_left_to_pillow(manifest: Manifest) -> None:
    for formats, decoder in (({"JPEG": 24, "PNG": 1}, "native"), ({"PNG": 25}, "pillow")):
        splits = {"train": dataclasses.replace(manifest.splits["train"], formats=formats)}
        other = dataclasses.replace(manifest, splits=splits)
        assert f"decoder={decoder}" in str(build_stages(other, "train", make_config()))
