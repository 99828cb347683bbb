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
from collections.abc import Iterator, Sequence

import torch

from tfpipe.readers.device_images.crops import Crop, Resize, ResizeConfig

# Values of a part of the batch between both axes. On a GPU they bound its memory at about 200 MB, whatever the crops'
# sizes; on a CPU the caches hold them, which takes a third of the time.
_MAX_VALUES, _MAX_VALUES_ON_CPU = 1 << 24, 1 << 19


def find_resize(device: torch.device) -> Resize:
    """Returns the fastest way that this machine has: one kernel on a GPU with Triton, else PyTorch's operations."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from tfpipe.readers.device_images.resize_triton import resize_by_triton

        return resize_by_triton
    return resize_by_torch


def resize_by_torch(
    images: Sequence[torch.Tensor], crops: Sequence[Crop], out: torch.Tensor, config: ResizeConfig
) -> None:
    """Fills an output by PyTorch's operations, for many images at once: one axis after the other."""
    height, width = out.shape[2:]
    begin = 0
    for count in _divide(crops, width, _MAX_VALUES_ON_CPU if out.device.type == "cpu" else _MAX_VALUES):
        part = slice(begin, begin + count)
        levels = _resize_part(images[part], crops[part], (height, width), config.antialias)
        if out.dtype.is_floating_point:
            offset, factor = (torch.tensor(v, device=out.device).view(-1, 1, 1) for v in (config.offset, config.factor))
            levels = (levels - offset) * factor
        out[part] = levels.to(out.dtype)
        begin += count


def _divide(crops: Sequence[Crop], width: int, max_values: int) -> Iterator[int]:
    """Yields the numbers of images that are resized together."""
    count = tallest = 0
    for crop in crops:
        tallest = max(tallest, crop.box[2])
        if count and (count + 1) * tallest * width * 3 > max_values:
            yield count
            count, tallest = 0, crop.box[2]
        count += 1
    if count:
        yield count


def _resize_part(
    images: Sequence[torch.Tensor], crops: Sequence[Crop], size: tuple[int, int], antialias: bool
) -> torch.Tensor:
    """Returns crops of some images in whole levels: float32 [n, 3, height, width]."""
    device, (height, width) = images[0].device, size
    pixels = torch.cat([image.reshape(-1) for image in images])
    sizes = torch.tensor([image.shape[1:] for image in images])
    planes = sizes.prod(1)
    firsts = torch.cumsum(3 * planes, 0) - 3 * planes
    boxes = torch.tensor([crop.box for crop in crops])
    # The first pixel of the crop in each channel, and the pixels of a row: int64 [n, 3] and [n].
    corners = firsts[:, None] + torch.arange(3) * planes[:, None] + (boxes[:, 0] * sizes[:, 1] + boxes[:, 1])[:, None]
    # Found on the host, so that it need not wait for the device.
    columns, across = (part.to(device) for part in _find_taps(boxes[:, 3], width, antialias))
    lines, down = (part.to(device) for part in _find_taps(boxes[:, 2], height, antialias))
    corners, strides, boxes = corners.to(device), sizes[:, 1].to(device), boxes.to(device)
    flips = torch.tensor([crop.flip for crop in crops], device=device)

    columns = torch.where(flips[:, None, None], columns.flip(1), columns)
    across = torch.where(flips[:, None, None], across.flip(1), across)
    tallest = max(crop.box[2] for crop in crops)
    rows = torch.minimum(torch.arange(tallest, device=device), boxes[:, 2:3] - 1)  # [n, tallest]
    row_starts = corners[:, :, None] + (rows * strides[:, None])[:, None]  # [n, 3, tallest]
    wide = torch.zeros(*row_starts.shape, width, device=device)
    for tap in range(columns.shape[2]):
        values = pixels[row_starts[..., None] + columns[:, None, None, :, tap]]
        wide += values * across[:, None, None, :, tap]

    levels = torch.zeros(len(images), 3, height, width, device=device)
    for tap in range(lines.shape[2]):
        chosen = lines[:, None, :, tap, None].expand(-1, 3, -1, width)
        levels += wide.gather(2, chosen) * down[:, None, :, tap, None]
    return (levels + 0.5).floor_().clamp_(0, 255)


def _find_taps(sides: torch.Tensor, length: int, antialias: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds the pixels of a crop that each output pixel blends along one axis, and their weights.

    Args:
        sides: The side of each crop, int64 [n].
        length: The side of the output.
        antialias: Whether the kernel widens where a crop shrinks.

    Returns:
        The places from 0, int64 [n, length, taps], and the weights, float32 of the same shape, which sum to 1.
    """
    scales = (sides.float() / length)[:, None]
    centers = (torch.arange(length, device=sides.device) + 0.5) * scales  # [n, length]
    supports = scales.clamp(min=1.0) if antialias else torch.ones_like(scales)
    firsts = (centers - supports + 0.5).floor()
    taps = int((2 * supports).max().ceil()) + 1 if antialias else 2
    places = firsts[..., None] + torch.arange(taps, device=sides.device)
    distances = (places + 0.5 - centers[..., None]) / supports[..., None]
    weights = (1 - distances.abs()).clamp(min=0)
    last = (sides - 1)[:, None, None]
    if antialias:  # pixels beyond the edge do not count; else the pixel at the edge counts for them
        weights = weights * ((places >= 0) & (places <= last))
    weights = weights / weights.sum(2, keepdim=True)
    return torch.minimum(places.clamp(min=0).long(), last), weights
