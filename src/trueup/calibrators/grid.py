"""The papers' grid searches: criteria that have no gradient, over temperatures and focal gammas.

A temperature, and a focal map, keep the predicted class, so only the confidences change from one point to the next. All
points of a block of rows are computed while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from trueup import inputs
from trueup.calibrators.base import FitReport, Progress
from trueup.calibrators.threads import in_order
from trueup.focal import log_growth
from trueup.inputs import InputError
from trueup.metrics.binned import adaptive_ece, ece
from trueup.metrics.scores import TopLabel

TOP_LABEL_CRITERIA: dict[str, Callable[[TopLabel], float]] = {
    "ece": ece,
    "adaptive_ece": adaptive_ece,
    "mukhoti2020_adaptive_ece": partial(adaptive_ece, edges="mukhoti2020"),
}
CRITERIA = ("nll", *TOP_LABEL_CRITERIA, "brier")
"""nll has an optimum that is found without a grid."""

TEMPERATURES = np.arange(1, 101) / 10
"""The grid of mukhoti2020."""
FOCAL_TEMPERATURES = np.arange(1, 101) / 20
FOCAL_GAMMAS = np.array([-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1, 3, 5])
"""The grid of komisarenko2024."""


def require_criterion(criterion: str) -> None:
    if criterion not in CRITERIA:
        raise InputError(f"criterion: unknown {criterion!r}; known: {', '.join(CRITERIA)}")


def temperature(z: Tensor, y: Tensor, criterion: str, progress: Progress) -> tuple[float, FitReport]:
    """The first T of the grid with the least criterion."""
    table = _criterion_table(z, y, criterion, TEMPERATURES, None, progress)[:, 0]
    best = int(table.argmin())
    before = table[int(np.flatnonzero(TEMPERATURES == 1)[0])]
    at_bound = best in (0, len(table) - 1)
    report = FitReport(criterion, float(before), float(table[best]), len(table), True, at_bound)
    return float(TEMPERATURES[best]), report


def focal_temperature(
    z: Tensor, y: Tensor, criterion: str, temperature: float | None, gamma: float | None, progress: Progress
) -> tuple[float, float, FitReport]:
    """The first (gamma, T) of the grid with the least criterion; the grid grows while the best lies on its edge."""
    temperatures = FOCAL_TEMPERATURES if temperature is None else np.array([temperature])
    gammas = FOCAL_GAMMAS if gamma is None else np.array([gamma])
    table = _criterion_table(z, y, criterion, temperatures, gammas, progress)
    points = table.size
    while True:
        row, column = np.unravel_index(int(table.T.argmin()), table.T.shape)[::-1]  # gamma is the outer loop
        more_t, more_g = np.array([]), np.array([])
        if temperature is None and row == len(temperatures) - 1 and temperatures[-1] < 1e3:
            more_t = temperatures[-1] * (1 + np.arange(1, 51) / 50)
        elif temperature is None and row == 0 and temperatures[0] > 1e-3:
            more_t = temperatures[0] * np.arange(1, 50) / 50
        elif gamma is None and column == len(gammas) - 1 and gammas[-1] < 100:
            more_g = gammas[-1] * np.array([1.5, 2.0])
        if not len(more_t) + len(more_g):
            break
        if len(more_t):
            added = _criterion_table(z, y, criterion, more_t, gammas, progress)
            order = np.argsort(np.concatenate([temperatures, more_t]))
            temperatures = np.concatenate([temperatures, more_t])[order]
            table = np.concatenate([table, added])[order]
        else:
            added = _criterion_table(z, y, criterion, temperatures, more_g, progress)
            gammas, table = np.concatenate([gammas, more_g]), np.concatenate([table, added], axis=1)
        points += added.size
    at_bound = bool(
        (temperature is None and row in (0, len(temperatures) - 1))
        or (gamma is None and column in (0, len(gammas) - 1))
    )
    before = _criterion_table(z, y, criterion, np.array([1.0]), None, lambda _: None)[0, 0]
    report = FitReport(criterion, float(before), float(table[row, column]), points, True, at_bound)
    return float(temperatures[row]), float(gammas[column]), report


def _criterion_table(
    z: Tensor, y: Tensor, criterion: str, temperatures: np.ndarray, gammas: np.ndarray | None, progress: Progress
) -> np.ndarray:
    """(temperatures, gammas) the criterion at every point; without gammas, of plain temperature scaling."""
    columns = 1 if gammas is None else len(gammas)
    brier = criterion == "brier"
    kept = np.zeros((len(temperatures), columns) if brier else (len(temperatures), columns, len(z)))
    for rows, block in inputs.row_blocks(z):
        d = block.double() - block.amax(1, keepdim=True).double()
        own, top = y[rows, None], block.argmax(1, keepdim=True)

        def at(t: float, d: Tensor = d, own: Tensor = own, top: Tensor = top) -> list[np.ndarray]:
            """For each gamma the confidences, or the sum that the Brier score is made of."""
            scores, found = d / t, []
            for powers in [scores.exp()] if gammas is None else _focal_powers(scores, top, gammas):
                mass = powers.sum(1)  # the largest is 1
                if brier:
                    squares = torch.linalg.vecdot(powers, powers) / mass**2
                    found.append((squares - 2 * powers.gather(1, own)[:, 0] / mass + 1).sum().cpu().numpy())
                else:
                    found.append((1 / mass).cpu().numpy())
            return found

        for i, found in enumerate(in_order(at, temperatures)):
            for j, values in enumerate(found):
                if brier:
                    kept[i, j] += values
                else:
                    kept[i, j, rows] = values
            progress((rows.start + (i + 1) / len(temperatures) * len(block)) / len(z))
    if brier:
        return kept / len(z)
    correct = (z.argmax(1) == y).cpu().numpy()
    metric = TOP_LABEL_CRITERIA[criterion]
    return np.array([[metric(TopLabel(confidence, correct)) for confidence in row] for row in kept])


def _focal_powers(d: Tensor, top: Tensor, gammas: Sequence[float] | np.ndarray):
    """For each gamma, h(v) of v = softmax(d) in units of its largest; d is 0 at ``top`` and negative elsewhere."""
    masked = d.scatter(1, top, -torch.inf)
    log_rest = masked.logsumexp(1, keepdim=True)
    log_mass = torch.log1p(log_rest.exp())
    log_q_top, log_v = log_rest - log_mass, masked - log_mass
    others = log_v.exp()
    log_q = torch.log1p(-others)
    r = -others * log_v.clamp(min=torch.finfo(d.dtype).min) / (1 - others)
    for gamma in np.asarray(gammas).tolist():
        top_score = -log_mass - gamma * log_q_top - log_growth(log_q_top, gamma)
        powers = torch.exp(log_v - gamma * log_q - top_score).div_(1 + gamma * r)
        yield powers.scatter_(1, top, 1.0)
