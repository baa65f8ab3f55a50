"""Training against the trace: what the stored runs with a penalty say, on CIFAR-10 (Figure 4) and on digits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trueup.papers.kimura2024.networks import STRONG, Point, negative, rank_correlation, rounded
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED, Finding, Sheet, listed


def by_rate(points: Sequence[Point]) -> dict[float, dict[float, Point]]:
    """Learning rate -> tau -> run; two taus make no trend."""
    found: dict[float, dict[float, Point]] = {}
    for point in points:
        if point.place.figure == "tau":
            found.setdefault(point.place.lr, {})[point.place.tau] = point
    return {lr: dict(sorted(of.items())) for lr, of in sorted(found.items()) if len(of) > 2}


def by_tau(points: Sequence[Point]) -> dict[float, list[Point]]:
    """tau -> the runs on digits, one a seed."""
    found: dict[float, list[Point]] = {}
    for point in points:
        if point.place.figure == "digits":
            found.setdefault(point.place.tau, []).append(point)
    return dict(sorted(found.items()))


MEASURES: dict[str, Callable[[Point], float]] = {
    "error": lambda point: 100 * point.on_test("error"),
    "ECE": lambda point: 100 * point.on_test("ece"),
    "over-conf.": lambda point: 100 * point.overconfidence,
    "NLL": lambda point: point.on_test("nll"),
    "trace": lambda point: point.plain["trace"]["value"],
    "λ max": lambda point: point.plain["lambda_max"]["value"],
}


def tau_sheet(points: Sequence[Point]) -> Sheet | None:
    rows = [
        (f"{lr:g}", f"{tau:g}", *(f"{measure(point):.4g}" for measure in MEASURES.values()))
        for lr, of in by_rate(points).items()
        for tau, point in of.items()
    ]
    note = (
        "Error, ECE and over-confidence (mean confidence less accuracy) on test in %; trace and λ max of cross-entropy "
    )
    note += "on val. One seed. " + negative({
        "cross-entropy": [point.plain for of in by_rate(points).values() for point in of.values()]
    })  # fmt: skip
    title = "A penalty on the trace: MLP with 100 hidden units, CIFAR-10 (Figure 4)"
    return Sheet(title, ("learning rate", "tau", *MEASURES), tuple(rows), note) if rows else None


def digits_sheet(points: Sequence[Point]) -> Sheet | None:
    rows = []
    for tau, of in by_tau(points).items():
        values = [np.array([measure(point) for point in of]) for measure in MEASURES.values()]
        rows.append((
            f"{tau:g}", str(len(of)),
            *(f"{v.mean():.3g}" + (f" ± {rounded(float(v.std(ddof=1)))}" if len(v) > 1 else "") for v in values),
        ))  # fmt: skip
    note = "Mean ± standard deviation over the seeds. Error, ECE and over-confidence on test in %; trace and λ max of "
    note += "cross-entropy on val. "
    note += negative({"cross-entropy": [point.plain for of in by_tau(points).values() for point in of]})
    collapsed = [f"{tau:g}" for tau, of in by_tau(points).items() if not all(point.learnt for point in of)]
    if collapsed:
        note += f" At tau {', '.join(collapsed)} a net has collapsed to a constant: its ECE is small without merit, "
        note += "and the figure leaves it out."
    title = "A penalty on the trace: the same net on digits"
    return Sheet(title, ("tau", "seeds", *MEASURES), tuple(rows), note) if rows else None


def tau_findings(points: Sequence[Point]) -> list[Finding]:
    rates, digits = by_rate(points), by_tau(points)
    found = []
    for what in ("trace", "ECE"):
        series = [(f"lr {lr:g}", {tau: [point] for tau, point in of.items()}) for lr, of in rates.items()]
        found.append(_with_tau(what, "the MLP on CIFAR-10", series))
        found.append(_with_tau(what, "the MLP on digits", [("", digits)] if len(digits) > 1 else []))
    return found


def _with_tau(what: str, on: str, series: Sequence[tuple[str, dict[float, list[Point]]]]) -> Finding:
    """Judged by rank over all runs that have learnt; those that have not are told apart."""
    told, right, lost = [], True, set()
    for title, of in series:
        taus = [tau for tau, runs in of.items() for point in runs if point.learnt]
        values = [MEASURES[what](point) for runs in of.values() for point in runs if point.learnt]
        lost |= {tau for tau, runs in of.items() for point in runs if not point.learnt}
        rank = rank_correlation(taus, values)
        means = [f"{_mean(what, runs):.4g}{_beside(what, runs)} at {tau:g}" for tau, runs in of.items()]
        right &= rank < -STRONG
        told.append(f"{title}{': ' if title else ''}{', '.join(means)} (rank correlation {rank:+.2f})")
    lead = "" if told else "no run is stored"
    if what == "ECE" and told:
        lead += "In brackets mean confidence less accuracy, which the penalty lowers."
    if lost:
        lead += f" Left out of the rank: tau {', '.join(f'{tau:g}' for tau in sorted(lost))}, where a net has "
        lead += "collapsed to a constant, whose ECE is small without merit."
    evidence = listed(lead.strip(), told)
    claim = f"A larger tau gives a smaller {what}: {on}."
    return Finding(
        claim, "Figure 4", (HOLDS if right else FAILS) if series else UNTESTED, on if series else "", evidence
    )


def _mean(what: str, runs: Sequence[Point]) -> float:
    return float(np.mean([MEASURES[what](point) for point in runs]))


def _beside(what: str, runs: Sequence[Point]) -> str:
    """An ECE falls where it comes from over-confidence, and rises where that has become the opposite."""
    return f" ({_mean('over-conf.', runs):+.1f})" if what == "ECE" else ""
