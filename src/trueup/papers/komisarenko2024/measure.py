"""What is found out about one network: fits by every criterion, the line, the landscape, and the rivals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueup import inputs
from trueup.calibrators import CalibrationMap, FocalTemperature, Temperature
from trueup.calibrators.base import nll_of
from trueup.calibrators.focal import FocalTemperatureMap
from trueup.calibrators.grid import FOCAL_GAMMAS, FOCAL_TEMPERATURES, TOP_LABEL_CRITERIA
from trueup.diagrams import landscape
from trueup.focal import loss_of_r
from trueup.metrics import (
    Resampler,
    Scores,
    adaptive_ece,
    brier,
    ece,
    error,
    nll,
    overconfidence,
    score_logits,
    smooth_ece,
)  # fmt: skip
from trueup.metrics.scores import TopLabel
from trueup.papers.komisarenko2024.line import along_the_line, fitted_line
from trueup.papers.komisarenko2024.networks import Network, training_gamma
from trueup.papers.komisarenko2024.rivals import rivals
from trueup.predictions import Predictions

VERSION = 3
"""Of what is computed here; stored figures of another one are computed anew."""
CRITERIA = ("nll", "ece", "adaptive_ece")
"""What both parameters are chosen by on val. The paper's is adaptive_ece, which its text calls ECE."""
METRICS: dict[str, Callable[..., float]] = {
    "nll": nll, "brier": brier, "ece": ece, "adaptive_ece": adaptive_ece, "smooth_ece": smooth_ece, "error": error,
}  # fmt: skip
COMPARED = ("nll", "brier", "ece", "adaptive_ece", "smooth_ece")
TEMPERATURES, GAMMAS = np.geomspace(0.4, 6, 18), np.array([-0.9, -0.7, -0.4, -0.2, 0, 0.3, 0.6, 1, 1.5, 2, 3, 4, 5])
"""Of the landscape that is drawn."""
DRAWN_SAMPLES = 1500


@torch.inference_mode()  # thousands of operations on a few rows, of which bookkeeping for gradients is a part
def measure(network: Network, resamples: int, seed: int = 0) -> dict[str, Any]:
    """Everything about a network, as plain numbers."""
    val, test = network.predictions()
    psi = trained_with(network.loss, test, resamples, seed)
    return {**network.about(), "resamples": resamples, "seed": seed, **figures(val, test, resamples, seed), "psi": psi}


def trained_with(loss: str, test: Predictions, resamples: int, seed: int) -> dict[str, Any] | None:
    """What the focal map of the training gamma makes of a focal network on test; None for other losses."""
    gamma = training_gamma(loss)
    if not gamma:
        return None
    before, after = (
        Resampler(score_through(made, test), resamples, seed)
        for made in (None, FocalTemperatureMap(test.classes, 1.0, gamma))
    )
    return {
        "gamma": gamma,
        "test": {name: metric(after.scores) for name, metric in METRICS.items()},
        "overconfidence": list(after.interval(overconfidence)),
        "difference": {name: list(after.difference(before, METRICS[name])) for name in COMPARED},
        "lowered": float((after.scores.confidence < before.scores.confidence).mean()),
    }


