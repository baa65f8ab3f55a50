"""Figures at the width of a column: data in, matplotlib out. No other module imports matplotlib, and this one late.

Each of the four takes samples, or in place of them what ``trueup.diagrams`` made of them, and an Axes to draw on, which
it gives back; without one it makes a figure in our style. Nothing is told by colour alone.

>>> from trueup import plots
>>> from trueup.example import example_predictions
>>> test = example_predictions()["test"]
>>> found = plots.reliability(test.probs, test.labels)          # numbers
>>> [round(float(x[-1]), 3) for x in (found.confidence, found.accuracy, found.low, found.high, found.share)]
[0.991, 0.876, 0.985, 0.996, 0.607]
>>> axes = plots.reliability_diagram(found)                     # a picture of them
>>> plots.save(axes, "reliability.svg")                         # doctest: +SKIP
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.diagrams import (
    Confidences,
    Curve,
    History,
    Landscape,
    Reliability,
    confidences,
    curve_of,
    landscape,
    reliability,
)
from trueup.inputs import Array, InputError
from trueup.metrics.scores import TopLabel
from trueup.tables import SHARES, TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = 3.3
"""Inches: the width of a column in most journals."""
STYLE: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.3,
    "svg.hashsalt": "trueup",  # the same picture gives the same file
}
LOOKS: tuple[tuple[str, Any, str], ...] = (
    ("#000000", "-", "o"),
    ("#0072B2", "--", "s"),
    ("#D55E00", "-.", "^"),
    ("#009E73", ":", "D"),
    ("#CC79A7", (0, (6, 1.5)), "v"),
    ("#7A5C00", (0, (4, 1, 1, 1, 1, 1)), "P"),
    ("#56B4E9", (0, (9, 2, 1, 2)), "X"),
    ("#8C1A1A", (0, (2, 1)), "*"),
)
"""Colours that the colour-blind can tell apart, each with a dash and a marker for those who print in grey."""
INK, PALE = "#555555", "#d9d9d9"


# ---------------------------------------------------------------------- figures


def matplotlib() -> Any:
    """The library, or an InputError that says how to get it."""
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError:
        raise InputError("figures need matplotlib; install trueup[plots]") from None
    return matplotlib


def figure(
    columns: int = 1, rows: int = 1, *, width: float = COLUMN, height: float | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure of ``width`` inches and its Axes, row by row; without a height the panels are about square."""
    library = matplotlib()
    with library.rc_context(STYLE):
        made = library.figure.Figure(figsize=(width, height or width / columns * rows), layout="constrained")
        axes = list(made.subplots(rows, columns, squeeze=False).ravel())
        for each in axes:
            _ = each.get_xticklabels(), each.get_yticklabels()  # made late otherwise, in the style of that moment
    return made, axes


def save(drawn: Axes | Figure, path: str | PathLike[str], *, dpi: float = 150) -> None:
    """Writes the figure as the file's ending says: .svg, .pdf, .png. A figure drawn anew gives the same file."""
    library = matplotlib()
    whole: Any = drawn if isinstance(drawn, library.figure.Figure) else drawn.get_figure()
    known = tuple(whole.canvas.get_supported_filetypes())
    kind = str(path).rpartition(".")[2]
    if kind not in known:
        raise InputError(f"{path}: a figure is written as {', '.join(known)}")
    without_date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with library.rc_context(STYLE):
        whole.savefig(path, dpi=dpi, metadata=without_date)


def style() -> Any:
    """A context in which figures are made and drawn as ours are: ``with plots.style(): ...``"""
    return matplotlib().rc_context(STYLE)


def _drawing(height: float) -> Callable[[Callable[..., Axes]], Callable[..., Axes]]:
    """Gives a function that draws on ``ax`` an Axes of our own style and of that height, where the caller has none."""

    def decorate(draw: Callable[..., Axes]) -> Callable[..., Axes]:
        @functools.wraps(draw)
        def drawn(*args: Any, ax: Axes | None = None, **options: Any) -> Axes:
            if ax is not None:
                return draw(*args, ax=ax, **options)
            with style():
                return draw(*args, ax=figure(height=height)[1][0], **options)

        return drawn

    return decorate


# ---------------------------------------------------------------------- reliability


SHARES_FLOOR = -0.27
"""How far below 0 the share of samples is drawn."""


