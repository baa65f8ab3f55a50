"""Every net with an input it is meant for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trueup import models

SHAPES = {
    "linear": (5,),
    "mlp": (1, 8, 8),
    "cnn": (1, 8, 8),
    "resnet50-tiny": (3, 64, 64),
    **{name: (3, 32, 32) for name in models.MODELS if name not in ("linear", "mlp", "cnn", "resnet50-tiny")},
}
NAMES = list(models.MODELS)
SMALL = ["linear", "mlp", "cnn"]
ONE_OF_EACH_KIND = ["mlp", "cnn", "resnet32", "densenet121", "vgg16", "vgg16-bn", "vit-tiny"]
"""One net for each kind of layer, the cheapest."""


def slow(name: str):
    return pytest.param(name, marks=pytest.mark.slow)


def built(name: str, classes: int = 10, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return models.build(name, classes, SHAPES[name])


def settled(name: str) -> nn.Module:
    """In double precision and eval mode, the running statistics those of a batch, as after training."""
    net = built(name).double().train()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # the plain mean over batches
    with torch.no_grad():
        net(batch(name, 4, seed=3, dtype=torch.float64))
    return net.eval()


def batch(name: str, n: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(n, *SHAPES[name], generator=torch.Generator().manual_seed(seed), dtype=dtype)
