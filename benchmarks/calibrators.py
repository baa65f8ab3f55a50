"""Every calibrator on real networks, probmetrics' structured scaling beside ours: ``make bench-calibrators``.

``TRUEUP_DATA/logits`` holds a folder a network, with val.npz and test.npz. Each calibrator is fitted on the one and
judged on the other: on the split as it is stored, and on two fresh ones (val and test pooled, shuffled with a seed, cut
at the same size), so that nothing is tuned to one half. A row of the CSV is written as soon as it is known; a run that
was stopped goes on where it was. Seconds are processor time of the fit, one thread.
"""

from __future__ import annotations

import csv
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.timing import prepare, where

if __name__ == "__main__":
    prepare()

import numpy as np
import torch

import trueup
from trueup.compare import DEFAULT

RESULTS = Path(__file__).parent / "results"
ROWS = RESULTS / "calibrators.csv"
SPLITS = ("stored", "fresh-1", "fresh-2")
PEERS = {"probmetrics SVS": "svs", "probmetrics SMS": "sms"}
LINEAR = ("bias-temperature", "vector", "matrix", "dirichlet")
MOST_LOST = -0.5
"""Points of accuracy that a calibrator may cost on a set."""

Fit = Callable[[trueup.Predictions], Callable[[torch.Tensor], object]]
"""Predictions -> a map from logits to probabilities."""


@dataclass(frozen=True)
class Row:
    """One calibrator on one split of one set; errors and accuracies as shares, not in %."""

    set: str
    split: str
    calibrator: str
    classes: int
    nll: float
    brier: float
    ece: float
    adaptive_ece: float
    classwise_ece: float
    smooth_ece: float
    accuracy: float
    accuracy_change: float
    fit_seconds: float
    chosen: str
    """By auto."""


def methods() -> dict[str, Fit]:
    """Ours, and theirs as users call them."""
    from probmetrics.calibrators import get_calibrator

    def ours(name: str) -> Fit:
        return lambda val: trueup.calibrator(name).fit(val.logits, val.labels)

    def theirs(name: str) -> Fit:
        def fit(val: trueup.Predictions) -> Callable[[torch.Tensor], object]:
            made = get_calibrator(name).fit(torch.softmax(val.logits.double(), 1).numpy(), val.labels.numpy())
            return lambda logits: made.predict_proba(torch.softmax(logits.double(), 1).numpy())

        return fit

    return {name: ours(name) for name in DEFAULT} | {shown: theirs(name) for shown, name in PEERS.items()}


def read(folder: Path, split: str) -> tuple[trueup.Predictions, trueup.Predictions]:
    """val and test of a set, as stored or redrawn to the same sizes."""
    val, test = (trueup.load(folder / f"{part}.npz") for part in ("val", "test"))
    if split == "stored":
        return val, test
    logits, labels = torch.cat([val.logits, test.logits]), torch.cat([val.labels, test.labels])
    # The same seed for all sets: networks that were judged on the same images are split alike.
    order = torch.from_numpy(np.random.default_rng(int(split.split("-")[1])).permutation(len(labels)))
    halves = order[: len(val)], order[len(val) :]
    first, second = (trueup.Predictions(logits=logits[rows], labels=labels[rows]) for rows in halves)
    return first, second


def judge(name: str, fit: Fit, set_name: str, split: str, val: trueup.Predictions, test: trueup.Predictions) -> Row:
    begun = time.process_time()
    made = fit(val)
    seconds = time.process_time() - begun
    before, after = trueup.score_logits(test.logits, test.labels), trueup.score(made(test.logits), test.labels)
    report = getattr(made, "fit_report", None)
    return Row(
        set=set_name,
        split=split,
        calibrator=name,
        classes=test.classes,
        **{m: trueup.METRICS[m](after) for m in ("nll", "brier", "ece", "adaptive_ece", "classwise_ece", "smooth_ece")},
        accuracy=1 - trueup.error(after),
        accuracy_change=trueup.error(before) - trueup.error(after),
        fit_seconds=seconds,
        chosen=report.note.split(":")[0] if report and name == "auto" else "",
    )


def stored_rows() -> list[Row]:
    if not ROWS.exists():
        return []
    types = {"classes": int, "set": str, "split": str, "calibrator": str, "chosen": str}
    with ROWS.open(newline="") as file:
        return [Row(**{k: types.get(k, float)(v) for k, v in row.items()}) for row in csv.DictReader(file)]


def missing_rows(logits: Path) -> Iterator[Row]:
    """Everything that the CSV does not hold yet, the sets with few classes first."""
    known = {(row.set, row.split, row.calibrator) for row in stored_rows()}
    folders = [folder for folder in sorted(logits.iterdir()) if (folder / "val.npz").exists()]
    classes = {folder: trueup.load(folder / "val.npz").classes for folder in folders}
    for folder in sorted(folders, key=lambda folder: (classes[folder], folder.name)):
        for split in SPLITS:
            wanted = [(n, fit) for n, fit in methods().items() if (folder.name, split, n) not in known]
            if not wanted:
                continue
            val, test = read(folder, split)
            for name, fit in wanted:
                yield judge(name, fit, folder.name, split, val, test)


def run(logits: Path) -> list[Row]:
    RESULTS.mkdir(exist_ok=True)
    for row in missing_rows(logits):
        with ROWS.open("a", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(row).items()})
        print(f"{row.set} {row.split} {row.calibrator}: NLL {row.nll:.4f}, {row.fit_seconds:.1f} s", file=sys.stderr)
    return stored_rows()


