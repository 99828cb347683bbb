"""DeviceImages with the native library: records are read where the decoder finds them, and pixels are near theirs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import tfpipe
from tests.integrity.made import payload, write_dataset
from tests.seekable_jpegs import SAMPLINGS, draw, encode
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.format.manifest import Manifest
from tfpipe.readers.torch import DeviceImages, TorchBatches

CONFIG = PipelineConfig(batch_size=4, image_size=24, seed=3, augment_options=AugmentOptions(dct_scaling=False))
SIZE = (90, 203)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Eight JPEGs of noise in color and gray."""
    files = [encode(draw(*SIZE, seed), SAMPLINGS[2 + seed % 2]) for seed in range(8)]
    payloads = [payload(number, encoded=file, height=SIZE[0], width=SIZE[1]) for number, file in enumerate(files)]
    folder: Path = tmp_path_factory.mktemp("native") / "made"
    loaded = tfpipe.load_manifest(str(write_dataset(folder, {"train": payloads})))
    return dataclasses.replace(
        loaded, splits={"train": dataclasses.replace(loaded.splits["train"], formats={"JPEG": 8})}
    )


def test_files_are_not_copied(manifest: Manifest) -> None:
    images = DeviceImages(manifest, "train", CONFIG, "cpu")
    batch = images._host.read(0, 0)
    assert batch.memory is not None
    begin = batch.memory.records.data_ptr()
    end = begin + len(batch.memory.records)
    assert all(begin <= image.tensor.data_ptr() < end for image in batch.images)
    assert [image.size for image in batch.images] == [SIZE] * 4


def test_pixels_are_near_those_of_the_native_library(manifest: Manifest) -> None:
    native = TorchBatches(manifest, "train", CONFIG)
    for ours, theirs in zip(DeviceImages(manifest, "train", CONFIG, "cpu"), native, strict=True):
        difference = (ours["image"].int() - theirs["image"].int()).abs()
        # The native library decodes as TensorFlow does, with a transform that rounds less exactly than Pillow's.
        assert difference.max() <= 8
        assert difference.float().mean() < 1.5
        assert torch.equal(ours["label"], theirs["label"])
