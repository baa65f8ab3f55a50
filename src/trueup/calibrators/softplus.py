"""The softplus map: temperature scaling whose slope bends with the probability.

On x = log p, each class for itself, g(x) = -(c/a) log((v + exp(-a x)) / (v + 1)), then softmax. The slope falls from c
in the tail (p -> 0) to s = c / (1 + v) at p = 1; v -> 0 is temperature scaling with T = 1/s. g rises everywhere, so the
ranking of the classes is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from trueup.calibrators import solve
from trueup.calibrators.base import CalibrationMap, Calibrator, FitReport, Progress, bounded, nll_of

_TAILS, _RATES, _BENDS = (solve.LOWEST, solve.HIGHEST), (1e-3, 1e2), (1e-6, 1e6)
_LOWER, _UPPER = np.log([_TAILS, _RATES, _BENDS]).T
_LINEAR_FROM = 80.0  # exp of it is a float32, and v is nothing beside it


class SoftplusMap(CalibrationMap):
    """softmax(g(log_softmax(z))) with the slope s at p = 1, the rate a and the bend v."""

    kind = "softplus"

    def __init__(
        self, classes: int, slope: float, rate: float, bend: float, fit_report: FitReport | None = None
    ) -> None:
        super().__init__(classes, fit_report)
        self.slope = bounded(slope, "slope", _TAILS[0] / (1 + _BENDS[1]), _TAILS[1])
        self.rate = bounded(rate, "rate", *_RATES)
        self.bend = bounded(bend, "bend", 0.0, _BENDS[1])  # 0 is temperature scaling

    def scores(self, logits: Tensor) -> Tensor:
        u = -self.rate * logits.log_softmax(-1)
        return -(self.slope * (1 + self.bend) / self.rate) * _log_mixture(u, self.bend)[0]

    def values(self) -> dict[str, Any]:
        return {"slope": self.slope, "rate": self.rate, "bend": self.bend}


def _log_mixture(u: Tensor, bend: float) -> tuple[Tensor, Tensor]:
    """log((v + exp(u)) / (v + 1)) for u >= 0, exact where it is small and finite where exp(u) is not; and exp(u) - 1,
    as far as that is a number."""
    near = u.clamp(max=_LINEAR_FROM)
    grown = _expm1(near)
    return _log1p(grown / (1 + bend)) + (u - near), grown


def _log1p(x: Tensor) -> Tensor:
    """For x >= 0. ONNX has neither this nor the next, and loses their digits; it has the hyperbolic functions."""
    if not torch.compiler.is_exporting():
        return torch.log1p(x)
    return torch.where(x < 1, 2 * torch.atanh(x.clamp(max=1) / (2 + x.clamp(max=1))), torch.log(1 + x))


def _expm1(x: Tensor) -> Tensor:
    return 2 * torch.sinh(x / 2) * torch.exp(x / 2) if torch.compiler.is_exporting() else torch.expm1(x)


def family(x: np.ndarray, log_probs: Tensor) -> tuple[Tensor, list[Tensor]]:
    """g and its derivatives by x = (log c, log a, log v).

    By the slope c in the tail, which the data tell: along their flat valleys, where a and v rise together, it stays.
    """
    tail, rate, bend = np.exp(x).tolist()
    u = log_probs * -rate
    t, grown = _log_mixture(u, bend)
    both = grown + (1 + bend)  # v + exp(u)
    scale = tail / rate
    by_bend = (grown / both).mul_(scale * bend / (1 + bend))
    slope = grown.add_(1).div_(both)  # of t
    by_rate = torch.addcmul(t, u, slope, value=-1).mul_(scale)
    scores = t.mul_(-scale)
    return scores, [scores.clone(), by_rate, by_bend]


@dataclass(frozen=True)
class Softplus(Calibrator):
    """The softplus map, fitted to the least NLL."""

    name: ClassVar[str] = "softplus"

    @property
    def keeps_ranking(self) -> bool:
        return True

    def fit_checked(self, z: Tensor, y: Tensor, progress: Progress, near: CalibrationMap | None = None) -> SoftplusMap:
        plain = solve.temperature_by_nll(z, y)
        log_b = -np.log(plain.value)
        if isinstance(near, SoftplusMap):
            starts = [_coordinates(near.slope, near.rate, near.bend)]
        else:
            starts = [np.array([log_b, 0.0, 0.0]) + _coordinates(*start) for start in _STARTS]
        # Its valleys are long and flat where data are few: a ten-thousandth of a sample's NLL is not worth a step.
        found = solve.family_by_nll(family, solve.log_probs(z), y, starts, _LOWER, _UPPER, tolerance=1e-4 / len(z))
        if found.value > plain.nll:  # never worse than the temperature alone, which is the map without a bend
            least = np.array([log_b, 0.0, 0.0]) + _coordinates(1.0, 1.0, _BENDS[0])
            found = solve.Minimum(least, plain.nll, plain.iterations, plain.converged)
        at_bound = bool(((found.x <= _LOWER) | (found.x >= _UPPER)).any())
        report = FitReport("nll", nll_of(z, y), found.value, found.iterations, found.converged, at_bound)
        tail, rate, bend = np.exp(found.x).tolist()
        return SoftplusMap(z.shape[1], tail / (1 + bend), rate, bend, report)


def _coordinates(slope: float, rate: float, bend: float) -> np.ndarray:
    return np.log([slope * (1 + bend), rate, max(bend, _BENDS[0])])


_STARTS = ((0.7, 1.0, 1.0), (0.6, 0.4, 5.0), (0.1, 10.0, 10.0))
"""(slope in units of the best 1/T, rate, bend)"""
