"""Measure calibration: pure functions ``(probs, labels, ...) -> float``, intervals, and a streaming meter."""

from collections.abc import Callable

from trueup.metrics.binned import adaptive_ece, classwise_ece, debiased_ece, ece, mce
from trueup.metrics.decompose import brier_decomposition, outcomes
from trueup.metrics.meter import Meter
from trueup.metrics.resample import Interval, Resampler, bootstrap, under_calibration
from trueup.metrics.scores import (
    Scores,
    brier,
    confident_share,
    error,
    nll,
    overconfidence,
    score,
    score_logits,
)
from trueup.metrics.smooth import smooth_ece

METRICS: dict[str, Callable[..., float]] = {
    "nll": nll,
    "brier": brier,
    "error": error,
    "ece": ece,
    "adaptive_ece": adaptive_ece,
    "mce": mce,
    "classwise_ece": classwise_ece,
    "debiased_ece": debiased_ece,
    "smooth_ece": smooth_ece,
}
"""Every metric that is one number, by name. The tables, the commands and the law tests go through this list."""

__all__ = [
    "METRICS",
    "Interval",
    "Meter",
    "Resampler",
    "Scores",
    "adaptive_ece",
    "bootstrap",
    "brier",
    "brier_decomposition",
    "classwise_ece",
    "confident_share",
    "debiased_ece",
    "ece",
    "error",
    "mce",
    "nll",
    "outcomes",
    "overconfidence",
    "score",
    "score_logits",
    "smooth_ece",
    "under_calibration",
]
