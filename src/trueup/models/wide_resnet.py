"""Wide residual networks (Zagoruyko and Komodakis, 2016), as mukhoti2020's code has them."""

from __future__ import annotations

from torch import nn

from trueup.models.initialise import he_normal
from trueup.models.resnet import BasicBlock, ResNet, channels_of


def wrn26_10(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Basic blocks [4, 4, 4] of 160, 320, 640 channels over a stem of 16; 36.5 million parameters, no dropout.

    Zagoruyko and Komodakis count 6n + 4 layers and would call this size WRN-28-10. Theirs normalises before each
    convolution; this one does so after, like any ResNet, because mukhoti2020's does. He's initialisation of the
    convolutions (normal, fan out).
    """
    net = ResNet(BasicBlock, (4, 4, 4), (160, 320, 640), classes, channels_of("wrn26-10", input_shape), stem=16)
    he_normal(net, "fan_out")
    return net
