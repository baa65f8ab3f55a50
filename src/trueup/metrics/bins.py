"""Bins of equal width and of equal mass, as sums over the samples that fall into them.

Equal width: bin i of M is ((i-1)/M, i/M], and 0 falls into the first. An edge is i/M rounded to the dtype of the
values, so that 0.2 in float32 and 0.2 in float64 fall into the same bin.

Equal mass: bin i holds the samples of rank (i-1)n/M to i n/M, every sample used. Where a boundary cuts a group of
equal confidences, or a single sample, each side gets its share of their sum: no order among equals is invented.
"""

from __future__ import annotations

import numpy as np

from trueup import inputs
from trueup.metrics.scores import Scores, TopLabel


def edges(bins: int, dtype: np.dtype) -> np.ndarray:
    """The M + 1 edges i/M in ``dtype``."""
    return (np.arange(bins + 1) / bins).astype(dtype)


def equal_width(values: np.ndarray, bins: int) -> np.ndarray:
    """The bin, from 0 to bins - 1, of each value in [0, 1]."""
    scaled = values * values.dtype.type(bins)
    index = np.ceil(scaled).astype(np.int32) - 1
    np.clip(index, 0, bins - 1, out=index)
    # The product is rounded and the edges are not negotiable: what lies at an edge is looked up.
    near = np.flatnonzero(np.abs(scaled - np.rint(scaled)) <= 4 * bins * np.finfo(values.dtype).eps)
    if len(near):
        index[near] = np.searchsorted(edges(bins, values.dtype)[1:-1], values[near], "left")
    return index


def equal_mass(scores: TopLabel, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """(bins,), (bins,): the sums of confidence - outcome and of right predictions over the bins of equal mass."""
    ranked = scores.ranked
    rank = np.arange(bins + 1) * len(scores) / bins
    at = ranked.confidence[np.minimum(rank.astype(np.int64), len(scores) - 1)]
    first, last = np.searchsorted(ranked.confidence, at, "left"), np.searchsorted(ranked.confidence, at, "right")
    share = np.minimum((rank - first) / (last - first), 1.0)  # of the equals that lie below the boundary
    residual, right = (np.diff(sums[first] * (1 - share) + sums[last] * share) for sums in ranked[1:])
    return residual, right


def mukhoti2020_edges(confidence: np.ndarray, bins: int) -> np.ndarray:
    """The edges of the AdaECE of mukhoti2020's code: sorted confidences interpolated at n i/M.

    With intervals open below, they leave out the least confident sample, and equal confidences collapse bins.
    """
    n = len(confidence)
    return np.interp(np.linspace(0, n, bins + 1), np.arange(n), np.sort(confidence))


def class_bins(scores: Scores, bins: int) -> np.ndarray:
    """(3, K, bins): per class and bin of its probability, the count, the sum of p_k and how often k is the label.

    At most ``bins`` classes of a row are above the first edge, so only those are binned one by one; the first bin
    is what remains of the column's totals.
    """
    classes, cells = scores.classes, scores.classes * bins
    count, total = np.zeros(cells), np.zeros(cells)
    first_edge = edges(bins, scores.confidence.dtype)[1]
    for _, block in inputs.row_blocks(scores.probs):
        flat = block.reshape(-1).cpu().numpy()
        above = np.flatnonzero(flat > first_edge)
        values = flat[above]
        cell = (above % classes) * bins + equal_width(values, bins)
        count += np.bincount(cell, minlength=cells)
        total += np.bincount(cell, values, cells)
    right = np.bincount(scores.labels.cpu().numpy() * bins + equal_width(scores.true, bins), minlength=cells)
    sums = np.stack([count, total, right]).reshape(3, classes, bins)
    sums[0, :, 0] = len(scores) - sums[0, :, 1:].sum(1)
    sums[1, :, 0] = np.maximum(scores.column_sums - sums[1, :, 1:].sum(1), 0)  # rounding may miss zero
    return sums
