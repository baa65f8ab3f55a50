"""A study -> the content of its page: every loss, seed and calibrator, the training, and each run to look into."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trueup import data as sources
from trueup import tables
from trueup.calibrators.focal import FocalTemperatureMap
from trueup.diagrams import curve_of
from trueup.inputs import InputError
from trueup.metrics.scores import score
from trueup.report.charts import one_set
from trueup.report.content import column, counted, signed
from trueup.report.images import thumbnails
from trueup.report.live import NUMBERS, Progress, fit, rounded
from trueup.train.judge import BASELINE
from trueup.train.run import Run, whole_run

COLUMNS = ("ece", "nll", "error", "adaptive_ece", "classwise_ece", "smooth_ece", "brier")
"""The first stands beside its difference from the baseline."""
CURVES = ("nll", "ece", "error")
EPOCHS = 120
"""A curve has at most so many points."""
EXPLORED = 40
"""At most so many runs can be looked into; of more, the first seed of each loss."""
EXPLORED_NUMBERS = 250_000
"""Of logits that all of them store together."""


def read_study(folder: str | Path) -> tuple[dict[str, Any], list[Run]]:
    """The table and the runs that ``trueup study`` left in a folder."""
    folder = Path(folder)
    try:
        table = json.loads((folder / "table.json").read_text())
        wanted = {(row["data"], row["model"], row["loss"], seed) for row in table["rows"] for seed in row["seeds"]}
        folders = [folder / name for name in table["folders"]]  # beside them may lie others, of other settings
    except FileNotFoundError:
        raise InputError(f"{folder}: no study is in it (table.json is missing); trueup study makes one") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'table.json'}: damaged ({error}); the same trueup study writes it anew") from None
    return table, [run for run in map(whole_run, folders) if _key(run) in wanted]


def of_study(
    table: dict[str, Any],
    runs: Sequence[Run],
    *,
    data_dir: str | Path | None = None,
    progress: Progress = None,
) -> dict[str, Any]:
    """The page of a study; ``data_dir`` is where images for the thumbnails of mistakes are looked for."""
    rows = table["rows"]
    if not rows:
        raise InputError("study: no run is complete, so there is nothing to show")
    order = {(row["data"], row["model"], row["loss"]): i for i, row in reversed(list(enumerate(rows)))}
    runs = sorted(runs, key=lambda run: (order[_key(run)[:3]], run.recipe.seed))
    settings = [
        _setting(f"{data}, {model}", list(of), [run for run in runs if _key(run)[:2] == (data, model)])
        for (data, model), of in groupby(rows, key=lambda row: (row["data"], row["model"]))
    ]
    losses = {row["loss"] for row in rows}
    seeds = {seed for row in rows for seed in row["seeds"]}
    content = {
        "kind": "study",
        "title": f"study {table['study']}",
        "headline": headline(rows, "none"),
        "further": [text for name in ("temperature", "focal-temperature") if (text := headline(rows, name))],
        "facts": [
            f"{counted(len(losses), 'loss', 'losses')}, {counted(len(seeds), 'seed')}, {counted(len(runs), 'run')}",
            *([settings[0]["name"]] if len(settings) == 1 else [f"{len(settings)} pairs of data and model"]),
            *_when(table.get("made_by", {})),
        ],
        "tiles": [],
        "failed": [{"name": name, "why": why} for name, why in table.get("failed", {}).items()],
        "study": {"columns": [column(name) for name in COLUMNS], "settings": settings, "baseline": BASELINE},
        "sets": _explored(runs, len(settings) > 1, data_dir, progress),
    }
    return signed(content)


def _key(run: Run) -> tuple[str, str, str, int]:
    return run.recipe.data, run.recipe.model, run.recipe.loss, run.recipe.seed


# ---------------------------------------------------------------------- words


def headline(rows: Sequence[dict[str, Any]], calibrator: str) -> str:
    """How many losses are better and worse calibrated than cross-entropy, by the intervals of the difference in ECE."""
    of = [row for row in rows if row["calibrator"] == calibrator]
    when = "As trained" if calibrator == "none" else f"After {calibrator.replace('-', ' ')} scaling"
    against = [row["metrics"]["ece"]["against"] for row in of if row["metrics"]["ece"]["against"]]
    if against:
        losses = counted(len(against), "loss", "losses")
        worse, better = sum(each["low"] > 0 for each in against), sum(each["high"] < 0 for each in against)
        if not worse and not better:
            return f"{when}, none of {losses} can be told from {BASELINE} by its ECE."
        parts = [
            f"{many} of {losses} {'is' if many == 1 else 'are'} {word} calibrated than {BASELINE}"
            for many, word in ((worse, "worse"), (better, "better"))
            if many
        ]
        return f"{when}, {', '.join(parts)}."
    known = [row for row in of if row["metrics"]["ece"]["mean"] is not None]
    if not known:
        return ""
    best = min(known, key=lambda row: row["metrics"]["ece"]["mean"])
    return f"{when}, {best['loss']} has the lowest ECE: {_spread(best['metrics']['ece'], 'ece')} %."


def kept(rows: Sequence[dict[str, Any]]) -> str:
    """Which epochs are kept, counted from 1 as in the curves; "" where it is the last throughout."""
    of_loss = {row["loss"]: row["kept_epochs"] for row in rows if row.get("kept_epochs")}
    return "; ".join(f"{loss} {' '.join(str(epoch + 1) for epoch in epochs)}" for loss, epochs in of_loss.items())


def _when(made_by: dict[str, Any]) -> list[str]:
    dates = made_by.get("dates")
    return [f"trained until {dates[-1][:10]}"] if dates else []


def _spread(cell: dict[str, Any], metric: str) -> str:
    """mean ± standard deviation, shares in per cent."""
    scale, digits = (100, 2) if metric in tables.SHARES else (1, 4)
    if cell["mean"] is None:
        return "∞"
    mean = f"{scale * cell['mean']:.{digits}f}"
    return mean if cell["sd"] is None else f"{mean} ± {scale * cell['sd']:.{digits}f}"


# ---------------------------------------------------------------------- table and curves


def _setting(name: str, rows: list[dict[str, Any]], runs: list[Run]) -> dict[str, Any]:
    """One data set and one net: its part of the table, and its training curves."""
    return {
        "name": name,
        "losses": list(dict.fromkeys(row["loss"] for row in rows)),
        "calibrators": list(dict.fromkeys(row["calibrator"] for row in rows)),
        "rows": [made for row in rows for made in (_row(row), *_last_epoch(row))],
        "kept": kept(rows),
        "curves": {
            loss: _curves([run.history for run in of], loss) for loss, of in groupby(runs, lambda run: run.recipe.loss)
        },
    }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    cells = [_cell(row["metrics"][name], name) for name in COLUMNS]
    return _shown(row, row["calibrator"], cells, row["metrics"]["ece"]["against"])


def _last_epoch(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Where another epoch is kept, a row of the last one; what is not known of it is left empty."""
    found = row.get("last_epoch")
    if not found:
        return []
    return [_shown(row, f"{row['calibrator']}, last epoch", [_cell(found.get(name), name) for name in COLUMNS], None)]


