"""One map after another: each is fitted to what the ones before it give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trueup.calibrators.base import CalibrationMap, Calibrator, FitReport, Progress, nll_of
from trueup.calibrators.threads import fill
from trueup.inputs import InputError


class ChainMap(CalibrationMap):
    """The last map of the log-probabilities of the one before it, and so on."""

    kind = "chain"

    def __init__(self, classes: int, maps: list[CalibrationMap], fit_report: FitReport | None = None) -> None:
        super().__init__(classes, fit_report)
        if not isinstance(maps, list) or not maps or not all(isinstance(step, CalibrationMap) for step in maps):
            raise InputError(f"maps: expected the steps of the chain, one at least, got {maps!r}")
        if {step.classes for step in maps} != {self.classes}:
            raise InputError(f"maps: for {[step.classes for step in maps]} classes in a chain for {self.classes}")
        self.maps = nn.ModuleList(maps)

    @property
    def steps(self) -> list[CalibrationMap]:
        return [step for step in self.maps if isinstance(step, CalibrationMap)]

    def scores(self, logits: Tensor) -> Tensor:
        *before, last = self.steps
        for step in before:
            logits = step.log_probs(logits)
        return last.scores(logits)

    def values(self) -> dict[str, Any]:
        return {"maps": self.steps}


@dataclass(frozen=True, init=False)
class Chain(Calibrator):
    """``Chain(Softplus(), Vector())``: the first is fitted, the second to its log-probabilities, and so on."""

    name: ClassVar[str] = "chain"
    steps: tuple[Calibrator, ...]

    def __init__(self, *steps: Calibrator) -> None:
        if not steps or not all(isinstance(step, Calibrator) for step in steps):
            raise InputError(f"Chain: expected calibrators, such as Chain(Softplus(), Vector()), got {steps!r}")
        object.__setattr__(self, "steps", steps)

    @property
    def keeps_ranking(self) -> bool:
        return all(step.keeps_ranking for step in self.steps)

    def fit_checked(self, z: Tensor, y: Tensor, progress: Progress, near: CalibrationMap | None = None) -> ChainMap:
        starts = near.steps if isinstance(near, ChainMap) else [None] * len(self.steps)
        maps, x = [], z
        for i, (step, start) in enumerate(zip(self.steps, starts, strict=True)):
            maps.append(step.fit_checked(x, y, progress, start))
            if i + 1 < len(self.steps):
                x = log_probs_of(x, maps[-1])
        return ChainMap(z.shape[1], maps, chain_report(z, y, maps))


def chain_report(z: Tensor, y: Tensor, maps: list[CalibrationMap]) -> FitReport:
    """What the reports of the steps say of the whole."""
    reports = [made.fit_report for made in maps if made.fit_report is not None]
    return FitReport(
        reports[-1].criterion,
        nll_of(z, y),
        reports[-1].after,
        sum(report.iterations for report in reports),
        all(report.converged for report in reports),
        any(report.at_bound for report in reports),
    )


def log_probs_of(z: Tensor, made: CalibrationMap) -> Tensor:
    """(N, K) the log-probabilities that a map gives, block by block."""
    return fill(torch.empty_like(z), made.log_probs, z)
