"""Crops, resizes, flips and normalizes images of different sizes, as one batch on their device.

```
resize = find_resize(device)
resize(images, [Crop((y, x, height, width), flip), ...], out, ResizeConfig(antialias, offset, factor))
```

The pixels are those of the readers on the CPU: bilinear with half-pixel centers, rounded to whole levels, halves up. A
crop is mirrored before it is resized, which is the same as afterwards. On a GPU with Triton one kernel does all of it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import torch

from tfpipe.readers.device_images.crops import Crop, Resize, ResizeConfig


def find_resize(device: torch.device) -> Resize:
    """Returns the fastest way that this machine has: one kernel on a GPU with Triton, else PyTorch's operations."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from tfpipe.readers.device_images.resize_triton import resize_by_triton

        return resize_by_triton
    return resize_by_torch


def resize_by_torch(
    images: Sequence[torch.Tensor], crops: Sequence[Crop], out: torch.Tensor, config: ResizeConfig
) -> None:
    """Fills an output by PyTorch's operations, image by image."""
    offset, factor = (torch.tensor(v, device=out.device).view(-1, 1, 1) for v in (config.offset, config.factor))
    for row, (image, crop) in enumerate(zip(images, crops, strict=True)):
        y, x, height, width = crop.box
        part = image[None, :, y : y + height, x : x + width].float()
        part = part.flip(3) if crop.flip else part
        resized = torch.nn.functional.interpolate(
            part, tuple(out.shape[2:]), mode="bilinear", antialias=config.antialias
        )
        levels = (resized[0] + 0.5).floor_().clamp_(0, 255)
        out[row] = (levels - offset) * factor if out.dtype.is_floating_point else levels