def _shown(
    row: dict[str, Any], calibrator: str, cells: list[dict[str, Any]], against: dict[str, Any] | None
) -> dict[str, Any]:
    text = "" if against is None else f"{100 * against['low']:+.2f} to {100 * against['high']:+.2f}"
    return {
        "loss": row["loss"],
        "calibrator": calibrator,
        "seeds": row["seeds"],
        "cells": cells,
        "against": None if against is None else against["value"],
        "against_text": text,
        "verdict": "" if against is None else " ▲" * (against["low"] > 0) + " ▼" * (against["high"] < 0),
    }


def _cell(cell: dict[str, Any] | None, metric: str) -> dict[str, Any]:
    if cell is None:
        return {"value": None, "seeds": [], "text": ""}
    unit = " %" if metric in tables.SHARES else ""
    return {"value": cell["mean"], "seeds": cell["values"], "text": _spread(cell, metric) + unit}


def _curves(histories: list[Any], loss: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for metric in CURVES:
        curve = curve_of(histories, f"test.{metric}", loss)
        kept = np.unique(np.linspace(0, len(curve.mean) - 1, min(EPOCHS, len(curve.mean))).round().astype(int))
        found[metric] = {"epoch": (kept + 1).tolist()}
        found[metric] |= {part: rounded(getattr(curve, part)[kept], 4) for part in ("mean", "low", "high")}
    return found


# ---------------------------------------------------------------------- runs to look into


def _explored(runs: list[Run], several: bool, data_dir: str | Path | None, progress: Progress) -> list[dict[str, Any]]:
    chosen = runs
    if len(runs) > EXPLORED:
        chosen = [next(of) for _, of in groupby(runs, lambda run: _key(run)[:3])][:EXPLORED]
    pictures = _Pictures(data_dir)
    found = []
    for i, run in enumerate(chosen):
        data, model, loss, seed = _key(run)
        fitted = fit(run.val, "its validation samples")
        made = FocalTemperatureMap(run.test.classes, fitted["temperature"], fitted["gamma"])
        after = score(made(run.test.logits), run.test.labels)
        name = f"{data}, {model}: " * several + f"{loss}, seed {seed}"
        found.append(
            one_set(
                run.test, name=name, fitted=fitted, after=after, per_class=False, thumbnail=pictures.of(run),
                most=NUMBERS if len(chosen) == 1 else EXPLORED_NUMBERS // len(chosen),
            )
        )  # fmt: skip
        if progress:
            progress((i + 1) / len(chosen))
    return found


class _Pictures:
    """The test images of the data sets that lie here, each loaded once."""

    def __init__(self, data_dir: str | Path | None) -> None:
        self.data_dir = data_dir
        self.loaded: dict[tuple[str, str, int], Any] = {}

    def of(self, run: Run) -> Callable[[int], str | None] | None:
        recipe = run.recipe
        key = (recipe.data, recipe.split, recipe.split_seed)
        if key not in self.loaded:
            try:
                # a folder is named, so that nothing is ever downloaded for a page
                where = self.data_dir or os.environ.get("TRUEUP_DATA") or os.curdir
                self.loaded[key] = sources.load(recipe.data, where, split=recipe.split, seed=recipe.split_seed)
            except InputError:  # a page without pictures is still one
                self.loaded[key] = None
        data = self.loaded[key]
        if data is None or not torch.equal(data.test.labels, run.test.labels):
            return None
        pixels = data.test.inputs
        if not isinstance(pixels, torch.Tensor) or pixels.ndim != 4:  # texts, trees, features
            return None
        return lambda row: f"data:image/png;base64,{thumbnails(pixels[row : row + 1])[0]}"
