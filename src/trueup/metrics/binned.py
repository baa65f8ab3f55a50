"""Calibration errors over bins: ECE and its kin."""

from __future__ import annotations

from typing import Literal

import numpy as np

from trueup import inputs
from trueup.inputs import Array, InputError
from trueup.metrics import bins as binning
from trueup.metrics.scores import Scores, TopLabel, score, top_label


def ece(probs: Array | TopLabel, labels: Array | None = None, bins: int = 15) -> float:
    """Expected calibration error: sum over bins of ``(n_b/n) |mean confidence - accuracy|``, bins of equal width."""
    s = top_label(probs, labels)
    index = binning.equal_width(s.confidence, inputs.count(bins, "bins"))
    return float(np.abs(np.bincount(index, s.residual, bins)).sum() / len(s))


def mce(probs: Array | TopLabel, labels: Array | None = None, bins: int = 15) -> float:
    """Maximum calibration error: the largest ``|mean confidence - accuracy|`` of a bin that is not empty."""
    s = top_label(probs, labels)
    index = binning.equal_width(s.confidence, inputs.count(bins, "bins"))
    counts = np.bincount(index, minlength=bins)
    gaps = np.abs(np.bincount(index, s.residual, bins))
    return float((gaps[counts > 0] / counts[counts > 0]).max())


def adaptive_ece(
    probs: Array | TopLabel,
    labels: Array | None = None,
    bins: int = 15,
    edges: Literal["equal-mass", "mukhoti2020"] = "equal-mass",
) -> float:
    """ECE over bins of equal mass. ``edges="mukhoti2020"`` takes that paper's own, which leave out one sample."""
    s = top_label(probs, labels)
    inputs.count(bins, "bins")
    if edges == "equal-mass":
        return float(np.abs(binning.equal_mass(s, bins)[0]).sum() / len(s))
    if edges != "mukhoti2020":
        raise InputError(f'edges: expected "equal-mass" or "mukhoti2020", got {edges!r}')
    bounds = binning.mukhoti2020_edges(s.confidence, bins)
    index = np.searchsorted(bounds, s.confidence, "left") - 1  # intervals (low, high]
    inside = (index >= 0) & (index < bins)
    return float(np.abs(np.bincount(index[inside], s.residual[inside], bins)).sum() / len(s))


def classwise_ece(probs: Array | Scores, labels: Array | None = None, bins: int = 15) -> float:
    """Mean over the classes of the ECE of p_k as a forecast of "the label is k", bins of equal width."""
    s = score(probs, labels)
    _, predicted, observed = binning.class_bins(s, inputs.count(bins, "bins"))
    return float(np.abs(predicted - observed).sum() / (len(s) * s.classes))


def debiased_ece(
    probs: Array | TopLabel,
    labels: Array | None = None,
    bins: int = 15,
    scheme: Literal["mass", "width"] = "mass",
) -> float:
    """The debiased l2 calibration error of Kumar, Liang & Ma (2019).

    The root of sum over bins of (n_b/n) [(mean confidence - accuracy)^2 - accuracy (1 - accuracy) / (n_b - 1)]: the
    second term is the part of the square that sampling alone makes. Where that is all of it, the error is 0. Bins
    hold equal mass, as in the authors' code, or have equal width.
    """
    s = top_label(probs, labels)
    counts, gaps, right = top_label_bins(s, inputs.count(bins, "bins"), scheme)
    enough = counts > 1  # one sample tells nothing of its own spread
    counts, gaps, right = counts[enough], gaps[enough], right[enough]
    accuracy = right / counts
    square = (gaps / counts) ** 2 - accuracy * (1 - accuracy) / (counts - 1)
    return float(np.sqrt(max(0.0, (counts * square).sum() / len(s))))


def top_label_bins(s: TopLabel, bins: int, scheme: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per bin: the number of samples, the sum of confidence - outcome, and the number of right predictions."""
    if scheme == "mass":
        return np.full(bins, len(s) / bins), *binning.equal_mass(s, bins)
    if scheme != "width":
        raise InputError(f'scheme: expected "mass" or "width", got {scheme!r}')
    index = binning.equal_width(s.confidence, bins)
    counts, right = np.bincount(index, minlength=bins), np.bincount(index[s.correct], minlength=bins)
    return counts, np.bincount(index, s.residual, bins), right
