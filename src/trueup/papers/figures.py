"""Panels side by side, for the figures of the papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import numpy as np

WIDTH = 2.4
"""Inches a panel."""


@dataclass(frozen=True)
class Panel:
    """Lines by their names, each (x, y); a histogram where there are ``bars``."""

    title: str
    x: str
    y: str
    lines: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    bars: Mapping[str, np.ndarray] = field(default_factory=dict)
    marks: Sequence[float] = ()
    """Where a thin upright line stands: the epochs at which the learning rate falls."""
    limits: tuple[float, float] | None = None
    """Of x."""


def save_panels(panels: Sequence[Panel], path: Path, columns: int = 3) -> Path:
    """Draws the panels and saves them, as the name ends."""
    from trueup import plots

    columns = min(columns, len(panels))
    drawn, axes = plots.figure(columns, -(-len(panels) // columns), width=max(plots.COLUMN, WIDTH * columns))
    for ax, panel in zip(axes, panels, strict=False):
        for (colour, dash, _), (name, (x, y)) in zip(cycle(plots.LOOKS), panel.lines.items(), strict=False):
            ax.plot(x, y, label=name, color=colour, linestyle=dash, linewidth=1)
        for (colour, dash, _), (name, values) in zip(cycle(plots.LOOKS), panel.bars.items(), strict=False):
            bins = np.linspace(0.5, 1, 26).tolist()
            ax.hist(values, bins=bins, histtype="step", color=colour, linestyle=dash, label=name)
        for mark in panel.marks:
            ax.axvline(mark, color="0.7", linewidth=0.6, zorder=0)
        ax.set_title(panel.title, fontsize=8)
        ax.set_xlabel(panel.x, fontsize=8)
        ax.set_ylabel(panel.y, fontsize=8)
        if panel.limits:
            ax.set_xlim(*panel.limits)
        if len(panel.lines) + len(panel.bars) > 1:
            ax.legend(fontsize=6, frameon=True, framealpha=0.8, edgecolor="none")
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    plots.save(drawn, path)
    return path


def ece_of_nets(found: Mapping[str, Mapping[str, np.ndarray]], folder: Path) -> list[Path]:
    """Figure 1 of lossfunctions: net -> loss -> ECE on test after every epoch."""
    panels = [
        Panel(net, "epoch", "ECE on test", {loss: (np.arange(len(y)), y) for loss, y in of_loss.items()})
        for net, of_loss in found.items()
    ]
    return [save_panels(panels, folder / "figure1.svg")] if panels else []
