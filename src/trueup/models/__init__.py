"""Nets by name: ``build(name, classes, input_shape)``. Written here, without torchvision, for small images and text."""

from trueup.models.registry import MODELS, OF_WORDS, build, last_layer, word_vectors
from trueup.models.tree_lstm import EveryNode, EveryOutput

__all__ = ["MODELS", "OF_WORDS", "EveryNode", "EveryOutput", "build", "last_layer", "word_vectors"]
