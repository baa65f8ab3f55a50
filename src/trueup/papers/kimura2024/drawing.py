"""The paper's figures, from what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from trueup.papers.figures import Panel, save_panels
from trueup.papers.kimura2024.networks import DATASETS, LOSSES, TITLES, Nets, Point, by_net
from trueup.papers.kimura2024.penalty import MEASURES, by_rate, by_tau
from trueup.papers.kimura2024.theory import SHOWN_GAMMAS, loss_and_slope

Line = tuple[np.ndarray, np.ndarray]
SHORT = dict(zip(LOSSES, ("of the training loss", "of cross-entropy, same weights"), strict=True))
"""Whose curvature a panel shows."""


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    """Figure 1; Figures 2 to 4 and that of digits where there are runs for them."""
    drawn = [save_panels(figure_1(), folder / "figure1.svg")]
    for name, panels in figures(points).items():
        drawn.append(save_panels(panels, folder / f"{name}.svg", 2 if name.startswith("figure3") else 3))
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


def figure_2(nets: Nets) -> list[Panel]:
    def lines(value: Callable[[Point], float]) -> dict[str, Line]:
        return {
            TITLES[net]: (np.array(list(of)), np.array([value(point) for point in of.values()]))
            for net, of in nets.items()
        }

    alone = f"{TITLES[next(iter(nets))]}, " if len(nets) == 1 else ""  # a single line has no key
    curved = [
        Panel(
            f"{alone}{SHORT[loss]}",
            "γ",
            "λ max on val",
            lines(lambda p, of=of: of(p)["lambda_max"]["value"]),
            markers=True,
        )
        for loss, of in LOSSES.items()
    ]
    return [*curved, Panel(f"{alone}calibration", "γ", "ECE on test in %", lines(MEASURES["ECE"]), markers=True)]


def figure_3(nets: Nets) -> list[Panel]:
    """A row for each net: its points are joined in the order of gamma, which stands beside each."""
    panels = []
    for net, of in nets.items():
        for loss, measured in LOSSES.items():
            traces = np.array([measured(point)["trace"]["value"] for point in of.values()])
            line = (traces, np.array([MEASURES["ECE"](point) for point in of.values()]))
            title, texts = f"{TITLES[net]}\n{SHORT[loss]}", {"": [f"{gamma:g}" for gamma in of]}
            x = "trace on val (at each point: γ)"
            panels.append(Panel(title, x, "ECE on test in %", {"": line}, markers=True, labels=texts))
    return panels


def figure_4(points: Sequence[Point]) -> list[Panel]:
    return _against_tau({f"lr {lr:g}": of for lr, of in by_rate(points).items()})


def figure_of_digits(points: Sequence[Point]) -> list[Panel]:
    taus = by_tau(points)
    seeds = range(max(map(len, taus.values())))
    return _against_tau({f"seed {i}": {tau: runs[i] for tau, runs in taus.items() if i < len(runs)} for i in seeds})


def _against_tau(series: dict[str, dict[float, Point]]) -> list[Panel]:
    """A net that has collapsed to a constant is left out: its ECE is small without merit, its error dwarfs the rest."""
    left_out = {tau for of in series.values() for tau, point in of.items() if not point.learnt}
    kept = {name: {tau: of[tau] for tau in of if tau not in left_out} for name, of in series.items()}
    least = min((tau for of in kept.values() for tau in of if tau), default=1.0)
    units = {"trace": "trace on val", "ECE": "ECE on test in %", "error": "error on test in %"}
    panels = []
    for what, unit in units.items():
        lines = {
            name: (_shown(list(of), least), np.array([MEASURES[what](point) for point in of.values()]))
            for name, of in kept.items()
        }
        panels.append(Panel(what, "τ", unit, lines, markers=True, ticks=_ticks(lines.values(), least)))
    return panels


def _ticks(lines: Iterable[Line], least: float) -> dict[float, str]:
    """Whole powers of ten, and where 0 stands."""
    last = max((float(x.max()) for x, _ in lines if len(x)), default=np.log10(least))
    powers = range(int(np.ceil(np.log10(least))), int(np.floor(last + 1e-9)) + 1)
    return {float(np.log10(least / 10)): "0"} | {float(power): f"$10^{{{power}}}$" for power in powers}


def _shown(taus: list[float], least: float) -> np.ndarray:
    """log10 of tau; 0 stands one power of ten below the least of all lines."""
    return np.log10([tau or least / 10 for tau in taus])
