"""The figures of docs/focal-temperature.md."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trueup.diagrams import Landscape
from trueup.focal import focal_map, temperature_bounds
from trueup.papers.figures import WIDTH, Panel, looks, save_panels
from trueup.papers.komisarenko2024 import bounds
from trueup.papers.komisarenko2024.claims import expected_s
from trueup.papers.komisarenko2024.gathering import Study
from trueup.papers.komisarenko2024.line import BEYOND
from trueup.papers.komisarenko2024.line import GAMMAS as LINE_GAMMAS
from trueup.papers.komisarenko2024.measure import GAMMAS, TEMPERATURES
from trueup.papers.komisarenko2024.networks import PRESUMED
from trueup.papers.komisarenko2024.rivals import SIZES
from trueup.papers.komisarenko2024.sheets import Entry, by_network, named, title

SHOWN = 16
"""So many networks have their landscape drawn."""


def draw(study: Study, folder: Path) -> list[Path]:
    """All that the study allows."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [decomposition(folder), simplex(folder), temperatures(folder), differences(study, folder),
             line(study, folder), rivals(study, folder), landscapes(study, folder)]  # fmt: skip
    paths += [made for made in (histories(study, folder), shift(study, folder)) if made]
    return sorted(paths)


def decomposition(folder: Path) -> Path:
    """Two classes: the expected focal loss of q, the proper loss of Psi(q), and the map between two temperatures."""
    p = np.linspace(0.004, 0.996, 249)
    both = torch.from_numpy(np.stack([p, 1 - p], 1))
    posterior = torch.tensor([0.8, 0.2], dtype=torch.float64)
    focal, proper = {}, {}
    for gamma in (1.0, 3.0, 5.0):
        risk = -(posterior * (1 - both) ** gamma * both.log()).sum(1).numpy()
        s = expected_s(both, posterior, gamma).numpy()
        focal[f"γ = {gamma:g}"], proper[f"γ = {gamma:g}"] = (p, risk - risk.min()), (p, s - s.min())
    q = np.linspace(0.5, 0.999, 200)
    mapped = {"γ = 1": (q, np.exp(np.asarray(focal_map(np.log(np.stack([q, 1 - q], 1)), 1.0)))[:, 0])}
    for t in temperature_bounds(1.0):
        mapped[f"T = {t:.3f}"] = (q, 1 / (1 + ((1 - q) / q) ** (1 / t)))
    panels = [
        Panel("focal loss: least below .8", "reported q", "expected loss, less its least", focal, marks=(0.8,)),
        Panel("the proper loss: least at .8", "reported Ψ(q)", "expected loss, less its least", proper, marks=(0.8,)),
        Panel("the map between its temperatures", "q", "Ψ(q)", mapped),
    ]
    return save_panels(panels, folder / "decomposition.svg")


def simplex(folder: Path) -> Path:
    """Three classes: from q to Psi(q)."""
    from trueup import plots

    grid = [(i, j, 13 - i - j) for i in range(1, 12) for j in range(1, 13 - i)]
    q = np.array(grid, float) / 13
    corners = np.array([[0, 0], [1, 0], [0.5, np.sqrt(3) / 2]])
    drawn, axes = plots.figure(3, 1, width=7.2, height=2.3)
    for ax, gamma in zip(axes, (0.5, 1.0, 3.0), strict=True):
        start, end = q @ corners, np.exp(np.asarray(focal_map(np.log(q), gamma))) @ corners
        ax.plot(*np.vstack([corners, corners[:1]]).T, color=plots.INK, linewidth=0.8)
        ax.quiver(*start.T, *(end - start).T, angles="xy", scale_units="xy", scale=1, width=0.006, color="#0072B2")
        ax.set_title(f"γ = {gamma:g}", fontsize=8)
        ax.set_aspect("equal")
        ax.set_axis_off()
    plots.save(drawn, folder / "simplex.svg")
    return folder / "simplex.svg"


