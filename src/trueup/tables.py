"""What people look at: rich tables, the same as text, and a bar while they wait."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

SHARES = ("error", "ece", "adaptive_ece", "mce", "classwise_ece", "debiased_ece", "smooth_ece")
"""Metrics that are shares, and are shown in per cent."""

TITLES = {
    "nll": "NLL",
    "brier": "Brier score",
    "error": "error",
    "ece": "ECE",
    "adaptive_ece": "adaptive ECE",
    "mce": "MCE",
    "classwise_ece": "classwise ECE",
    "debiased_ece": "debiased ECE",
    "smooth_ece": "smooth ECE",
}


PERCENT, EPOCHS = "{task.percentage:>3.0f} %", "{task.completed:.2f}/{task.total:.0f} epochs"
"""What stands beside a bar. Hundredths, as an epoch can take minutes."""


def title(metric: str) -> str:
    """A metric's name as a reader wants it: that of ``TITLES``, or else its own."""
    return TITLES.get(metric, metric.replace("_", " "))


def number(metric: str, value: float | None, unit: str = " %") -> str:
    """A metric's value as a reader wants it: shares in per cent, the rest with four decimals."""
    if value is None:
        return ""
    return f"{100 * value:.2f}{unit}" if metric in SHARES else f"{value:.4f}"


def table(title: str, *columns: str) -> Table:
    """An empty table with the first column to the left and the others to the right, and room for its title."""
    made = Table(
        title=title,
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        min_width=len(title),
    )
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    return made


def text(renderable: Any, width: int = 110) -> str:
    """What a rich object prints, without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    return console.file.getvalue().rstrip()  # type: ignore[union-attr]


@contextmanager
def progress(what: str, total: float = 1.0, beside: str = PERCENT) -> Iterator[Callable[[float], None]]:
    """A bar on stderr, where that is a terminal, once the work has taken a second; it is told how much of ``total``
    is done."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn(what), BarColumn(), TextColumn(beside), TimeRemainingColumn(),
        console=console, transient=True,
    )  # fmt: skip
    task, begun = bar.add_task(what, total=total), time.monotonic()

    def advance(done: float) -> None:
        if console.is_terminal and not bar.live.is_started and time.monotonic() - begun > 1:
            bar.start()
        bar.update(task, completed=done)

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()
