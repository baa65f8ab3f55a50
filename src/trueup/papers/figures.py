"""Panels side by side, for the figures of the papers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 2.4
"""Inches a panel."""
LEGEND = 0.7
"""Inches that legends below the panels take."""
PLACE = "figures/reproduction"
"""Where the figures of the first page lie, from there."""


_GAMMAS = {"0": 0, "0.5": 1, "1": 2, "2": 3, "3": 4, "4": 1, "5": 5, "7": 7, "10": 6}
PLACES = {f"{word}{gamma}": place for gamma, place in _GAMMAS.items() for word in ("γ = ", "FL-", "focal:")} | {
    "CE": 0, "cross-entropy": 0, "FLSD-53": 1, "focal loss": _GAMMAS["3"],
}  # fmt: skip
"""The place among ``plots.LOOKS`` of what has the same colour in every figure, those of docs/figures/theory.py too."""


def looks(names: Iterable[str]) -> list[tuple[str, Any, str]]:
    """Colour, dash and marker of each; what is of no fixed place takes the first that is free.

    >>> [colour for colour, *_ in looks(["L1 norm", "focal loss", "cross-entropy"])]
    ['#0072B2', '#CC79A7', '#000000']
    """
    from trueup import plots

    kinds = [name.rpartition(", ")[2] for name in names]
    free = cycle([i for i in range(len(plots.LOOKS)) if i not in map(PLACES.get, kinds)])
    return [plots.LOOKS[PLACES[kind] if kind in PLACES else next(free)] for kind in kinds]


@dataclass(frozen=True)
class Panel:
    """Lines by their names, each (x, y), and histograms, each (edges, one height less)."""

    title: str
    x: str
    y: str
    lines: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    stairs: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """A height that is NaN is left out; a histogram alone in its panel is filled."""
    points: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Pale marks below the lines, a shape for each name."""
    marks: Sequence[float] = ()
    """Where a thin upright line stands: the epochs at which the learning rate falls."""
    limits: tuple[float, float] | None = None
    """Of x."""
    span: tuple[float, float] | None = None
    """Of y."""
    diagonal: bool = False
    """Whether a thin line shows where y is x."""
    markers: bool = False
    """Whether each point of a line is marked."""
    ticks: Mapping[float, str] = field(default_factory=dict)
    """Of x, each with its text."""
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By the name of a line: a text beside each of its points. The line that joins them is thin."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.points, *self.lines, *self.stairs)


@dataclass(frozen=True)
class Picture:
    """A figure of a paper."""

    name: str
    """Of its file, without the ending."""
    told: str
    """What it shows, the first sentence on its own; without panels, why it is not drawn."""
    panels: Sequence[Panel] = ()
    columns: int = 3
    legend_below: bool = False

    def save(self, folder: Path) -> Path:
        return save_panels(
            self.panels, folder / f"{self.name}.svg", columns=self.columns, legend_below=self.legend_below
        )


def save_pictures(pictures: Iterable[Picture], folder: Path) -> list[Path]:
    """Draws those that have panels."""
    return [picture.save(folder) for picture in pictures if picture.panels]


def on_page(pictures: Iterable[Picture]) -> tuple[tuple[str, str], ...]:
    """(what it shows, its path from the page, "" where it is not drawn) of each."""
    return tuple((each.told, f"{PLACE}/{each.name}.svg" if each.panels else "") for each in pictures)


def save_panels(panels: Sequence[Panel], path: Path, columns: int = 3, *, legend_below: bool = False) -> Path:
    """Draws the panels and saves them, as the name ends. Below, one legend serves panels that all have the same."""
    from trueup import plots

    columns = min(columns, len(panels))
    rows, width = -(-len(panels) // columns), max(plots.COLUMN, WIDTH * columns)
    height = width / columns * rows + LEGEND if legend_below else None
    drawn, axes = plots.figure(columns, rows, width=width, height=height)
    shared = legend_below and len({panel.names for panel in panels}) == 1
    for ax, panel in zip(axes, panels, strict=False):
        _draw_on(ax, panel)
        if len(panel.names) > 1 and not shared:
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.22), "ncols": 2} if legend_below else {}
            ax.legend(fontsize=6, frameon=True, framealpha=0.8, edgecolor="none", **below)
    if shared:
        handles = axes[0].get_legend_handles_labels()
        drawn.legend(*handles, fontsize=7, frameon=False, loc="outside lower center", ncols=6)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    plots.save(drawn, path)
    return path


def _draw_on(ax: Axes, panel: Panel) -> None:
    from trueup import plots

    if panel.diagonal:
        ax.axline((0, 0), slope=1, color="0.5", linewidth=0.6)
    for shape, (name, (x, y)) in zip(cycle(("o", "x", "^", "s")), panel.points.items(), strict=False):
        ax.scatter(x, y, label=name, color="0.6", marker=shape, s=4, linewidths=0.5, zorder=0)
    for (colour, dash, mark), (name, (x, y)) in zip(looks(panel.lines), panel.lines.items(), strict=True):
        marked = {"marker": mark, "markersize": 3.5} if panel.markers else {}
        ax.plot(x, y, label=name, color=colour, linestyle=dash, linewidth=0.5 if name in panel.labels else 1, **marked)
        for text, *place in zip(panel.labels.get(name, ()), x, y, strict=False):
            ax.annotate(text, tuple(place), (3, 3), textcoords="offset points", fontsize=6)
    alone = len(panel.stairs) == 1
    for (colour, dash, _), (name, (edges, heights)) in zip(looks(panel.stairs), panel.stairs.items(), strict=True):
        face = {"fill": True, "facecolor": plots.PALE} if alone else {}
        ax.stairs(heights, edges, label=name, edgecolor=colour, linestyle=dash, linewidth=0.6 if alone else 1, **face)
    for mark in panel.marks:
        ax.axvline(mark, color="0.7", linewidth=0.6, zorder=0)
    ax.set_title(panel.title, fontsize=8)
    ax.set_xlabel(panel.x, fontsize=8)
    ax.set_ylabel(panel.y, fontsize=8)
    if panel.ticks:
        ax.set_xticks(list(panel.ticks), list(panel.ticks.values()))
    if panel.limits:
        ax.set_xlim(*panel.limits)
    if panel.span:
        ax.set_ylim(*panel.span)


def ece_of_nets(found: Mapping[str, Mapping[str, np.ndarray]]) -> list[Picture]:
    """Figure 1 of lossfunctions: net -> loss -> ECE on test after every epoch."""
    panels = [
        Panel(net, "epoch", "ECE on test", {loss: (np.arange(len(y)), y) for loss, y in of_loss.items()})
        for net, of_loss in found.items()
    ]
    told = "Figure 1: ECE on test over the epochs." if panels else "Figure 1 is not drawn: no run of it is stored."
    return [Picture("lossfunctions-figure1", told, panels, legend_below=True)]
