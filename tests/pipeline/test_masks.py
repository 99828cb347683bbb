"""Masks follow the crop, the flip and the size of their images: against NumPy, and in all readers alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import write_files
from tests.mask_files import MASK_NAME, make_masked_images
from tests.refusals import refusal
from tfpipe.errors import ConfigError
from tfpipe.format.image_form import ImageForm
from tfpipe.pipeline.device.augment import augment, augment_masks
from tfpipe.readers.torch import TorchBatches

SIZE = (12, 9)
STEPS = 5


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> tfpipe.Manifest:
    """PNGs, so that pixels are exact, whose red channel is their mask."""
    return _write(tmp_path_factory.mktemp("masks"), "PNG")


def _write(folder: Path, kind: str, **options: Any) -> tfpipe.Manifest:
    make_dataset(write_files(folder / "in", make_masked_images(18, kind)), folder / "out", num_shards=3, **options)
    return tfpipe.load_manifest(str(folder / "out"))


def make_config(**options: Any) -> tfpipe.PipelineConfig:
    defaults = {"batch_size": 6, "image_size": SIZE, "seed": 4, "extra_features": (MASK_NAME,)}
    return tfpipe.PipelineConfig(**(defaults | options))


def read(manifest: tfpipe.Manifest, config: tfpipe.PipelineConfig, **options: Any) -> list[dict[str, np.ndarray]]:
    dataset = tfpipe.build_dataset(manifest, "train", config, **options)
    return [{name: np.asarray(value) for name, value in batch.items()} for batch in dataset.take(STEPS)]


def test_the_device_crops_images_and_masks_as_the_host_does(tmp_path: Path) -> None:
    stored = _write(tmp_path, "PNG", form=ImageForm(square=20))
    plain = tfpipe.AugmentOptions(mean=(0.0, 0.0, 0.0), std=(1 / 255,) * 3)
    crop = tf.function(lambda *part: (augment(*part[1:], SIZE, options=plain), augment_masks(part[0], *part[2:], SIZE)),
                       jit_compile=True, autograph=False)  # fmt: skip
    for training in (True, False):
        on_host = read(stored, make_config(training=training))
        on_device = read(stored, make_config(training=training, augment="device"))
        for host, device in zip(on_host, on_device, strict=True):
            assert (device[MASK_NAME].shape, device[MASK_NAME].dtype) == ((6, 20, 20), np.int32)
            assert (host[MASK_NAME].shape, host[MASK_NAME].dtype) == ((6, *SIZE), np.int32)
            images, masks = crop(*(tf.constant(device[name]) for name in (MASK_NAME, "image", "crop", "flip")))
            np.testing.assert_allclose(images, host["image"], atol=0.51)  # which is rounded
            assert (masks.numpy() == host[MASK_NAME]).mean() > 0.97  # float32 may round a center to the neighbor


def test_a_transform_cannot_have_a_mask(manifest: tfpipe.Manifest) -> None:
    assert refusal(ConfigError, TorchBatches, manifest, "train", make_config(), transform=lambda image: image) == (
        "`transform` gets an image without its mask, so a batch cannot hold 'image/mask' as well. Leave one of them "
        "out."
    )
