"""Predictions -> the content of their page, as plain data: numbers, names and words, no markup."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import trueup
from trueup import tables
from trueup.audit import Audit, Measure, audit, finite
from trueup.calibrators.focal import FocalTemperatureMap
from trueup.compare import SHOWN, Comparison, Row
from trueup.inputs import InputError
from trueup.metrics.scores import Scores, score
from trueup.predictions import Predictions
from trueup.report.charts import one_set
from trueup.report.live import Progress, fit

SCALING = "focal temperature scaling"


def of_predictions(
    test: Predictions,
    found: Audit,
    *,
    val: Predictions | None = None,
    comparison: Comparison | None = None,
    progress: Progress = None,
) -> dict[str, Any]:
    """The page of one set of predictions and its audit.

    With ``val`` the knobs' optimum is fitted there, and the page tells what it is worth on ``test``; without, it is
    that of the samples themselves. A ``comparison`` is shown where there is one.
    """
    if val is not None and val.classes != test.classes:
        raise InputError(f"val: {val.classes} classes, where test has {test.classes}")
    name = Path(str(test.meta.get("file", ""))).name or "predictions"
    fitted = None if val is None else fit(val, "the validation samples")
    after, scores = (None, None) if fitted is None else _judged_after(fitted, test, found)
    further = [] if comparison is None else [_words_of_auto(row) for row in comparison.rows if row.calibrator == "auto"]
    if fitted is not None and after is not None:
        further.append(_words_after(fitted, after))
    content = {
        "kind": "predictions",
        "title": name,
        "headline": found.verdict(),
        "further": further,
        "facts": _facts(test, val),
        "tiles": _tiles(found, after),
        "metrics": _metric_rows(found),
        "level": found.level,
        "comparison": None if comparison is None else _comparison_table(comparison),
        "sets": [one_set(test, name=name, fitted=fitted, after=scores, bins=found.bins, progress=progress)],
    }
    return signed(content)


def signed(content: dict[str, Any]) -> dict[str, Any]:
    """With who made it and when, and with None for what JSON cannot write."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return finite(content | {"made_by": f"trueup {trueup.__version__}", "date": today})


# ---------------------------------------------------------------------- words


def _judged_after(fitted: dict[str, Any], test: Predictions, found: Audit) -> tuple[Audit, Scores]:
    made = FocalTemperatureMap(test.classes, fitted["temperature"], fitted["gamma"])
    calibrated = test.calibrated(made(test.logits))
    judged = audit(calibrated, resamples=found.resamples, level=found.level, bins=found.bins)
    return judged, score(calibrated.probs, calibrated.labels)


def _words_after(fitted: dict[str, Any], after: Audit) -> str:
    verdict = after.verdict()
    setting = f"T = {fitted['temperature']:.3g}, γ = {fitted['gamma']:.2g}".replace("-", "−")
    return f"After {SCALING} ({setting}): {verdict[0].lower()}{verdict[1:]}"


def _words_of_auto(row: Row) -> str:
    """What the calibrator that is advised is worth, as the knobs turn another one."""
    ece, chosen = row.metrics["ece"], row.note.partition(":")[0]
    beside = "" if ece.calibrated is None else f" (if calibrated: {_percent(ece.calibrated)})"
    found = f"ECE {_percent(ece.value)}{beside}, NLL {row.metrics['nll'].value:.4f}."
    return f"After auto, the default calibrator (here {chosen}): {found}"


def _percent(share: float) -> str:
    return tables.number("ece", share)


def _facts(test: Predictions, val: Predictions | None) -> list[str]:
    said = [f"{counted(len(test), 'sample')} of {test.classes} classes, given as {test.given}"]
    if val is None:
        said.append("given validation samples too, it would also say what calibration is worth here")
    else:
        file = Path(str(val.meta.get("file", ""))).name
        said.append(f"maps fitted to {counted(len(val), 'other')}" + (f" ({file})" if file else ""))
    return said


def counted(count: int, one: str, many: str = "") -> str:
    """
    >>> counted(1, "seed"), counted(3, "seed"), counted(2, "loss", "losses")
    ('1 seed', '3 seeds', '2 losses')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def span(metric: str, low: float | None, high: float | None) -> str:
    """An interval as text; nothing where there is none."""
    return "" if low is None else f"{tables.number(metric, low, unit='')} to {tables.number(metric, high)}"


# ---------------------------------------------------------------------- numbers at a glance


def _tiles(found: Audit, after: Audit | None) -> list[dict[str, str]]:
    confidence = found.accuracy + found.overconfidence.value
    shown = [_tile("ece", found.metrics["ece"])]
    if after is not None:
        shown.append(_tile("ece", after.metrics["ece"]) | {"name": "ECE after scaling"})
    shown.append(
        {
            "name": "accuracy",
            "value": f"{100 * found.accuracy:.1f} %",
            "interval": "",
            "note": f"mean confidence {100 * confidence:.1f} %",
        }
    )
    for name in ("nll", "brier"):
        note = "" if after is None else f"{after.metrics[name].value:.4f} after scaling"
        shown.append(_tile(name, found.metrics[name]) | {"note": note})
    return shown


def _tile(name: str, measure: Measure) -> dict[str, str]:
    calibrated = measure.calibrated
    return {
        "name": tables.title(name),
        "value": tables.number(name, measure.value),
        "interval": span(name, measure.low, measure.high),
        "note": "" if calibrated is None else f"if calibrated: {tables.number(name, calibrated)}",
    }


def _metric_rows(found: Audit) -> list[dict[str, str]]:
    return [
        {
            "name": tables.title(name),
            "value": tables.number(name, measure.value),
            "interval": span(name, measure.low, measure.high),
            "calibrated": tables.number(name, measure.calibrated),
            "p": "" if measure.p is None else f"{measure.p:.3f}",
        }
        for name, measure in found.metrics.items()
    ]


# ---------------------------------------------------------------------- calibrators side by side


def _comparison_table(comparison: Comparison) -> dict[str, Any]:
    """Every cell has the number to sort by and the text to show."""
    best = {name: min(row.metrics[name].value for row in comparison.rows) for name in SHOWN}
    return {
        "columns": [column(name) for name in SHOWN],
        "rows": [_comparison_row(row, best) for row in comparison.rows],
        "fitted_on": comparison.n_val,
        "judged_on": comparison.n_test,
    }


def column(metric: str) -> dict[str, Any]:
    return {"name": metric, "title": tables.title(metric), "share": metric in tables.SHARES}


def _comparison_row(row: Row, best: dict[str, float]) -> dict[str, Any]:
    cells = []
    for name in SHOWN:
        measure = row.metrics[name]
        numbers = {"value": measure.value, "low": measure.low, "high": measure.high}
        text = {"text": tables.number(name, measure.value), "interval": span(name, measure.low, measure.high)}
        cells.append(numbers | text | {"best": measure.value == best[name]})
    params = ", ".join(f"{key.split('.')[-1]} {v:.3g}" for key, v in row.params.items() if isinstance(v, float))
    return {"name": row.calibrator, "cells": cells, "seconds": row.fit_seconds, "params": params, "note": row.note}
