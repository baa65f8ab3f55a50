"""What the charts of one set of predictions show, as plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trueup.audit import scores_of
from trueup.diagrams import confidences, reliability
from trueup.metrics.scores import Scores, TopLabel
from trueup.predictions import Predictions
from trueup.report import images
from trueup.report.live import BINS, NUMBERS, Progress, live, rounded

LISTED = 100
"""Diagrams are made for at most so many classes."""
MISTAKES = 16
POINTS = 250
"""Of a risk-coverage curve."""


def one_set(
    test: Predictions,
    *,
    name: str,
    fitted: dict[str, Any] | None,
    after: Scores | None = None,
    bins: int = BINS,
    per_class: bool = True,
    thumbnail: Callable[[int], str | None] | None = None,
    most: int = NUMBERS,
    progress: Progress = None,
) -> dict[str, Any]:
    """Everything the charts show of one set; ``after``: the scores of the same samples after the fitted map."""
    scores = scores_of(test)
    listed = furthest_off(scores) if per_class else []
    curves = [{"name": "as it is"} | coverage(scores)]
    if after is not None:
        curves.append({"name": "after scaling"} | coverage(after))
    return {
        "name": name,
        "samples": len(test),
        "class_names": list(test.class_names or map(str, range(test.classes))),
        "listed": listed,
        "reliability": diagrams(scores, listed, bins, None if progress is None else lambda x: progress(0.4 * x)),
        "histogram": histogram(scores),
        "coverage": curves,
        "mistakes": mistakes(scores, thumbnail or images.carried(test)),
        "live": live(
            test, fitted, bins=bins, most=most, progress=None if progress is None else lambda x: progress(0.4 + 0.6 * x)
        ),
    }


def furthest_off(scores: Scores) -> list[int]:
    """The classes that get a diagram of their own: all, or those whose probabilities are furthest off on the whole."""
    if scores.classes <= LISTED:
        return list(range(scores.classes))
    counts = np.bincount(scores.labels.cpu().numpy(), minlength=scores.classes)
    off = np.abs(scores.column_sums - counts)
    return sorted(np.argsort(-off, kind="stable")[:LISTED].tolist())


def diagrams(
    scores: Scores, listed: list[int], bins: int = BINS, progress: Progress = None
) -> dict[str, dict[str, Any]]:
    """By what is forecast, then by class (or "all"), then by bins of equal "width" or "mass".

    "top": the confidence in the predicted class, of all samples or of those predicted as that class. "class": the
    probability of a class as a forecast that this is the label; all classes together, or one.
    """
    probs, labels = scores.probs.cpu().numpy(), scores.labels.cpu().numpy()
    predicted = probs.argmax(1)
    every = np.zeros(probs.shape, bool)
    every[np.arange(len(labels)), labels] = True
    found: dict[str, dict[str, Any]] = {
        "top": {"all": _both(scores, bins)},
        "class": {"all": _both(TopLabel(np.ascontiguousarray(probs).ravel(), every.ravel()), bins)},
    }
    for i, k in enumerate(listed):
        said = predicted == k
        found["top"][str(k)] = _both(TopLabel(scores.confidence[said], scores.correct[said]), bins, 200)
        found["class"][str(k)] = _both(TopLabel(np.ascontiguousarray(probs[:, k]), labels == k), bins, 200)
        if progress:
            progress((i + 1) / len(listed))
    return found


def _both(of: TopLabel, bins: int, resamples: int = 1000) -> dict[str, Any] | None:
    """Nothing where no sample is."""
    if not len(of):
        return None
    return {scheme: _diagram(of, scheme, bins, resamples) for scheme in ("width", "mass")}


def _diagram(of: TopLabel, scheme: str, bins: int, resamples: int) -> dict[str, Any]:
    found = reliability(of, bins=bins, scheme=scheme, resamples=resamples)
    return {
        "samples": len(of),
        "error": found.ece,
        "left": rounded(found.edges[:, 0]),
        "right": rounded(found.edges[:, 1]),
        "confidence": rounded(found.confidence),
        "accuracy": rounded(found.accuracy),
        "low": rounded(found.low),
        "high": rounded(found.high),
        "share": rounded(found.share),
        "histogram": rounded(found.histogram),
    }


def histogram(scores: Scores) -> dict[str, Any]:
    """The confidences of the right and of the wrong predictions, each as shares of their own number."""
    found = confidences(scores, bins=20)
    parts = {}
    for name, shares in (("right", found.right), ("wrong", found.wrong)):
        total = float(shares.sum())
        parts[name] = {"share": total, "bins": rounded(shares / total) if total else []}
    return parts | {"edges": rounded(found.edges), "mean": found.mean, "accuracy": found.accuracy}


def coverage(scores: TopLabel) -> dict[str, Any]:
    """The error among the most confident, for every share of them; equal confidences come together or not at all."""
    ranked = scores.ranked
    confidence = ranked.confidence[::-1]
    wrong = np.arange(1, len(scores) + 1) - (ranked.right[-1] - ranked.right[-2::-1])
    last = np.flatnonzero(np.append(confidence[1:] != confidence[:-1], True))
    kept = last if len(last) <= POINTS else last[np.linspace(0, len(last) - 1, POINTS).round().astype(int)]
    return {
        "coverage": rounded((kept + 1) / len(scores)),
        "risk": rounded(wrong[kept] / (kept + 1)),
        "threshold": rounded(confidence[kept].astype(np.float64)),
        "error": float(wrong[-1] / len(scores)),
    }


def mistakes(scores: Scores, thumbnail: Callable[[int], str | None]) -> list[dict[str, Any]]:
    """The wrong predictions with the highest confidences, the most confident first."""
    wrong = np.flatnonzero(~scores.correct)
    worst = wrong[np.argsort(-scores.confidence[wrong], kind="stable")[:MISTAKES]]
    return [
        {
            "row": row,
            "said": int(scores.probs[row].argmax()),
            "confidence": float(scores.confidence[row]),
            "label": int(scores.labels[row]),
            "probability": float(scores.true[row]),
            "image": thumbnail(row),
        }
        for row in worst.tolist()
    ]
