"""The crops, resizes, flips and normalization of a batch in one kernel, by Triton."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from tfpipe.readers.device_images.crops import Crop, ResizeConfig

_BLOCK = 128  # pixels of a program: with all three channels it needs few registers


def resize_by_triton(
    images: Sequence[torch.Tensor], crops: Sequence[Crop], out: torch.Tensor, config: ResizeConfig
) -> None:
    """Fills an output by one kernel, which reads each image where it lies."""
    if not images:
        return
    rows = [
        (image.data_ptr(), *image.stride(), *crop.box, int(crop.flip))
        for image, crop in zip(images, crops, strict=True)
    ]
    table = torch.tensor(rows, dtype=torch.int64)
    if out.is_cuda:
        table = table.pin_memory().to(out.device, non_blocking=True)
    height, width = out.shape[2:]
    grid = (len(images), triton.cdiv(height * width, _BLOCK))
    _resize_kernel[grid](
        *(table, out, *out.stride(), height, width, *config.offset, *config.factor),
        antialias=config.antialias,
        is_float=out.dtype.is_floating_point,
        block=_BLOCK,
    )


# Triton reads this source anew, and knows no annotations but its own.
@triton.jit  # type: ignore[untyped-decorator]
def _resize_kernel(  # type: ignore[no-untyped-def]  # noqa: ANN202
    table,  # noqa: ANN001
    out,  # noqa: ANN001
    out_image,  # noqa: ANN001
    out_channel,  # noqa: ANN001
    out_row,  # noqa: ANN001
    out_column,  # noqa: ANN001
    height,  # noqa: ANN001
    width,  # noqa: ANN001
    offset_0,  # noqa: ANN001
    offset_1,  # noqa: ANN001
    offset_2,  # noqa: ANN001
    factor_0,  # noqa: ANN001
    factor_1,  # noqa: ANN001
    factor_2,  # noqa: ANN001
    antialias: tl.constexpr,
    is_float: tl.constexpr,
    block: tl.constexpr,
):
    """Makes some pixels of one image, in all channels."""
    image = tl.program_id(0).to(tl.int64)
    entry = table + image * 9
    pixels = tl.load(entry).to(tl.pointer_type(tl.uint8))
    channel_step, row_step, column_step = tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    top, left = tl.load(entry + 4), tl.load(entry + 5)
    crop_height, crop_width, flip = tl.load(entry + 6), tl.load(entry + 7), tl.load(entry + 8)
    pixels += top * row_step + left * column_step

    place = tl.program_id(1) * block + tl.arange(0, block)
    inside = place < height * width
    row, column = place // width, place % width
    source_column = tl.where(flip != 0, width - 1 - column, column)
    scale_y, scale_x = crop_height.to(tl.float32) / height, crop_width.to(tl.float32) / width
    center_y, center_x = (row + 0.5) * scale_y, (source_column + 0.5) * scale_x
    support_y, support_x = 1.0, 1.0
    if antialias:
        support_y, support_x = tl.maximum(scale_y, 1.0), tl.maximum(scale_x, 1.0)
    first_y = tl.floor(center_y - support_y + 0.5).to(tl.int64)
    first_x = tl.floor(center_x - support_x + 0.5).to(tl.int64)
    taps_y = tl.ceil(2 * support_y).to(tl.int32) + 1 if antialias else 2
    taps_x = tl.ceil(2 * support_x).to(tl.int32) + 1 if antialias else 2

    total = tl.zeros([block], tl.float32)
    red, green, blue = total, total, total
    for tap_y in range(taps_y):
        y = first_y + tap_y
        weight_y = tl.maximum(1.0 - tl.abs(y + 0.5 - center_y) / support_y, 0.0)
        if antialias:
            weight_y = tl.where((y >= 0) & (y < crop_height), weight_y, 0.0)
        line = tl.minimum(tl.maximum(y, 0), crop_height - 1) * row_step
        for tap_x in range(taps_x):
            x = first_x + tap_x
            weight = tl.maximum(1.0 - tl.abs(x + 0.5 - center_x) / support_x, 0.0)
            if antialias:
                weight = tl.where((x >= 0) & (x < crop_width), weight, 0.0)
            weight = weight * weight_y
            at = pixels + line + tl.minimum(tl.maximum(x, 0), crop_width - 1) * column_step
            used = inside & (weight > 0)
            red += weight * tl.load(at, used, 0).to(tl.float32)
            green += weight * tl.load(at + channel_step, used, 0).to(tl.float32)
            blue += weight * tl.load(at + 2 * channel_step, used, 0).to(tl.float32)
            total += weight

    red, green, blue = tl.floor(red / total + 0.5), tl.floor(green / total + 0.5), tl.floor(blue / total + 0.5)
    to = out + image * out_image + row * out_row + column * out_column
    if is_float:
        red, green, blue = (red - offset_0) * factor_0, (green - offset_1) * factor_1, (blue - offset_2) * factor_2
    tl.store(to, red.to(out.dtype.element_ty), inside)
    tl.store(to + out_channel, green.to(out.dtype.element_ty), inside)
    tl.store(to + 2 * out_channel, blue.to(out.dtype.element_ty), inside)
