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
    "text-cnn": (40,),
    "tree-lstm": (13, 2),
}
SHAPES |= {name: (3, 32, 32) for name in models.MODELS if name not in SHAPES}
NAMES = [name for name in models.MODELS if name != "tree-lstm"]
"""The Tree-LSTM has tests of its own: its outputs and its graph are not of one shape."""
SMALL = ["linear", "mlp", "cnn"]
ONE_OF_EACH_KIND = ["mlp", "cnn", "resnet32", "densenet121", "vgg16", "vgg16-bn", "vit-tiny", "text-cnn"]
"""One net for each kind of layer, the cheapest."""


def slow(name: str):
    return pytest.param(name, marks=pytest.mark.slow)


def built(name: str, classes: int = 10, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return models.build(name, classes, SHAPES[name], word_vectors() if name in models.OF_WORDS else None)


def word_vectors(words: int = 30, width: int = 6) -> Tensor:
    found = torch.randn(words, width, generator=torch.Generator().manual_seed(5))
    found[0] = 0
    return found


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
    generator = torch.Generator().manual_seed(seed)
    if name == "text-cnn":  # padded in front, more or less
        tokens = torch.randint(1, 30, (n, 40), generator=generator, dtype=torch.int32)
        return tokens * (torch.arange(40) >= torch.randint(0, 40, (n, 1), generator=generator))
    return torch.randn(n, *SHAPES[name], generator=generator, dtype=dtype)
