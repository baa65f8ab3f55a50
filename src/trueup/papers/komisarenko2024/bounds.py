"""Open question 1: which temperatures the focal map acts like, with K classes.

The map acts at q like the temperature T(q) = 1 / b for which softmax(b log q) gives the most probable class the
probability that Psi gives it. docs/theory.md, section 6, shows for every K that b(q) lies between the least and the
largest of the pairs' own, log(h(q_1)/h(q_j)) / log(q_1/q_j), and what follows. Here the same is found by optimisation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from trueup.focal import log_h, phi, temperature_bounds

CLASSES = (2, 3, 4, 10, 100, 1000)
GAMMAS = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0)
SAMPLED = 40_000
"""Entries of flat Dirichlet draws: how wide an interval sampling finds."""


@dataclass(frozen=True)
class Bounds:
    """The temperatures that match the top probability of the map, for one number of classes and one gamma."""

    classes: int
    gamma: float
    low: float
    """1 / (1 + gamma): proved for every K; approached, never reached."""
    high: float
    """1 / the least inverse temperature of a pair that fits into K classes: proved, and approached but for rounding."""
    found_low: float
    """By descent over the simplex."""
    found_high: float
    sampled_low: float
    sampled_high: float
    theorem: float
    """The paper's upper bound for two classes."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bounds(classes: int, gamma: float, *, seed: int = 0) -> Bounds:
    """All of it, for one K and gamma > 0."""
    low, high = 1 / (1 + gamma), highest_temperature(classes, gamma)
    rng = np.random.default_rng([seed, classes, round(1000 * gamma)])
    draws = np.log(np.maximum(rng.dirichlet(np.ones(classes), SAMPLED // classes), 1e-300))
    sampled = 1 / inverse_temperature(torch.from_numpy(draws), gamma).numpy()
    sharp = [draws[sampled.argmin()], np.r_[0.0, -6.0, np.full(classes - 2, -60.0)]]
    found_low = 1 / max(_descended(start, gamma, -1) for start in sharp)
    flat = [draws[sampled.argmax()], *_flat_starts(classes, gamma)]
    found_high = 1 / min(_descended(start, gamma, 1) for start in flat)
    theorem = float(temperature_bounds(gamma)[1])  # type: ignore[arg-type]
    drawn = float(sampled.min()), float(sampled.max())
    return Bounds(classes, gamma, low, high, found_low, found_high, *drawn, theorem)


def inverse_temperature(log_q: Tensor, gamma: float) -> Tensor:
    """(N,) b with softmax(b log q)_top = Psi(q)_top, of rows (N, K) that are not uniform.

    log sum over the others of (q_j/q_1)^b falls in b, and is convex; it has to be that of h(q_j)/h(q_1). From its
    second step on Newton's method comes from below, and never goes too far. A last step carries the derivative in q.
    """
    log_q = log_q.log_softmax(-1)
    top = log_q.detach().argmax(-1, keepdim=True)
    h = log_h(log_q, gamma)
    below = (log_q - log_q.gather(-1, top)).scatter(-1, top, -1e300)
    wanted = (h - h.gather(-1, top)).scatter(-1, top, -torch.inf).logsumexp(-1)
    with torch.no_grad():
        b = torch.ones_like(wanted)
        for _ in range(50):
            excess, slope = _excess(b, below, wanted)
            new = (b - excess / slope).clamp(1e-3, 2.0 + 2 * abs(gamma))
            done = ((new - b).abs() <= 1e-15 * b) | (excess.abs() <= 4e-16)  # the latter is rounding
            b = new
            if bool(done.all()):
                break
    excess, slope = _excess(b, below, wanted)
    step = excess / slope.detach()
    return b - step * (step.detach().abs() < 1e-3)  # there, a step would only add rounding


def _excess(b: Tensor, below: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) log sum exp(b below) - wanted, and its slope in b, which beside exact ties is hardly any."""
    scaled = b[:, None] * below
    return scaled.logsumexp(-1) - wanted, (scaled.softmax(-1) * below).sum(-1).clamp(max=-1e-12)


def pair(a: np.ndarray | float, b: np.ndarray | float, gamma: float) -> Any:
    """The inverse temperature of two classes alone: log(h(a)/h(b)) / log(a/b) = 1 - log(phi(a)/phi(b)) / log(a/b)."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    return 1 - np.log(np.asarray(phi(a, gamma)) / np.asarray(phi(b, gamma))) / np.log(a / b)


def highest_temperature(classes: int, gamma: float) -> float:
    """1 / the least inverse temperature of any pair a > b that fits into K classes: (K-1) a + b >= 1, a + b <= 1.

    With two classes b = 1 - a. Else the least is on the line (K-1) a + b = 1 (K - 1 equal entries and a smaller one,
    where the pair's is also the whole vector's), or, where that lies within, at the bottom of d log h / d log v.
    """
    if classes == 2:  # at even odds, or beside them
        found = minimize_scalar(
            lambda x: float(pair(_sigmoid(x), _sigmoid(-x), gamma)), bounds=(1e-2, 40), method="bounded"
        )
        return 1 / min(float(found.fun), elasticity(0.5, gamma))  # type: ignore[attr-defined]
    bottom = _bottom(gamma)
    if classes >= 1 / bottom:
        return 1 / elasticity(bottom, gamma)

    def on_the_line(log_b: Any) -> Any:
        b = np.exp(log_b)
        return pair((1 - b) / (classes - 1), b, gamma)

    grid = np.linspace(-28, -np.log(classes) - 1e-3, 400)
    best = int(on_the_line(grid).argmin())
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    found = minimize_scalar(on_the_line, bounds=around, method="bounded", options={"xatol": 1e-9})
    return 1 / min(1.0, float(found.fun))  # type: ignore[attr-defined]


def elasticity(v: float, gamma: float) -> float:
    """e(v) = d log h / d log v: 1 at 0, below 1 up to tau_oc, with one minimum, then above 1."""
    r, slope = -v * np.log(v) / (1 - v), -(np.log(v) + 1 - v) / (1 - v) ** 2
    return float(1 + gamma * v / (1 - v) - gamma * v * slope / (1 + gamma * r))


def _bottom(gamma: float) -> float:
    found = minimize_scalar(lambda x: elasticity(float(np.exp(x)), gamma), bounds=(-12, -0.7), method="bounded",
                            options={"xatol": 1e-10})  # fmt: skip
    return float(np.exp(found.x))  # type: ignore[attr-defined]


def _sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


def _flat_starts(classes: int, gamma: float) -> list[np.ndarray]:
    """Log-probabilities to begin a descent to a high temperature from: nearly equal entries, and a small one."""
    if classes == 2:
        return [np.array([0.0, -0.1]), np.array([0.0, -1.0])]
    smallest = np.linspace(-22, -0.1, 700)  # below, it is lost beside the tie
    b = np.exp(smallest) / (classes - 1 + np.exp(smallest))
    best = smallest[pair((1 - b) / (classes - 1), b, gamma).argmin()]
    many = min(classes, max(2, round(1 / _bottom(gamma))))
    return [
        np.r_[np.zeros(classes - 1), best],
        np.r_[0.0, np.full(many - 1, -0.01), np.full(classes - many, -60.0)],
    ]


def _descended(start: np.ndarray, gamma: float, sign: int) -> float:
    """The least (sign 1) or largest (sign -1) inverse temperature on the way of a descent over the simplex.

    At a tie the function has a kink, and a descent may end above where it began.
    """
    seen = []

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.tensor(x[None], requires_grad=True)
        value = sign * inverse_temperature(free, gamma).sum()
        value.backward()
        assert free.grad is not None
        seen.append(float(value.detach()))
        return seen[-1], free.grad[0].nan_to_num().numpy()

    minimize(evaluate, start, jac=True, method="L-BFGS-B", bounds=[(-60, 0)] * len(start),
             options={"maxiter": 40, "maxfun": 60})  # fmt: skip
    return sign * min(seen)
