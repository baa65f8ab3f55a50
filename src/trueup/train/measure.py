"""What a network says of a set of samples, and the quantities that the papers follow over the epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trueup.inputs import InputError
from trueup.losses import Loss
from trueup.metrics import ece, error, nll, outcomes, score_logits
from trueup.metrics.bins import equal_width
from trueup.train.batches import Normaliser

BLOCK, OF_TEXTS = 1000, 100
"""Samples that go through the network at once; each word of a text becomes a vector."""

CONFIDENCE_BINS = 25
"""As in Figure 2 of mukhoti2020."""
GRADIENT_EDGES = 10.0 ** np.arange(-6, 2.01, 0.25)
"""Gradient norms are counted below, between and above these."""


class Diverged(InputError):
    """The outputs of the network are not finite any more."""


@torch.no_grad()
def logits_of(
    model: nn.Module,
    inputs: Tensor,
    normaliser: Normaliser,
    autocast: Any,
    after_block: Callable[[int], None] | None = None,
) -> Tensor:
    """(N, K) float32 logits of all samples, in eval mode; the model is left in the mode it was in.

    ``after_block`` is called with the number of samples that went through the network at once.
    """
    training = model.training
    model.eval()
    with autocast():
        size = OF_TEXTS if inputs.dtype == torch.int32 else BLOCK
        found = []
        for block in inputs.split(size):
            found.append(model(normaliser(block)).float())
            if after_block is not None:
                after_block(len(block))
    model.train(training)
    logits = torch.cat(found)
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


@contextmanager
def feature_norms(layer: nn.Linear) -> Iterator[list[Tensor]]:
    """The norms of what reaches ``layer``, one (n,) for each block that goes through it meanwhile."""
    norms: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: norms.append(inputs[0].float().norm(dim=1)))
    try:
        yield norms
    finally:
        hook.remove()


def histograms(logits: Tensor, labels: Tensor, norms: Tensor, loss: Loss) -> dict[str, list[int]]:
    """How many samples there are in each of 25 confidence bins, how many of them are right, and how many have a
    gradient of their own loss in the last layer's weights whose norm is between two GRADIENT_EDGES.

    A sample's gradient is the outer product of its gradient in the logits and its features, so its norm is the
    product of theirs (``norms``: of the features). Penalties, which are of a batch, are left out.
    """
    scores = score_logits(logits.cpu(), labels.cpu())
    place = equal_width(scores.confidence, CONFIDENCE_BINS)
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss.per_sample(leaf, labels.to(leaf.device)).sum(), leaf)
    gradients = (slope.norm(dim=1) * norms).double().cpu().numpy()
    return {
        "confidence": np.bincount(place, minlength=CONFIDENCE_BINS).tolist(),
        "correct": np.bincount(place[scores.correct], minlength=CONFIDENCE_BINS).tolist(),
        "gradient_norm": np.bincount(
            np.searchsorted(GRADIENT_EDGES, gradients), minlength=len(GRADIENT_EDGES) + 1
        ).tolist(),
    }
