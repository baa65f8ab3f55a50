"""Smooth calibration error (Blasiok & Nakkiran, 2023): ECE with a kernel in place of bins.

The residual, confidence - outcome, is spread over [0, 1] by a Gaussian of width s reflected at both ends; smECE_s is
the integral of its absolute value. It falls as s grows, and smooth_ece is the value at the one s where both are equal.

On [0, 1] the reflected Gaussian multiplies the k-th cosine mode by exp(-(pi k s)^2 / 2), so the smoothing is exact at
the boundaries, where confident networks keep their mass. (relplot lets a sample at exactly 0 or 1 count half, then
divides by the mass that is left: 0.071 for a network whose true value is 0.048.)
"""

from __future__ import annotations

import numpy as np
from scipy.fft import dct, idct

from trueup.inputs import Array
from trueup.metrics.scores import TopLabel, top_label

CELLS = 4096


def smooth_ece(probs: Array | TopLabel, labels: Array | None = None) -> float:
    """The smooth calibration error: the width s at which the kernel-smoothed residual has the integral s."""
    s = top_label(probs, labels)
    return float(smooth_ece_of(on_grid(s.confidence, s.residual / len(s), CELLS)))


def smooth_ece_of(residual: np.ndarray, steps: int = 30) -> np.ndarray:
    """(...) the smooth calibration error of residuals on the cells of [0, 1], (..., cells), by bisection."""
    modes = np.asarray(dct(residual, type=2))
    low, high = np.zeros(residual.shape[:-1]), np.ones(residual.shape[:-1])
    for _ in range(steps):  # smECE_s falls with s, so there is one crossing
        middle = (low + high) / 2
        above = np.abs(_smoothed(modes, middle[..., None])).sum(-1) > middle
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(low > 0, high, 0.0)


def smooth_residual(residual: np.ndarray, width: float) -> np.ndarray:
    """Residuals on the cells of [0, 1] (..., cells), smoothed by the reflected Gaussian of this width."""
    return _smoothed(np.asarray(dct(residual, type=2)), width)


def on_grid(confidence: np.ndarray, weight: np.ndarray, cells: int) -> np.ndarray:
    """(cells,) weights shared between the two nearest cell centres, each weight's mean position kept."""
    lower, share = grid_position(confidence, cells)
    # Reflection at the ends: what would fall outside falls into the outermost cell.
    low, high = (np.clip(lower + step, 0, cells - 1) for step in (0, 1))
    return np.bincount(low, weight * (1 - share), cells) + np.bincount(high, weight * share, cells)


def grid_position(confidence: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """The cell centre below each confidence (from -1), and the share that belongs to the next one."""
    position = confidence.astype(np.float64) * cells - 0.5
    lower = np.floor(position).astype(np.int64)
    return lower, position - lower


def _smoothed(modes: np.ndarray, width: float | np.ndarray) -> np.ndarray:
    size = modes.shape[-1]
    k = np.arange(min(size, int(12 / (np.pi * np.min(width))) + 1))  # the others' factor is below exp(-72)
    return np.asarray(idct(modes[..., : len(k)] * np.exp(-0.5 * (np.pi * width * k) ** 2), type=2, n=size))
