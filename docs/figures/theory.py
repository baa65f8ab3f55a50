"""Draws the figures of docs/theory.md: ``python docs/figures/theory.py [folder]``. Computing and drawing are apart."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import trueup
from trueup.focal import bend_at

HERE = Path(__file__).parent
Curves = dict[float, np.ndarray]
"""gamma -> a curve."""

STYLE: dict[Any, Any] = {
    "figure.dpi": 150,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 3.0,
    "lines.linewidth": 1.5,
    "path.simplify_threshold": 0.3,
    "svg.hashsalt": "trueup",  # the same picture gives the same file
}
LOOKS = [  # colours that the colour-blind can tell apart, and a dash for those who print in grey
    ("#000000", "-"),
    ("#0072B2", "--"),
    ("#D55E00", "-."),
    ("#009E73", ":"),
    ("#CC79A7", (0, (6, 1.5))),
    ("#7A5C00", (0, (4, 1, 1, 1, 1, 1))),
    ("#56B4E9", (0, (9, 2, 1, 2))),
    ("#8C1A1A", (0, (2, 1))),
]
GAMMAS = (0, 0.5, 1, 2, 3, 5, 10, -0.5)
"""Each has one look in all figures."""
INK = "#444444"


def look(i: int) -> dict[str, Any]:
    colour, dash = LOOKS[i]
    return {"color": colour, "linestyle": dash}


def panels(count: int, width: float = 3.6, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, count)))


def draw_curves(axes: Axes, x: np.ndarray, curves: Curves) -> None:
    for gamma, y in curves.items():
        axes.plot(x, y, label=f"γ = {gamma:g}".replace("-", "−"), **look(GAMMAS.index(gamma)))


# ---------------------------------------------------------------------------------------------- what is drawn


def probabilities(points: int = 401) -> np.ndarray:
    return np.linspace(0, 1, points)[1:-1]


def losses(p: np.ndarray, gammas: Sequence[float]) -> Curves:
    return {g: -((1 - p) ** g) * np.log(p) for g in gammas}


def phis(p: np.ndarray, gammas: Sequence[float]) -> Curves:
    return {g: np.asarray(trueup.phi(p, g)) for g in gammas}


def bends(p: np.ndarray, gammas: Sequence[float]) -> Curves:
    """The curvature d^2 FL/du^2 in the log-odds u, where p has the label."""
    against = torch.from_numpy(np.log1p(-p) - np.log(p))
    return {g: bend_at(against, g).numpy() for g in gammas}


def binary(p: np.ndarray) -> np.ndarray:
    return np.stack([p, 1 - p], -1)


def one_against_rest(p: np.ndarray, classes: int) -> np.ndarray:
    """(..., K) probabilities: p, and the rest in equal parts."""
    return np.concatenate([p[:, None], np.repeat((1 - p)[:, None] / (classes - 1), classes - 1, 1)], 1)


def minimisers(p: np.ndarray, gammas: Sequence[float]) -> Curves:
    return {g: np.asarray(trueup.risk_minimiser(binary(p), g))[:, 0] for g in gammas}


def gaps(gamma: float, class_counts: Sequence[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Of the most probable class: its posterior, and by how much the minimiser is above it."""
    found = {}
    for classes in class_counts:
        p = np.linspace(1 / classes, 1, 241)[1:-1]
        found[classes] = p, np.asarray(trueup.risk_minimiser(one_against_rest(p, classes), gamma))[:, 0] - p
    return found


def simplex_points(steps: int) -> np.ndarray:
    """(N, 3) points of a triangular grid, away from the edges."""
    grid = [(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)]
    return (np.array(grid) + 0.3) / (steps + 0.9)


def flat(points: np.ndarray) -> np.ndarray:
    """(N, 3) probabilities as points (N, 2) of an equilateral triangle."""
    return points @ np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])


def temperature_of_map(s: np.ndarray, gamma: float) -> np.ndarray:
    """The temperature T(s) = s / logit Psi(sigmoid(s)) by which the binary focal map acts at the log-odds s."""
    mapped = np.asarray(trueup.focal_map(np.stack([s, np.zeros_like(s)], -1), gamma))
    return s / (mapped[:, 0] - mapped[:, 1])


def tight_temperature(gamma: float) -> float:
    """The largest T(s), on a fine grid of s."""
    return float(temperature_of_map(np.geomspace(1e-3, 60, 4000), gamma).max())


