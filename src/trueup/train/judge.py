"""The table of a study: every loss before and after every calibrator, over the seeds, against cross-entropy."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console, ConsoleOptions, RenderResult
from scipy import special
from torch import Tensor

from trueup import tables
from trueup.audit import finite
from trueup.calibrators import calibrator
from trueup.files import write_whole
from trueup.metrics import METRICS, Interval, Resampler, Scores, score, score_logits
from trueup.predictions import Predictions
from trueup.train.run import Run
from trueup.train.study import StudyRuns

BASELINE = "cross-entropy"
JUDGED = ("error", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "smooth_ece")
COMPARED = ("error", "nll", "ece", "adaptive_ece", "smooth_ece")
TRUTH = ("confidence_error", "excess_nll")
"""Against the true class probabilities, where they are known: see ``against_truth``."""
TITLES = {"error": "error", "nll": "NLL", "ece": "ECE", "adaptive_ece": "adapt.", "smooth_ece": "smooth"}
NARROW = ("error", "nll", "ece")
"""These are told of the last epoch too, where the best on val is kept."""


@dataclass(frozen=True)
class Cell:
    """One metric over the seeds."""

    mean: float
    sd: float | None
    """With n - 1 below; None for a single seed."""
    values: tuple[float, ...]
    against: Interval | None
    """The pooled metric less that of cross-entropy; None where there is nothing to compare."""
    change: Interval | None = None
    """The metric less that of the same runs uncalibrated, seed by seed: the mean and Student's interval. None for two
    seeds and fewer, and for the uncalibrated runs themselves."""


@dataclass(frozen=True)
class StudyRow:
    data: str
    model: str
    loss: str
    calibrator: str
    seeds: tuple[int, ...]
    metrics: dict[str, Cell]
    kept_epochs: tuple[int, ...] | None = None
    """Of each seed, the first being 0, where the best on val is kept; None where it is the last, as in the next."""
    last_epoch: dict[str, Cell] | None = None
    """Error, NLL and ECE with the weights of the last epoch, after the same calibrator, fitted to its own val."""


@dataclass(frozen=True)
class StudyTable:
    """What a study found. It prints as a table."""

    name: str
    rows: tuple[StudyRow, ...]
    failed: dict[str, str]
    made_by: dict[str, Any] = field(default_factory=dict)
    """What was run, when, where, with which versions."""
    folders: tuple[str, ...] = ()
    """Of the runs: beside them may lie others, of other settings."""

    def to_list(self) -> list[dict[str, Any]]:
        """Plain numbers, a dict for each row."""
        found = []
        for row in self.rows:
            entry = asdict(row)
            for name, cell in row.metrics.items():
                for part in ("against", "change"):
                    interval = getattr(cell, part)
                    entry["metrics"][name][part] = None if interval is None else interval._asdict()
            found.append(finite(json.loads(json.dumps(entry))))
        return found

    def to_csv(self) -> str:
        """A line for each row, columns METRIC_mean, _sd, and _less_baseline, _low, _high; where the truth is known
        also _change, _change_low, _change_high: what the calibrator changed; where the best epoch on val is kept also
        which (a number for each seed), and METRIC_last_mean and _last_sd of the last."""
        columns = ["data", "model", "loss", "calibrator", "seeds"]
        for metric in JUDGED:
            columns += [f"{metric}_mean", f"{metric}_sd"]
            columns += [f"{metric}_{part}" for part in ("less_baseline", "low", "high")] if metric in COMPARED else []
        of_truth = ("mean", "sd", "change", "change_low", "change_high")
        columns += [f"{metric}_{part}" for metric in TRUTH for part in of_truth]
        columns += ["kept_epochs", *(f"{metric}_last_{part}" for metric in NARROW for part in ("mean", "sd"))]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for row in self.rows:
            cells: list[Any] = [row.data, row.model, row.loss, row.calibrator, len(row.seeds)]
            for metric in JUDGED:
                cell = row.metrics[metric]
                cells += [cell.mean, cell.sd]
                cells += list(cell.against or ("", "", "")) if metric in COMPARED else []
            for cell in (row.metrics.get(metric) for metric in TRUTH):
                cells += [cell.mean, cell.sd, *(cell.change or ("",) * 3)] if cell else [""] * len(of_truth)
            cells.append(" ".join(map(str, row.kept_epochs or ())))
            for cell in ((row.last_epoch or {}).get(metric) for metric in NARROW):
                cells += [cell.mean, cell.sd] if cell else ["", ""]
            writer.writerow("" if value is None else value for value in cells)
        return text.getvalue()

    def save(self, folder: Path) -> dict[str, Path]:
        """table.csv and table.json in ``folder``."""
        content = {"study": self.name, "made_by": self.made_by, "rows": self.to_list(), "failed": self.failed}
        content["folders"] = list(self.folders)
        write_whole(folder / "table.csv", self.to_csv().encode())
        write_whole(folder / "table.json", json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")
        return {"csv": folder / "table.csv", "json": folder / "table.json"}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= 110
        for (data, model), of_net in groupby(self.rows, key=lambda row: (row.data, row.model)):
            rows = list(of_net)
            titles = {metric: TITLES[metric] for metric in (TITLES if wide else NARROW)}
            if "confidence_error" in rows[0].metrics:
                titles |= {"confidence_error": "off truth"}
                titles.pop("adaptive_ece" if wide else "error")
            seeds = max(len(row.seeds) for row in rows)
            over = f"mean ± sd over {seeds} seeds" if seeds > 1 else "one seed"
            title = f"{data}, {model}: {over}, errors in %"
            compared = any(row.metrics["ece"].against for row in rows)
            changed = "confidence_error" in titles and not compared
            last = ["change of ECE"] if compared else ["change by calibrator"] if changed else []
            shown = tables.table(title, "loss, calibrator", *titles.values(), *last)
            for loss, of_loss in groupby(rows, key=lambda row: row.loss):
                shown.add_row(f"[bold]{loss}[/]")
                for i, row in enumerate(of_loss):
                    cells = [_cell(metric, row.metrics[metric]) for metric in titles]
                    cell = row.metrics["confidence_error" if changed else "ece"]
                    interval = cell.change if changed else cell.against
                    shown.add_row(f"  {row.calibrator}", *cells, *([_difference(interval, wide)] if last else []))
                    if row.last_epoch and not i:
                        of_last = [_cell(m, row.last_epoch[m]) if m in row.last_epoch else "" for m in titles]
                        shown.add_row("  last epoch", *of_last)
            yield shown
            if any(row.kept_epochs for row in rows):
                yield _kept(rows)
            if compared:
                yield f"Change of ECE against {BASELINE} after the same calibrator, with its 95 % interval."
            elif changed:
                yield "Off truth: mean |confidence - true probability|, and what the calibrator changes, 95 %."
            yield ""
        for name, message in self.failed.items():
            yield f"failed: {name}\n  " + message.replace("\n", "\n  ")

    def __str__(self) -> str:
        return tables.text(self, width=120)

    __repr__ = __str__


def _kept(rows: Sequence[StudyRow]) -> str:
    """Which epochs, loss by loss."""
    epochs = {row.loss: " ".join(map(str, row.kept_epochs)) for row in rows if row.kept_epochs}
    told = "; ".join(f"{loss} {of_seeds}" for loss, of_seeds in epochs.items())
    return (
        f"Kept, seed by seed, is the epoch with the lowest error on val, the first being 0: {told}. "
        "The last epoch after every calibrator is in table.csv."
    )


def _cell(metric: str, cell: Cell) -> str:
    scale, digits = (100, 2) if metric in (*tables.SHARES, "confidence_error") else (1, 3)
    mean = f"{scale * cell.mean:.{digits}f}"
    return mean if cell.sd is None else f"{mean} ±{scale * cell.sd:.{digits}f}"


def _difference(against: Interval | None, wide: bool) -> str:
    if against is None:
        return ""
    value, low, high = (100 * part for part in against)
    return (f"{value:+.2f} " if wide else "") + f"[{low:+.2f}, {high:+.2f}]"


# ---------------------------------------------------------------------- from runs to rows


def judge(
    found: StudyRuns, *, resamples: int = 1000, seed: int = 0, progress: Callable[[float], None] | None = None
) -> StudyTable:
    """Fits every calibrator to each run's val, scores its test, and puts the losses beside cross-entropy.

    A difference is that of the metrics pooled over the seeds that both have, with the rows of both resampled together,
    both after the same calibrator; the focal map, which cross-entropy has no gamma for, is put beside cross-entropy
    as it is. The rows of different seeds count as independent; where all seeds fail on the same images, the interval
    is too narrow.
    """
    groups: dict[tuple[str, str, str, str], dict[int, Scores]] = {}
    truth = {(run.recipe.data, run.recipe.seed): run.test_posteriors for run in found.runs}
    of_last: dict[tuple[str, str, str, str], list[tuple[int, dict[str, float]]]] = {}
    for i, run in enumerate(found.runs):
        for name, spec in found.study.calibrators_of(run.recipe.loss).items():
            key = (run.recipe.data, run.recipe.model, run.recipe.loss, name)
            groups.setdefault(key, {})[run.recipe.seed] = calibrated_scores(run, spec)
            if run.last is not None:
                scores = calibrated_scores(run, spec, *run.last)
                last = run.info["kept_epoch"], {metric: METRICS[metric](scores) for metric in NARROW}
                of_last.setdefault(key, []).append(last)
        if progress:
            progress((i + 1) / len(found.runs) / 2)
    baselines: dict[Any, Resampler] = {}
    rows = []
    for i, (key, of_seed) in enumerate(groups.items()):
        data, model, loss, name = key
        beside = "none" if name == "focal-map" else name
        of_baseline = groups.get((data, model, BASELINE, beside), {}) if loss != BASELINE else {}
        shared = tuple(s for s in of_seed if s in of_baseline)
        against: dict[str, Interval] = {}
        if shared and resamples:
            base = (data, model, beside, shared)
            if base not in baselines:
                baselines[base] = Resampler(pooled([of_baseline[s] for s in shared]), resamples, seed)
            mine = Resampler(pooled([of_seed[s] for s in shared]), resamples, seed)
            against = {metric: mine.difference(baselines[base], METRICS[metric]) for metric in COMPARED}
        cells = {m: _spread([METRICS[m](s) for s in of_seed.values()], against.get(m)) for m in JUDGED}
        known = [against_truth(s, p) for of, s in of_seed.items() if (p := truth[data, of]) is not None]
        cells |= {m: _spread([each[m] for each in known], None) for m in TRUTH if known}
        if name != "none":
            plain = next(
                (r for r in rows if (r.data, r.model, r.loss, r.calibrator) == (data, model, loss, "none")), None
            )
            if plain is not None and plain.seeds == tuple(of_seed):
                cells = {m: _changed(cell, plain.metrics[m]) for m, cell in cells.items()}
        rows.append(StudyRow(data, model, loss, name, tuple(of_seed), cells, *_of_last(of_last.get(key))))
        if progress:
            progress(0.5 + (i + 1) / len(groups) / 2)
    folders = tuple(run.folder.name for run in found.runs)
    return StudyTable(found.study.name, tuple(rows), found.failed, provenance(found), folders)


def provenance(found: StudyRuns) -> dict[str, Any]:
    """What made the runs of a study: its settings, the versions and hardware of the first, the dates, the seconds."""
    if not found.runs:
        return {}
    dates = sorted(run.info["date"] for run in found.runs)
    return {
        "settings": json.loads(json.dumps(asdict(found.study))),
        "runs": len(found.runs),
        "seconds_of_all_runs": sum(run.seconds for run in found.runs),
        "dates": [dates[0], dates[-1]],
        **{name: found.runs[0].info[name] for name in ("versions", "hardware")},
    }


def calibrated_scores(run: Run, spec: str, val: Predictions | None = None, test: Predictions | None = None) -> Scores:
    """The scores of a run's test set after the calibrator, fitted to its val; or of other predictions for these sets.

    In float64 where the truth is known: an over-confident network's smallest probabilities underflow in float32, and
    the divergence from the truth lives on them.
    """
    val, test = val or run.val, test or run.test
    logits = test.logits if run.test_posteriors is None else test.logits.double()
    if spec == "none":
        return score_logits(logits, test.labels)
    made = calibrator(spec).fit(val.logits, val.labels)
    return score(made(logits), test.labels)


def against_truth(scores: Scores, posteriors: Tensor) -> dict[str, float]:
    """How far the probabilities are from the true ones (N, K), free of the noise of the labels.

    confidence_error: the mean of |confidence - true probability of the predicted class|; excess_nll: the mean of the
    divergence KL(truth || probs), which is what the expected NLL has above that of the truth.
    """
    p = scores.probs.double()
    predicted = p.argmax(1, keepdim=True)
    gap = (p.gather(1, predicted) - posteriors.gather(1, predicted)).abs()
    tiny = torch.finfo(torch.float64).tiny
    divergence = (torch.special.xlogy(posteriors, posteriors) - posteriors * p.clamp(min=tiny).log()).sum(1)
    return {"confidence_error": float(gap.mean()), "excess_nll": float(divergence.mean())}


def pooled(parts: list[Scores]) -> Scores:
    """The samples of several sets as one."""
    logs = [part.log_true_from_logits for part in parts if part.log_true_from_logits is not None]
    return Scores(
        confidence=np.concatenate([part.confidence for part in parts]),
        correct=np.concatenate([part.correct for part in parts]),
        true=np.concatenate([part.true for part in parts]),
        probs=torch.cat([part.probs for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        log_true_from_logits=np.concatenate(logs) if len(logs) == len(parts) else None,
    )


def student(differences: Sequence[float], level: float = 0.95) -> Interval:
    """The mean of independent differences, and Student's interval.

    >>> [round(x, 3) for x in student([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    values = np.asarray(differences)
    mean, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
    width = float(special.stdtrit(len(values) - 1, (1 + level) / 2)) * error
    return Interval(mean, mean - width, mean + width)


def _of_last(
    found: list[tuple[int, dict[str, float]]] | None,
) -> tuple[tuple[int, ...] | None, dict[str, Cell] | None]:
    """From the kept epoch and the figures of the last, seed by seed: what a row says of them."""
    if not found:
        return None, None
    cells = {metric: _spread([figures[metric] for _, figures in found], None) for metric in NARROW}
    return tuple(epoch for epoch, _ in found), cells


def _changed(cell: Cell, plain: Cell) -> Cell:
    """With the change against the same runs uncalibrated. Two seeds say nothing: Student's factor is 13."""
    differences = [mine - theirs for mine, theirs in zip(cell.values, plain.values, strict=True)]
    told = len(differences) > 2 and bool(np.isfinite(differences).all())
    return replace(cell, change=student(differences)) if told else cell


def _spread(values: list[float], against: Interval | None) -> Cell:
    with np.errstate(invalid="ignore"):  # an infinite NLL has no deviation
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Cell(float(np.mean(values)), sd, tuple(values), against)
