"""Histogram binning and isotonic regression, each class against the rest, normalised.

Both estimate "how often is k the label where its probability is about p" from the samples of a bin or a block. One
pseudo-sample with the bin's own mean forecast is added to each, so that no class is ever given probability zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor

from trueup.calibrators.base import CalibrationMap, Calibrator, FitReport, Progress, nll_of, table
from trueup.inputs import InputError, count
from trueup.metrics.bins import edges, equal_width

_FLOOR = 1e-12


class TableMap(CalibrationMap):
    """A function of each class's probability, given by its values between (or, interpolated, at) the knots."""

    kind = "table"
    knots: Tensor
    levels: Tensor

    def __init__(
        self, classes: int, knots: Any, levels: Any, interpolate: bool, fit_report: FitReport | None = None
    ) -> None:
        super().__init__(classes, fit_report)
        if not isinstance(interpolate, bool):
            raise InputError(f"interpolate: expected true or false, got {interpolate!r}")
        self.interpolate = interpolate
        self.register_buffer("knots", table(knots, "knots"))
        self.register_buffer("levels", table(levels, "levels"))
        wanted = self.knots.shape[1] + (not self.interpolate) if self.knots.ndim == 2 else -1
        if self.levels.shape != (classes, wanted) or len(self.knots) != classes:
            raise InputError(f"knots {tuple(self.knots.shape)} and levels {tuple(self.levels.shape)} do not fit")
        if bool((self.knots.diff(dim=1) < 0).any()):
            raise InputError("knots: those of a class have to rise")
        if not bool((self.levels > 0).all()):
            raise InputError(f"levels: holds {float(self.levels.min()):g}; every share has to be above 0")

    def scores(self, logits: Tensor) -> Tensor:
        p = logits.softmax(-1).transpose(0, 1)
        knots, levels = self.knots.to(p.dtype), self.levels.to(p.dtype)
        if torch.compiler.is_exporting():  # ONNX knows no sorted search
            above = (p[:, :, None] > knots[:, None, :]).sum(-1)
        else:
            above = torch.searchsorted(knots, p.contiguous())
        if not self.interpolate:
            return levels.gather(1, above).transpose(0, 1).log()
        low, high = (above - 1).clamp(min=0), above.clamp(max=knots.shape[1] - 1)
        left, width = knots.gather(1, low), knots.gather(1, high) - knots.gather(1, low)
        share = ((p - left) / torch.where(width > 0, width, 1.0)).clamp(0, 1)
        value = torch.lerp(levels.gather(1, low), levels.gather(1, high), share)
        return value.transpose(0, 1).clamp(min=_FLOOR).log()

    def values(self) -> dict[str, Any]:
        return {"knots": self.knots, "levels": self.levels, "interpolate": self.interpolate}


@dataclass(frozen=True)
class Histogram(Calibrator):
    """The share of each class in the equal-width bins of its probability (Zadrozny & Elkan, 2001)."""

    name: ClassVar[str] = "histogram"
    bins: int = 15
    prior: float = 1.0
    """The weight of the bin's mean forecast, in samples."""

    def __post_init__(self) -> None:
        count(self.bins, "bins")
        _require_prior(self.prior)

    @property
    def keeps_ranking(self) -> bool:
        return False

    def fit_checked(self, z: Tensor, y: Tensor, progress: Progress, near: CalibrationMap | None = None) -> TableMap:
        p, labels = z.softmax(1).cpu().numpy(), y.cpu().numpy()
        middle = (np.arange(self.bins) + 0.5) / self.bins
        levels = np.empty((p.shape[1], self.bins))
        for k, column in enumerate(p.T):
            index = equal_width(np.ascontiguousarray(column), self.bins)
            number, right = (np.bincount(rows, minlength=self.bins) for rows in (index, index[labels == k]))
            forecast = np.bincount(index, column, self.bins)
            forecast = np.divide(forecast, number, out=middle.copy(), where=number > 0)
            prior = np.where(number > 0, self.prior, 1.0)  # a bin without samples is its forecast
            levels[k] = (right + prior * forecast) / (number + prior)
        inner = np.tile(edges(self.bins, p.dtype)[1:-1].astype(np.float64), (p.shape[1], 1))
        return _reported(TableMap(p.shape[1], inner, np.maximum(levels, _FLOOR), False), z, y)


@dataclass(frozen=True)
class Isotonic(Calibrator):
    """The rising function of each class's probability with the least squared error (Zadrozny & Elkan, 2002).

    SciPy's pool-adjacent-violators, interpolated between the blocks and constant beyond them, as scikit-learn does;
    with ``prior=0`` the two agree.
    """

    name: ClassVar[str] = "isotonic"
    prior: float = 1.0
    """The weight of a block's mean forecast, in samples."""

    def __post_init__(self) -> None:
        _require_prior(self.prior)

    @property
    def keeps_ranking(self) -> bool:
        return False

    def fit_checked(self, z: Tensor, y: Tensor, progress: Progress, near: CalibrationMap | None = None) -> TableMap:
        p, labels = z.softmax(1).cpu().numpy(), y.cpu().numpy()
        found = []
        for k, column in enumerate(p.T):
            found.append(self._knots_and_levels(column.astype(np.float64), labels == k))
            progress((k + 1) / p.shape[1])
        longest = max(len(knots) for knots, _ in found)
        # Repeating the last knot changes nothing: the interval it adds is empty.
        knots, levels = (
            np.stack([np.pad(pair[i], (0, longest - len(pair[i])), mode="edge") for pair in found]) for i in range(2)
        )
        return _reported(TableMap(p.shape[1], knots, levels, True), z, y)

    def _knots_and_levels(self, forecast: np.ndarray, outcome: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        where, group, number = np.unique(forecast, return_inverse=True, return_counts=True)
        right = np.bincount(group, outcome)
        start = isotonic_regression(right / number, weights=number).blocks[:-1]
        size, wins = np.add.reduceat(number, start), np.add.reduceat(right, start)
        mean = np.add.reduceat(where * number, start) / size
        level = np.maximum.accumulate((wins + self.prior * mean) / (size + self.prior))
        last = np.append(start[1:], len(where)) - 1
        knots = np.stack([where[start], where[last]], 1).ravel()  # each block is flat from its first to its last sample
        levels = np.repeat(level, 2)
        keep = np.append(True, np.diff(knots) > 0) | np.append(True, np.diff(levels) > 0)
        return knots[keep], np.maximum(levels[keep], _FLOOR)


def _require_prior(prior: float) -> None:
    if isinstance(prior, bool) or not isinstance(prior, int | float | np.number) or not 0 <= prior < np.inf:
        raise InputError(f"prior: expected a number of samples, at least 0, got {prior!r}")


def _reported(made: TableMap, z: Tensor, y: Tensor) -> TableMap:
    made.fit_report = FitReport("nll", nll_of(z, y), nll_of(z, y, made), 1, True)
    return made
