"""Crops of a ragged batch, held to `torch.nn.functional.interpolate`, which the readers on the CPU use."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from tests.seekable_jpegs import draw
from tfpipe.readers.device_images import resize
from tfpipe.readers.device_images.crops import Crop, ResizeConfig
from tfpipe.readers.device_images.resize import find_resize, resize_by_torch

SIZE = (20, 28)


def draw_batch() -> tuple[list[torch.Tensor], list[Crop]]:
    """Noise of many sizes, larger and smaller than the output, of which one lies in rows of pixels, and one is gray."""
    rng = random.Random(5)
    sizes = [(1, 1), (20, 28), (7, 90), (131, 6), (90, 203), (64, 64)]
    images = [torch.from_numpy(draw(*size, seed)).permute(2, 0, 1) for seed, size in enumerate(sizes)]
    images[3:6] = [image.contiguous() for image in images[3:6]]
    images.append(images[5][:1].expand(3, -1, -1))
    crops = [Crop((0, 0, *image.shape[1:]), flip=number % 2 == 1) for number, image in enumerate(images)]
    for image in list(images):
        high, wide = image.shape[1:]
        height, width = rng.randint(1, high), rng.randint(1, wide)
        images.append(image)
        crops.append(Crop((rng.randint(0, high - height), rng.randint(0, wide - width), height, width), flip=True))
    return images, crops


def resize_one(image: torch.Tensor, crop: Crop, antialias: bool) -> torch.Tensor:
    """The reader's own way: the crop is mirrored, then resized by PyTorch in uint8."""
    y, x, height, width = crop.box
    part = image[:, y : y + height, x : x + width]
    part = (part.flip(2) if crop.flip else part).contiguous(memory_format=torch.contiguous_format)
    return torch.nn.functional.interpolate(part[None], SIZE, mode="bilinear", antialias=antialias)[0]


@pytest.mark.parametrize(
    ("antialias", "memory_format"), [(False, torch.channels_last), (True, torch.contiguous_format)]
)
def test_pixels_are_those_of_the_reader_on_the_cpu(antialias: bool, memory_format: torch.memory_format) -> None:
    images, crops = draw_batch()
    out = torch.full((len(images) + 1, 3, *SIZE), 7, dtype=torch.uint8).contiguous(memory_format=memory_format)
    resize_by_torch(images, crops, out, ResizeConfig(antialias))
    assert (out[-1] == 7).all()  # a row that fills the batch up
    expected = torch.stack([resize_one(image, crop, antialias) for image, crop in zip(images, crops, strict=True)])
    difference = (out[:-1].int() - expected.int()).abs()
    # PyTorch rounds after each axis, and here it is done once.
    assert difference.max() <= 1
    assert difference.float().mean() < 0.25


def test_floats_are_the_normalized_levels() -> None:
    images, crops = draw_batch()
    levels, floats = (torch.empty(len(images), 3, *SIZE, dtype=kind) for kind in (torch.uint8, torch.bfloat16))
    offset, factor = (1.0, 20.0, 100.0), (0.5, 0.25, 0.125)
    resize_by_torch(images, crops, levels, ResizeConfig(False))
    resize_by_torch(images, crops, floats, ResizeConfig(False, offset, factor))
    expected = (levels - torch.tensor(offset).view(-1, 1, 1)) * torch.tensor(factor).view(-1, 1, 1)
    assert torch.equal(floats, expected.bfloat16())


def test_without_triton_or_a_gpu_pytorch_resizes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_resize(torch.device("cpu")) is resize_by_torch
    monkeypatch.setattr(resize.importlib.util, "find_spec", lambda name: None)
    assert find_resize(torch.device("cuda")) is resize_by_torch


def test_an_enlarged_pixel_fills_the_output() -> None:
    image = torch.tensor([[[9]], [[8]], [[255]]], dtype=torch.uint8)
    out = torch.empty(1, 3, 2, 2, dtype=torch.uint8)
    resize_by_torch([image], [Crop((0, 0, 1, 1), flip=False)], out, ResizeConfig(False))
    assert np.array_equal(out[0].numpy(), np.broadcast_to(image.numpy(), (3, 2, 2)))
