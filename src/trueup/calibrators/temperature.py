"""Temperature scaling (Guo et al., 2017), and no scaling at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from trueup.calibrators import grid, solve
from trueup.calibrators.base import CalibrationMap, Calibrator, FitReport, Progress, bounded, nll_of


class IdentityMap(CalibrationMap):
    """softmax(z)."""

    kind = "none"

    def scores(self, logits: Tensor) -> Tensor:
        return logits

    def values(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Identity(Calibrator):
    """The network's own probabilities: what every other calibrator is compared with."""

    name: ClassVar[str] = "none"

    @property
    def keeps_ranking(self) -> bool:
        return True

    def fit_checked(self, z: Tensor, y: Tensor, progress: Progress, near: CalibrationMap | None = None) -> IdentityMap:
        value = nll_of(z, y)
        return IdentityMap(z.shape[1], FitReport("nll", value, value, 0, True))


class TemperatureMap(CalibrationMap):
    """softmax(z / T)."""

    kind = "temperature"

    def __init__(self, classes: int, temperature: float, fit_report: FitReport | None = None) -> None:
        super().__init__(classes, fit_report)
        self.temperature = bounded(temperature, "temperature", solve.LOWEST, solve.HIGHEST)

    def scores(self, logits: Tensor) -> Tensor:
        return logits / self.temperature

    def values(self) -> dict[str, Any]:
        return {"temperature": self.temperature}


@dataclass(frozen=True)
class Temperature(Calibrator):
    """softmax(z / T), T in [1e-6, 1e6].

    By NLL, T is the optimum. By another criterion it is the first minimum of the papers' grid, 0.1 to 10 by 0.1.
    """

    name: ClassVar[str] = "temperature"
    criterion: str = "nll"

    def __post_init__(self) -> None:
        grid.require_criterion(self.criterion)

    @property
    def keeps_ranking(self) -> bool:
        return True

    def fit_checked(
        self, z: Tensor, y: Tensor, progress: Progress, near: CalibrationMap | None = None
    ) -> TemperatureMap:
        if self.criterion != "nll":
            return TemperatureMap(z.shape[1], *grid.temperature(z, y, self.criterion, progress))
        found = solve.temperature_by_nll(z, y)
        report = FitReport("nll", nll_of(z, y), found.nll, found.iterations, found.converged, found.at_bound)
        return TemperatureMap(z.shape[1], found.value, report)