def temperatures(folder: Path) -> Path:
    """The temperature that the map acts like, against the top probability: all other classes alike; and the bounds."""
    panels = []
    for gamma in (1.0, 3.0):
        lines = {}
        for classes in bounds.CLASSES:
            top = np.linspace(1 / classes + 1e-3, 0.995, 200)
            lines[f"K = {classes}"] = (top, 1 / bounds.pair(top, (1 - top) / (classes - 1), gamma))
        lines["1/(1+γ)"] = (np.array([0, 1.0]), np.full(2, 1 / (1 + gamma)))
        panels.append(Panel(f"γ = {gamma:g}, other classes alike", "top probability", "temperature", lines))
    gammas = np.array(bounds.GAMMAS)
    ends = {f"K = {k}": (gammas, np.array([bounds.highest_temperature(k, g) for g in bounds.GAMMAS]))
            for k in bounds.CLASSES}  # fmt: skip
    lowest = {"1/(1+γ)": (gammas, 1 / (1 + gammas))}
    panels.append(Panel("the highest, and the lowest", "γ", "temperature", ends | lowest))
    return _with_one_legend(panels, folder / "temperatures.svg")


def differences(study: Study, folder: Path) -> Path:
    """Focal temperature less temperature by criterion and metric: a row a training loss, a point a network."""
    from trueup import plots

    wanted = (
        ("nll", "nll", 1000, "by NLL:\nNLL, 10⁻³"),
        ("nll", "ece", 100, "by NLL:\nECE, points"),
        ("adaptive_ece", "adaptive_ece", 100, "by adaptive ECE:\nthe same, points"),
    )
    rows = sorted(_grouped(study.networks, "loss").items(), key=lambda group: (group[0] == PRESUMED, group[0]))
    drawn, axes = plots.figure(3, 1, width=8.5, height=1.0 + 0.2 * len(rows))
    for ax, (criterion, metric, scale, name) in zip(axes, wanted, strict=True):
        for row, (_, entries) in enumerate(rows):
            heights = row + 0.3 * np.linspace(-1, 1, len(entries) + 2)[1:-1]
            for height, entry in zip(heights, entries, strict=True):
                value, low, high = (scale * v for v in entry["criteria"][criterion]["difference"][metric])
                colour = "#009E73" if high < 0 else "#D55E00" if low > 0 else "#777777"
                marker = "o" if high < 0 else "s" if low > 0 else "|" if low < high else "x"
                ax.plot(value, height, marker=marker, color=colour, markersize=4, alpha=0.8)
            if row % 2:
                ax.axhspan(row - 0.5, row + 0.5, color="0.95", zorder=0)
        ax.axvline(0, color="black", linewidth=0.6)
        ax.set_title(name)
        ax.set_yticks([])
        ax.set_ylim(len(rows) - 0.5, -0.5)
    axes[0].set_yticks(range(len(rows)), [f"{loss} ({len(entries)})" for loss, entries in rows])
    axes[0].set_xscale("symlog", linthresh=1)
    axes[0].set_xlim(1.4 * axes[0].dataLim.x0, 2)
    axes[0].set_xticks([-20, -5, -1, 0, 1], ["-20", "-5", "-1", "0", "1"])
    axes[0].minorticks_off()
    plots.save(drawn, folder / "differences.svg")
    return folder / "differences.svg"


