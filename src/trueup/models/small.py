"""Nets for a CPU: linear, mlp, cnn. PyTorch's default initialisation.

Without batch normalisation: samples do not see each other in training either, so that each has a gradient of its own.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

import torch.nn.functional as F
from torch import Tensor, nn

from trueup.inputs import InputError


def linear(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Logistic regression: the family that holds the posterior of Gaussian classes with one covariance."""
    return mlp(classes, input_shape, hidden=())


def mlp(classes: int, input_shape: tuple[int, ...], hidden: tuple[int, ...] = (100,)) -> nn.Module:
    """Linear layers with ReLU between them, over the flattened input.

    The default is the "2-layer MLP with hidden-size 100" of kimura2024.
    """
    widths = (prod(input_shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def cnn(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Two 3 x 3 convolutions, each with ReLU and max-pooling, over images (C, H, W) of 8 x 8 pixels or more."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 8:
        raise InputError(
            f"input_shape: cnn takes images (C, H, W) of at least 8 x 8 pixels, got {input_shape}; mlp takes anything"
        )
    return SmallCNN(classes, input_shape[0])


class SmallCNN(nn.Module):
    """8 x 8 pixels end as 2 x 2; what is left of a larger image is averaged down to that."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 2 * 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(F.adaptive_avg_pool2d(x, 2).flatten(1))
