"""What a reproduction says: sheets of numbers, a verdict for each claim, and what is missing. For people, programs and
the page of the documentation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from html import escape as escape_html
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.padding import Padding

from trueup import tables

HOLDS, FAILS, UNCLEAR, UNTESTED = "holds", "does not hold", "cannot be told", "not tested"
COLOURS = {HOLDS: "green", FAILS: "red", UNCLEAR: "cyan", UNTESTED: "yellow"}
"""Every verdict; one that cannot be told was tested, and what was found is within its error."""


def verdict(holds: bool | None) -> str:
    """None: it cannot be told."""
    return UNCLEAR if holds is None else HOLDS if holds else FAILS


def all_of(verdicts: Iterable[bool | None]) -> bool | None:
    """False if one is, else None if one is, else True."""
    found = list(verdicts)
    return False if False in found else None if None in found else True


def listed(lead: str, items: Iterable[str]) -> str:
    """Evidence of several parts, each on a line of its own.

    >>> on_one_line(listed("ECE in %:", ["one net 3", "another 4"]))
    'ECE in %: one net 3; another 4'
    """
    return "\n".join([lead, *items])


def on_one_line(evidence: str) -> str:
    lead, *items = evidence.split("\n")
    return f"{lead} {'; '.join(items)}".strip()


def at_most(gap: float) -> str:
    """The next power of ten from 1e-12 on: what rounding leaves differs from one processor to the next, and is no
    figure for a page.

    >>> at_most(7e-16), at_most(2e-12), at_most(1e-3)
    ('1e-12', '1e-11', '1e-3')
    """
    return f"1e{math.ceil(math.log10(max(gap, 1e-12)))}"


LONG = 24
"""Tables of more rows are folded on a page."""
GAP = 3
"""Between two columns in a terminal."""


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
        if not self.title:
            return f"{body}\n"
        if fold and len(self.rows) > LONG:
            return folded(f"<b>{escape_html(self.title)}</b> ({len(self.rows)} rows)", body)
        return f"**{self.title}**\n\n{body}\n"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A table that is too wide is printed in several, one below the other, each with what names a row."""
        widths, parts = self._widths(), self.parts(options.max_width)
        for number, chosen in enumerate(parts):
            shown = tables.table("" if number else self.title, *(self.columns[i] for i in chosen))
            for column, i in zip(shown.columns, chosen, strict=True):
                if not any(character.isdigit() for row in self.rows for character in row[i][:2]):
                    column.justify = "left"
                if self._width() > options.max_width and i >= self._naming():
                    column.width = widths[i]
            for row in self.rows:
                shown.add_row(*(escape(row[i]) for i in chosen))
            yield from ([""] if number else [])
            yield shown
        if self.note:
            yield escape(self.note)

    def parts(self, width: int) -> list[list[int]]:
        """The columns of each table, by their numbers: in ``width`` characters no cell is broken, if it need not be.

        >>> rows = (("MLP", "1", "9.00", "3.00"), ("MLP", "2", "8.00", "4.00"))
        >>> Sheet("a title", ("net", "gamma", "error", "ECE"), rows).parts(20)
        [[0, 1, 2], [0, 1, 3]]
        """
        widths, names, every = self._widths(), list(range(self._naming())), list(range(len(self.columns)))
        if self._width() <= width:
            return [every]
        room = max(width - sum(widths[i] + GAP for i in names), width // 2)
        made, left = [[*names]], room
        for i in every[len(names) :]:
            if widths[i] > left and made[-1] != names:
                made.append([*names])
                left = room
            made[-1].append(i)
            left -= widths[i] + GAP
        return made

    def _width(self) -> int:
        """Of the whole table, with nothing broken."""
        return sum(max(map(len, column)) + GAP for column in zip(self.columns, *self.rows, strict=True)) - GAP

    def _widths(self) -> list[int]:
        """Of each column, with its title broken between words and no cell broken."""
        words = [max(map(len, column.split(" "))) for column in self.columns]
        return [max(words[i], *(len(row[i]) for row in self.rows), 1) for i in range(len(words))]

    def _naming(self) -> int:
        """How many columns tell a row from all others; an empty cell is that of the row above. One where none do."""
        filled: list[tuple[str, ...]] = []
        for row in self.rows:
            above = filled[-1] if filled else row
            filled.append(tuple(cell or over for cell, over in zip(row, above, strict=True)))
        enough = (n for n in (1, 2, 3) if n < len(self.columns) and len({row[:n] for row in filled}) == len(filled))
        return next(enough, 1)


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
        others = [{"on": on, "verdict": found, "evidence": on_one_line(told)} for on, found, told in self.others]
        whole = {"claim": self.claim, "where": self.where, "verdict": self.verdict, "on": self.on}
        return whole | {"evidence": on_one_line(self.evidence), "others": others, "ours": self.ours}


@dataclass(frozen=True)
class Point:
    """One thing that a reproduction comes to, and the numbers that say so."""

    told: str
    details: tuple[str, ...] = ()
    sheet: Sheet | None = None
    """The details as a table, for people."""

    def __str__(self) -> str:
        return f"{self.told} {'; '.join(self.details)}".rstrip()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield f"[bold]{escape(self.told)}[/]"
        shown = ("", self.sheet) if self.sheet else map(escape, self.details)
        yield from (_below(each, 4) for each in shown)
        yield ""

    def markdown(self) -> str:
        if self.sheet:
            table = "\n".join(f"  {line}".rstrip() for line in self.sheet.markdown(fold=False).splitlines())
            return f"- **{self.told}**\n\n{table}\n"
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
        rows = tuple((f.verdict, f.claim, f.where, f.on, on_one_line(f.evidence)) for f in findings)
        counts = Counter(f.verdict for f in findings)
        tally = ", ".join(f"{counts[v]} {v}" for v in COLOURS if counts[v] or v != UNCLEAR)
        return Sheet(f"{self.paper}: {title}", ("verdict", "claim", "where", "judged on", "evidence"), rows, tally)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What it comes to stands last, where a terminal stops."""
        yield f"[bold]{escape(f'{self.paper}: {self.title}')}[/]"
        yield "The tables, what each verdict rests on, the verdicts, and last what it comes to.\n"
        yield from self._tables()
        yield from self._grounds()
        if self.missing:
            kinds = Counter(" ".join(name.split("_")[:2]) for name in self.missing)
            told = ", ".join(f"{kind} {many}" for kind, many in kinds.items())
            yield f"not run: {len(self.missing)} of the grid ({escape(told)}); --json names them\n"
        for ours, sheet in enumerate(self.verdicts):
            yield f"[bold]{escape(sheet.title)}[/]\n"
            for claim, number in self._numbers.items():
                judged = [f for f in self.findings if f.claim == claim and f.ours == ours]
                if judged:
                    yield _below(f"{number}. {escape(claim)} ({escape(judged[0].where)})", 2)
                    for f in judged:
                        yield _below(f"[bold {COLOURS[f.verdict]}]{f.verdict}[/]  {escape(f.subject)}", 6)
            yield f"\n{escape(sheet.note)}\n"
        points = self.points
        if points:
            yield f"[bold]{escape(self.paper)}: in short[/]\n"
            yield from points

    @property
    def points(self) -> tuple[Point, ...]:
        """What a terminal shows last."""
        return self.gist

    def _tables(self) -> Iterator[Any]:
        for sheet in self.sheets:
            yield from (sheet, "")

    def _grounds(self) -> Iterator[Any]:
        yield f"[bold]{escape(self.paper)}: what the verdicts rest on[/]\n"
        for claim, number in self._numbers.items():
            yield f"[bold]{number}. {escape(claim)}[/]"
            for on, found, evidence in self._judged(claim, beside=False):
                lead, *items = evidence.split("\n")
                told = f"[{COLOURS[found]}]{found}[/]  {escape(f'{on}: {lead}' if on else lead)}"
                yield _below(told, 2)
                yield from (_below(escape(item), 6) for item in items)
            yield ""

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

    def _judged(self, claim: str, *, beside: bool) -> list[tuple[str, str, str]]:
        """(on, verdict, evidence) of what the verdicts on a claim are of, or of what else there is beside it."""
        judged = [finding for finding in self.findings if finding.claim == claim]
        if beside:
            return [each for finding in judged for each in finding.others]
        return [(finding.on, finding.verdict, finding.evidence) for finding in judged]

    def _evidence(self) -> Iterator[str]:
        for claim, number in self._numbers.items():
            yield f"{number}\\. {claim}\n\n" + "".join(map(_ground, self._judged(claim, beside=False)))
            other = self._judged(claim, beside=True)
            if other:
                counts = Counter(found for _, found, _ in other)
                tally = ", ".join(f"{counts[found]} {found}" for found in COLOURS if counts[found])
                yield folded(f"Other trainings: {tally}", "".join(map(_ground, other)).rstrip())

    def _runs(self) -> Iterator[str]:
        if self.missing:
            names = "\n".join(f"- `{name}`" for name in self.missing)
            yield folded(f"Not run yet: {len(self.missing)}", names)
        if self.commands:
            lines = "\n".join(f"- {name}: `{command}`" for name, command in self.commands)
            yield folded(f"Stored: {len(self.commands)}, each with the command that trains it again", lines)


def _ground(judged: tuple[str, str, str]) -> str:
    """A line of a list, with a list below it where the evidence has several parts."""
    on, found, evidence = judged
    lead, *items = evidence.split("\n")
    told = f"- {on}: **{found}**. {lead}" if on else f"- **{found}**. {lead}"
    return "\n".join([told.rstrip(), *(f"  - {item}" for item in items), ""])


def _below(told: Any, indent: int) -> Padding:
    """Indented, every line of it."""
    return Padding(told, (0, 0, 0, indent), expand=False)