@dataclass(frozen=True)
class Summary:
    """Means over the sets (and the fresh splits), in the units of the table."""

    nll: float
    ece: float
    adaptive_ece: float
    classwise_ece: float
    smooth_ece: float
    accuracy_change: float
    worst_change: float
    fit_seconds: float


def summary(rows: list[Row]) -> Summary:
    def mean(name: str, unit: float = 1) -> float:
        return unit * float(np.mean([getattr(row, name) for row in rows]))

    return Summary(
        mean("nll"),
        *(mean(name, 100) for name in ("ece", "adaptive_ece", "classwise_ece", "smooth_ece", "accuracy_change")),
        worst_change=100 * min(row.accuracy_change for row in rows),
        fit_seconds=mean("fit_seconds"),
    )


def by_calibrator(rows: list[Row], fresh: bool) -> dict[str, Summary]:
    chosen = [row for row in rows if (row.split != "stored") == fresh]
    names = dict.fromkeys(row.calibrator for row in chosen)
    return {name: summary([row for row in chosen if row.calibrator == name]) for name in names}


def table(found: dict[str, Summary]) -> str:
    lines = [
        "| calibrator | NLL | ECE % | adaptive % | classwise % | smooth % | accuracy, points | worst set | fit s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, s in sorted(found.items(), key=lambda item: item[1].nll):
        shown = f"**{name}**" if name == "auto" else name
        errors = f"{s.ece:.2f} | {s.adaptive_ece:.2f} | {s.classwise_ece:.3f} | {s.smooth_ece:.2f}"
        costs = f"{s.accuracy_change:+.3f} | {s.worst_change:+.2f} | {s.fit_seconds:.2f}"
        lines.append(f"| {shown} | {s.nll:.4f} | {errors} | {costs} |")
    return "\n".join(lines)


def verdicts(rows: list[Row]) -> list[tuple[bool, str]]:
    """Each promise, whether it holds, and the figures."""
    found = []
    for split, fresh in (("stored splits", False), ("fresh splits", True)):
        means = by_calibrator(rows, fresh)
        auto, sms = means["auto"], means["probmetrics SMS"]
        for name, form in (("nll", "{:.4f}"), ("ece", "{:.2f} %"), ("smooth_ece", "{:.2f} %")):
            a, b = getattr(auto, name), getattr(sms, name)
            means_of = f"mean {name} of auto {form.format(a)}, of SMS {form.format(b)}"
            found.append((a < b, f"{split}: {means_of}; lower on {wins(rows, name, fresh)}"))
        text = f"{split}: auto changes accuracy by {auto.accuracy_change:+.3f} points in the mean"
        found.append((auto.accuracy_change >= 0, text))
        for name in ("auto", *LINEAR):
            worst = means[name].worst_change
            found.append((worst >= MOST_LOST, f"{split}: {name} changes accuracy by {worst:+.2f} points at worst"))
    return found


def wins(rows: list[Row], metric: str, fresh: bool) -> str:
    """On how many sets and splits auto is below SMS."""
    value = {(r.calibrator, r.set, r.split): getattr(r, metric) for r in rows if (r.split != "stored") == fresh}
    pairs = [(v, value["probmetrics SMS", s, split]) for (name, s, split), v in value.items() if name == "auto"]
    return f"{sum(a < b for a, b in pairs)} of {len(pairs)}"


def report(rows: list[Row]) -> tuple[str, bool]:
    sets = sorted({row.set for row in rows})
    stored, fresh = (by_calibrator(rows, is_fresh) for is_fresh in (False, True))
    checks = verdicts(rows)
    kept = all(holds for holds, _ in checks)
    choices = [row.chosen for row in rows if row.calibrator == "auto"]
    chosen = ", ".join(
        f"{name} {choices.count(name)}" for name in sorted(set(choices), key=choices.count, reverse=True)
    )
    parts = [
        "# Calibrators on real networks",
        f"{len(sets)} networks ({sum('cifar100' in name for name in sets)} with 100 classes). Fitted on val, judged on "
        "test; means over the networks. Accuracy is the change that the calibrator makes, in points: the mean, and "
        "the worst network. Seconds are processor time. The maps that auto chooses among were picked with networks "
        "like these in view, and a fresh split holds the same images in another order: read the margins as somewhat "
        "optimistic.",
        f"## As stored\n\n{table(stored)}",
        "## Fresh splits\n\nVal and test pooled, shuffled and cut at the same size, twice.\n\n" + table(fresh),
        f"## What auto chose\n\n{chosen}.",
        "## Verdict",
        "\n".join(f"- {'holds' if holds else '**MISSED**'}: {text}" for holds, text in checks),
        f"**{'All of it holds.' if kept else 'Not all of it holds.'}**",
        f"`make bench-calibrators` on {where()}. Every row is in calibrators.csv.",
    ]
    return "\n\n".join(parts) + "\n", kept


def main() -> int:
    warnings.filterwarnings("ignore")
    data = os.environ.get("TRUEUP_DATA")
    if not data or not (Path(data) / "logits").is_dir():
        print("TRUEUP_DATA: name the folder that holds logits/<network>/val.npz and test.npz", file=sys.stderr)
        return 2
    text, kept = report(run(Path(data) / "logits"))
    (RESULTS / "calibrators.md").write_text(text)
    print(text)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
