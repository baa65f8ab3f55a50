"""What a reproduction says: sheets of numbers, a verdict for each claim, and what is missing. For people, programs and
the page of the documentation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape

from trueup import tables

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not tested"


@dataclass(frozen=True)
class Sheet:
    """A table of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", _line(self.columns), _line(["---"] * len(self.columns))]
        lines += [_line(row) for row in self.rows]
        return "\n".join([*lines, "", self.note]).rstrip() + "\n"

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

    def to_dict(self) -> dict[str, Any]:
        others = [{"on": on, "verdict": verdict, "evidence": evidence} for on, verdict, evidence in self.others]
        whole = {"claim": self.claim, "where": self.where, "verdict": self.verdict, "on": self.on}
        return whole | {"evidence": self.evidence, "others": others}


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

    def to_dict(self) -> dict[str, Any]:
        return {
            "paper": self.paper,
            "title": self.title,
            "networks": list(self.rows),
            "claims": [finding.to_dict() for finding in self.findings],
            "missing": list(self.missing),
        }

    @property
    def verdicts(self) -> Sheet:
        rows = tuple((f.verdict, f.claim, f.where, f.on, f.evidence) for f in self.findings)
        tally = ", ".join(f"{sum(f.verdict == v for f in self.findings)} {v}" for v in (HOLDS, FAILS, UNTESTED))
        return Sheet(f"{self.paper}: the claims", ("verdict", "claim", "where", "judged on", "evidence"), rows, tally)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for sheet in self.sheets:
            yield from (sheet, "")
        if self.missing:
            kinds = Counter(" ".join(name.split("_")[:2]) for name in self.missing)
            told = ", ".join(f"{kind} {many}" for kind, many in kinds.items())
            yield f"not run: {len(self.missing)} of the grid ({escape(told)}); --json names them\n"
        for finding in self.findings:
            colour = {HOLDS: "green", FAILS: "red", UNTESTED: "yellow"}[finding.verdict]
            yield f"[bold {colour}]{finding.verdict}[/]  {escape(finding.claim)} ({escape(finding.where)})"
            told = f"{finding.on}: {finding.evidence}" if finding.on else finding.evidence
            yield f"    {escape(told)}"
        yield f"\n{escape(self.verdicts.note)}"

    def __str__(self) -> str:
        return tables.text(self, width=120)

    __repr__ = __str__

    def markdown(self) -> str:
        """A section of the page."""
        parts = [f"## {self.paper}: {self.title}\n", *(sheet.markdown() for sheet in self.sheets)]
        if self.figures:
            parts.append("**The figures**\n")
        for told, path in self.figures:
            parts += [f"{told}\n", *([f"![{told.partition('. ')[0].rstrip('.')}]({path})\n"] if path else [])]
        parts.append(self.verdicts.markdown())
        told = [
            f"- {finding.claim} On {on}: {verdict}. {evidence}"
            for finding in self.findings
            for on, verdict, evidence in finding.others
        ]
        if told:
            parts.append("The same claims on what else was trained:\n\n" + "\n".join(told) + "\n")
        if self.missing:
            parts.append("Not run yet:\n\n" + "\n".join(f"- `{name}`" for name in self.missing) + "\n")
        if self.commands:
            lines = "\n".join(f"- {name}: `{command}`" for name, command in self.commands)
            parts.append(f"Each stored run can be trained again:\n\n{lines}\n")
        return "\n".join(parts)
