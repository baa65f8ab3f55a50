"""The focal map with the training gamma (charoenphakdee2021) and focal temperature scaling (komisarenko2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from trueup.calibrators import grid, solve
from trueup.calibrators.base import CalibrationMap, Calibrator, FitReport, Progress, bounded, nll_of
from trueup.focal import checked_gamma, log_h, loss_of_r
from trueup.inputs import InputError


class FocalTemperatureMap(CalibrationMap):
    """Psi_gamma(softmax(z / T))."""

    kind = "focal-temperature"

    def __init__(self, classes: int, temperature: float, gamma: float, fit_report: FitReport | None = None) -> None:
        super().__init__(classes, fit_report)
        self.temperature = bounded(temperature, "temperature", solve.LOWEST, solve.HIGHEST)
        self.gamma = bounded(gamma, "gamma", -1.0)

    def scores(self, logits: Tensor) -> Tensor:
        return log_h(logits / self.temperature, self.gamma)

    def values(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "gamma": self.gamma}


@dataclass(frozen=True)
class FocalMap(Calibrator):
    """Psi with the gamma that the network was trained with. Nothing is fitted; the labels only fill the report."""

    name: ClassVar[str] = "focal-map"
    gamma: float

    def __post_init__(self) -> None:
        checked_gamma(self.gamma)

    @property
    def keeps_ranking(self) -> bool:
        return True

    def fit_checked(
        self, z: Tensor, y: Tensor, progress: Progress, near: CalibrationMap | None = None
    ) -> CalibrationMap:
        made = FocalTemperatureMap(z.shape[1], 1.0, self.gamma)
        made.fit_report = FitReport("nll", nll_of(z, y), nll_of(z, y, made), 0, True)
        return made


@dataclass(frozen=True)
class FocalTemperature(Calibrator):
    """Psi_gamma(softmax(z / T)): both fitted, or one of them where the other is given.

    By NLL the optimum is found; by another criterion the grid of komisarenko2024 is searched, widened until no optimum
    lies on its edge.
    """

    name: ClassVar[str] = "focal-temperature"
    gamma: float | None = None
    temperature: float | None = None
    criterion: str = "nll"

    def __post_init__(self) -> None:
        grid.require_criterion(self.criterion)
        if self.gamma is not None:
            checked_gamma(self.gamma)
        if self.temperature is not None:
            bounded(self.temperature, "temperature", solve.LOWEST, solve.HIGHEST)
        if self.gamma is not None and self.temperature is not None:
            raise InputError("focal-temperature: gamma and temperature are both given, so nothing is left to fit")

    @property
    def keeps_ranking(self) -> bool:
        return True

    def fit_checked(
        self, z: Tensor, y: Tensor, progress: Progress, near: CalibrationMap | None = None
    ) -> CalibrationMap:
        if self.criterion == "nll":
            temperature, gamma, report = self._by_nll(z, y, near)
        else:
            temperature, gamma, report = grid.focal_temperature(
                z, y, self.criterion, self.temperature, self.gamma, progress
            )
        return FocalTemperatureMap(z.shape[1], temperature, gamma, report)

    def _by_nll(self, z: Tensor, y: Tensor, near: CalibrationMap | None = None) -> tuple[float, float, FitReport]:
        plain = solve.temperature_by_nll(z, y)
        lower = np.array([-np.log(solve.HIGHEST), np.log(_LEAST_ABOVE_MINUS_1)])
        upper = np.array([-np.log(solve.LOWEST), np.log1p(_HIGHEST_GAMMA)])
        starts = [np.array([-np.log(plain.value), 0.0])]
        if self.gamma is not None:
            lower[1] = upper[1] = np.log(max(1 + self.gamma, _LEAST_ABOVE_MINUS_1))
        elif self.temperature is not None:
            lower[0] = upper[0] = -np.log(self.temperature)
        elif isinstance(near, FocalTemperatureMap):
            starts = [np.array([-np.log(near.temperature), np.log(max(1 + near.gamma, _LEAST_ABOVE_MINUS_1))])]
        else:
            # The best T rises with gamma, first about linearly, later like a root: starts along that line find other
            # valleys. For a network that is rarely sure it hardly rises: the valley near gamma = -1 is at the plain T.
            # A few hundred well-fitted samples may have their best one beyond gamma = 10.
            along = ((-0.95, 0.525), (-0.95, 1.0), (-0.5, 0.75), (3.0, 2.5))
            starts += [np.array([-np.log(plain.value * rise), np.log1p(g)]) for g, rise in along]
            starts.append(np.array([-np.log(plain.value) - np.log1p(30.0) / 2, np.log1p(30.0)]))
        found = solve.family_by_nll(family, z, y, starts, lower, upper)
        if self.gamma is None and self.temperature is None and found.value > plain.nll:
            found = solve.minimise_family(family, z, y, starts[0], lower, upper)  # never worse than temperature alone
        at_bound = bool((((found.x <= lower) | (found.x >= upper)) & (lower < upper)).any())
        gamma = float(np.expm1(found.x[1])) if self.gamma is None else self.gamma
        if found.x[1] <= np.log(_LEAST_ABOVE_MINUS_1):
            gamma = -1.0
        report = FitReport("nll", nll_of(z, y), found.value, found.iterations, found.converged, at_bound)
        return float(np.exp(-found.x[0])), gamma, report


_HIGHEST_GAMMA = 100.0
_LEAST_ABOVE_MINUS_1 = 1e-8  # 1 + gamma is searched on a logarithmic scale: near -1 it caps the confidence


def _argmax(z: Tensor) -> Tensor:
    """(N, 1); NumPy's is ten times faster on long rows."""
    if z.device.type != "cpu":
        return z.argmax(1, keepdim=True)
    return torch.from_numpy(z.numpy().argmax(1))[:, None]


