"""Where phi passes 1 and where it is largest; what gamma means as a confidence and as a temperature."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import special

from trueup import inputs
from trueup.inputs import Array, InputError


def gamma_star(p0: float | Array) -> float | Array:
    """The gamma > 0 for which phi(p0) = 1 (mukhoti2020, Proposition 2): above p0 focal gradients are the smaller.

    With a = 1 - p0 and b = p0 log p0 it is a/b + W_{-1}(-(a^(1 - a/b) / b) log a) / log a. It falls to 0 at p0 = 1/2,
    and beyond there is none.

    >>> import trueup
    >>> round(trueup.gamma_star(0.25), 2)
    3.07
    """
    p = inputs.as_tensor(p0, "p0").double().numpy(force=True)
    if not bool(np.all((p > 0) & (p <= 0.5))):
        raise InputError(
            "p0: no positive gamma solves phi(p0) = 1 for p0 > 0.5 (phi stays below 1 there), nor at p0 <= 0; "
            "give p0 above 0 and up to 0.5, where gamma is 0"
        )
    a, b, log_a = 1 - p, p * np.log(p), np.log1p(-p)
    argument = -np.exp((1 - a / b) * log_a) / b * log_a
    r = -b / a
    # near 1/2 two branches of W meet and it loses its digits: there log phi / gamma = log a + r - gamma r^2 / 2 + ...
    near = p > 0.49
    w = special.lambertw(np.where(near, -0.1, argument), -1).real
    gamma = np.where(near, np.maximum(2 * (log_a + r) / r**2, 1e-17), a / b + w / log_a)
    exact = gamma < 1e-7
    for _ in range(4):  # Newton on log phi / gamma
        g = np.where(exact, 1.0, gamma)
        growth = np.log1p(g * r) / g
        moved = np.maximum(g * (1 - (log_a + growth) / (r / (1 + g * r) - growth)), g / 2)
        gamma = np.where(exact, gamma, moved)
    gamma = np.where(p == 0.5, 0.0, gamma)
    return float(gamma) if np.ndim(p0) == 0 else inputs.like(torch.from_numpy(gamma), p0)


def p0_of(gamma: float | Array) -> float | Array:
    """The p in (0, 1/2) where phi(p) = 1; the inverse of ``gamma_star``, 1/2 in the limit of gamma = 0."""
    return _thresholds(gamma)[1]


def confidence_thresholds(gamma: float | Array) -> tuple[float | Array, float | Array]:
    """(tau_oc, tau_uc) of charoenphakdee2021: a minimiser whose largest entry is below tau_oc is over-confident,
    above tau_uc under-confident. phi has its maximum at tau_oc and passes 1 at tau_uc.

    >>> import trueup
    >>> [round(tau, 4) for tau in trueup.confidence_thresholds(1.0)]  # e^-2 and 1/e
    [0.1353, 0.3679]
    """
    return _thresholds(gamma)


def _thresholds(gamma: float | Array) -> tuple[float | Array, float | Array]:
    g = inputs.as_tensor(gamma, "gamma").double().numpy(force=True)
    if not bool(np.all((g >= 0) & np.isfinite(g))):
        raise InputError("gamma: the thresholds exist for a finite gamma of at least 0")

    def log_phi(v: np.ndarray) -> np.ndarray:  # over g, so that the limit of g = 0 is there
        growth = np.where(g > 0, np.log1p(g * _r(v)) / np.where(g > 0, g, 1), _r(v))
        return np.log1p(-v) + growth

    def slope(v: np.ndarray) -> np.ndarray:
        return -2 * (1 - v) - (1 - v) * np.log(v) + (g - 1) * v * np.log(v)

    start = np.full_like(g, 1e-300)
    oc = _root(slope, start, np.full_like(g, 0.25))
    uc = np.where(g == 0, 0.5, _root(log_phi, oc, np.full_like(g, 0.5)))
    if np.ndim(gamma) == 0:
        return float(oc), float(uc)
    return inputs.like(torch.from_numpy(oc), gamma), inputs.like(torch.from_numpy(uc), gamma)


def _r(v: np.ndarray) -> np.ndarray:
    return -v * np.log(v) / (1 - v)


def _root(f: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Where f falls through 0 between low and high, by bisection in the logarithm, for each entry."""
    a, b = np.log(low), np.log(high)
    for _ in range(80):
        middle = (a + b) / 2
        positive = f(np.exp(middle)) > 0
        a, b = np.where(positive, middle, a), np.where(positive, b, middle)
    return np.exp((a + b) / 2)


def temperature_bounds(gamma: float | Array) -> tuple[float | Array, float | Array]:
    """(low, high): in a binary problem the focal map lies between the temperatures 1/(1+g) and 1/(1+g - log(1+g)/2).

    komisarenko2024's theorem; for three classes and more it does not hold.
    """
    g = inputs.as_tensor(gamma, "gamma").double().numpy(force=True)
    if not bool(np.all((g >= 0) & np.isfinite(g))):
        raise InputError("gamma: the bounds are those of a finite gamma of at least 0")
    low, high = 1 / (1 + g), 1 / (1 + g - np.log1p(g) / 2)
    if np.ndim(gamma) == 0:
        return float(low), float(high)
    return inputs.like(torch.from_numpy(low), gamma), inputs.like(torch.from_numpy(high), gamma)
