"""Writes a trained model as an ExportedProgram that takes decoded images, with the preprocessing inside.

```
RUN/model/
  model.pt2     opened by `torch.export.load`, with plain PyTorch
  labels.txt    names of classes, one on each line, in the order of their numbers
  tfpipe.json   for `tfpipe predict`: how the dataset's images were stored
```

    model = torch.export.load("runs/flowers/model/model.pt2").module()
    probabilities = model(images)

`images` is uint8 [batch, height, width, 3]: whole decoded images of any one size. The program takes their center,
resizes and normalizes it as the evaluation does, and returns float32 [batch, classes]. A prediction equals that of the
evaluation, but for images that are decoded at a half, a quarter or an eighth of their size there (`dct_scaling`).
"""

from __future__ import annotations

import io
from copy import deepcopy
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.export import Dim

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import DataError, FormatError, first_line
from tfpipe.format.manifest import Manifest
from tfpipe.readers.torch import normalize
from tfpipe.training.model_files import PROGRAMS, Program, write_model

_MAX_SIDE = 65_535  # of a JPEG


def export_model(model: nn.Module, config: PipelineConfig, manifest: Manifest, directory: str) -> None:
    """Writes the program. It appears under its name when it is complete, in place of an earlier one.

    Raises:
        DataError: `torch.export` cannot follow the model, or the program cannot be written.
    """
    # In plain memory order: `torch.export.save` warns of any other.
    copy = deepcopy(model).cpu().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    served = ServedModel(copy.requires_grad_(False), config).eval()
    height, width = config.size
    # Sizes that differ from each other and from the model's, so that none is taken for a constant.
    example = torch.zeros((2, 2 * height + 3, 2 * width + 5, 3), dtype=torch.uint8)
    sides = {1: Dim("height", min=1, max=_MAX_SIDE), 2: Dim("width", min=1, max=_MAX_SIDE)}
    whole = config.augment == "none"  # then all images have the model's size
    shapes = {"images": {0: Dim("batch")} if whole else {0: Dim("batch"), **sides}}
    if whole:
        example = example[:, :height, :width]
    buffer = io.BytesIO()
    try:
        torch.export.save(torch.export.export(served, (example,), dynamic_shapes=shapes), buffer)
    except Exception as error:  # the user's own model may raise anything
        raise DataError(f"The model is trained, and torch.export cannot follow it: {first_line(error)}.") from error
    write_model(directory, (PROGRAMS["torch"], buffer.getvalue()), config, manifest)


def load_model(data: bytes, path: str) -> Program:
    """Returns a program as a function of decoded images, which computes the probabilities of all classes.

    Raises:
        FormatError: The file is damaged.
    """
    try:
        program = torch.export.load(io.BytesIO(data)).module()
    except Exception as error:  # a damaged archive raises anything
        raise FormatError(f"The model {path} is damaged: {first_line(error)}.") from error

    def run(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.inference_mode():
            probabilities: NDArray[np.float32] = program(torch.from_numpy(images)).numpy()
        return probabilities

    return run


class ServedModel(nn.Module):
    """A model with the preprocessing of its evaluation in front."""

    def __init__(self, model: nn.Module, config: PipelineConfig) -> None:
        """Sets the model and its options."""
        super().__init__()
        self.model, self._config = model, config
        self._crops = config.augment != "none"

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Computes the probabilities: float32 [batch, classes]."""
        config = self._config
        if self._crops:
            images = self._crop_center(images)
        planes = images.permute(0, 3, 1, 2)
        if self._crops:
            antialias = config.augment_options.antialias
            planes = nn.functional.interpolate(planes.float(), config.size, mode="bilinear", antialias=antialias)
        if config.image_dtype != "uint8":
            planes = normalize(planes, config.augment_options)
        elif self._crops:
            planes = (planes + 0.5).to(torch.uint8)
        probabilities: torch.Tensor = self.model(planes).softmax(1)
        return probabilities

    def _crop_center(self, images: torch.Tensor) -> torch.Tensor:
        """Cuts out the crop of `tfpipe.engine.crops.center_boxes`.

        In whole numbers, since a program has no rounding for sizes that it does not know.
        """
        (height, width), (rows, columns) = images.shape[1:3], self._config.size
        share = Fraction(self._config.augment_options.crop_fraction).limit_denominator(10**6)
        short = torch.sym_min(height * columns, width * rows)  # of the largest crop, in units of an output pixel
        high, wide = (
            torch.sym_max((2 * short * share.numerator + unit) // (2 * unit), 1)
            for unit in (columns * share.denominator, rows * share.denominator)
        )
        # Picked by number, because the program of a slice depends on how its rows lie in memory.
        picked = images.index_select(1, torch.arange(high) + (height - high) // 2)
        return picked.index_select(2, torch.arange(wide) + (width - wide) // 2)
