"""val, test -> calibrators side by side: fitted on the one, judged on the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from trueup import tables
from trueup.audit import Measure, audit, finite
from trueup.calibrators import CALIBRATORS, CalibrationMap, Calibrator, calibrator
from trueup.inputs import InputError
from trueup.predictions import Predictions

DEFAULT = (*(name for name in CALIBRATORS if name != "focal-map"), "softplus+vector")
"""All that need no argument, and a chain."""

SHOWN = {
    "nll": "NLL",
    "ece": "ECE",
    "adaptive_ece": "adapt.",
    "classwise_ece": "classw.",
    "smooth_ece": "smooth",
    "error": "error",
}
"""The metrics of the table, and their short titles."""


@dataclass(frozen=True)
class Row:
    """One calibrator: what it fitted and how it does on the test set."""

    calibrator: str
    params: dict[str, Any]
    fit_seconds: float
    metrics: dict[str, Measure]
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """What ``compare`` found. It prints as a table."""

    rows: tuple[Row, ...]
    n_val: int
    n_test: int
    classes: int
    resamples: int = 0
    val: Predictions | None = field(default=None, repr=False, compare=False)
    """What was fitted to, and ``test``, what was judged: the page draws them."""
    test: Predictions | None = field(default=None, repr=False, compare=False)

    def to_list(self) -> list[dict[str, Any]]:
        """Plain numbers, a dict for each calibrator."""
        found = []
        for row in self.rows:
            metrics = {
                name: {key: v for key, v in asdict(measure).items() if v is not None}
                for name, measure in row.metrics.items()
            }
            entry = {
                "calibrator": row.calibrator,
                "params": row.params,
                "fit_seconds": row.fit_seconds,
                "metrics": metrics,
            }
            found.append(finite(entry | ({"note": row.note} if row.note else {})))
        return found

    def to_html(self, path: str | os.PathLike[str], progress: Callable[[float], None] | None = None) -> None:
        """Writes one page with the calibrators side by side, the test predictions' charts, and knobs to turn."""
        import trueup.report  # stands above this module, and is asked for only here

        if self.val is None or self.test is None:
            raise InputError("to_html: this comparison does not hold its predictions; make it with trueup.compare")
        trueup.report.page_path(path)
        found = audit(self.test, resamples=self.resamples)
        content = trueup.report.of_predictions(self.test, found, val=self.val, comparison=self, progress=progress)
        trueup.report.write(path, content)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= 120
        title = f"fitted on {self.n_val} samples, judged on {self.n_test} others, {self.classes} classes; errors in %"
        shown = tables.table(title, "calibrator", *SHOWN.values(), "fit s", *(["parameters"] if wide else []))
        best = {name: min(row.metrics[name].value for row in self.rows) for name in SHOWN}
        for row in self.rows:
            cells = []
            for name in SHOWN:
                cell = tables.number(name, row.metrics[name].value, unit="")
                cells.append(f"[bold]{cell}[/]" if row.metrics[name].value == best[name] else cell)
            shown.add_row(row.calibrator, *cells, f"{row.fit_seconds:.2f}", *([_brief(row.params)] if wide else []))
        yield shown
        for row in self.rows:
            if row.note:
                yield f"\n{row.calibrator} chose {row.note}"

    def __str__(self) -> str:
        return tables.text(self, width=80)

    __repr__ = __str__


def compare(
    val: Predictions,
    test: Predictions,
    calibrators: Sequence[str | Calibrator] = DEFAULT,
    *,
    resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Comparison:
    """Fits each calibrator on ``val`` and measures it on ``test``; ``resamples=0`` leaves out the intervals."""
    if val.classes != test.classes:
        raise InputError(f"{_name(test, 'test')}: {test.classes} classes, where {_name(val, 'val')} has {val.classes}")
    if val.class_names and test.class_names and val.class_names != test.class_names:
        raise InputError(
            f"{_name(test, 'test')}: its classes are not those of {_name(val, 'val')}, or not in that order"
        )
    if not calibrators:
        raise InputError("calibrators: none is named")
    settings = [each if isinstance(each, Calibrator) else calibrator(each) for each in calibrators]
    rows = []
    for i, (each, named) in enumerate(zip(settings, calibrators, strict=True)):
        start = time.perf_counter()
        made = each.fit(val.logits, val.labels)
        seconds = time.perf_counter() - start
        judged = audit(test.calibrated(made(test.logits)), resamples=resamples, seed=seed)
        name = named if isinstance(named, str) else each.name
        note = made.fit_report.note if made.fit_report else ""
        rows.append(Row(name, params_of(made), seconds, judged.metrics, note))
        if progress:
            progress((i + 1) / len(settings))
    return Comparison(tuple(rows), len(val), len(test), val.classes, resamples, val, test)


def _name(predictions: Predictions, otherwise: str) -> str:
    return str(predictions.meta.get("file", otherwise))


def params_of(made: CalibrationMap) -> dict[str, Any]:
    """The map's numbers, tables and matrices as their shapes."""
    found: dict[str, Any] = {}
    for name, value in made.values().items():
        if name == "maps":
            for step in value:
                found |= {f"{step.kind}.{k}": v for k, v in params_of(step).items()}
        elif name != "weight" or value.ndim:  # one weight for all classes is 1: the temperature holds it
            found[name] = list(value.shape) if hasattr(value, "shape") and value.ndim else _number(value)
    return found


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _brief(params: dict[str, Any]) -> str:
    """The plain numbers among the parameters."""
    return " ".join(f"{name.split('.')[-1]} {value:.3g}" for name, value in params.items() if isinstance(value, float))
