"""Residual networks (He et al., 2016) for small images: a 3 x 3 stem of stride 1, and no max-pooling.

Two families share one body and go by similar names:

- resnet18, resnet34, resnet50: four stages of 64 to 512 channels, kuangliu's CIFAR variant of the ImageNet nets, which
  mukhoti2020 trains. Their "ResNet-110" is one of these too, with bottlenecks [3, 4, 26, 3], which make 110 layers:
  here ``resnet110-bottleneck``, 45.9 million parameters rather than 1.7.
- resnet32, resnet110: the 6n + 2 layers of section 4.2 of He et al., three stages of 16, 32, 64 channels.

Activations are never overwritten in place: forward-mode, vmap and double backward all need them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from trueup.models.initialise import he_normal
from trueup.models.shapes import square_image

IMAGENET_WIDTHS = (64, 128, 256, 512)
CIFAR_WIDTHS = (16, 32, 64)


def resnet18(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Basic blocks [2, 2, 2, 2]; 11.2 million parameters. PyTorch's default initialisation, as kuangliu's."""
    return ResNet(BasicBlock, (2, 2, 2, 2), IMAGENET_WIDTHS, classes, channels_of("resnet18", input_shape))


def resnet34(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Basic blocks [3, 4, 6, 3]; 21.3 million parameters. PyTorch's default initialisation, as kuangliu's."""
    return ResNet(BasicBlock, (3, 4, 6, 3), IMAGENET_WIDTHS, classes, channels_of("resnet34", input_shape))


def resnet50(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Bottlenecks [3, 4, 6, 3]; 23.5 million parameters. PyTorch's default initialisation, as kuangliu's."""
    return ResNet(Bottleneck, (3, 4, 6, 3), IMAGENET_WIDTHS, classes, channels_of("resnet50", input_shape))


def resnet110_bottleneck(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """What mukhoti2020's code calls ResNet-110: bottlenecks [3, 4, 26, 3]; 45.9 million parameters.

    PyTorch's default initialisation, as theirs.
    """
    channels = channels_of("resnet110-bottleneck", input_shape)
    return ResNet(Bottleneck, (3, 4, 26, 3), IMAGENET_WIDTHS, classes, channels)


def resnet50_tiny(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """mukhoti2020's net for Tiny-ImageNet: resnet50 whose head sees the means of the four quarters of the image.

    He's initialisation of the convolutions (normal, fan out), as theirs.
    """
    channels, _ = square_image(
        "resnet50-tiny", input_shape, "H = W = 64 (or another multiple of 16)", lambda side: side > 0 and side % 16 == 0
    )
    net = ResNet(Bottleneck, (3, 4, 6, 3), IMAGENET_WIDTHS, classes, channels, grid=2)
    he_normal(net, "fan_out")
    return net


def resnet32(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """6n + 2 layers with n = 5; 0.46 million parameters; the net of wang2021."""
    return six_n_plus_two("resnet32", 5, classes, input_shape)


def resnet110(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """6n + 2 layers with n = 18; 1.7 million parameters."""
    return six_n_plus_two("resnet110", 18, classes, input_shape)


def six_n_plus_two(name: str, n: int, classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Shortcuts without parameters (option A), as He et al. have them on CIFAR.

    He's initialisation (normal, fan in) of convolutions and head, as in the code of wang2021.
    """
    channels = channels_of(name, input_shape)
    net = ResNet(BasicBlock, (n, n, n), CIFAR_WIDTHS, classes, channels, shortcut=ZeroPadded)
    he_normal(net, "fan_in", head=True)
    return net


def channels_of(name: str, input_shape: tuple[int, ...]) -> int:
    """The channels of an image that a net with a global mean at its end can take."""
    return square_image(name, input_shape, "H = W = 32 (28 and more will do)", lambda side: side >= 28)[0]


def conv(before: int, after: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size of the image, but for its stride; batch normalisation brings the bias."""
    return nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)


class Projection(nn.Sequential):
    """The shortcut of option B: a 1 x 1 convolution and batch normalisation."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__(conv(before, after, 1, stride), nn.BatchNorm2d(after))


class ZeroPadded(nn.Module):
    """The shortcut of option A: every ``stride``-th pixel, the new channels zero, half of them on either side."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.stride, self.margin = stride, (after - before) // 2

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.margin, self.margin))


class BasicBlock(nn.Module):
    """relu(two 3 x 3 convolutions of x + shortcut of x)."""

    expansion = 1

    def __init__(self, before: int, width: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = conv(before, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """relu(1 x 1, 3 x 3 and 1 x 1 convolutions of x + shortcut of x)."""

    expansion = 4

    def __init__(self, before: int, width: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = conv(before, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, 4 * width, 1)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages of blocks of which each but the first halves the image, means over a grid, a linear layer."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, ...],
        widths: tuple[int, ...],
        classes: int,
        channels: int,
        *,
        stem: int | None = None,
        shortcut: Callable[[int, int, int], nn.Module] = Projection,
        grid: int = 1,
    ) -> None:
        super().__init__()
        before = widths[0] if stem is None else stem
        self.conv1 = conv(channels, before, 3)
        self.bn1 = nn.BatchNorm2d(before)
        blocks: list[nn.Module] = []
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            after = block.expansion * width
            for place in range(depth):
                stride = 2 if stage > 0 and place == 0 else 1
                same = stride == 1 and before == after
                blocks.append(block(before, width, stride, nn.Identity() if same else shortcut(before, after, stride)))
                before = after
        self.blocks = nn.Sequential(*blocks)
        self.grid = grid
        self.fc = nn.Linear(before * grid * grid, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.fc(grid_means(x, self.grid))


def grid_means(x: Tensor, grid: int) -> Tensor:
    """(N, C * grid * grid) means of (N, C, S, S) over the cells of a grid, S a multiple of it.

    Adaptive average pooling by another way: a mean is a plain reduction, deterministic and differentiable twice.
    """
    side = x.shape[-1] // grid
    return x.unflatten(3, (grid, side)).unflatten(2, (grid, side)).mean((3, 5)).flatten(1)
