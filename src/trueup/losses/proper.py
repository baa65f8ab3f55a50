"""Losses that are minimised by the true probabilities: cross-entropy and the Brier score."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trueup.inputs import Array, working_dtype
from trueup.losses import kernel
from trueup.losses.base import Loss
from trueup.losses.focal import focal_of_odds
from trueup.losses.rows import brier_scores, odds_against


class CrossEntropy(Loss):
    """-log p_y, or -sum_k u_k log p_k for probabilities u; with a gradient that stays exact as p_y reaches 1.

    ``overwrite_logits`` as in ``Focal``.
    """

    def __init__(self, *, overwrite_logits: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.overwrite_logits = overwrite_logits

    def forward(self, logits: Array, labels: Array) -> Tensor:
        if kernel.serves(logits, labels):
            return kernel.fused(self, logits, labels)
        return super().forward(logits, labels)

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        return focal_of_odds(odds_against(logits, labels), 0.0)

    def per_sample_soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        log_p = logits.to(working_dtype(logits)).log_softmax(-1)
        terms = -targets * log_p.masked_fill(targets == 0, 0.0)
        return (terms if weight is None else terms * weight).sum(-1)


class Brier(Loss):
    """sum_k (p_k - 1[k = y])^2, from 0 to 2; targets may be probabilities."""

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        return brier_scores(logits, labels)

    def per_sample_soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        terms = (logits.to(working_dtype(logits)).softmax(-1) - targets).square()
        return (terms if weight is None else terms * weight).sum(-1)