def line(study: Study, folder: Path) -> Path:
    """The best T over T at gamma = 0, and its slope against the one that the formula predicts."""
    from trueup import plots

    gammas = np.array([*LINE_GAMMAS, *BEYOND])
    zero = LINE_GAMMAS.index(0.0)
    drawn, (left, right) = plots.figure(2, 1, width=6.4, height=3.0)
    for (colour, dash, _), entry in zip(plots.LOOKS, _some(study.networks, len(plots.LOOKS)), strict=False):
        best = np.array(entry["line"]["temperatures"])
        left.plot(gammas, best / best[zero], color=colour, linestyle=dash, linewidth=1,
                  label=named(entry))  # fmt: skip
    left.axvspan(LINE_GAMMAS[0], LINE_GAMMAS[-1], color="0.93", zorder=0)  # where the line is fitted
    left.set(xlabel="γ", ylabel="T / T(0)")
    left.set_title("the best T, over that at γ = 0", fontsize=8)
    drawn.legend(loc="outside lower center", ncols=2, fontsize=6, frameon=False)
    predicted, measured = np.array([[e["line"]["predicted"], e["line"]["tangent"]] for e in study.networks]).T
    ends = np.array([0, 1.05 * max(predicted.max(), measured.max())])
    right.plot(ends, ends, color=plots.INK, linewidth=0.8)
    right.plot(predicted, measured, "o", color=plots.LOOKS[1][0], markersize=3)
    right.set(xlabel="predicted without labels", ylabel="measured")
    right.set_title("its slope at γ = 0, each network", fontsize=8)
    plots.save(drawn, folder / "line.svg")
    return folder / "line.svg"


def rivals(study: Study, folder: Path) -> Path:
    """ECE and NLL against the size of the calibration set."""
    names = ("temperature", "focal-temperature", "ensemble", "vector", "matrix", "auto")
    panels = []
    for metric, label in (("nll", "median NLL on test"), ("ece", "median ECE on test, %")):
        lines = {}
        for name in names:
            found = {size: by_network(study.networks, size, name) for size in SIZES}
            points = [(size, np.median([each[metric] for each in of.values()])) for size, of in found.items() if of]
            x, y = np.array(points).T
            lines[name] = (x, y * (100 if metric == "ece" else 1))
        panels.append(Panel(label, "calibration samples", "", lines))
    return _with_one_legend(panels, folder / "rivals.svg", ticks=SIZES)