def figures(val: Predictions, test: Predictions, resamples: int, seed: int) -> dict[str, Any]:
    """The numbers alone."""
    before = score_through(None, test)
    made = fits(val)
    seen = {
        criterion: [Resampler(score_through(each, test), resamples, seed) for each in both]
        for criterion, both in made.items()
    }
    line, short = fitted_line(val.logits, val.labels), along_the_line(val.logits, val.labels)
    one, two = Resampler(score_through(short, test), resamples, seed), seen["nll"][1]
    some = slice(None, None, -(-len(val) // DRAWN_SAMPLES))
    drawn = landscape(val.logits[some], val.labels[some], temperatures=TEMPERATURES, gammas=GAMMAS)
    return {
        "classes": val.classes, "n_val": len(val), "n_test": len(test),
        "before": {name: metric(before) for name, metric in METRICS.items()},
        "overconfidence": list(Resampler(before, resamples, seed).interval(overconfidence)),
        "criteria": {criterion: compare(made[criterion], seen[criterion], val) for criterion in made},
        "line": line.to_dict() | {
            "one_parameter": {
                "temperature": short.temperature, "gamma": short.gamma,
                "val_nll": nll_of(val.logits, val.labels, short), "less_two": list(one.difference(two, nll)),
                "ece_less_two": list(one.difference(two, ece)),
            },
        },
        "landscape": drawn.values.tolist(),
        "rivals": rivals(val, test, seed),
    }  # fmt: skip


def fits(val: Predictions) -> dict[str, tuple[CalibrationMap, CalibrationMap]]:
    """By each criterion: temperature scaling and focal temperature scaling, from one grid where it takes a grid."""
    made: dict[str, tuple[CalibrationMap, CalibrationMap]] = {
        "nll": (Temperature().fit(val.logits, val.labels), FocalTemperature().fit(val.logits, val.labels))
    }
    correct, table = (val.logits.argmax(1) == val.labels).numpy(), confidences(val.logits)
    zero = int(np.flatnonzero(FOCAL_GAMMAS == 0)[0])
    for criterion in CRITERIA[1:]:
        metric = TOP_LABEL_CRITERIA["mukhoti2020_adaptive_ece" if criterion == "adaptive_ece" else criterion]
        plain, focal = (
            FocalTemperatureMap(val.classes, float(FOCAL_TEMPERATURES[t]), float(FOCAL_GAMMAS[gammas][g]))
            for gammas in (slice(zero, zero + 1), slice(None))
            for g, t in [least(metric, table[gammas], correct)]
        )
        made[criterion] = plain, focal
    return made


def least(metric: Callable[[TopLabel], float], table: np.ndarray, correct: np.ndarray) -> tuple[int, int]:
    """(gamma, temperature) of the first least value over a table (gammas, temperatures, N) of confidences.

    No sum of |gap| over bins is below the |gap| of all that they hold, which is all but, in the paper's own bins, the
    least confident: most points are out of the question by that alone.
    """
    left_out = (table == table.min(2, keepdims=True)).mean(2)
    at_least = np.abs(table.mean(2, dtype=np.float64) - correct.mean()) - left_out - 1e-9
    values, best = np.full(at_least.shape, np.inf), np.inf
    for point in np.argsort(at_least, axis=None):
        at = np.unravel_index(point, values.shape)
        if at_least[at] > best:
            break
        values[at] = metric(TopLabel(table[at], correct))
        best = min(best, values[at])
    g, t = np.unravel_index(int(values.argmin()), values.shape)
    return int(g), int(t)


def confidences(z: Tensor) -> np.ndarray:
    """(gammas, temperatures, N) the top probability at every point of the paper's grid.

    With w_j the share of class j in the mass q of all classes but the largest, h of the others over that of the largest
    is the sum of w_j (1 - v_j)^-g / (1 + g r_j), times q^(1+g) (1 + g r) / (1 - q): powers of quarters, so that no
    logarithm or exponential is taken for a gamma.
    """
    kept = np.empty((len(FOCAL_GAMMAS), len(FOCAL_TEMPERATURES), len(z)), np.float32)
    steps, one = np.diff(FOCAL_GAMMAS, prepend=0.0), torch.tensor(1.0)
    for rows, block in inputs.row_blocks(z):
        d = block.double() - block.amax(1, keepdim=True).double()
        masked = d.scatter(1, block.argmax(1, keepdim=True), -1e300)
        for j, temperature in enumerate(FOCAL_TEMPERATURES.tolist()):
            below = masked / temperature
            log_rest = below.logsumexp(1, keepdim=True)
            log_mass = torch.log1p(log_rest.exp())
            log_v = below - log_mass
            v = log_v.exp()
            q = 1 - v
            # single precision from here on, which is what is kept
            r = log_v.mul_(v).div_(q).neg_().float()
            root = q.float().rsqrt_().sqrt_()
            terms = below.sub_(log_rest).float().exp_()
            log_rest, log_q_top = log_rest[:, 0], (log_rest - log_mass)[:, 0]
            lost = log_q_top.exp()
            lost *= loss_of_r(lost)  # 1 - r of the largest
            for i, (gamma, step) in enumerate(zip(FOCAL_GAMMAS.tolist(), steps.tolist(), strict=True)):
                terms *= root if step == 0.25 else root ** (4 * step)
                others = torch.div(terms, torch.add(one, r, alpha=gamma)).sum(1).double()
                others *= torch.exp(log_rest + gamma * log_q_top) * ((1 + gamma) - gamma * lost)
                kept[i, j, rows] = (1 / (1 + others)).numpy()
    return kept


def compare(both: tuple[CalibrationMap, CalibrationMap], on_test: list[Resampler], val: Predictions) -> dict[str, Any]:
    """Both on test, and the difference, focal temperature less temperature, with the same rows resampled for both."""
    found: dict[str, Any] = {}
    for name, made, resampler in zip(("temperature", "focal-temperature"), both, on_test, strict=True):
        found[name] = {
            "temperature": made.temperature, "gamma": getattr(made, "gamma", 0.0),
            "val_nll": nll_of(val.logits, val.labels, made),
            "test": {name: resampler.value(metric) for name, metric in METRICS.items()},
        }  # fmt: skip
    plain, focal = on_test
    found["difference"] = {name: list(focal.difference(plain, METRICS[name])) for name in COMPARED}
    return found


def score_through(made: CalibrationMap | None, test: Predictions) -> Scores:
    """The test set as a map sees it, in float64; from logits, so that no NLL underflows to infinity."""
    z = test.logits.double()
    return score_logits(z if made is None else made.scores(z), test.labels)
