"""What a reproduction says: sheets of numbers, a verdict for each claim, and what is missing. For people, programs and
the page of the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from html import escape as escape_html
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape

from trueup import tables

HOLDS, FAILS, UNCLEAR, UNTESTED = "holds", "does not hold", "cannot be told", "not tested"
COLOURS = {HOLDS: "green", FAILS: "red", UNCLEAR: "cyan", UNTESTED: "yellow"}
"""Every verdict; one that cannot be told was tested, and what was found is within its error."""


def verdict(holds: bool | None) -> str:
    """None: it cannot be told."""
    return UNCLEAR if holds is None else HOLDS if holds else FAILS


def clearly(difference: float, error: float) -> bool | None:
    """Whether it is above 0 by more than twice its standard error; False: below by as much; None: neither.

    >>> clearly(0.5, 0.2), clearly(-0.5, 0.2), clearly(0.3, 0.2)
    (True, False, None)
    """
    return None if abs(difference) <= 2 * error else difference > 0


def all_of(verdicts: Iterable[bool | None]) -> bool | None:
    """False if one is, else None if one is, else True."""
    found = list(verdicts)
    return False if False in found else None if None in found else True


LONG = 24
"""Tables of more rows are folded on a page."""


@dataclass(frozen=True)
class Sheet:
    """A table of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self, *, fold: bool = True) -> str:
        """Under its title; a long table is folded, so that a reader sees what else there is."""
        table = [_line(self.columns), _line(["---"] * len(self.columns)), *(_line(row) for row in self.rows)]
        body = "\n".join([*table, "", self.note]).rstrip()
        if fold and len(self.rows) > LONG:
            return folded(f"<b>{escape_html(self.title)}</b> ({len(self.rows)} rows)", body)
        return f"**{self.title}**\n\n{body}\n"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = tables.table(self.title, *self.columns)
        for i, column in enumerate(shown.columns):
            if not any(character.isdigit() for row in self.rows for character in row[i][:2]):
                column.justify = "left"
        for row in self.rows:
            shown.add_row(*map(escape, row))
        yield shown
        if self.note:
            yield escape(self.note)


def folded(summary: str, body: str) -> str:
    """What a reader opens; HTML that Markdown takes as it is."""
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>\n"


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


@dataclass(frozen=True)
class Finding:
    """One claim and what came of it."""

    claim: str
    where: str
    """In the paper."""
    verdict: str
    on: str
    """What it was judged on."""
    evidence: str
    others: tuple[tuple[str, str, str], ...] = ()
    """(judged on, verdict, evidence) of what else there is to judge it on."""
    ours: bool = False
    """Whether it is a question of our own, and no claim of the paper."""
    short: str = ""
    """The same in short, for a table: the data set, or what each net says."""

    @property
    def subject(self) -> str:
        """What it was judged on, in short."""
        return self.short or self.on

    def to_dict(self) -> dict[str, Any]:
        others = [{"on": on, "verdict": verdict, "evidence": evidence} for on, verdict, evidence in self.others]
        whole = {"claim": self.claim, "where": self.where, "verdict": self.verdict, "on": self.on}
        return whole | {"evidence": self.evidence, "others": others, "ours": self.ours}


@dataclass(frozen=True)
class Point:
    """One thing that a reproduction comes to, and the numbers that say so."""

    told: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.told} {'; '.join(self.details)}".rstrip()

    def markdown(self) -> str:
        return "\n".join(
            [f"- **{self.told}**" if self.details else f"- {self.told}", *(f"  - {d}" for d in self.details)]
        )


