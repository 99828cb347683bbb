"""ResNet-50 (He et al. 2016, "Deep residual learning for image recognition") in plain PyTorch.

The stride of a block lies in its 3 x 3 convolution, as in most implementations: 25,557,032 weights for 1,000 classes.
Keras' ResNet50 has the stride in the block's first convolution, so weights of the one do not fit the other.
"""

from __future__ import annotations

import torch
from torch import nn

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""The inner channels, the blocks and the first stride of each stage."""

_GROWTH = 4  # output channels for each inner channel


class ResNet50(nn.Sequential):
    """The net, from float images [batch, 3, height, width] to logits [batch, classes]."""

    def __init__(self, num_classes: int) -> None:
        """Draws the weights.

        Convolutions are drawn as He et al. 2015 do ("Delving deep into rectifiers"). The rest is as Goyal et al. 2017
        do ("Accurate, large minibatch SGD"): small weights in the last layer, and a scale of 0 at the end of each
        block, which begins as its shortcut.
        """
        layers: list[nn.Module] = [*convolve(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        before = STAGES[0][0]
        for inner, blocks, stride in STAGES:
            for block in range(blocks):
                layers.append(Bottleneck(before, inner, stride if block == 0 else 1))
                before = inner * _GROWTH
        head = nn.Linear(before, num_classes)
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(layer, Bottleneck):
                nn.init.zeros_(layer.norm.weight)
        nn.init.normal_(head.weight, std=0.01)
        nn.init.zeros_(head.bias)


class Bottleneck(nn.Module):
    """A block of three convolutions beside a shortcut."""

    def __init__(self, before: int, inner: int, stride: int) -> None:
        """Sets the block's input channels, its inner channels and its stride."""
        super().__init__()
        after = inner * _GROWTH
        last, self.norm = convolve(inner, after, 1)
        self.body = nn.Sequential(
            *(*convolve(before, inner, 1), nn.ReLU(inplace=True)),
            *(*convolve(inner, inner, 3, stride), nn.ReLU(inplace=True)),
            last,
        )
        self.shortcut = nn.Identity() if before == after else nn.Sequential(*convolve(before, after, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes the block: [batch, channels, height, width]."""
        return torch.relu(self.norm(self.body(x)) + self.shortcut(x))


def convolve(before: int, after: int, size: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Makes a convolution and the normalization that follows it."""
    convolution = nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)
    return convolution, nn.BatchNorm2d(after)
