"""The nets by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from trueup import inputs
from trueup.inputs import InputError
from trueup.models.densenet import densenet121
from trueup.models.resnet import (
    resnet18,
    resnet32,
    resnet34,
    resnet50,
    resnet50_tiny,
    resnet110,
    resnet110_bottleneck,
)
from trueup.models.small import cnn, linear, mlp
from trueup.models.text import text_cnn
from trueup.models.tree_lstm import tree_lstm
from trueup.models.vgg import vgg16, vgg16_bn
from trueup.models.vit import vit_tiny
from trueup.models.wide_resnet import wrn26_10

MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "resnet18": resnet18,
    "resnet32": resnet32,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet50-tiny": resnet50_tiny,
    "resnet110": resnet110,
    "resnet110-bottleneck": resnet110_bottleneck,
    "wrn26-10": wrn26_10,
    "densenet121": densenet121,
    "vgg16": vgg16,
    "vgg16-bn": vgg16_bn,
    "vit-tiny": vit_tiny,
    "text-cnn": text_cnn,
    "tree-lstm": tree_lstm,
}
"""Each is called with the number of classes and the shape of one input, those that read words with the vectors of these
as well. Weights come from torch's global generator."""

OF_WORDS = ("text-cnn", "tree-lstm")


def build(name: str, classes: int, input_shape: tuple[int, ...], words: Tensor | None = None) -> nn.Module:
    """The net called ``name``, for (N, \\*input_shape) floats in and (N, classes) logits out.

    A net that reads words, tokens or packed trees, takes their vectors ``words`` (V, D), which a Dataset carries.
    ``mlp`` takes the widths of its hidden layers, one of 100 unless told: ``mlp:400,400``.

    >>> from trueup import models
    >>> models.build("mlp:16", 3, (5,))
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=5, out_features=16, bias=True)
      (2): ReLU()
      (3): Linear(in_features=16, out_features=3, bias=True)
    )
    """
    family, colon, argument = name.partition(":")
    if family not in MODELS:
        raise InputError(f"unknown model {name!r}; known: {', '.join(MODELS)}; mlp:400,400 sets its hidden widths")
    classes = inputs.count(classes, "classes", least=2)
    shape = tuple(inputs.count(size, "input_shape") for size in input_shape)
    if not shape:
        raise InputError("input_shape: empty; it is the shape of one sample, as (3, 32, 32) or (5,)")
    if (family in OF_WORDS) != (words is not None):
        raise InputError(
            f"model {name!r}: reads words, and these data have none; 20newsgroups and sst do"
            if words is None
            else f"model {name!r}: cannot read words, which these data are; {' and '.join(OF_WORDS)} can"
        )
    if words is not None and not colon:
        return MODELS[family](classes, shape, words)
    if not colon:
        return MODELS[family](classes, shape)
    if family != "mlp":
        raise InputError(f"model {name!r}: {family} takes no argument; only mlp does, as in mlp:400,400")
    return mlp(classes, shape, hidden=_widths(argument, name))


def _widths(argument: str, name: str) -> tuple[int, ...]:
    parts = [part.strip() for part in argument.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"model {name!r}: expected widths of hidden layers above 0, as in mlp:400,400")
    return tuple(int(part) for part in parts)


def word_vectors(model: nn.Module) -> list[Tensor]:
    """The vectors of words that ``model`` holds, none for most."""
    return [layer.weight for layer in model.modules() if isinstance(layer, nn.Embedding)]


def last_layer(model: nn.Module) -> nn.Linear:
    """The linear layer that gives the logits: the last one that ``model`` holds, compiled or not."""
    found = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    if not found:
        raise InputError(f"model: {type(model).__name__} holds no linear layer that could give the logits")
    return found[-1]
