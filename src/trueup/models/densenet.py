"""DenseNet-121 (Huang et al., 2017) for small images, as kuangliu's and mukhoti2020's code have it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trueup.models.resnet import channels_of, conv


def densenet121(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Dense blocks of 6, 12, 24, 16 layers that add 32 channels each, over a 3 x 3 stem; 7.0 million parameters.

    PyTorch's default initialisation.
    """
    return DenseNet((6, 12, 24, 16), 32, classes, channels_of("densenet121", input_shape))


class DenseLayer(nn.Module):
    """``growth`` new channels, beside all those before them."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = conv(before, 4 * growth, 1)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = conv(4 * growth, growth, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.bn1(x)))
        y = self.conv2(F.relu(self.bn2(y)))
        return torch.cat([y, x], 1)


class Transition(nn.Module):
    """Half the channels, half the side.

    The literature pools after the convolution. A mean over pixels and a 1 x 1 convolution commute; this way round the
    convolution has a quarter of the work.
    """

    def __init__(self, before: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(before)
        self.conv = conv(before, before // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.avg_pool2d(F.relu(self.bn(x)), 2))


class DenseNet(nn.Module):
    """A stem, dense blocks with transitions between them, a mean over the image, a linear layer."""

    def __init__(self, depths: tuple[int, ...], growth: int, classes: int, channels: int) -> None:
        super().__init__()
        width = 2 * growth
        layers: list[nn.Module] = [conv(channels, width, 3)]
        for stage, depth in enumerate(depths):
            if stage > 0:
                layers.append(Transition(width))
                width //= 2
            for _ in range(depth):
                layers.append(DenseLayer(width, growth))
                width += growth
        self.layers = nn.Sequential(*layers)
        self.bn = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.bn(self.layers(x))).mean((2, 3)))
