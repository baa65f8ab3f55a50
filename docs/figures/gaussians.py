"""The tables and the figure of docs/gaussians.md, from what the study stored in results/gaussians.

``python docs/figures/gaussians.py`` writes the tables into the page, between their marks, and draws gaussians.svg.
``python docs/figures/gaussians.py studies/gaussians`` takes a new table from the folder of a study first.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trueup import plots
from trueup.data.registry import parse

HERE = Path(__file__).parent
PAGE = HERE.parent / "gaussians.md"
STORED = HERE.parents[1] / "results" / "gaussians"
GAMMAS = (1, 2, 3, 5)
MODELS = {"linear": "linear", "mlp": "100", "mlp:400,400": "400, 400"}
PARTS = ("mean", "sd", "change", "change_low", "change_high")
CALIBRATORS = ("none", "focal-map", "temperature", "focal-temperature")
Key = tuple[int, int, str, str, str]
"""classes, training samples, model, loss, calibrator."""


Cell = dict[str, float]
"""mean, sd, and of a calibrator change, change_low, change_high."""


def take(study: Path) -> None:
    """The table of a study and what made it into the results; its runs stay where they are."""
    STORED.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(study / "table.csv", STORED / "table.csv")
    made_by = json.loads((study / "table.json").read_text())["made_by"]
    (STORED / "made_by.json").write_text(json.dumps(made_by, indent=1) + "\n")


def stored() -> dict[Key, dict[str, Cell]]:
    """The metrics of each row."""
    found = {}
    with open(STORED / "table.csv", newline="") as file:
        for row in csv.DictReader(file):
            options = parse(row["data"])[1]
            key = (options["classes"], options["train"], row["model"], row["loss"], row["calibrator"])
            found[key] = {
                metric: {part: float(row[f"{metric}_{part}"]) for part in PARTS if row[f"{metric}_{part}"]}
                for metric in ("confidence_error", "excess_nll")
            }
    return found


def cases(rows: Iterable[Key]) -> list[tuple[int, int, str]]:
    """(classes, training samples, model), each once."""
    return list(dict.fromkeys(key[:3] for key in rows))


def number(metric: str, value: float) -> str:
    return f"{100 * value:.1f}" if metric == "confidence_error" else f"{value:.3f}"


def verdict(cell: Cell) -> str:
    """What the map does to an error, as far as the interval can tell."""
    return "lower" if cell["change_high"] < 0 else "higher" if cell["change_low"] > 0 else "open"


MARKS = {"lower": "**{}** ↓", "higher": "{} ↑", "open": "{}"}


def map_table(rows: dict[Key, dict[str, Cell]], metric: str) -> str:
    """As trained → after the focal map, marked where the interval of the change does not hold 0."""
    lines = ["| K | samples | hidden | " + " | ".join(f"γ = {gamma}" for gamma in GAMMAS) + " |"]
    lines.append("|---:|---:|---|" + "---:|" * len(GAMMAS))
    for classes, train, model in cases(rows):
        cells = []
        for gamma in GAMMAS:
            plain, mapped = (rows[classes, train, model, f"focal:{gamma}", c][metric] for c in CALIBRATORS[:2])
            after = MARKS[verdict(mapped)].format(number(metric, mapped["mean"]))
            cells.append(f"{number(metric, plain['mean'])} → {after}")
        lines.append(f"| {classes} | {train} | {MODELS[model]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def calibrator_table(rows: dict[Key, dict[str, Cell]], metric: str, gamma: int = 3) -> str:
    """Every calibrator after focal loss, and cross-entropy, mean ± standard deviation over the seeds."""
    lines = [
        f"| K | samples | hidden | focal {gamma} | focal map | temperature | focal temperature | CE | CE, temperature |"
    ]
    lines.append("|---:|---:|---|" + "---:|" * 6)
    columns = [(f"focal:{gamma}", c) for c in CALIBRATORS] + [("cross-entropy", c) for c in ("none", "temperature")]
    for case in cases(rows):
        found = [rows[(*case, *column)][metric] for column in columns]
        least = min(each["mean"] for each in found)
        cells = [f"{number(metric, each['mean'])} ± {number(metric, each['sd'])}" for each in found]
        cells = [f"**{cell}**" if each["mean"] == least else cell for cell, each in zip(cells, found, strict=True)]
        lines.append(f"| {case[0]} | {case[1]} | {MODELS[case[2]]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def count_table(rows: dict[Key, dict[str, Cell]]) -> str:
    """In how many cases the map lowers the error, raises it, or the interval holds 0."""
    lines = ["| | cases | confidence error: lower | higher | open | divergence: lower | higher | open |"]
    lines.append("|---|" + "---:|" * 7)
    everything = [(*case, gamma) for case in cases(rows) for gamma in GAMMAS]
    groups = {"all": everything}
    groups |= {
        f"{n} samples": [each for each in everything if each[1] == n] for n in sorted({c[1] for c in everything})
    }
    groups |= {f"hidden: {MODELS[m]}": [each for each in everything if each[2] == m] for m in MODELS}
    groups |= {f"K = {k}": [each for each in everything if each[0] == k] for k in sorted({c[0] for c in everything})}
    groups |= {f"γ = {g}": [each for each in everything if each[3] == g] for g in GAMMAS}
    for name, chosen in groups.items():
        cells = [str(len(chosen))]
        for metric in ("confidence_error", "excess_nll"):
            told = [verdict(rows[k, n, m, f"focal:{gamma}", "focal-map"][metric]) for k, n, m, gamma in chosen]
            cells += [str(told.count(what)) for what in ("lower", "higher", "open")]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def winner_table(rows: dict[Key, dict[str, Cell]], gamma: int = 3) -> str:
    """In how many of the cases each has the lowest mean."""
    names = {
        (f"focal:{gamma}", "none"): f"focal {gamma}",
        (f"focal:{gamma}", "focal-map"): "focal map",
        (f"focal:{gamma}", "temperature"): "temperature",
        (f"focal:{gamma}", "focal-temperature"): "focal temperature",
        ("cross-entropy", "none"): "CE",
        ("cross-entropy", "temperature"): "CE, temperature",
    }
    lines = ["| lowest in so many cases | " + " | ".join(names.values()) + " |", "|---|" + "---:|" * len(names)]
    for metric, title in (("confidence_error", "confidence error"), ("excess_nll", "divergence")):
        best = [min(names, key=lambda column: rows[(*case, *column)][metric]["mean"]) for case in cases(rows)]
        lines.append(f"| {title} | " + " | ".join(str(best.count(column)) for column in names) + " |")
    return "\n".join(lines)


def origin() -> str:
    """What made the stored table."""
    made = json.loads((STORED / "made_by.json").read_text())
    versions = ", ".join(f"{name} {made['versions'][name]}" for name in ("trueup", "torch", "numpy", "python"))
    dates = sorted({date[:10] for date in made["dates"]})
    return f"{made['runs']} runs, {' to '.join(dates)}, {versions}; {made['hardware']['cpu']}, one thread a run."


def tables(rows: dict[Key, dict[str, Cell]]) -> dict[str, str]:
    return {
        "origin": origin(),
        "counts": count_table(rows),
        "confidence": map_table(rows, "confidence_error"),
        "divergence": map_table(rows, "excess_nll"),
        "calibrators": calibrator_table(rows, "confidence_error"),
        "winners": winner_table(rows),
    }


def filled(page: str, found: dict[str, str]) -> str:
    """The page with the tables between ``<!-- NAME -->`` and ``<!-- end -->``."""
    for name, table in found.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, times = pattern.subn(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", page)
        assert times == 1, name
    return page


def draw(rows: dict[Key, dict[str, Cell]], gamma: int = 3) -> Any:
    """The confidence error against the number of samples, a panel for each K and net."""
    names = {"none": "as trained", "focal-map": "focal map", "temperature": "temperature"}
    with plots.style():
        figure, axes = plots.figure(3, 2, width=6.9, height=4.2)
        for i, (ax, (classes, model)) in enumerate(zip(axes, [(k, m) for k in (2, 10) for m in MODELS], strict=True)):
            for look, (calibrator, name) in enumerate(names.items()):
                sizes = [case[1] for case in cases(rows) if (case[0], case[2]) == (classes, model)]
                cells = [rows[classes, n, model, f"focal:{gamma}", calibrator]["confidence_error"] for n in sizes]
                colour, dash, marker = plots.LOOKS[look]
                mean, sd = ([100 * cell[part] for cell in cells] for part in ("mean", "sd"))
                ax.errorbar(
                    sizes, mean, sd, color=colour, linestyle=dash, marker=marker, markersize=4, capsize=2,
                    elinewidth=0.7, label=name,
                )  # fmt: skip
            ax.set(xscale="log", ylim=(0, None), title=f"K = {classes}, hidden: {MODELS[model]}")
            ax.grid(color="#e8e8e8", linewidth=0.5)
            if i % 3 == 0:
                ax.set_ylabel("confidence error, points")
            if i >= 3:
                ax.set_xlabel("training samples")
        axes[0].legend()
    return figure


def main() -> None:
    if len(sys.argv) > 1:
        take(Path(sys.argv[1]))
    rows = stored()
    PAGE.write_text(filled(PAGE.read_text(), tables(rows)))
    plots.save(draw(rows), HERE / "gaussians.svg")


if __name__ == "__main__":
    main()