def landscapes(study: Study, folder: Path) -> Path:
    """NLL on val over temperature and gamma, a panel for each of a few networks."""
    from trueup import plots

    entries = _some(study.networks, SHOWN)
    columns = 4
    drawn, axes = plots.figure(columns, -(-len(entries) // columns), width=8.5)
    for ax, entry in zip(axes, entries, strict=False):
        found = Landscape("nll", TEMPERATURES, GAMMAS, np.array(entry["landscape"], float))
        _, _, least = found.best
        rise = max(float(np.quantile(found.values, 0.8)) - least, 1e-6)
        heights = least + rise * np.concatenate([[0], np.geomspace(0.004, 1, 9)])
        ax.contourf(found.temperatures, found.gammas, found.values, heights, cmap="cividis", extend="max")
        ax.plot(entry["line"]["temperatures"], (*LINE_GAMMAS, *BEYOND), color="white", linewidth=0.9)
        of = entry["criteria"]["nll"]
        fitted = np.array([of["focal-temperature"][name] for name in ("temperature", "gamma")])
        shown = np.clip(fitted, (TEMPERATURES[0], GAMMAS[0]), (TEMPERATURES[-1], GAMMAS[-1]))
        within = np.allclose(fitted, shown)
        ax.plot(*shown, "*" if within else "^", color="white", markeredgecolor="black", markersize=7 if within else 5,
                markeredgewidth=0.5, clip_on=False, zorder=3)  # fmt: skip
        ax.plot(of["temperature"]["temperature"], 0, "o", color="white", markeredgecolor="black", markersize=3.5,
                markeredgewidth=0.5)  # fmt: skip
        ax.set_xscale("log")
        ax.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
        ax.minorticks_off()
        ax.set(xlim=TEMPERATURES[[0, -1]], ylim=GAMMAS[[0, -1]])
        ax.set_title("\n".join((*textwrap.wrap(title(entry), 34), entry["loss"])), fontsize=6.5)
    for ax in axes[len(entries) :]:
        ax.set_axis_off()
    drawn.supxlabel("temperature", fontsize=8)
    drawn.supylabel("γ", fontsize=8)
    plots.save(drawn, folder / "landscapes.png", dpi=130)
    return folder / "landscapes.png"


def histories(study: Study, folder: Path) -> Path | None:
    """The probability of the label on train and on test over the epochs, for the net with most gammas."""
    nets: dict[tuple[Any, ...], dict[str, Any]] = {}
    for history in study.histories.values():
        key = tuple((k, str(v)) for k, v in sorted(history["recipe"].items()) if k != "loss")
        nets.setdefault(key, {})[history["loss"]] = history
    if not nets:
        return None
    runs = max(nets.values(), key=lambda of: (len(of), next(iter(of.values()))["recipe"]["reduction"] == "sum"))
    first = next(iter(runs.values()))
    panels, epoch = [], f"epoch ({first['model']}, {first['data']})"
    for part in ("train", "test"):
        for quantity, label in (("true_probability", "mean p of the label"), ("ece", "ECE")):
            lines = {
                loss: (np.arange(len(run["epochs"][part])), np.array([each[quantity] for each in run["epochs"][part]]))
                for loss, run in sorted(runs.items(), key=lambda item: item[1]["gamma"])
            }
            panels.append(Panel(f"{part}: {label}", epoch, "", lines))
    return _with_one_legend(panels, folder / "histories.svg")


def shift(study: Study, folder: Path) -> Path | None:
    """ECE against severity, the mean over the kinds, for each run."""
    panels = []
    for run in study.shift[:6]:
        lines = {}
        for name in run["cells"][0]["maps"]:
            if "adaptive" not in name:
                values = [
                    np.mean([c["maps"][name]["ece"] for c in run["cells"] if c["severity"] == s]) for s in range(6)
                ]
                lines[name] = (np.arange(6), 100 * np.array(values))
        panels.append(
            Panel(run["recipe"]["model"] + ", " + run["recipe"]["loss"], "severity (0: clean)", "ECE, %", lines)
        )
    return _with_one_legend(panels, folder / "shift.svg", same_height=True) if panels else None


def _with_one_legend(
    panels: Sequence[Panel], path: Path, *, ticks: Sequence[int] = (), same_height: bool = False
) -> Path:
    """Panels whose lines have the same names: one row, one legend below. ``ticks``: x is logarithmic, and has these."""
    from trueup import plots

    drawn, axes = plots.figure(len(panels), 1, width=WIDTH * len(panels), height=WIDTH + 0.3)
    names = list(panels[0].lines)
    sizes = np.linspace(6, 2.5, len(names))  # where two lines are one, both are seen
    for ax, panel in zip(axes, panels, strict=True):
        for (colour, dash, marker), size, name in zip(looks(names), sizes, names, strict=True):
            x, y = panel.lines[name]
            points = {"marker": marker, "markersize": size, "markerfacecolor": "none"} if 2 < len(x) < 10 else {}
            ax.plot(x, y, label=name, color=colour, linestyle=dash, linewidth=1, **points)
        ax.set_title(panel.title, fontsize=8)
        ax.set_xlabel(panel.x, fontsize=8)
        ax.set_ylabel(panel.y, fontsize=8)
        if ticks:
            ax.set_xscale("log")
            ax.set_xticks(ticks, [f"{tick}" for tick in ticks])
            ax.minorticks_off()
        if same_height:
            ax.set_ylim(0, 1.05 * max(float(np.max(y)) for each in panels for _, y in each.lines.values()))
    columns = len(names) if len(names) <= 2 * len(panels) + 1 else -(-len(names) // 2)
    handles, labels = axes[-1].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=7, frameon=False)
    plots.save(drawn, path)
    return path


def _some(entries: Sequence[Entry], many: int) -> list[Entry]:
    """A few that differ: the data sets take turns, and within each its training losses do."""
    by_data = _grouped(entries, "data")
    queues = [_in_turn(list(_grouped(of, "loss").values())) for of in by_data.values()]
    return _in_turn(queues)[:many]


def _grouped(entries: Sequence[Entry], key: str) -> dict[str, list[Entry]]:
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry[key], []).append(entry)
    return groups


def _in_turn(queues: list[list[Entry]]) -> list[Entry]:
    """The first of each, the second of each, ..."""
    return [entry for row in zip_longest(*queues) for entry in row if entry is not None]
