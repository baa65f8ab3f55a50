"""Calibration errors as norms of a field of residuals, so that a thousand resamples are one matrix product.

Sorted by confidence, the samples fall into some hundred cells, each within one bin of every kind. A calibration
error of the predicted class depends on them only through the sum of confidence - outcome of each cell, and so does its
value on a resample. The field of a metric is what it makes of those sums: its bins, or its smoothed curve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trueup import inputs
from trueup.metrics import bins as binning
from trueup.metrics.scores import Scores, TopLabel
from trueup.metrics.smooth import grid_position, smooth_residual

GRID = 512


@dataclass(frozen=True)
class Cells:
    """The samples by confidence: cell c holds ``count[c]`` of them, and no bin boundary falls within one."""

    least: np.ndarray
    """(cells,) the lowest confidence."""
    count: np.ndarray
    confidence: np.ndarray
    """(cells,) the sum of the confidences."""
    width_bin: np.ndarray
    """(cells,) the bin of equal width."""
    mass_share: np.ndarray
    """(cells, bins) the share of each cell in each bin of equal mass; equal confidences may lie in several."""

    @property
    def mean(self) -> np.ndarray:
        return self.confidence / self.count

    def holding(self, confidence: np.ndarray) -> np.ndarray:
        """The cell of each of these samples."""
        return np.searchsorted(self.least, confidence, "right") - 1


def cells_of(s: TopLabel, bins: int) -> Cells:
    """The cells that the bins of equal width, those of equal mass, and a grid of 1/512 cut the confidences into.

    Each cut is looked up among the sorted confidences: it is those that are many.
    """
    n, ordered = len(s), s.ranked.confidence
    width = np.searchsorted(ordered, binning.edges(bins, ordered.dtype)[1:-1], "right")
    grid = np.searchsorted(ordered, binning.edges(GRID, ordered.dtype)[1:-1], "left")
    start = np.unique(np.concatenate([[0], width, grid, _mass_cuts(ordered, bins)]))
    start = start[start < n]
    end = np.append(start[1:], n)
    bound = np.arange(bins + 1) * n / bins
    inside = np.clip(bound[None, :], start[:, None], end[:, None])
    return Cells(
        ordered[start],
        end - start,
        np.add.reduceat(ordered, start, dtype=np.float64),
        binning.equal_width(ordered[start], bins),
        np.diff(inside, axis=1) / (end - start)[:, None],
    )


def _mass_cuts(ordered: np.ndarray, bins: int) -> np.ndarray:
    """Where the bins of equal mass begin. Equal confidences stay together: where a boundary falls among some of them,
    they are a cell of their own."""
    rank = np.arange(1, bins) * len(ordered)  # times bins
    at = ordered[rank // bins]
    first, last = np.searchsorted(ordered, at, "left"), np.searchsorted(ordered, at, "right")
    return np.concatenate([first, last[first * bins < rank]])


@dataclass(frozen=True)
class Field:
    """A calibration error as ``norm(field)``; a field is linear in the residual sums of the cells."""

    project: Callable[[np.ndarray], np.ndarray]
    """(..., cells) sums of residuals, divided by n -> (..., size)."""
    norm: Callable[[np.ndarray], np.ndarray]
    """(..., size) -> (...), the error."""
    value: Callable[[np.ndarray], np.ndarray]
    """The metric itself: the norm, but where the metric removes a bias of its own."""


def top_label_field(metric: str, s: TopLabel, cells: Cells, bins: int, value: float) -> Field:
    """The field of a metric of the predicted class, whose value on the samples themselves is known."""
    if metric in ("ece", "mce"):
        onto = np.zeros((len(cells.count), bins))
        onto[np.arange(len(onto)), cells.width_bin] = 1
        weight = cells.count @ onto / len(s)
        if metric == "ece":
            return _norm_field(onto, lambda x: np.abs(x).sum(-1))
        used = weight > 0
        return _norm_field(onto[:, used], lambda x: (np.abs(x) / weight[used]).max(-1))
    if metric == "adaptive_ece":
        return _norm_field(cells.mass_share, lambda x: np.abs(x).sum(-1))
    if metric == "debiased_ece":
        return _debiased_field(s, cells, bins)
    if metric == "smooth_ece":
        return smooth_field(cells, value)
    raise KeyError(metric)


def _norm_field(onto: np.ndarray, norm: Callable[[np.ndarray], np.ndarray]) -> Field:
    return Field(lambda sums: sums @ onto, norm, norm)


def _debiased_field(s: TopLabel, cells: Cells, bins: int) -> Field:
    confidence = cells.confidence @ cells.mass_share * bins / len(s)  # the mean of each bin
    each = len(s) / bins

    def debiased(x: np.ndarray) -> np.ndarray:
        accuracy = np.clip(confidence - x * bins, 0, 1)
        noise = accuracy * (1 - accuracy) / (each - 1) if each > 1 else 0.0
        return np.sqrt(np.maximum(0, ((x * bins) ** 2 - noise).mean(-1)))

    return Field(lambda sums: sums @ cells.mass_share, lambda x: np.sqrt((x**2).sum(-1) * bins), debiased)


def smooth_field(cells: Cells, width: float) -> Field:
    """At the fixed width where the metric found its value.

    smooth_ece(r) >= s holds exactly where the residual r smoothed with width s has an integral of at least s, so this
    norm compares with the value as the metric itself does.
    """

    def integral(x: np.ndarray) -> np.ndarray:
        return np.abs(x).sum(-1)

    return Field(lambda sums: smooth_residual(on_grid(cells, sums), max(width, 1 / GRID)), integral, integral)


def on_grid(cells: Cells, sums: np.ndarray) -> np.ndarray:
    """(..., cells) sums of residuals -> (..., GRID), each shared between the two nearest points of a grid."""
    lower, share = grid_position(cells.mean, GRID)
    onto = np.zeros((len(lower), GRID))
    for step, part in ((0, 1 - share), (1, share)):
        onto[np.arange(len(lower)), np.clip(lower + step, 0, GRID - 1)] += part
    return sums @ onto


@dataclass(frozen=True)
class ClassField:
    """The field of classwise ECE: per class and bin, the mean of p_k - 1[label = k]."""

    observed: np.ndarray
    """(K * bins,)"""
    drawn_variance: np.ndarray
    """(K * bins,) what labels drawn from the probabilities give its entries."""
    sampled_variance: np.ndarray
    """(K * bins,) what resampling the rows gives them."""
    cell: np.ndarray
    """(N, K) the entry that each probability belongs to."""
    forecast: np.ndarray
    """(K * bins,) the mean of p_k in each entry."""


def class_field(s: Scores, bins: int) -> ClassField:
    n, k = len(s), s.classes
    cell = np.empty((n, k), np.int32)
    squares = np.zeros(k * bins)
    offset = (np.arange(k) * bins).astype(np.int32)
    for rows, block in inputs.row_blocks(s.probs):
        values = block.cpu().numpy()
        cell[rows] = binning.equal_width(values.ravel(), bins).reshape(values.shape) + offset
        squares += np.bincount(cell[rows].ravel(), values.ravel().astype(np.float64) ** 2, k * bins)
    _, predicted, right = binning.class_bins(s, bins).reshape(3, -1)
    labels = s.labels.cpu().numpy()
    of_label = np.bincount(cell[np.arange(n), labels], s.true.astype(np.float64), k * bins)
    residual = predicted - right
    return ClassField(
        residual / n,
        np.maximum(predicted - squares, 0) / n**2,
        np.maximum(squares - 2 * of_label + right - residual**2 / n, 0) / n**2,
        cell,
        predicted / n,
    )


def drawn_class_sums(field: ClassField, s: Scores, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """(resamples, K * bins): forecast less observed, with labels drawn from the probabilities."""
    n, size = len(s), len(field.forecast)
    p = s.probs.cpu().numpy()
    top = p.argmax(1)
    top_cell = field.cell[np.arange(n), top]
    cumulative = np.cumsum(np.where(np.arange(s.classes) == top[:, None], 0, p), axis=1, dtype=np.float64)
    miss = cumulative[:, -1].copy()
    cumulative += np.arange(n)[:, None] * 2.0  # its rounding is part of what a seed gives
    all_right = np.bincount(top_cell, minlength=size)
    sums = np.empty((resamples, size))
    for r in range(resamples):
        u = rng.random(n)
        row = np.flatnonzero(u < miss)  # here the label is not the most probable class
        drawn = np.minimum(_at_most(cumulative, row, u[row] + 2.0 * row), s.classes - 1)
        wins = all_right - np.bincount(top_cell[row], minlength=size)
        wins += np.bincount(field.cell[row, drawn], minlength=size)
        sums[r] = field.forecast - wins / n
    return sums


def _at_most(rising: np.ndarray, row: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """How many entries of each of these rows of (N, K) are at most its bound.

    By halving, for all rows at once: one search through all of a large matrix would miss the cache at every step.
    """
    flat, size = rising.ravel(), rising.shape[1]
    before, found = row * size - 1, np.zeros(len(row), np.int64)
    step = 1 << (size.bit_length() - 1)
    while step:
        further = found + step
        reached = (further <= size) & (flat[np.minimum(before + further, len(flat) - 1)] <= bound)
        found = np.where(reached, further, found)
        step //= 2
    return found