def family(x: np.ndarray, z: Tensor) -> tuple[Tensor, list[Tensor]]:
    """log h of softmax(b z), and its derivatives by both parameters, x = (log b, log(1 + gamma)).

    The same as ``focal.log_h``, written for speed: the largest class of each row is a column of its own, and what is
    computed for all the others is not masked. With d = b z less its maximum, m the mean of d over the other classes
    and q their mass, d log v_top / d log b = -q m, and d log v_j / d log b = d_j - q m.
    """
    b, gamma = float(np.exp(x[0])), float(np.expm1(x[1]))
    top = _argmax(z)
    d = z * b
    d -= d.gather(1, top)
    others = d.exp().scatter_(1, top, 0.0)
    rest = others.sum(1, keepdim=True)
    log_mass = torch.log1p(rest)  # the largest term is exp(0)
    log_rest, m = rest.log(), torch.linalg.vecdot(others, d)[:, None] / rest
    lost = rest[:, 0] < 1e8 * torch.finfo(z.dtype).tiny
    if bool(lost.any()):  # the other classes underflow together: their logarithms do not
        masked = d[lost].scatter(1, top[lost], -torch.inf)
        log_rest[lost] = masked.logsumexp(1, keepdim=True)
        m[lost] = (masked.softmax(1) * d[lost]).sum(1, keepdim=True)
    others /= 1 + rest
    log_v, log_q_top = d - log_mass, log_rest - log_mass
    q_top = log_q_top.exp()

    q = 1 - others
    r = torch.div(others, q).mul_(log_v).neg_()
    growth = torch.add(torch.ones_like(log_mass), r, alpha=gamma)
    log_q = q.log()
    scores = torch.sub(log_v, log_q, alpha=gamma).sub_(growth.log())
    # d log h / d log v = 1 + g v/q - g (d r / d log v) / (1 + g r), and d r / d log v = -(v/q) (log v + q) / q
    curve = log_v.add_(q).div_(q).div_(growth).add_(1)
    by_log_b = others.div_(q).mul_(curve).mul_(gamma).add_(1).mul_(d.sub_(q_top * m))
    by_log_1_plus_gamma = r.div_(growth).add_(log_q).mul_(-1 - gamma)

    lost_by_q = loss_of_r(q_top)  # (1 - r) / q of the largest; then r' = (1 - lost_by_q) / (1 - q)
    if gamma >= 0:
        growth_top = torch.log1p(gamma * (1 - q_top * lost_by_q))
    else:  # as (1 + g) - g (1 - r), where the other form would cancel
        growth_top = torch.logaddexp(torch.log(-gamma * lost_by_q) + log_q_top, torch.full_like(log_q_top, float(x[1])))
    scores.scatter_(1, top, -log_mass - gamma * log_q_top - growth_top)
    curved = (1 - lost_by_q) * (log_q_top - growth_top).exp()  # q (d r / d log v) / (1 + g r)
    by_log_b.scatter_(1, top, -(q_top + gamma * (1 - q_top - curved)) * m)
    saturated = (1 - q_top * lost_by_q) * (float(x[1]) - growth_top).exp()
    by_log_1_plus_gamma.scatter_(1, top, (-1 - gamma) * log_q_top - saturated)
    return scores, [by_log_b, by_log_1_plus_gamma]
