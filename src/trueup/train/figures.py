"""The figures of a study: for each data set and net a panel a loss, cross-entropy beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from trueup import diagrams, plots
from trueup.metrics import ece
from trueup.train.judge import BASELINE, calibrated_scores
from trueup.train.run import Run
from trueup.train.study import StudyRuns

if TYPE_CHECKING:
    from trueup.plots import Axes, Figure

WIDTH = 6.9
"""Inches: two columns."""
PER_ROW = 4
BINS = 10
"""Fewer than ECE has: small panels, few samples."""
FILLED = "filled where a calibrated model would not be"
CALIBRATORS = ("none", "temperature")
QUANTITIES = {"nll": "test.nll", "ece": "test.ece"}


def draw_figures(
    found: StudyRuns, folder: str | Path, *, progress: Callable[[float], None] | None = None
) -> dict[str, Path]:
    """Reliability diagrams as trained and after temperature scaling, and training curves.

    A diagram shows the first seed: the seeds judge the same samples, and a band around all of them would be too narrow.
    Written as PNG into ``folder``; by name. Without matplotlib an InputError says what to install.
    """
    plots.matplotlib()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    groups = [(key, list(runs)) for key, runs in groupby(found.runs, lambda run: (run.recipe.data, run.recipe.model))]
    written: dict[str, Path] = {}
    for i, ((data, model), runs) in enumerate(groups):
        before = re.sub(r"[^\w.+-]+", "-", f"{data}_{model}") + "_" if len(groups) > 1 else ""
        by_loss: dict[str, list[Run]] = {}
        for run in runs:
            by_loss.setdefault(run.recipe.loss, []).append(run)
        title = f"{data}, {model}"
        made = {f"reliability-{name}": _reliability(by_loss, name, title) for name in CALIBRATORS}
        made |= {f"training-{name}": _training(by_loss, quantity, title) for name, quantity in QUANTITIES.items()}
        for name, figure in made.items():
            written[before + name] = folder / f"{before}{name}.png"
            plots.save(figure, written[before + name], dpi=110)
        if progress:
            progress((i + 1) / len(groups))
    return written


def _panels(count: int, title: str, height: float) -> tuple[Figure, list[Axes]]:
    rows = -(-count // PER_ROW)
    figure, axes = plots.figure(min(count, PER_ROW), rows, width=WIDTH, height=height * rows + 0.35)
    for unused in axes[count:]:
        unused.set_axis_off()
    figure.suptitle(title, fontsize=8)
    return figure, axes[:count]


def _reliability(by_loss: dict[str, list[Run]], calibrator: str, title: str) -> Figure:
    after = "as trained" if calibrator == "none" else f"after {calibrator} scaling"
    seed = next(iter(by_loss.values()))[0].recipe.seed
    words = f"{title}, seed {seed}, {after}: accuracy against confidence; {FILLED}"
    with plots.style():
        figure, axes = _panels(len(by_loss), words, 1.85)
        for ax, (loss, runs) in zip(axes, by_loss.items(), strict=True):
            parts = [calibrated_scores(run, calibrator) for run in runs]
            plots.reliability_diagram(parts[0], ax=ax, explain=False, bins=BINS)
            mean = sum(ece(part) for part in parts) / len(parts)
            ax.set_title(f"{loss}\nmean ECE {100 * mean:.2f} %", fontsize=7)
    return figure


def _training(by_loss: dict[str, list[Run]], quantity: str, title: str) -> Figure:
    found = diagrams.curves({loss: [run.history for run in runs] for loss, runs in by_loss.items()}, quantity)
    metric = quantity.rpartition(".")[2].upper()
    words = f"{title}: {metric} on test over the epochs" + (", %" if metric == "ECE" else "")
    beside = f"; dashed: {BASELINE}" if BASELINE in found else ""
    with plots.style():
        figure, axes = _panels(len(found), words + beside, 1.5)
        for ax, (loss, curve) in zip(axes, found.items(), strict=True):
            shown = {loss: curve} | ({BASELINE: found[BASELINE]} if BASELINE in found else {})
            plots.training_curves(shown, quantity, ax=ax, title=loss, looks=_looks(shown, loss), explain=False)
        top = max(ax.get_ylim()[1] for ax in axes)
        bottom = min(ax.get_ylim()[0] for ax in axes)
        for ax in axes:
            ax.set_ylim(bottom, top)
            ax.title.set_fontsize(7)
    return figure


def _looks(shown: dict[str, diagrams.Curve], loss: str) -> Sequence[int]:
    """Cross-entropy dashed, and what the panel is about in black and solid."""
    return [0, 1] if len(shown) > 1 else [0 if loss != BASELINE else 1]
