"""Per-sample values, the primitive of every metric, and the metrics that are their means.

A metric takes ``(probs, labels)``, or in place of both a ``Scores`` that was made from them once:

>>> import trueup
>>> probs, labels = [[0.7, 0.3], [0.6, 0.4], [0.1, 0.9]], [0, 1, 1]
>>> round(trueup.error(probs, labels), 4)
0.3333
>>> scores = trueup.score(probs, labels)
>>> [round(metric(scores), 4) for metric in (trueup.nll, trueup.brier, trueup.ece)]
[0.4594, 0.3067, 0.3333]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trueup import inputs
from trueup.inputs import Array, InputError


class Ranked(NamedTuple):
    confidence: np.ndarray
    """(N,) in rising order."""
    residual: np.ndarray
    """(N + 1,) sums of confidence - outcome over the first samples: none, one, ..., all."""
    right: np.ndarray
    """(N + 1,) numbers of right predictions among them."""


@dataclass(frozen=True)
class TopLabel:
    """Each sample's confidence and whether its prediction is right: all that top-label metrics need."""

    confidence: np.ndarray
    """(N,) the largest probability of each row, in the dtype of the probabilities."""
    correct: np.ndarray
    """(N,) whether the first class with that probability is the label."""

    def __len__(self) -> int:
        return len(self.confidence)

    @cached_property
    def residual(self) -> np.ndarray:
        """(N,) float64, confidence - outcome: its mean over a bin is the gap that calibration errors add up."""
        return self.confidence.astype(np.float64) - self.correct

    @cached_property
    def ranked(self) -> Ranked:
        """The samples in the order of their confidence.

        Confidence and outcome are packed into one integer (floats that are not negative order as their bits do):
        sorting whole numbers is three times faster than an argsort and the gathers after it.
        """
        bits = self.confidence.view(np.int32 if self.confidence.itemsize == 4 else np.int64)
        packed = np.sort((bits.astype(np.int64) << 1) | self.correct)
        confidence = (packed >> 1).astype(bits.dtype).view(self.confidence.dtype)
        sums = np.zeros((2, len(packed) + 1))
        right = (packed & 1).astype(np.float64)
        np.cumsum(confidence - right, out=sums[0, 1:])
        np.cumsum(right, out=sums[1, 1:])
        return Ranked(confidence, *sums)


@dataclass(frozen=True)
class Scores(TopLabel):
    """The checked probabilities and what the metrics take from them, one value a sample."""

    true: np.ndarray
    """(N,) the probability of the label, in the dtype of the probabilities."""
    probs: Tensor
    """(N, K)"""
    labels: Tensor
    """(N,)"""
    log_true_from_logits: np.ndarray | None = None
    """(N,) float64, the logarithm of ``true`` where logits gave it without underflow."""

    @property
    def classes(self) -> int:
        return self.probs.shape[1]

    @cached_property
    def log_true(self) -> np.ndarray:
        """(N,) float64, the log-probability of the label; -inf where it has probability zero."""
        if self.log_true_from_logits is not None:
            return self.log_true_from_logits
        with np.errstate(divide="ignore"):
            return np.log(self.true.astype(np.float64))

    @cached_property
    def brier(self) -> np.ndarray:
        """(N,) float64, sum over k of (p_k - 1[k = y])^2."""
        return self._squares_and_column_sums[0] - 2 * self.true.astype(np.float64) + 1

    @property
    def column_sums(self) -> np.ndarray:
        """(K,) float64, the sum of each class's probabilities."""
        return self._squares_and_column_sums[1]

    @cached_property
    def entropy(self) -> np.ndarray:
        """(N,) float64, -sum over k of p_k log p_k."""
        return np.concatenate(
            [torch.special.entr(block.double()).sum(1).cpu().numpy() for _, block in inputs.row_blocks(self.probs)]
        )

    @cached_property
    def _squares_and_column_sums(self) -> tuple[np.ndarray, np.ndarray]:
        p = self.probs
        squares, columns = (p.new_zeros(size, dtype=torch.float64) for size in p.shape)
        for rows, block in inputs.row_blocks(p):
            wide = block.to(torch.float64, copy=True)  # converted once for both, while it is in the cache
            columns.addmv_(wide.t(), wide.new_ones(len(wide)))
            torch.mv(wide.square_(), wide.new_ones(self.classes), out=squares[rows])
        return squares.cpu().numpy(), columns.cpu().numpy()


def top_label(probs: Array | TopLabel, labels: Array | None = None) -> TopLabel:
    """What the metrics of the predicted class need."""
    return probs if isinstance(probs, TopLabel) else score(probs, labels)


