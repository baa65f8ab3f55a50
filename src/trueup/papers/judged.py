"""What a network's predictions give in the terms of the papers: before and after a temperature, with intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from trueup.audit import Measure, finite
from trueup.calibrators import Temperature
from trueup.inputs import InputError
from trueup.metrics import (
    Interval,
    Resampler,
    Scores,
    adaptive_ece,
    classwise_ece,
    confident_share,
    ece,
    error,
    mce,
    nll,
    overconfidence,
    score_logits,
)
from trueup.predictions import Predictions

QUANTITIES: dict[str, Callable[[Scores], float]] = {
    "error": error,
    "nll": nll,
    "ece": ece,
    "adaptive_ece": partial(adaptive_ece, edges="mukhoti2020"),
    "mce": mce,
    "classwise_ece": classwise_ece,
    "overconfidence": overconfidence,
    "s99": lambda scores: confident_share(scores).share,
    "s99_accuracy": lambda scores: confident_share(scores).accuracy,
}
WITH_INTERVALS = ("error", "nll", "ece", "overconfidence")
CRITERIA = {"ece": "ece", "adaptive_ece": "mukhoti2020_adaptive_ece", "nll": "nll"}
"""What the temperature was chosen by on val -> the criterion's name; ece and adaptive_ece by the paper's grid."""


@dataclass(frozen=True)
class State:
    """Before any temperature (T = 1), or after one."""

    temperature: float
    measures: dict[str, Measure]

    def __getitem__(self, quantity: str) -> float:
        return self.measures[quantity].value


@dataclass(frozen=True)
class Figures:
    """A network's figures on test, temperatures fitted on val."""

    n_val: int
    n_test: int
    resamples: int
    states: dict[str, State]
    """before; ece, adaptive_ece and nll: after the temperature chosen by it."""
    grid_less_nll: Interval
    """ECE after the T that the grid finds by ECE, less ECE after the T that NLL gives, rows resampled together."""

    @property
    def before(self) -> State:
        return self.states["before"]

    @property
    def after(self) -> State:
        """After the temperature that the paper's grid finds by ECE, which its tables print."""
        return self.states["ece"]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; intervals where there are some."""
        states = {}
        for name, state in self.states.items():
            measures = {
                quantity: {k: v for k, v in asdict(measure).items() if k == "value" or v is not None}
                for quantity, measure in state.measures.items()
            }
            states[name] = {"temperature": state.temperature, "metrics": measures}
        whole = {"n_val": self.n_val, "n_test": self.n_test, "resamples": self.resamples, "states": states}
        return finite(whole | {"grid_less_nll": self.grid_less_nll._asdict()})

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Figures:
        """What ``to_dict`` gave."""
        try:
            states = {
                name: State(
                    state["temperature"],
                    {
                        quantity: Measure(**{k: float("nan") if v is None else v for k, v in measure.items()})
                        for quantity, measure in state["metrics"].items()
                    },
                )
                for name, state in content["states"].items()
            }
            counts = (content["n_val"], content["n_test"], content["resamples"])
            return cls(*counts, states, Interval(**content["grid_less_nll"]))
        except (KeyError, TypeError, AttributeError) as problem:
            raise InputError(f"not the figures of a network ({problem})") from None


def figures(val: Predictions, test: Predictions, *, resamples: int = 300, seed: int = 0) -> Figures:
    """Every quantity before and after each temperature; intervals of a few before and after the paper's."""
    temperatures = {"before": 1.0}
    for name, criterion in CRITERIA.items():
        temperatures[name] = float(Temperature(criterion=criterion).fit(val.logits, val.labels).temperature)  # type: ignore[arg-type]
    scores = {name: score_logits(test.logits / t, test.labels) for name, t in temperatures.items()}
    resamplers = {name: Resampler(scores[name], resamples, seed) for name in ("before", "ece", "nll")}
    states = {}
    for name, of_state in scores.items():
        measures = {quantity: Measure(metric(of_state)) for quantity, metric in QUANTITIES.items()}
        if name in ("before", "ece"):
            for quantity in WITH_INTERVALS:
                measures[quantity] = Measure(*resamplers[name].interval(QUANTITIES[quantity]))
        states[name] = State(temperatures[name], measures)
    gain = resamplers["ece"].difference(resamplers["nll"], ece)
    return Figures(len(val), len(test), resamples, states, gain)
