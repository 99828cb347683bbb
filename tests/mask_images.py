"""Images that show their masks: large fields of one class, whose red value is 40 times the class."""

import io
from typing import Any

import numpy as np
from PIL import Image

from tests.beam_jobs.images import save_image

MASK_NAME = "image/mask"


def make_masked_images(count: int, kind: str = "PNG", *, as_classes: bool = False) -> dict[str, Any]:
    files: dict[str, Any] = {}
    for k in range(count):
        fields = np.random.default_rng(k).integers(0, 6, (4, 5), np.uint8)
        classes = np.repeat(np.repeat(fields, 9 + k % 3, axis=0), 8 + k % 4, axis=1)
        name = f"{'cat' if k % 2 else 'dog'}/{k}"
        ending = "png" if kind == "PNG" else "jpg"
        if as_classes:
            files[f"{name}.{ending}"] = classes
            continue
        pixels = np.stack([classes * 40, 255 - classes, classes], axis=-1)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind)
        files |= {f"{name}.{ending}": buffer.getvalue(), f"{name}.mask.png": save_image(Image.fromarray(classes))}
    return files
