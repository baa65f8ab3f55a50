"""The linear model of Appendix G: two parameters, four clusters, a tenth of the labels flipped (Figures 5 and 6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

GAMMAS = (0.0, 1.0)
"""Cross-entropy, and focal loss as in the appendix."""
STEPS = 50_000
POINTS = 200
TEST_POINTS = 10_000
SPREAD = 0.4
RATE = 0.01
"""The appendix gives neither the numbers of points, nor the spread of a cluster, nor the learning rate."""


@dataclass(frozen=True)
class LinearModel:
    """Both trainings, the first entry of every last axis being cross-entropy."""

    points: np.ndarray
    """(N, 2), for testing."""
    labels: np.ndarray
    """(N,) 0 or 1, a tenth of them flipped."""
    iterations: np.ndarray
    weight_norm: np.ndarray
    """(iterations, 2) L2 norms."""
    logit_norm: np.ndarray
    """(iterations, 2) the mean of |logit| over the training points."""
    weights: np.ndarray
    """(2, 2) the last weights, a column each."""

    @property
    def mistaken_confidence(self) -> list[np.ndarray]:
        """The confidences of the test points whose label is not the predicted class."""
        logits = self.points @ self.weights
        wrong = (logits > 0) != self.labels[:, None].astype(bool)
        confidence = 1 / (1 + np.exp(-np.abs(logits)))
        return [confidence[wrong[:, k], k] for k in range(2)]

    @property
    def angle(self) -> float:
        """Degrees between the two weight vectors, hence between the decision boundaries."""
        directions = self.weights / np.linalg.norm(self.weights, axis=0)
        return float(np.degrees(np.arccos(np.clip(directions[:, 0] @ directions[:, 1], -1, 1))))


@cache
def linear_model(seed: int = 0, steps: int = STEPS) -> LinearModel:
    """Gradient descent on all points, from zero, for both losses at once."""
    rng = np.random.default_rng(seed)
    points, labels = _sampled(POINTS, rng)
    sign = (2.0 * labels - 1)[:, None]
    signed = points * sign
    gammas = np.array(GAMMAS)
    weights = np.zeros((2, len(gammas)))
    kept, iterations = [], []
    for step in range(steps + 1):
        margins = signed @ weights
        if step % max(1, steps // 200) == 0:
            iterations.append(step)
            kept.append((np.linalg.norm(weights, axis=0), np.abs(margins).mean(0)))
        if step == steps:
            break
        p = 1 / (1 + np.exp(-margins))  # of the label; the margins of a linear model on these points stay small
        rest = 1 - p
        phi = rest**gammas * (1 - gammas * p * np.log(p) / rest)
        weights += RATE * signed.T @ (phi * rest) / POINTS
    norms = np.array(kept)
    return LinearModel(*_sampled(TEST_POINTS, rng), np.array(iterations), norms[:, 0], norms[:, 1], weights)


def _sampled(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two clusters a class on the corners of a square, the classes side by side; a tenth of the labels flipped."""
    corner = np.arange(n) % 4
    centres = np.array([(-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)])
    labels = (corner >= 2).astype(np.int64)
    flipped = rng.permutation(n)[: n // 10]
    labels[flipped] = 1 - labels[flipped]
    return centres[corner] + SPREAD * rng.standard_normal((n, 2)), labels