@dataclass(frozen=True)
class Reproduction:
    """A paper's numbers beside ours. It prints as tables and verdicts."""

    paper: str
    title: str
    sheets: tuple[Sheet, ...]
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]
    """Runs of the grid that are not there."""
    rows: tuple[dict[str, Any], ...]
    """The networks as plain numbers."""
    commands: tuple[tuple[str, str], ...] = ()
    """(a run and where it was made, the command that trains it again)."""
    figures: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    """(what it shows, its path from the page) of each; without a path it says why there is none."""
    gist: tuple[Point, ...] = field(default=(), kw_only=True)
    """What it comes to."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "paper": self.paper,
            "title": self.title,
            "gist": [str(point) for point in self.gist],
            "networks": list(self.rows),
            "claims": [finding.to_dict() for finding in self.findings],
            "tally": {sheet.title: sheet.note for sheet in self.verdicts},
            "tables": [asdict(sheet) for sheet in self.sheets],
            "missing": list(self.missing),
        }

    @property
    def verdicts(self) -> list[Sheet]:
        """The paper's claims, and our own questions where there are some; each with its tally."""
        kinds = {"the paper's claims": False, "our own questions": True}
        if not any(finding.ours for finding in self.findings):
            kinds = {"the claims": False}
        return [self._verdicts(title, [f for f in self.findings if f.ours == ours]) for title, ours in kinds.items()]

    def _verdicts(self, title: str, findings: list[Finding]) -> Sheet:
        rows = tuple((f.verdict, f.claim, f.where, f.on, f.evidence) for f in findings)
        counts = Counter(f.verdict for f in findings)
        tally = ", ".join(f"{counts[v]} {v}" for v in COLOURS if counts[v] or v != UNCLEAR)
        return Sheet(f"{self.paper}: {title}", ("verdict", "claim", "where", "judged on", "evidence"), rows, tally)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for sheet in self.sheets:
            yield from (sheet, "")
        if self.missing:
            kinds = Counter(" ".join(name.split("_")[:2]) for name in self.missing)
            told = ", ".join(f"{kind} {many}" for kind, many in kinds.items())
            yield f"not run: {len(self.missing)} of the grid ({escape(told)}); --json names them\n"
        for sheet in self.verdicts:
            yield f"[bold]{escape(sheet.title)}[/]\n"
            for found, claim, where, on, evidence in sheet.rows:
                yield f"[bold {COLOURS[found]}]{found}[/]  {escape(claim)} ({escape(where)})"
                yield f"    {escape(f'{on}: {evidence}' if on else evidence)}"
            yield f"\n{escape(sheet.note)}\n"
        for point in self.gist:
            yield f"[bold]-[/] {escape(point.told)}"
            yield from (f"    {escape(detail)}" for detail in point.details)

    def __str__(self) -> str:
        return tables.text(self, width=120)

    __repr__ = __str__

    def markdown(self) -> str:
        """A section of the page: what it comes to first, the numbers behind it further down."""
        parts = [f"## {self.paper}: {self.title}\n"]
        if self.gist:
            parts.append("\n".join(["### In short\n", *(point.markdown() for point in self.gist), ""]))
        parts.append("### Verdicts\n")
        parts += [self._verdict_table(sheet, i > 0).markdown(fold=False) for i, sheet in enumerate(self.verdicts)]
        if self.figures:
            parts.append("### Figures\n")
        for told, path in self.figures:
            parts += [f"{told}\n", *([f"![{told.partition('. ')[0].rstrip('.')}]({path})\n"] if path else [])]
        if self.sheets:
            parts += ["### Tables\n", *(sheet.markdown() for sheet in self.sheets)]
        parts += ["### What the verdicts rest on\n", *self._evidence()]
        if self.missing or self.commands:
            parts += ["### Runs\n", *self._runs()]
        return "\n".join(parts)

    @property
    def _numbers(self) -> dict[str, int]:
        """Of the claims, each once, though it may be judged on several data sets; ours last, as in the tables."""
        in_order = sorted(self.findings, key=lambda finding: finding.ours)
        return {claim: i for i, claim in enumerate(dict.fromkeys(finding.claim for finding in in_order), 1)}

    def _verdict_table(self, sheet: Sheet, ours: bool) -> Sheet:
        """A row for each claim, with its verdict on all that it was judged on."""
        rows = []
        for claim, number in self._numbers.items():
            judged = [finding for finding in self.findings if finding.claim == claim and finding.ours == ours]
            if judged:
                told = "<br>".join(f"**{f.verdict}**: {f.subject}" if f.subject else f"**{f.verdict}**" for f in judged)
                rows.append((str(number), claim, judged[0].where, told))
        title = sheet.title.partition(": ")[2]
        return Sheet(title[:1].upper() + title[1:], ("", "claim", "where", "verdict"), tuple(rows), sheet.note)

    def _evidence(self) -> Iterator[str]:
        for claim, number in self._numbers.items():
            judged = [finding for finding in self.findings if finding.claim == claim]
            first = [(finding.on, finding.verdict, finding.evidence) for finding in judged]
            told = [*first, *(other for finding in judged for other in finding.others)]
            lines = [f"- {on}: **{found}**. {evidence}" if on else f"- **{found}**. {evidence}"
                     for on, found, evidence in told]  # fmt: skip
            yield "\n".join([f"{number}\\. {claim}", "", *lines, ""])

    def _runs(self) -> Iterator[str]:
        if self.missing:
            names = "\n".join(f"- `{name}`" for name in self.missing)
            yield folded(f"Not run yet: {len(self.missing)}", names)
        if self.commands:
            lines = "\n".join(f"- {name}: `{command}`" for name, command in self.commands)
            yield folded(f"Stored: {len(self.commands)}, each with the command that trains it again", lines)