@_drawing(height=3.5)
def reliability_diagram(
    probs: Array | TopLabel | Reliability,
    labels: Array | None = None,
    *,
    ax: Axes,
    title: str | None = None,
    look: int = 1,
    explain: bool = True,
    **options: Any,
) -> Axes:
    """Accuracy against confidence, the band in which a calibrated model would stay, and below the share of the samples.

    Points off the band are filled. ``options`` are those of ``reliability``; ``look`` picks colour and
    marker; ``explain=False`` leaves out the words.
    """
    found = probs if isinstance(probs, Reliability) else reliability(probs, labels, **options)
    colour, _, marker = LOOKS[look % len(LOOKS)]
    ax.plot([0, 1], [0, 1], color=INK, linewidth=0.7, linestyle=(0, (4, 3)), zorder=1)
    # the band reaches from the diagonal of a bin to both sides, so that bins alone are seen too
    for (left, to), conf, low, high in zip(found.edges, found.confidence, found.low, found.high, strict=True):
        x = np.array([left, to])
        around = np.clip([low + x - conf, high + x - conf], 0, 1)
        ax.fill_between(x, *around, color=PALE, linewidth=0, zorder=0)
    ax.plot(found.confidence, found.accuracy, color=colour, linewidth=0.9, zorder=2)
    off = (found.accuracy < found.low) | (found.accuracy > found.high)
    for chosen, face in ((off, colour), (~off, "white")):
        if not chosen.any():
            continue  # a line without points has a box without bounds, and no layout fits it
        ax.plot(
            found.confidence[chosen], found.accuracy[chosen], linestyle="", marker=marker, markersize=4.2,
            markeredgewidth=0.9, color=colour, markerfacecolor=face, zorder=3, clip_on=False,
        )  # fmt: skip
    _draw_shares(ax, found, explain)
    if explain:
        beyond = f"filled: {np.count_nonzero(off)} of {len(off)} bins off the {100 * found.level:.0f} % band"
        ax.text(0.03, 0.985, f"ECE {100 * found.ece:.2f} %", transform=ax.transAxes, va="top")
        ax.text(0.03, 0.915, beyond, transform=ax.transAxes, va="top", fontsize="small", color=INK)
    ax.set(xlim=(0, 1), ylim=(SHARES_FLOOR, 1))
    if explain:
        ax.set(xlabel="confidence", ylabel="accuracy")
        ax.yaxis.set_label_coords(-0.13, 0.6)
    ax.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1] if explain else [0, 0.5, 1])
    if title:
        ax.set_title(title)
    return ax


def _draw_shares(ax: Axes, found: Reliability, explain: bool) -> None:
    """Bars below 0, the highest as high as there is room."""
    room, highest = -SHARES_FLOOR - 0.1, found.histogram.max()
    bins = len(found.histogram)
    ax.bar(
        np.arange(bins) / bins, room * found.histogram / highest, 1 / bins, SHARES_FLOOR, align="edge",
        color="#9a9a9a", edgecolor="white", linewidth=0.4, zorder=1,
    )  # fmt: skip
    ax.axhline(0, color=INK, linewidth=0.4)
    if explain:
        words = f"share of samples, at most {100 * highest:.0f} %"
        ax.text(0.02, -0.03, words, va="top", fontsize="small", color=INK)


# ---------------------------------------------------------------------- confidences


@_drawing(height=2.5)
def confidence_histogram(
    probs: Array | TopLabel | Confidences,
    labels: Array | None = None,
    *,
    ax: Axes,
    title: str | None = None,
    bins: int = 20,
) -> Axes:
    """The confidences of right and of wrong predictions, one on the other; mean confidence beside accuracy."""
    found = probs if isinstance(probs, Confidences) else confidences(probs, labels, bins=bins)
    left, width = found.edges[:-1], np.diff(found.edges)
    ax.bar(
        left, 100 * found.wrong, width, align="edge", facecolor="white", edgecolor=LOOKS[2][0], linewidth=0.6,
        hatch="//////", label="wrong",
    )  # fmt: skip
    ax.bar(
        left, 100 * found.right, width, 100 * found.wrong, align="edge", color="#a6c8e0", edgecolor=LOOKS[1][0],
        linewidth=0.6, label="right",
    )  # fmt: skip
    ax.axvline(found.accuracy, color="black", linewidth=1.2, label=f"accuracy {100 * found.accuracy:.1f} %")
    ax.axvline(
        found.mean, color="black", linewidth=1.2, linestyle=(0, (3, 2)), label=f"confidence {100 * found.mean:.1f} %"
    )
    ax.set(xlim=(0, 1), xlabel="confidence", ylabel="share of samples, %")
    ax.legend(loc="upper left")
    if title:
        ax.set_title(title)
    return ax


# ---------------------------------------------------------------------- landscape


