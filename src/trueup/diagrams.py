"""What diagrams show, as numbers: to be drawn by ``trueup.plots``, or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trueup import inputs
from trueup.focal import checked_gamma, complements, log_h_of
from trueup.inputs import Array, InputError, count
from trueup.metrics.binned import ece, top_label_bins
from trueup.metrics.bins import equal_width
from trueup.metrics.fields import cells_of
from trueup.metrics.scores import TopLabel, top_label

History = Sequence[Mapping[str, Any]]
"""A run's, an entry for each epoch."""


@dataclass(frozen=True)
class Reliability:
    """The bins that are not empty, each entry one of them."""

    edges: np.ndarray
    """(B, 2) where a bin of equal width lies; of equal mass, half way to the neighbours' means."""
    confidence: np.ndarray
    """(B,) the mean."""
    accuracy: np.ndarray
    low: np.ndarray
    """(B,) and high: where the accuracy of a calibrated model with these confidences would lie."""
    high: np.ndarray
    share: np.ndarray
    """(B,) of all samples."""
    histogram: np.ndarray
    """(bins,) the share of the samples in each bin of equal width, empty ones included."""
    level: float
    ece: float


def reliability(
    probs: Array | TopLabel,
    labels: Array | None = None,
    *,
    bins: int = 15,
    scheme: str = "width",
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Reliability:
    """Confidence and accuracy by bins of equal "width" or "mass", with the consistency band of Bröcker & Smith (2007).

    The band is found by drawing outcomes from the confidences themselves.
    """
    s = top_label(probs, labels)
    counts, gaps, right = top_label_bins(s, count(bins, "bins"), scheme)
    cells = cells_of(s, bins)
    onto = cells.mass_share if scheme == "mass" else np.eye(bins)[cells.width_bin]
    rng = np.random.default_rng(seed)
    chance = np.clip(cells.mean, 0, 1)
    wins = rng.binomial(cells.count, chance, (count(resamples, "resamples"), len(chance))) @ onto
    used = counts > 0
    counts, confidence = counts[used], (gaps + right)[used] / counts[used]
    low, high = np.quantile(wins[:, used] / counts, [(1 - level) / 2, (1 + level) / 2], axis=0)
    if scheme == "width":
        index = np.flatnonzero(used)
        edges = np.stack([index, index + 1], 1) / bins
    else:
        between = np.concatenate([[s.confidence.min()], (confidence[1:] + confidence[:-1]) / 2, [s.confidence.max()]])
        edges = np.stack([between[:-1], between[1:]], 1)
    histogram = np.bincount(equal_width(s.confidence, bins), minlength=bins) / len(s)
    error = float(np.abs(gaps).sum() / len(s))
    return Reliability(edges, confidence, right[used] / counts, low, high, counts / len(s), histogram, level, error)


@dataclass(frozen=True)
class Confidences:
    edges: np.ndarray
    """(B + 1,)"""
    right: np.ndarray
    """(B,) the share of all samples that lie in the bin and are right; wrong likewise."""
    wrong: np.ndarray
    mean: float
    accuracy: float


def confidences(probs: Array | TopLabel, labels: Array | None = None, *, bins: int = 20) -> Confidences:
    """How confident the right and the wrong predictions are."""
    s = top_label(probs, labels)
    edges = np.linspace(0, 1, count(bins, "bins") + 1)
    right, wrong = (np.histogram(s.confidence[chosen], edges)[0] / len(s) for chosen in (s.correct, ~s.correct))
    return Confidences(edges, right, wrong, float(s.confidence.mean(dtype=np.float64)), float(s.correct.mean()))


@dataclass(frozen=True)
class Landscape:
    """A metric of the focal temperature map, over its two parameters."""

    metric: str
    temperatures: np.ndarray
    """(T,)"""
    gammas: np.ndarray
    """(G,)"""
    values: np.ndarray
    """(G, T)"""

    @property
    def best(self) -> tuple[float, float, float]:
        """(temperature, gamma, value) at the lowest point of the grid."""
        row, column = np.unravel_index(int(self.values.argmin()), self.values.shape)
        return float(self.temperatures[column]), float(self.gammas[row]), float(self.values[row, column])


def landscape(
    logits: Array,
    labels: Array,
    metric: str = "nll",
    *,
    temperatures: Sequence[float] | np.ndarray | None = None,
    gammas: Sequence[float] | np.ndarray | None = None,
) -> Landscape:
    """ "nll" or "ece" of focal_map(logits / T, gamma), T from 1/4 to 6 and gamma from -0.9 to 6 unless told."""
    if metric not in ("nll", "ece"):
        raise InputError(f'metric: expected "nll" or "ece", got {metric!r}')
    z = inputs.logits(logits).double()
    y = inputs.labels(labels, z)
    own, correct = y[:, None], (z.argmax(1) == y).numpy()
    t = np.geomspace(0.25, 6, 36) if temperatures is None else np.asarray(temperatures, float)
    g = np.linspace(-0.9, 6, 24) if gammas is None else checked_gamma(np.asarray(gammas, float), "gammas")
    values = np.empty((len(g), len(t)))
    for j, temperature in enumerate(t.tolist()):
        parts = complements(z / temperature)
        for i, gamma in enumerate(g.tolist()):
            log_p = log_h_of(parts, gamma).log_softmax(1)
            if metric == "nll":
                values[i, j] = -float(log_p.gather(1, own).mean())
            else:
                values[i, j] = ece(TopLabel(log_p.amax(1).exp().clamp(max=1).numpy(), correct))
    return Landscape(metric, t, g, values)


@dataclass(frozen=True)
class Curve:
    """A quantity over the epochs, over the runs that differ in their seeds."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def curves(histories: Mapping[str, Sequence[History]], quantity: str = "test.ece") -> dict[str, Curve]:
    """By name: mean, least and largest over the runs of each epoch's ``quantity``.

    A quantity is a path into an entry of a run's history: "test.nll", "test.wrong.entropy", "weight_norm".
    """
    return {name: curve_of(runs, quantity, name) for name, runs in histories.items()}


def curve_of(runs: Sequence[History], quantity: str, name: str) -> Curve:
    if not runs or not all(len(run) for run in runs):
        raise InputError(f"histories: {name!r} has none, or an empty one")
    epochs = min(len(run) for run in runs)
    values = np.array([[_at(entry, quantity) for entry in run[:epochs]] for run in runs], float)
    return Curve(values.mean(0), values.min(0), values.max(0))


def _at(entry: Mapping[str, Any], quantity: str) -> float:
    value: Any = entry
    for part in quantity.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = ", ".join(value) if isinstance(value, Mapping) else "nothing"
            raise InputError(f"quantity: {quantity!r} is not in the history; at {part!r} there is {known}")
        value = value[part]
    return float("nan") if value is None else float(value)
