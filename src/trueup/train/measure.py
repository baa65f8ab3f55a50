"""What a network says of a set of samples, and the quantities that the papers follow over the epochs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trueup.inputs import InputError
from trueup.metrics import ece, error, nll, outcomes, score_logits
from trueup.train.batches import Normaliser

BLOCK, OF_TEXTS = 1000, 100
"""Samples that go through the network at once; each word of a text becomes a vector."""


class Diverged(InputError):
    """The outputs of the network are not finite any more."""


@torch.no_grad()
def logits_of(model: nn.Module, inputs: Tensor, normaliser: Normaliser, autocast: Any) -> Tensor:
    """(N, K) float32 logits of all samples, in eval mode; the model is left in the mode it was in."""
    training = model.training
    model.eval()
    with autocast():
        size = OF_TEXTS if inputs.dtype == torch.int32 else BLOCK
        blocks = [model(normaliser(block)).float() for block in inputs.split(size)]
    model.train(training)
    logits = torch.cat(blocks)
    if not bool(torch.isfinite(logits).all()):
        raise Diverged("the outputs of the network are not finite any more; a lower lr, or a clip, may help")
    return logits


def measured(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """NLL, error, ECE; and NLL, entropy, mean p_y of all, of the rightly and of the wrongly classified samples."""
    scores = score_logits(logits.cpu(), labels.cpu())
    parts = outcomes(scores)
    return {
        "nll": nll(scores),
        "error": error(scores),
        "ece": ece(scores),
        "entropy": parts.all.entropy,
        "true_probability": parts.all.true_probability,
        "correct": parts.correct._asdict(),
        "wrong": parts.wrong._asdict(),
    }
