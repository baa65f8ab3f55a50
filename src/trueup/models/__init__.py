"""Nets by name: ``build(name, classes, input_shape)``. Written here, without torchvision, for small images."""

from trueup.models.registry import MODELS, build, last_layer

__all__ = ["MODELS", "build", "last_layer"]
