"""He's initialisation (He et al., 2015), where the code that a net follows departs from PyTorch's defaults."""

from __future__ import annotations

from typing import Literal

from torch import nn


def he_normal(net: nn.Module, fan: Literal["fan_in", "fan_out"], *, head: bool = False) -> None:
    """Draws the weights of convolutions, and of linear layers for ``head``, from N(0, 2 / fan). Biases stay."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d) or (head and isinstance(layer, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, mode=fan, nonlinearity="relu")