def score(probs: Array | Scores, labels: Array | None = None, name: str = "probs") -> Scores:
    """Checks ``probs`` (N, K) and ``labels`` (N,) and takes the per-sample values, in one pass over the memory.

    Messages call the probabilities by this ``name``.
    """
    if isinstance(probs, Scores):
        return probs
    if labels is None:
        raise InputError("labels: missing; a metric takes (probs, labels)")
    p = inputs.matrix(probs, name)
    y = inputs.labels(labels, p)
    confidence = inputs.confidences(p, name)
    dtype = confidence.dtype
    true = p.gather(1, y[:, None])[:, 0].to(dtype)
    correct = _is_first_maximum(p, y, true, confidence, confidence)
    return Scores(_array(confidence), _array(correct), _array(true), p.to(dtype), y)


def score_logits(logits: Array, labels: Array) -> Scores:
    """The same from logits: log p_y never underflows, and one copy, of the probabilities, is made."""
    z = inputs.logits(logits)
    y = inputs.labels(labels, z)
    p = torch.empty_like(z)
    own = z.gather(1, y[:, None])[:, 0]
    confidence, top = (z.new_empty(len(z)) for _ in range(2))
    total = z.new_empty(len(z), dtype=torch.float64)
    for rows, block in inputs.row_blocks(z):
        torch.amax(block, 1, out=top[rows])
        powers = torch.sub(block, top[rows, None], out=p[rows]).exp_()
        torch.sum(powers, 1, dtype=torch.float64, out=total[rows])
        powers /= total[rows, None].to(p.dtype)
        torch.amax(powers, 1, out=confidence[rows])
    log_true = own.double() - top.double() - total.log()
    true = p.gather(1, y[:, None])[:, 0]
    correct = _is_first_maximum(z, y, own, top, confidence)
    return Scores(_array(confidence), _array(correct), _array(true), p, y, _array(log_true))


def _array(x: Tensor) -> np.ndarray:
    return x.cpu().numpy()


def _is_first_maximum(x: Tensor, y: Tensor, own: Tensor, top: Tensor, confidence: Tensor) -> Tensor:
    """Whether the label, with value ``own``, is the first index of its row's maximum ``top``.

    An argmax costs several times a maximum, and only a tie needs it: the label then holds the maximum, but an
    earlier class may too. Two classes cannot both be above one half (the tolerated error of the sum included).
    """
    correct = own == top
    doubtful = torch.nonzero(correct & (confidence <= 0.5 + inputs.sum_tolerance(x)))[:, 0]
    if len(doubtful):
        ties = x[doubtful] == top[doubtful, None].to(x.dtype)
        correct[doubtful] = ties.int().argmax(1) == y[doubtful]  # the first of equal values is what argmax gives
    return correct


def nll(probs: Array | Scores, labels: Array | None = None) -> float:
    """Mean negative log-likelihood, -log p_y; infinite where a true class has probability zero."""
    return float(-score(probs, labels).log_true.mean())


def brier(probs: Array | Scores, labels: Array | None = None) -> float:
    """Mean over samples of sum over k of (p_k - 1[k = y])^2, from 0 to 2."""
    return float(score(probs, labels).brier.mean())


def error(probs: Array | TopLabel, labels: Array | None = None) -> float:
    """Share of samples whose most probable class (the first of equals) is not the label."""
    s = top_label(probs, labels)
    return int(np.count_nonzero(~s.correct)) / len(s)


def overconfidence(probs: Array | TopLabel, labels: Array | None = None) -> float:
    """Mean confidence minus accuracy: positive where a model promises more than it holds."""
    return float(top_label(probs, labels).residual.mean())


class ConfidentShare(NamedTuple):
    share: float
    """Share of the samples with a confidence of at least the threshold."""
    accuracy: float
    """Accuracy on these samples; NaN where there are none."""


def confident_share(probs: Array | TopLabel, labels: Array | None = None, threshold: float = 0.99) -> ConfidentShare:
    """How many predictions are confident, and how many of those are right (S99 of mukhoti2020, Table 6)."""
    s = top_label(probs, labels)
    threshold = checked_threshold(threshold)
    confident = s.confidence >= np.asarray(threshold, s.confidence.dtype)
    many = int(np.count_nonzero(confident))
    right = int(np.count_nonzero(confident & s.correct))
    return ConfidentShare(many / len(s), right / many if many else float("nan"))


def checked_threshold(threshold: float) -> float:
    """A confidence, above 0 and at most 1."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float | np.number) or not 0 < threshold <= 1:
        raise InputError(f"threshold: expected a confidence above 0 and at most 1, got {threshold!r}")
    return float(threshold)
