"""Predictions -> every metric with an honest interval, and a verdict in words."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group

from trueup import tables
from trueup.inputs import InputError, between_0_and_1, count
from trueup.metrics import METRICS, Interval, Scores, brier_decomposition, confident_share, overconfidence
from trueup.metrics.resample import CALIBRATION_ERRORS, Resampler
from trueup.metrics.scores import score, score_logits
from trueup.predictions import Predictions


@dataclass(frozen=True)
class Measure:
    """One metric: its value, its interval, and for a calibration error what a calibrated model would show."""

    value: float
    low: float | None = None
    high: float | None = None
    calibrated: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class Audit:
    """What ``audit`` found. It prints as a table."""

    n: int
    classes: int
    metrics: dict[str, Measure]
    overconfidence: Measure
    """Mean confidence minus accuracy."""
    accuracy: float
    brier_calibration: float
    brier_refinement: float
    confident_share: float
    """The share of predictions with a confidence of at least 0.99, and their accuracy."""
    confident_accuracy: float
    level: float
    resamples: int
    source: str = ""
    bins: int = 15
    predictions: Predictions | None = field(default=None, repr=False, compare=False)
    """What was audited: the page draws it."""

    def verdict(self) -> str:
        """The finding in a sentence."""
        ece = self.metrics["ece"]
        if self.resamples and 1 / (1 + self.resamples) > _SIGNIFICANT:  # the least p that so many can give
            enough = round(1 / _SIGNIFICANT) - 1
            return f"No verdict: {self.resamples} resamples are too few for one; ask for {enough} or more, or for none."
        by_class = self.metrics["classwise_ece"]
        if ece.p is not None and ece.p > _SIGNIFICANT:
            if by_class.p is not None and by_class.p <= _SIGNIFICANT:
                return (
                    f"ECE finds no miscalibration ({_beside_calibrated(ece)}), "
                    f"classwise ECE does: {_beside_calibrated(by_class)}."
                )
            return f"No miscalibration found: ECE {_beside_calibrated(ece)}."
        return self._confidence() + self._more_by_class()

    def _confidence(self) -> str:
        """Of predictions that are not calibrated: too sure, or not sure enough."""
        gap, ece = self.overconfidence, self.metrics["ece"]
        if gap.low is not None and gap.high is not None and gap.low <= 0 <= gap.high:
            return f"Miscalibrated, neither over- nor under-confident on the whole: ECE {100 * ece.value:.2f} %."
        word = "Over-confident" if gap.value > 0 else "Under-confident"
        size = f"{word} by {100 * abs(gap.value):.1f} points"
        if gap.low is None or gap.high is None:
            return f"{size}."
        low, high = sorted((abs(gap.low), abs(gap.high)))
        return f"{size} ({100 * self.level:.0f} % interval {100 * low:.1f} to {100 * high:.1f})."

    def _more_by_class(self) -> str:
        """Of two classes the errors by class are those of the predicted one, unless one class has too much throughout:
        in the predicted class too much of the one and too little of the other then cancel out."""
        ece, by_class = self.metrics["ece"], self.metrics["classwise_ece"]
        if self.classes != 2 or by_class.low is None or ece.high is None or by_class.low <= ece.high:
            return ""
        return f" By class it is worse, as where one class gets too much: classwise ECE {100 * by_class.value:.2f} %."

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; what is not finite, or was not asked for, is None."""
        metrics = {}
        for name, measure in self.metrics.items():
            entry = asdict(measure)
            if name not in _CALIBRATION_NAMES:
                del entry["calibrated"], entry["p"]
            metrics[name] = entry
        whole = {
            "n": self.n,
            "classes": self.classes,
            "metrics": metrics,
            "overconfidence": {k: v for k, v in asdict(self.overconfidence).items() if k in ("value", "low", "high")},
            "accuracy": self.accuracy,
            "brier_decomposition": {"calibration": self.brier_calibration, "refinement": self.brier_refinement},
            "confident": {"threshold": 0.99, "share": self.confident_share, "accuracy": self.confident_accuracy},
            "level": self.level,
            "resamples": self.resamples,
            "verdict": self.verdict(),
        }
        return finite(whole)

    def to_html(self, path: str | os.PathLike[str], progress: Callable[[float], None] | None = None) -> None:
        """Writes one page with the finding, its charts and knobs to turn, which needs neither Python nor a network."""
        import trueup.report  # stands above this module, and is asked for only here

        if self.predictions is None:
            raise InputError("to_html: this audit does not hold its predictions; make it with trueup.audit")
        trueup.report.page_path(path)
        trueup.report.write(path, trueup.report.of_predictions(self.predictions, self, progress=progress))

    def __rich__(self) -> Group:
        columns = ["", "value"]
        if self.resamples:
            columns += [f"{100 * self.level:.0f} % interval", "if calibrated", "p"]
        title = (
            f"{self.source + ': ' if self.source else ''}{self.n} sample{'s' * (self.n != 1)}, {self.classes} classes"
        )
        shown = tables.table(title, *columns)
        for name, measure in self.metrics.items():
            cells = [tables.title(name), tables.number(name, measure.value)]
            if self.resamples:
                interval = f"{tables.number(name, measure.low, unit='')} to {tables.number(name, measure.high)}"
                p = "" if measure.p is None else f"{measure.p:.3f}"
                cells += [interval, tables.number(name, measure.calibrated), p]
            shown.add_row(*cells)
        confident = f"{100 * self.confident_share:.1f} % of the predictions have a confidence of at least 0.99"
        if self.confident_share:
            confident += f"; {100 * self.confident_accuracy:.1f} % of those are right"
        brier = f"Brier score = {self.brier_calibration:.4f} calibration + {self.brier_refinement:.4f} refinement"
        notes = [_AT_THE_VALUE] if any(self._ends_at_value(name) for name in self.metrics) else []
        return Group(shown, *notes, "", self.verdict(), confident + ".", brier + ".")

    def _ends_at_value(self, name: str) -> bool:
        measure = self.metrics[name]
        return name in _CALIBRATION_NAMES and measure.low != measure.high == measure.value

    def __str__(self) -> str:
        return tables.text(self)

    __repr__ = __str__


