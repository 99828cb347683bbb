"""ResNet-50 (He et al. 2015) in plain PyTorch, so that a benchmark needs no library of models.

The stride of a block lies in its 3 x 3 convolution, as in most implementations: 25,557,032 weights for 1,000 classes.
"""

import torch
from torch import nn

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""The inner channels, the blocks and the first stride of each stage."""

_GROWTH = 4  # output channels for each inner channel


def convolve(before: int, after: int, size: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after))


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, before: int, inner: int, stride: int) -> None:
        super().__init__()
        after = inner * _GROWTH
        self.body = nn.Sequential(
            *(convolve(before, inner, 1), nn.ReLU(inplace=True)),
            *(convolve(inner, inner, 3, stride), nn.ReLU(inplace=True)),
            convolve(inner, after, 1),
        )
        self.shortcut = nn.Identity() if before == after else convolve(before, after, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def build_resnet50(num_classes: int = 1000) -> nn.Module:
    """Builds the net, from float images [batch, 3, height, width] to logits [batch, classes]."""
    layers: list[nn.Module] = [convolve(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for inner, blocks, stride in STAGES:
        for block in range(blocks):
            layers.append(Bottleneck(before, inner, stride if block == 0 else 1))
            before = inner * _GROWTH
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_classes))
