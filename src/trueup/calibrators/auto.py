"""The default: the simplest calibrator that cross-validation cannot tell from the best one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from trueup.calibrators.base import CalibrationMap, Calibrator, Progress, fold_of
from trueup.calibrators.chain import ChainMap, chain_report, log_probs_of
from trueup.calibrators.focal import FocalTemperature
from trueup.calibrators.linear import BiasTemperature, Vector
from trueup.calibrators.softplus import Softplus
from trueup.calibrators.temperature import Identity, Temperature
from trueup.calibrators.threads import each_block
from trueup.inputs import InputError, count

CANDIDATES: dict[str, tuple[Calibrator, ...]] = {
    "none": (Identity(),),
    "temperature": (Temperature(),),
    "focal-temperature": (FocalTemperature(),),
    "softplus": (Softplus(),),
    "softplus+bias-temperature": (Softplus(), BiasTemperature()),
    "softplus+vector": (Softplus(), Vector()),
}
"""Each as the steps of a chain, from the simplest to the richest.

A matrix after the softplus map has a slightly lower NLL with ten classes, and costs accuracy, most with a hundred."""


@dataclass(frozen=True)
class Auto(Calibrator):
    """Chooses by cross-validated NLL, the simplest within one standard error of the best, and fits it to all the data.

    To the NLL of n samples is added what one more would cost that goes to the runner-up: a few samples that are all
    right say little, and a map that stakes everything on them loses. With fewer samples than classes only maps
    without parameters for each class are candidates. ``fit_report.note`` says what was chosen and why.
    ``keep_ranking`` leaves only maps that never change the predicted class.
    """

    name: ClassVar[str] = "auto"
    keep_ranking: bool = False
    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        count(self.folds, "folds", least=2)
        count(self.seed, "seed", least=0)

    @property
    def keeps_ranking(self) -> bool:
        return self.keep_ranking

    def fit_checked(
        self, z: Tensor, y: Tensor, progress: Progress, near: CalibrationMap | None = None
    ) -> CalibrationMap:
        chosen, fitted = self.choose(z, y, progress)
        return fitted[chosen]

    def choose(self, z: Tensor, y: Tensor, progress: Progress) -> tuple[str, dict[str, CalibrationMap]]:
        """The name of the chosen candidate, and each candidate fitted to all the data."""
        if len(z) < 2:
            raise InputError(f"auto: {len(z)} sample; cross-validation needs at least 2")
        few = len(z) < z.shape[1]
        candidates = {
            name: steps
            for name, steps in CANDIDATES.items()
            if not (self.keep_ranking or few) or all(step.keeps_ranking for step in steps)
        }
        folds = min(self.folds, len(z))
        fold = fold_of(len(z), folds, self.seed).to(z.device)
        work = len(candidates) * (folds + 1)
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            progress(done / work)

        whole = _Fits(z, y)
        fitted = {}
        for name, steps in candidates.items():
            fitted[name] = whole.maps(steps)
            advance()
        losses = {name: np.empty(len(z)) for name in candidates}
        for k in range(folds):
            outside, inside = fold != k, fold == k
            part = _Fits(z[outside], y[outside])
            held_out, labels = z[inside], y[inside]
            for name, steps in candidates.items():
                made = _as_one(part.maps(steps, fitted[name]))
                losses[name][inside.cpu().numpy()] = _losses(held_out, labels, made, len(z))
                advance()
        name, note = _choose(losses, folds)
        if few:
            note += f"; {len(z)} samples for {z.shape[1]} classes: maps with parameters for each class were left out"
        made = {candidate: _as_one(maps) for candidate, maps in fitted.items()}
        report = made[name].fit_report or chain_report(z, y, fitted[name])
        made[name].fit_report = replace(report, note=note)
        return name, made


def _choose(losses: dict[str, np.ndarray], folds: int) -> tuple[str, str]:
    """The first whose mean loss is within one standard error, of the paired difference, of the least."""
    means = {name: float(loss.mean()) for name, loss in losses.items()}
    best = min(means, key=means.__getitem__)
    excess = {name: loss - losses[best] for name, loss in losses.items()}
    close = [name for name, e in excess.items() if e.mean() <= e.std(ddof=1) / np.sqrt(len(e))]
    name = close[0]  # the best itself is among them
    rivals = ", ".join(f"{other} {mean:.4f}" for other, mean in means.items() if other != name)
    why = "the least" if name == best else f"the simplest within one standard error of {best}"
    more = "each counts one made-up sample more, of the second most probable class"
    return name, f"{name}: {folds}-fold cross-validated NLL {means[name]:.4f}, {why}; {rivals}; {more}"


def _losses(z: Tensor, y: Tensor, made: CalibrationMap, samples: int) -> np.ndarray:
    """(N,) NLL of each sample, and its share in that of one more sample whose label is the second class."""

    def of_block(rows: slice, block: Tensor) -> Tensor:
        log_probs = made.log_probs(block)
        own = log_probs.gather(1, y[rows, None])[:, 0].double()
        return -own - log_probs.topk(2, dim=1).values[:, 1].double() / (samples + 1)

    return torch.cat(list(each_block(of_block, z))).cpu().numpy()


def _as_one(maps: list[CalibrationMap]) -> CalibrationMap:
    return maps[0] if len(maps) == 1 else ChainMap(maps[0].classes, maps)


class _Fits:
    """The fits to one set of data; chains that begin with the same steps share them."""

    def __init__(self, z: Tensor, y: Tensor) -> None:
        self.z, self.y = z, y
        self._maps: dict[tuple[Calibrator, ...], CalibrationMap] = {}
        self._logits: dict[tuple[Calibrator, ...], Tensor] = {(): z}

    def maps(self, steps: tuple[Calibrator, ...], near: list[CalibrationMap] | None = None) -> list[CalibrationMap]:
        found = []
        for i in range(len(steps)):
            before, upto = steps[:i], steps[: i + 1]
            if upto not in self._maps:
                if before not in self._logits:
                    self._logits[before] = log_probs_of(self._logits[before[:-1]], self._maps[before])
                start = near[i] if near else None
                self._maps[upto] = steps[i].fit_checked(self._logits[before], self.y, lambda _: None, start)
            found.append(self._maps[upto])
        return found