@_drawing(height=2.7)
def calibration_landscape(
    logits: Array | Landscape,
    labels: Array | None = None,
    metric: str = "nll",
    *,
    ax: Axes,
    title: str | None = None,
    **options: Any,
) -> Axes:
    """The metric over temperature and gamma: lines of equal height with their values, dark where it is low."""
    if not isinstance(logits, Landscape) and labels is None:
        raise InputError("labels: missing; a landscape takes (logits, labels)")
    found = logits if isinstance(logits, Landscape) else landscape(logits, labels, metric, **options)  # type: ignore[arg-type]
    share = found.metric in SHARES
    temperature, gamma, least = found.best
    scale = 100 if share else 1
    # heights rise geometrically from the lowest point: most of what matters lies close to it
    rise = float(np.quantile(found.values, 0.9)) - least
    if rise > 1e-6:  # else it is a plain
        heights = scale * (least + rise * np.concatenate([[0], np.geomspace(0.004, 1, 9)]))
        field = (found.temperatures, found.gammas, scale * found.values)
        ax.contourf(*field, heights, cmap="cividis", extend="max", alpha=0.9)
        lines = ax.contour(*field, heights[2::2], colors="white", linewidths=0.7)
        ax.clabel(lines, fmt="%.1f %%" if share else "%.2f", fontsize=6)
    words = f"{100 * least:.2f} %" if share else f"{least:.3f}"
    star: dict[str, Any] = {"linestyle": "", "markeredgecolor": "black", "markerfacecolor": "white"}
    ax.plot(temperature, gamma, marker="*", markersize=10, label=f"lowest: {words}", **star)
    ax.plot(1, 0, marker="o", markersize=5, label="as it is", **star)
    ax.set_xscale("log")
    ax.set_xticks(ticks := [x for x in (0.25, 0.5, 1, 2, 4) if found.temperatures[0] <= x <= found.temperatures[-1]])
    ax.set_xticklabels([f"{x:g}" for x in ticks])
    ax.minorticks_off()
    ax.set(xlabel="temperature", ylabel="γ", xlim=found.temperatures[[0, -1]], ylim=found.gammas[[0, -1]])
    ax.legend(loc="upper left", labelcolor="black", frameon=True, framealpha=0.85, edgecolor="none")
    ax.set_title(title or f"{TITLES[found.metric]} of focal temperature scaling")
    return ax


# ---------------------------------------------------------------------- training


@_drawing(height=2.5)
def training_curves(
    histories: Mapping[str, Sequence[History]] | Mapping[str, Curve],
    quantity: str = "test.ece",
    *,
    ax: Axes,
    title: str | None = None,
    looks: Sequence[int] | None = None,
    explain: bool = True,
) -> Axes:
    """A line for each name, and around it the range over its runs; epochs are counted from 1."""
    found = {
        name: given if isinstance(given, Curve) else curve_of(given, quantity, name)
        for name, given in histories.items()
    }
    metric = quantity.split(".")[-1]
    scale = 100 if metric in SHARES else 1
    for i, (name, curve) in enumerate(found.items()):
        colour, dash, marker = LOOKS[(looks[i] if looks else i) % len(LOOKS)]
        epochs = np.arange(1, len(curve.mean) + 1)
        every = max(1, len(epochs) // 6)
        ax.fill_between(epochs, scale * curve.low, scale * curve.high, color=colour, alpha=0.18, linewidth=0)
        ax.plot(
            epochs, scale * curve.mean, color=colour, linestyle=dash, marker=marker, markersize=3.2,
            markevery=(every // 2, every), label=name,
        )  # fmt: skip
    ax.set_xlim(1, max(2, *(len(curve.mean) for curve in found.values())))
    _frame(ax, list(found.values()), scale)
    ax.grid(color="#e8e8e8", linewidth=0.5)
    if explain:
        where = quantity.rpartition(".")[0].replace(".", ", ")
        words = TITLES.get(metric, metric.replace("_", " ")) + (f" ({where})" if where else "")
        ax.set(xlabel="epoch", ylabel=words + (", %" if scale == 100 else ""))
        above = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "ncols": 2, "columnspacing": 1.2}
        ax.legend(**({"framealpha": 0.85, "frameon": True, "edgecolor": "none"} if title else above))
    if title:
        ax.set_title(title)
    return ax


def _frame(ax: Axes, found: Sequence[Curve], scale: float) -> None:
    """From 0 where that costs little. The first tenth may leave at the top: the rest would be flat below it."""
    later = np.concatenate([curve.high[len(curve.high) // 10 :] for curve in found])
    all_of = np.concatenate([curve.low for curve in found])
    if not (np.isfinite(later).any() and np.isfinite(all_of).any()):
        return
    top, least = 1.08 * scale * float(np.nanmax(later)), scale * float(np.nanmin(all_of))
    bottom = 0.0 if 0 <= least < 0.35 * top else least - 0.05 * abs(top - least)
    if bottom < top:
        ax.set_ylim(bottom, top)
