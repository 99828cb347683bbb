"""What an exported program says of a dataset's validation images."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tfpipe.readers.data_source import data_source


def predict_validation(run: Path, dataset: Path) -> tuple[Any, Any]:
    """Returns the probabilities, float32 [images, classes], and the labels of images of one size."""
    records = list(data_source(str(dataset), "validation"))
    pixels = torch.stack([torch.from_numpy(np.array(Image.open(io.BytesIO(r.encoded)))) for r in records])
    program = torch.export.load(str(run / "model" / "model.pt2")).module()
    return program(pixels).numpy(), np.array([record.label for record in records])


def mean_loss(probabilities: Any, labels: Any) -> float:
    return float(-np.mean(np.log(probabilities[range(len(labels)), labels])))
