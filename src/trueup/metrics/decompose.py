"""What a score is made of: calibration and refinement, and the right and the wrong predictions apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trueup import inputs
from trueup.inputs import Array
from trueup.metrics import bins as binning
from trueup.metrics.scores import Scores, score


class BrierDecomposition(NamedTuple):
    calibration: float
    """What recalibration could gain: the squared gap between forecast and frequency."""
    refinement: float
    """What only a better model could gain."""


def brier_decomposition(probs: Array | Scores, labels: Array | None = None, bins: int = 15) -> BrierDecomposition:
    """brier = calibration + refinement (DeGroot & Fienberg, 1983), over bins of each class's probability.

    Calibration is the sum over classes and bins of (n_b/n) (mean p_k - share of label k)^2; refinement is the rest,
    which includes what the forecasts within one bin tell apart (Stephenson et al., 2008).
    """
    s = score(probs, labels)
    counts, predicted, observed = binning.class_bins(s, inputs.count(bins, "bins"))
    gaps = np.divide((predicted - observed) ** 2, counts, out=np.zeros_like(counts), where=counts > 0)
    calibration = float(gaps.sum() / len(s))
    return BrierDecomposition(calibration, float(s.brier.mean()) - calibration)


class Outcome(NamedTuple):
    """Means over one group of samples; NaN where the group is empty."""

    samples: int
    nll: float
    entropy: float
    true_probability: float


class Outcomes(NamedTuple):
    all: Outcome
    correct: Outcome
    wrong: Outcome


def outcomes(probs: Array | Scores, labels: Array | None = None) -> Outcomes:
    """NLL, entropy and mean p_y of all, of the rightly and of the wrongly classified samples.

    What mukhoti2020 follows over the epochs of a training (its Figures 1 and 3).
    """
    s = score(probs, labels)

    def over(group: np.ndarray) -> Outcome:
        if not group.any():
            return Outcome(0, *[float("nan")] * 3)
        log_true = s.log_true[group]
        means = (-log_true.mean(), s.entropy[group].mean(), np.exp(log_true).mean())
        return Outcome(int(group.sum()), *map(float, means))

    return Outcomes(over(np.ones(len(s), bool)), over(s.correct), over(~s.correct))
