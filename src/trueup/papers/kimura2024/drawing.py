"""The paper's figures, from what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from trueup.papers.figures import Panel, save_panels
from trueup.papers.kimura2024.networks import DATASETS, MEASURES, TITLES, Point, by_net, by_rate, by_tau
from trueup.papers.kimura2024.theory import SHOWN_GAMMAS, loss_and_slope

Line = tuple[np.ndarray, np.ndarray]


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    """Figure 1; Figures 2 to 4 and that of digits where there are runs for them."""
    drawn = [save_panels(figure_1(), folder / "figure1.svg")]
    for name, panels in figures(points).items():
        drawn.append(save_panels(panels, folder / f"{name}.svg"))
    return drawn


def figures(points: Sequence[Point]) -> dict[str, list[Panel]]:
    """By file name; only those that runs are stored for."""
    found: dict[str, list[Panel]] = {}
    for data in DATASETS:
        nets = {net: of for net, of in by_net(points, data).items() if len(of) > 2}
        if nets:
            found[f"figure2-{data}"] = figure_2(nets)
            found[f"figure3-{data}"] = figure_3(nets)
    if by_rate(points):
        found["figure4"] = figure_4(points)
    if len(by_tau(points)) > 1:
        found["digits"] = figure_of_digits(points)
    return found


def figure_1() -> list[Panel]:
    p = torch.linspace(0.003, 0.9999, 400, dtype=torch.float64)
    lines = {gamma: loss_and_slope(p, gamma) for gamma in SHOWN_GAMMAS}
    return [
        Panel("loss", "p", "loss", {f"γ = {g:g}": (p.numpy(), both[0].numpy()) for g, both in lines.items()}),
        Panel(
            "gradient", "p", "dloss/dp",
            {f"γ = {g:g}": (p[40:].numpy(), both[1][40:].numpy()) for g, both in lines.items()},
        ),
    ]  # fmt: skip


def figure_2(nets: dict[str, dict[float, Point]]) -> list[Panel]:
    def lines(value) -> dict[str, Line]:
        return {
            TITLES[net]: (np.array(list(of)), np.array([value(point) for point in of.values()]))
            for net, of in nets.items()
        }

    return [
        Panel("training loss", "γ", "λ max on val", lines(lambda point: point.own["lambda_max"]["value"])),
        Panel("cross-entropy", "γ", "λ max on val", lines(lambda point: point.plain["lambda_max"]["value"])),
        Panel("calibration", "γ", "ECE on test", lines(lambda point: point.on_test("ece"))),
    ]


def figure_3(nets: dict[str, dict[float, Point]]) -> list[Panel]:
    panels = []
    for title in ("training loss", "cross-entropy"):
        lines = {}
        for net, of in nets.items():
            both = [(point.own if title == "training loss" else point.plain, point) for point in of.values()]
            pairs = sorted((losses["trace"]["value"], point.on_test("ece")) for losses, point in both)
            x, y = np.array(pairs).T
            lines[TITLES[net]] = (x, y)
        panels.append(Panel(title, "trace on val", "ECE on test", lines))
    return panels


def figure_4(points: Sequence[Point]) -> list[Panel]:
    rates = by_rate(points)
    lines: dict[str, dict[str, Line]] = {what: {} for what in ("trace", "ECE", "error")}
    for lr, of in rates.items():
        for what, found in lines.items():
            found[f"lr {lr:g}"] = (_shown(list(of)), np.array([MEASURES[what](point) for point in of.values()]))
    return _against_tau(lines)


def figure_of_digits(points: Sequence[Point]) -> list[Panel]:
    taus = by_tau(points)
    lines: dict[str, dict[str, Line]] = {what: {} for what in ("trace", "ECE", "error")}
    for what, found in lines.items():
        for i in range(max(map(len, taus.values()))):
            of = {tau: runs[i] for tau, runs in taus.items() if i < len(runs)}
            found[f"seed {i}"] = (_shown(list(of)), np.array([MEASURES[what](point) for point in of.values()]))
    return _against_tau(lines)


def _shown(taus: list[float]) -> np.ndarray:
    """log10 of tau; 0 stands one power of ten below the least."""
    least = min(tau for tau in taus if tau)
    return np.log10([tau or least / 10 for tau in taus])


def _against_tau(lines: dict[str, dict[str, Line]]) -> list[Panel]:
    units = {"trace": "trace on val", "ECE": "ECE on test in %", "error": "error on test in %"}
    return [Panel(what, "log10 τ (left: τ = 0)", units[what], found) for what, found in lines.items()]
