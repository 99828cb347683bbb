"""Builds the models of the trainer for PyTorch: from images to float32 logits.

small_cnn is that of `tfpipe.training.tensorflow.models`: the same layers, and weights drawn from the same ranges.
resnet50 is that of most implementations. Its batch normalization is as PyTorch's: each process normalizes by its own
part of the batch, and evaluation uses the moving averages of the first process.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import nn

from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, first_line
from tfpipe.readers.torch import normalize
from tfpipe.training.config import SMALL_CHANNELS, SMALL_EPSILON, SMALL_GROUPS, check_side
from tfpipe.training.torch.resnet50 import ResNet50

BuildModel: TypeAlias = Callable[[int, tuple[int, int]], nn.Module]
"""A function from the number of classes and the (height, width) of images to a model. The model takes normalized float
images, [batch, 3, height, width], and returns logits, [batch, classes]."""


def build_model(name: str, num_classes: int, config: PipelineConfig, build: BuildModel | None = None) -> nn.Module:
    """Builds a model for the batches of `tfpipe.readers.torch`.

    Args:
        name: small_cnn or resnet50; for the user's own model the name to use in messages.
        num_classes: The number of logits for an image.
        config: The options of the pipeline, of which `size`, `image_dtype`, `mean` and `std` are used.
        build: A function that builds the user's own model.

    Returns:
        A model from images, `image_dtype` [batch, 3, height, width], to logits, float32 [batch, classes]. It normalizes
        uint8 images itself. Floats come normalized from the reader.

    Raises:
        ConfigError: The images are too small for the model, or `build` does not return such a model.
    """
    if build is not None:
        net = _build_users_own(name, build, num_classes, config.size)
    elif name == "resnet50":
        check_side(name, config.size)
        net = ResNet50(num_classes)
    else:
        net = SmallCNN(num_classes)
    return Classifier(net, config.augment_options)


class Classifier(nn.Module):
    """A net between the reader's images and float32 logits."""

    def __init__(self, net: nn.Module, options: AugmentOptions) -> None:
        """Sets the net, which takes normalized floats."""
        super().__init__()
        self.net, self._options = net, options

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Computes the logits: float32 [batch, classes]."""
        if images.dtype == torch.uint8:
            # In float32 also under autocast, which rounds in the first layer.
            images = normalize(images, self._options)
        logits: torch.Tensor = self.net(images)
        return logits.float()


class SmallCNN(nn.Module):
    """A net of three convolutions: 94,000 weights, and 10 million multiply-adds for an image of 64 x 64."""

    def __init__(self, num_classes: int) -> None:
        """Draws the weights."""
        super().__init__()
        channels = (3, *SMALL_CHANNELS)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, bias=False) for before, after in pairwise(channels)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(SMALL_GROUPS, count, SMALL_EPSILON) for count in SMALL_CHANNELS)
        self.head = nn.Linear(SMALL_CHANNELS[-1], num_classes)
        for layer in (*self.convolutions, self.head):
            nn.init.xavier_uniform_(layer.weight)  # Keras' default
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes the logits: [batch, classes]."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            height, width = x.shape[2:]
            # Keras' "same": an even side gets one pixel at its end, an odd side one at both.
            x = convolution(nn.functional.pad(x, (width % 2, 1, height % 2, 1)))
            x = nn.functional.relu(norm(x))
        # In float32 also under autocast, as Keras' last layer.
        with torch.autocast(x.device.type, enabled=False):
            logits: torch.Tensor = self.head(x.float().amax((2, 3)))
        return logits


def _build_users_own(name: str, build: BuildModel, num_classes: int, size: tuple[int, int]) -> nn.Module:
    """Builds the user's own model, and checks its type, its input and its output."""
    try:
        net = build(num_classes, size)
    except Exception as error:
        raise ConfigError(f"{name}({num_classes}, {size}) failed: {type(error).__name__}: {error}") from error
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{name} must return a torch.nn.Module, got {type(net).__name__}.")
    shape = (2, 3, *size)
    try:
        with torch.no_grad():
            logits = net.eval()(torch.zeros(shape))  # which also gives lazy layers their shapes
    except Exception as error:
        raise ConfigError(f"{name} must take images of shape {shape}: {first_line(error)}.") from error
    got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if got != (2, num_classes):
        raise ConfigError(f"{name} must return logits of shape {(2, num_classes)}, got {got}.")
    return net.train()
