"""Open question 2: the best temperature for each gamma, why it lies near a line, and a search along it.

At gamma = 0 the slope is known without a search. With d = z / T, v = softmax(d) and u = -log(1 - v) - r(v), the scores
change by d (1/T) and by u (gamma), and the NLL of labels drawn from the network's own probabilities is flat along

    d log T / d gamma = E[Cov_v(d, u)] / E[Var_v(d)].

A sample of large margin has the ratio 1 (Psi multiplies its log-odds by 1 + gamma), one without any preference has
v/(1-v) - v r'(v) at v = 1/K, which is below 0 from K = 5 on. A network's slope is the mean over its samples, weighted
with the variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from torch import Tensor

from trueup import inputs
from trueup.calibrators import FocalTemperature, Temperature
from trueup.calibrators.base import nll_of
from trueup.calibrators.focal import FocalTemperatureMap, family

GAMMAS = (-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)
"""Where the paper's grid is dense; the line is fitted here."""
BEYOND = (2.0, 3.0, 5.0)
"""Where it is followed further."""


@dataclass(frozen=True)
class Line:
    """T = intercept + slope gamma, fitted to the best temperatures of ``GAMMAS``."""

    temperatures: tuple[float, ...]
    """The best T by NLL for each of ``GAMMAS`` and ``BEYOND``."""
    intercept: float
    slope: float
    slope_error: float
    """Standard error over the samples, from each sample's influence on the best temperatures."""
    tangent: float
    """d T / d gamma at 0, by differences."""
    predicted: float
    """The same from the formula above, T (d log T / d gamma): it does not see a label."""
    worst: float
    """The largest distance of a best temperature from the line, as a share of it."""

    def to_dict(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


def fitted_line(z: Tensor, y: Tensor) -> Line:
    """The line of a network, from (N, K) logits and labels of its calibration set."""
    best = [float(FocalTemperature(gamma=gamma).fit(z, y).temperature) for gamma in (*GAMMAS, *BEYOND)]  # type: ignore[arg-type]
    near = np.array(best[: len(GAMMAS)])
    gammas = np.array(GAMMAS)
    weights = (gammas - gammas.mean()) / ((gammas - gammas.mean()) ** 2).sum()
    slope = float(weights @ near)
    intercept = float(near.mean() - slope * gammas.mean())
    influence = sum(
        (w * _influence(z, y, t, gamma) for w, t, gamma in zip(weights, near, GAMMAS, strict=True)), np.zeros(len(z))
    )
    along = intercept + slope * gammas
    zero = GAMMAS.index(0.0)
    tangent = (near[zero + 1] - near[zero - 1]) / (GAMMAS[zero + 1] - GAMMAS[zero - 1])
    return Line(
        tuple(best), intercept, slope, float(np.sqrt((influence**2).sum()) / len(z)), float(tangent),
        float(near[zero]) * relative_slope(z, float(near[zero])), float(np.abs(near / along - 1).max()),
    )  # fmt: skip


def relative_slope(z: Tensor, temperature: float) -> float:
    """d log T / d gamma at gamma = 0: what the network's own probabilities say, without labels."""
    covariance = variance = 0.0
    for _, block in inputs.row_blocks(z):
        d = block.double() / temperature
        u, v = _u_of(d), d.softmax(1)
        mean = (v * d).sum(1, keepdim=True)
        covariance += float((v * (d - mean) * u).sum())
        variance += float((v * (d - mean) ** 2).sum())
    return covariance / variance


def limit_slopes(classes: int) -> tuple[float, float]:
    """(small margins, large margins) of d log T / d gamma at gamma = 0.

    >>> [round(limit_slopes(K)[0], 3) for K in (2, 3, 10, 100)]
    [0.614, 0.176, -0.062, -0.027]
    """
    v = 1 / classes
    return float(v / (1 - v) + v * (np.log(v) + 1 - v) / (1 - v) ** 2), 1.0


def _u_of(d: Tensor) -> Tensor:
    """d log h / d gamma at 0 = -log(1 - v) - r(v), by a step of the exact map so small that it is its slope."""
    from trueup.focal import log_h

    step = 1e-5
    return (log_h(d, step) - log_h(d, -step)) / (2 * step)


def _influence(z: Tensor, y: Tensor, temperature: float, gamma: float) -> np.ndarray:
    """(N,) what each sample adds to the best temperature: T g_i / H, g_i its slope of the NLL in log b, b = 1/T."""
    x = np.array([-np.log(temperature), np.log1p(gamma)])
    own, step = _slopes(z, y, x), np.array([1e-4, 0.0])
    curvature = (_slopes(z, y, x + step).mean() - _slopes(z, y, x - step).mean()) / (2 * step[0])
    return temperature * (own - own.mean()) / curvature


def _slopes(z: Tensor, y: Tensor, x: np.ndarray) -> np.ndarray:
    found = []
    for rows, block in inputs.row_blocks(z):
        scores, (by_log_b, _) = family(x, block.double())
        mean = (scores.softmax(1) * by_log_b).sum(1)
        found.append((mean - by_log_b.gather(1, y[rows, None])[:, 0]).numpy())
    return np.concatenate(found)


def along_the_line(z: Tensor, y: Tensor) -> FocalTemperatureMap:
    """Focal temperature scaling with one parameter: T = T_0 (1 + s gamma), s from the network's own probabilities."""
    plain = float(Temperature().fit(z, y).temperature)  # type: ignore[arg-type]
    s = relative_slope(z, plain)

    def made(x: float) -> FocalTemperatureMap:
        gamma = float(np.expm1(x))
        return FocalTemperatureMap(z.shape[1], plain * max(1 + s * gamma, 1e-3), gamma)

    found = minimize_scalar(lambda x: nll_of(z, y, made(x)), bounds=(-7.0, 3.0), method="bounded",
                            options={"xatol": 1e-3})  # fmt: skip
    return made(float(found.x))  # type: ignore[attr-defined]