def proved_temperature(gamma: np.ndarray) -> np.ndarray:
    """1 / (1 + g - g / (2 + g)), the bound that docs/theory.md proves."""
    return (2 + gamma) / (2 + 2 * gamma + gamma**2)


# --------------------------------------------------------------------------------------------------- drawings


def draw_loss() -> Figure:
    p, gammas = probabilities(), (0.0, 0.5, 1.0, 2.0, 5.0)
    figure, (left, right) = panels(2)
    draw_curves(left, p, losses(p, gammas))
    draw_curves(right, p, {g: y / p for g, y in phis(p, gammas).items()})
    left.set(xlabel="probability p of the label", ylabel="loss", xlim=(0, 1), ylim=(0, 4))
    right.set(xlabel="probability p of the label", ylabel="−d loss / dp  =  φ(p) / p", xlim=(0, 1), ylim=(0, 8))
    left.legend()
    return figure


def draw_phi() -> Figure:
    p, gammas = probabilities(), (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
    figure, (left, right) = panels(2)
    left.axhline(1, xmax=0.6, color=INK, linewidth=0.8)
    draw_curves(left, p, phis(p, gammas))
    for gamma in gammas:
        top, one = trueup.confidence_thresholds(gamma)
        left.plot(top, trueup.phi(top, gamma), "o", color=INK, markersize=3.5, zorder=3)
        left.plot(one, 1, "s", color=INK, markersize=3.5, markerfacecolor="white", zorder=3)
    left.set(xlabel="probability p of the label", ylabel="φ(p)", xlim=(0, 1), ylim=(0, 1.7))
    left.legend(labelspacing=0.2)
    g = np.linspace(0, 10, 201)
    over, under = trueup.confidence_thresholds(g)
    right.fill_between(g, 0, over, color="#D55E00", alpha=0.13, linewidth=0)
    right.fill_between(g, under, 0.6, color="#0072B2", alpha=0.13, linewidth=0)
    right.plot(g, under, label=r"$\tau_{uc} = p_0$: φ passes 1 (squares)", **look(1))
    right.plot(g, over, label=r"$\tau_{oc}$: φ is largest (dots)", **look(2))
    right.text(6.3, 0.41, "under-confident", ha="center")
    right.text(4.1, 0.125, "depends on the rest", ha="center")
    right.text(2.5, 0.03, "over-confident", ha="center")
    right.set(xlabel="γ", ylabel="largest probability m of the minimiser", xlim=(0, 10), ylim=(0, 0.6))
    right.legend(loc="upper right")
    return figure


def draw_minimiser() -> Figure:
    p, gammas = np.linspace(0, 1, 201)[1:-1], (0.0, 1.0, 2.0, 3.0, 5.0, -0.5)
    figure, (left, right) = panels(2)
    draw_curves(left, p, minimisers(p, gammas))
    left.set(xlabel="posterior", ylabel="minimiser of the focal risk", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    left.set_title("two classes")
    left.legend(loc="upper left", labelspacing=0.25)
    right.axhline(0, color=INK, linewidth=0.8)
    for i, (classes, (x, gap)) in enumerate(gaps(3.0, (2, 4, 10, 100, 1000)).items()):
        right.plot(x, gap, label=f"K = {classes}", **look(i))
    right.set(xlabel="largest posterior, the rest in equal parts", ylabel="minimiser − posterior, largest class")
    right.set(xlim=(0, 1), ylim=(-0.31, 0.06))
    right.set_title("γ = 3: over-confident above the line")
    right.legend(loc="lower left")
    return figure


def draw_simplex() -> Figure:
    points, gammas = simplex_points(9), (-0.5, 1.0, 3.0)
    figure, all_axes = panels(3, width=2.9, height=2.75)
    corners = flat(np.vstack([np.eye(3), np.eye(3)[:1]]))
    for axes, gamma in zip(all_axes, gammas, strict=True):
        begin, end = flat(points), flat(np.exp(trueup.focal_map(np.log(points), gamma)))
        axes.plot(*corners.T, color=INK, linewidth=1)
        axes.plot(*begin.T, ".", color="#0072B2", markersize=2.5)
        axes.quiver(
            *begin.T, *(end - begin).T, angles="xy", scale_units="xy", scale=1, width=0.005, color="#0072B2",
            headwidth=4, headlength=5, headaxislength=4.5, minlength=0.3,
        )  # fmt: skip
        axes.set(xlim=(-0.08, 1.08), ylim=(-0.12, 0.97), aspect="equal")
        axes.axis("off")
        axes.set_title(f"γ = {gamma:g}".replace("-", "−"), y=-0.09)
        for name, (x, y), side in zip("123", corners[:3], (-0.04, -0.04, 0.03), strict=True):
            axes.text(x, y + side, name, ha="center", va="top" if side < 0 else "bottom", color=INK)
    return figure


def draw_temperature() -> Figure:
    figure, (left, middle, right) = panels(3, width=3.1, height=2.9)
    gamma = 1.0
    v = probabilities()
    s = np.log(v) - np.log1p(-v)
    low, high = (float(t) for t in trueup.temperature_bounds(gamma))
    mapped = np.exp(np.asarray(trueup.focal_map(np.stack([s, np.zeros_like(s)], -1), gamma)))[:, 0]
    at = {t: 1 / (1 + np.exp(-s / t)) for t in (low, high)}
    left.plot(v, v, color="#aaaaaa", linewidth=0.9)
    left.fill_between(v, at[low], at[high], color="#bbbbbb", alpha=0.5, linewidth=0)
    left.plot(v, at[low], label=f"T = {low:.3f}", linewidth=1.1, **look(2))
    left.plot(v, at[high], label=f"T = {high:.3f}", linewidth=1.1, **look(1))
    left.plot(v, mapped, label="focal map, γ = 1", linewidth=1.3, **look(0))
    left.set(xlabel="v", ylabel="mapped probability", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    left.legend(loc="upper left", handlelength=2.2)

    size = np.linspace(1e-3, 12, 600)
    middle.plot(size, temperature_of_map(size, gamma), label="T(s) of the map", **look(0))
    bounds = {
        "theorem of komisarenko2024": high,
        "bound proved here": float(proved_temperature(np.array(gamma))),
        "tight": tight_temperature(gamma),
        "1 / (1 + γ)": low,
    }
    for i, (name, value) in enumerate(bounds.items(), start=1):
        middle.axhline(value, label=name, linewidth=1.2, **look(i))
    middle.set(xlabel="log-odds s", ylabel="temperature, γ = 1", xlim=(0, 12), ylim=(0.49, 0.675))
    middle.legend(loc="upper right", labelspacing=0.2, handlelength=2.4)

    g = np.geomspace(0.05, 100, 121)
    upper = np.asarray(trueup.temperature_bounds(g)[1])
    right.plot(g, (1 + g) * upper, label="theorem of komisarenko2024", **look(1))
    right.plot(g, (1 + g) * proved_temperature(g), label="bound proved here", **look(2))
    right.plot(g, [(1 + x) * tight_temperature(x) for x in g], label="tight", **look(3))
    right.axhline(1, label="1 / (1 + γ)", **look(4))
    right.set(xlabel="γ", ylabel="(1 + γ) T", xscale="log", xlim=(0.05, 100), ylim=(0.99, 1.36))
    right.legend(loc="upper right", labelspacing=0.2, handlelength=2.4)
    return figure


def draw_curvature() -> Figure:
    p, gammas = probabilities(801), (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)
    curves = bends(p, gammas)
    figure, (left, right) = panels(2)
    left.axhline(0, color=INK, linewidth=0.8)
    draw_curves(left, p, curves)
    left.set(xlabel="probability p of the label", ylabel="curvature d² loss / du²", xlim=(0, 1))
    left.legend()
    right.axhline(0, color=INK, linewidth=0.8)
    draw_curves(right, p, {g: y / (p * (1 - p)) for g, y in curves.items()})
    right.set(xlabel="probability p of the label", ylabel="curvature over cross-entropy's, κ(p)")
    right.set(xlim=(0, 1), ylim=(-2, 5))
    return figure


FIGURES = {
    "loss": draw_loss,
    "phi": draw_phi,
    "minimiser": draw_minimiser,
    "simplex": draw_simplex,
    "temperature": draw_temperature,
    "curvature": draw_curvature,
}


def main(folder: Path = HERE, kind: str = "svg") -> None:
    with mpl.rc_context(STYLE):
        for name, draw in FIGURES.items():
            metadata = {"Date": None} if kind == "svg" else None
            draw().savefig(folder / f"{name}.{kind}", metadata=metadata)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else HERE)