def _beside_calibrated(measure: Measure) -> str:
    expected = 100 * (measure.calibrated or 0)
    return f"{100 * measure.value:.2f} %, where a calibrated model would show {expected:.2f} %"


_SIGNIFICANT = 0.05 / 2
"""The largest p with which a verdict finds miscalibration: it looks at two tests, which share an error of 5 %."""
_AT_THE_VALUE = (
    "An interval that ends at its value: noise adds to a calibration error, and the upper limit, corrected for that, "
    "came out lower, but the interval always contains the value."
)
_CALIBRATION_NAMES = [name for name, metric in METRICS.items() if metric in CALIBRATION_ERRORS]


def audit(
    predictions: Predictions,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    bins: int = 15,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Audit:
    """Every metric of the predictions; ``resamples=0`` leaves out the intervals."""
    count(resamples, "resamples", least=0)
    between_0_and_1(level, "level")
    s = scores_of(predictions)
    resampler = Resampler(s, max(resamples, 1), seed, bins)
    metrics = {}
    for i, (name, metric) in enumerate(METRICS.items()):
        if not resamples:
            metrics[name] = Measure(resampler.value(metric))
        else:
            found = resampler.interval(metric, level)
            tested = resampler.test(metric) if metric in CALIBRATION_ERRORS else (None, None)
            metrics[name] = Measure(*found, *tested)
        if progress:
            progress((i + 1) / len(METRICS))
    gap = resampler.interval(overconfidence, level) if resamples else Interval(overconfidence(s), None, None)  # type: ignore[arg-type]
    parts, confident = brier_decomposition(s, bins=bins), confident_share(s)
    return Audit(
        n=len(s),
        classes=s.classes,
        metrics=metrics,
        overconfidence=Measure(*gap),
        accuracy=float(s.correct.mean()),
        brier_calibration=parts.calibration,
        brier_refinement=parts.refinement,
        confident_share=confident.share,
        confident_accuracy=confident.accuracy,
        level=level,
        resamples=resamples,
        source=Path(str(predictions.meta.get("file", ""))).name,
        bins=bins,
        predictions=predictions,
    )


def scores_of(predictions: Predictions) -> Scores:
    """From whichever of logits and probabilities was given; logits give an NLL that never underflows."""
    if predictions.given == "logits":
        return score_logits(predictions.logits, predictions.labels)
    return score(predictions.probs, predictions.labels)


def finite(value: Any) -> Any:
    """The same with None for every number that JSON cannot write."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
