"""Published numbers as data: one line of a CSV for each number that a paper prints."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Printed:
    """A number as printed, and where. ``state`` is "before" or "after" temperature scaling.

    ``tag`` is "paper" where the number was read in the paper's own text, "code" in the authors' code, "2nd" in an
    independent public document, and "recall" where nothing confirms it.
    """

    table: str
    page: str
    dataset: str
    model: str
    method: str
    quantity: str
    state: str
    value: str
    temperature: str
    """The temperature printed beside it, if any."""
    tag: str
    note: str
    """What is doubtful about the reading."""

    @property
    def number(self) -> float:
        """The value as a number; shares are in per cent."""
        return float(self.value)


@cache
def printed(paper: str) -> tuple[Printed, ...]:
    """Every number of a paper, in the order of its tables.

    >>> from trueup.papers.published import printed
    >>> [entry.value for entry in printed("mukhoti2020") if entry.table == "6"][:4]
    ['97.11', '96.33', '11.5', '97.39']
    """
    text = files("trueup.papers").joinpath(paper, "published.csv").read_text("utf-8")
    return tuple(Printed(**row) for row in csv.DictReader(text.splitlines()))
