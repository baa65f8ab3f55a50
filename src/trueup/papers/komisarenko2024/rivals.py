"""Open question 3: focal temperature scaling among the other calibrators, with small and large calibration sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueup.calibrators import CALIBRATORS, Auto, CalibrationMap, Temperature
from trueup.metrics import Scores, ece, error, nll, score_logits, smooth_ece
from trueup.predictions import Predictions

SIZES = (100, 500, 1000, 5000)
DRAWS = {100: 2, 500: 1, 1000: 1, 5000: 1}
"""How many calibration sets of each size are drawn."""
NAMES = ("none", "temperature", "focal-temperature", "ensemble", "softplus", "bias-temperature", "vector", "matrix",
         "dirichlet", "isotonic", "histogram", "auto")  # fmt: skip
BY_CLASS = ("bias-temperature", "vector", "matrix", "dirichlet", "isotonic", "histogram")
"""Those with parameters for each class: with fewer samples than classes they are left out."""
METRICS: dict[str, Callable[[Scores], float]] = {"nll": nll, "ece": ece, "smooth_ece": smooth_ece, "error": error}

Map = Callable[[Tensor], Tensor]
"""Logits (N, K) -> scores, whose softmax are the probabilities."""


def rivals(val: Predictions, test: Predictions, seed: int = 0) -> list[dict[str, Any]]:
    """An entry for each size and calibrator: its metrics on test, the mean over the draws.

    Sizes that val does not have are left out; with fewer samples than classes so are the calibrators with parameters
    for each class, and the entry of the size says so.
    """
    z, found = test.logits.double(), []
    for size in SIZES:
        if size > len(val):
            continue
        few = size < val.classes
        values: dict[str, list[list[float]]] = {name: [] for name in NAMES if not (few and name in BY_CLASS)}
        short: set[str] = set()
        for draw in range(DRAWS[size]):
            rows = torch.from_numpy(np.random.RandomState(seed + draw).permutation(len(val))[:size])
            some = (val.logits[rows].double(), val.labels[rows])
            chosen, known = Auto().choose(*some, progress=lambda _: None)
            known["auto"] = known[chosen]
            for name, kept in values.items():
                if draw and name == "dirichlet" and val.classes > 20:
                    continue  # it alone takes seconds there
                made, converged = fitted(name, *some, known.get(name))
                short |= set() if converged else {name}
                scores = score_logits(made(z), test.labels)
                kept.append([metric(scores) for metric in METRICS.values()])
        for name, kept in values.items():
            means = dict(zip(METRICS, np.mean(kept, axis=0).tolist(), strict=True))
            about = {"size": size, "calibrator": name, "draws": len(kept), "few": few, "converged": name not in short}
            found.append(about | means)
    return found


def fitted(name: str, z: Tensor, y: Tensor, known: CalibrationMap | None) -> tuple[Map, bool]:
    """The map of that name, fitted if it is not known, and whether its solver says that it is at the optimum."""
    if name == "ensemble":
        return ensemble(z, y), True
    made = known or CALIBRATORS[name]().fit(z, y)
    return made.scores, made.fit_report is None or made.fit_report.converged


def ensemble(z: Tensor, y: Tensor) -> Map:
    """Ensemble temperature scaling (Zhang, Kailkhura & Han, 2020): w_1 softmax(z/T) + w_2 softmax(z) + w_3 / K.

    T by NLL, then the weights by NLL, which is convex in them: expectation maximisation.
    """
    temperature = float(Temperature().fit(z, y).temperature)  # type: ignore[arg-type]

    def parts(z: Tensor) -> Tensor:
        return torch.stack([(z / temperature).softmax(1), z.softmax(1), torch.full_like(z, 1 / z.shape[1])])

    own = parts(z).gather(2, y.expand(3, -1)[:, :, None])[:, :, 0]
    weights = torch.full((3, 1), 1 / 3, dtype=z.dtype)
    for _ in range(1000):
        parts_of_own = weights * own
        weights = (parts_of_own / parts_of_own.sum(0)).mean(1, keepdim=True)
    return lambda z: (weights[:, :, None] * parts(z)).sum(0).log()
