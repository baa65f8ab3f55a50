"""The stored networks: curvature, calibration and error side by side, and what they say to the paper's claims."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from trueup.audit import finite
from trueup.metrics import overconfidence, score_logits
from trueup.papers.chance import NO_ERROR, Error, clearly
from trueup.papers.kimura2024.grid import CE, Place, places
from trueup.papers.kimura2024.measure import FILE, bends_down
from trueup.papers.reproduction import (
    COLOURS,
    FAILS,
    HOLDS,
    UNCLEAR,
    UNTESTED,
    Finding,
    Sheet,
    all_of,
    listed,
    verdict,
)
from trueup.papers.stored import command_of, load_runs
from trueup.papers.summary import has_predictions, summary_of
from trueup.train import Run

DATASETS = {"cifar100": "CIFAR-100", "cifar10": "CIFAR-10"}
"""Of Figures 2 and 3: the paper's first."""
TITLES = {"mlp": "MLP", "resnet18": "ResNet-18", "vgg16-bn": "VGG16", "vit-tiny": "ViT"}
LEARNT = 0.9
"""A net with more than this share of the errors of a constant answer has not learnt: its ECE says nothing."""
STRONG = 0.5
"""A rank correlation of this size counts as a trend."""
ONE_SEED = 0.2
"""λ max of single trainings may differ by so much without meaning anything; a limit of ours. Over three seeds of the
MLP on digits its standard deviation is about as large."""


@dataclass(frozen=True)
class Point:
    """A run of the grid."""

    name: str
    place: Place
    run: Run
    measured: dict[str, Any]
    """What curvature.json holds."""
    classes: int
    overconfidence: float
    """Mean confidence less accuracy, on test."""
    ece_error: Error = NO_ERROR
    """That of ECE over test samples, where it is judged by."""

    @property
    def own(self) -> dict[str, Any]:
        """The curvature of the training loss; cross-entropy's where the two are the same."""
        losses = self.measured["losses"]
        return next((of for name, of in losses.items() if name != CE), losses[CE])

    @property
    def plain(self) -> dict[str, Any]:
        return self.measured["losses"][CE]

    def on_test(self, metric: str) -> float:
        return self.run.history[-1]["test"][metric]

    @property
    def learnt(self) -> bool:
        return self.on_test("error") < LEARNT * (1 - 1 / self.classes)

    def to_dict(self) -> dict[str, Any]:
        return finite({
            "name": self.name, "recipe": self.run.recipe.to_dict(), "run": self.run.info,
            "test": self.run.history[-1]["test"], "curvature": self.measured, "command": command_of(self.run.recipe),
        })  # fmt: skip


def stored_points(results: Path) -> list[Point]:
    """The runs of the grid that are stored with their curvature on all samples of val."""
    folder = results / "kimura2024"
    runs = load_runs(folder, tables=True) if folder.is_dir() else {}
    found = []
    for name, (place, _) in places().items():
        if name in runs and (runs[name].folder / FILE).is_file():
            measured = json.loads((runs[name].folder / FILE).read_text())
            samples, classes, gap = _predicted(runs[name])
            if (measured["split"], measured["samples"]) == ("val", samples):
                error = _ece_error(runs[name]) if place.figure == "gamma" else NO_ERROR
                found.append(Point(name, place, runs[name], measured, classes, gap, error))
    return found


def _predicted(run: Run) -> tuple[int, int, float]:
    """The samples of val, the number of classes, and the mean confidence less accuracy on test."""
    if has_predictions(run):
        gap = overconfidence(score_logits(run.test.logits, run.test.labels))
        return len(run.val), run.test.classes, gap
    summary = summary_of(run)
    return summary.figures.n_val, summary.classes, summary.figures.before["overconfidence"]


def _ece_error(run: Run) -> Error:
    measure = summary_of(run).figures.before.measures["ece"]
    return Error.of_interval(measure.low, measure.high)


# ---------------------------------------------------------------------- Figures 2 and 3


def by_net(points: Sequence[Point], data: str) -> dict[str, dict[float, Point]]:
    """Net -> gamma -> run, of one data set."""
    found: dict[str, dict[float, Point]] = {}
    for point in points:
        if point.place.figure == "gamma" and point.place.data == data:
            found.setdefault(point.place.net, {})[point.place.gamma] = point
    return {net: dict(sorted(of.items())) for net, of in found.items()}


def gamma_sheet(points: Sequence[Point], data: str) -> Sheet | None:
    rows, used = [], []
    for net, of in by_net(points, data).items():
        for gamma, point in of.items():
            own, plain = point.own, point.plain
            seconds = (f"{own[part].get('seconds', float('nan')):.0f}" for part in ("lambda_max", "trace"))
            rows.append((
                TITLES[net], f"{gamma:g}", f"{100 * point.on_test('error'):.2f}", f"{100 * point.on_test('ece'):.2f}",
                f"{100 * point.overconfidence:+.2f}", *(_number(of_loss["lambda_max"]) for of_loss in (own, plain)),
                *(_number(of_loss["trace"]) for of_loss in (own, plain)), " + ".join(seconds),
            ))  # fmt: skip
            used.append(point)
    columns = ("net", "gamma", "error", "ECE", "over-conf.", "λ max, focal", "λ max, CE", "trace, focal", "trace, CE",
               "seconds")  # fmt: skip
    note = "Error, ECE and over-confidence (mean confidence less accuracy) on test in %; curvature on val, of the "
    note += "training loss and of cross-entropy at the same weights. A trace without ± is exact. One seed. "
    note += "Seconds: λ max + trace of the training loss, on the machine of the run, where others ran beside it. "
    note += negative({"the training loss": [p.own for p in used], "cross-entropy": [p.plain for p in used]})
    title = f"Curvature and calibration against gamma, {DATASETS[data]} (Figures 2 and 3)"
    return Sheet(title, columns, tuple(rows), note) if rows else None


def trends_sheet(points: Sequence[Point]) -> Sheet | None:
    """What each net says, in a line."""
    rows = []
    for data, title in DATASETS.items():
        for net, of in by_net(points, data).items():
            if len(of) < 3:
                continue
            gammas, eces = list(of), [point.on_test("ece") for point in of.values()]
            maxima = ([loss(point)["lambda_max"]["value"] for point in of.values()] for loss in LOSSES.values())
            gaps = [abs(point.overconfidence) for point in of.values()]
            traces = [point.own["trace"]["value"] for point in of.values()]
            best = min(of, key=lambda gamma, of=of: of[gamma].on_test("ece"))
            cells = (f"{rank_correlation(gammas, values):+.2f}" for values in maxima)
            ends = (f"{rank_correlation(values, eces):+.2f}" for values in (gaps, traces))
            rows.append((f"{TITLES[net]}, {title}", str(len(of)), *cells, f"{best:g}", *ends))
    columns = ("net", "gammas", "λ max, training loss, with gamma", "λ max, cross-entropy, with gamma",
               "gamma of the least ECE", "ECE with over- or under-confidence", "ECE with the trace")  # fmt: skip
    note = (
        "Rank correlations: -1 is a fall throughout, +1 a rise. Over- or under-confidence: the size of mean confidence "
        "less accuracy; the trace is that of the training loss. Nets with at least three gammas."
    )
    return Sheet("What goes with what", columns, tuple(rows), note) if rows else None


def negative(measured: dict[str, list[dict[str, Any]]]) -> str:
    """What is known of negative curvature: that it was met. How deep it goes takes a measurement of its own."""
    told = (f"of {loss} in {sum(map(bends_down, each))} of {len(each)} runs" for loss, each in measured.items())
    met = f"Negative curvature beyond rounding was met on the way to λ max {', '.join(told)}"
    return f"{met}; the lowest eigenvalue was not sought."


def rank_correlation(x: Sequence[float], y: Sequence[float] | np.ndarray) -> float:
    """Spearman's; 0 where one of the two does not move."""
    return float(spearmanr(x, y).statistic) if len(set(x)) > 1 and len(set(y)) > 1 else 0.0  # pyright: ignore


def rounded(error: float) -> str:
    """A standard error to one digit, without an exponent where that can be.

    >>> rounded(38.2), rounded(0.0123)
    ('40', '0.01')
    """
    return f"{float(f'{error:.1g}'):g}"


def _number(of: dict[str, Any]) -> str:
    error = of.get("stderr", 0.0)
    text = f"{of['value']:.4g}" + (f" ± {rounded(error)}" if error else "")
    return text if of["converged"] else f"{text} (not converged)"


LOSSES: dict[str, Callable[[Point], dict[str, Any]]] = {
    "training loss": lambda point: point.own,
    "cross-entropy at the same weights": lambda point: point.plain,
}
"""Whose Hessian it is."""
Nets = dict[str, dict[float, Point]]
"""Net -> gamma -> run."""


def gamma_findings(points: Sequence[Point], data: str) -> list[Finding]:
    """On one data set."""
    nets = by_net(points, data)
    found = [
        *(_falls(nets, loss) for loss in LOSSES),
        _minimum(nets, ("mlp", "resnet18", "vgg16-bn"), (3, 4), "ECE is least near gamma = 3 or 4 (all but the ViT)."),
        _minimum(nets, ("vit-tiny",), (10,), "ECE is least near gamma = 10 for the ViT."),
        *(_between(nets, loss) for loss in LOSSES),
        _follows_confidence(nets),
    ]
    return [replace(finding, claim=f"{DATASETS[data]}: {finding.claim}") for finding in found]


Judged = tuple[bool | None, str] | str
"""Whether it holds of a net (None: it cannot be told) and what was seen; or why it is not tested."""


def _of_nets(claim: str, where: str, nets: Nets, judged: Callable[[dict[float, Point]], Judged]) -> Finding:
    """It holds where it holds of every net that can be judged; the evidence says it of each."""
    told, verdicts = [], {}
    for net, of in nets.items():
        found = judged(of)
        holds, evidence = (UNTESTED, found) if isinstance(found, str) else (verdict(found[0]), found[1])
        verdicts[net] = holds
        told.append(f"{TITLES[net]}, {holds}: {evidence}")
    tested = [each for each in verdicts.values() if each != UNTESTED]
    whole = next((each for each in (FAILS, UNCLEAR, HOLDS) if each in tested), UNTESTED)
    each_net = ", ".join(f"{TITLES[net]} {holds}" for net, holds in verdicts.items()) if len(verdicts) > 1 else ""
    evidence = listed("", told) if len(told) > 1 else "".join(told) or "no run is stored"
    return Finding(claim, where, whole, _gammas(nets), evidence, short=each_net)


def each_verdict(finding: Finding) -> list[str]:
    """Of each net: what stands behind its name in the finding's subject, or the one verdict of one net."""
    if not finding.short:
        return [finding.verdict]
    return [next(v for v in COLOURS if part.endswith(v)) for part in finding.short.split(", ")]


def _wherever_least(of: dict[float, Point], holds: Callable[[float], bool | None]) -> bool | None:
    """Whether it holds at the gamma of the least ECE: at each that may be it, as its ECE is not clearly above the
    least. None where that differs."""
    best = min(of.values(), key=lambda point: point.on_test("ece"))
    answers = {
        holds(gamma)
        for gamma, point in of.items()
        if point is best
        or not clearly(point.on_test("ece") - best.on_test("ece"), point.ece_error.beside(best.ece_error))
    }
    return None if len(answers) > 1 else answers.pop()


def _gammas(nets: Nets) -> str:
    return "; ".join(f"{TITLES[net]}, gamma {', '.join(f'{g:g}' for g in of)}" for net, of in nets.items())


def _falls(nets: Nets, loss: str) -> Finding:
    """A rise of less than ``ONE_SEED`` above all before leaves it open, where the trend is not upwards."""

    def judged(of: dict[float, Point]) -> Judged:
        if len(of) < 3:
            return _too_few(of)
        values = np.array([LOSSES[loss](point)["lambda_max"]["value"] for point in of.values()])
        lowest = np.minimum.accumulate(values)[:-1]
        rise = float(((values[1:] - lowest) / np.maximum(np.abs(lowest), 1e-12)).max())
        rank = rank_correlation(list(of), values)
        holds = True if rise < 0 else False if rise >= ONE_SEED or rank > STRONG else None
        told = f"{', '.join(f'{v:.3g}' for v in values)} (rank correlation {rank:+.2f}"
        return holds, told + (f"; it rises by up to {100 * rise:.0f} %)" if rise > 0 else ")")

    claim = f"λ max of the Hessian on val falls monotonically with gamma: of the {loss}."
    return _of_nets(claim, "Figure 2, Theorem 2", nets, judged)


def _too_few(of: dict[float, Point]) -> str:
    return f"of gamma {' and '.join(f'{gamma:g}' for gamma in of)} alone"


def _minimum(nets: Nets, wanted: tuple[str, ...], at: tuple[int, ...], claim: str) -> Finding:
    """A gamma of one more or less counts as near."""

    def near(gamma: float) -> bool:
        return min(abs(gamma - wanted) for wanted in at) <= 1

    def judged(of: dict[float, Point]) -> Judged:
        if not any(gamma in of for gamma in at):
            return f"gamma {' or '.join(map(str, at))} is not stored"
        if len(of) < 2:
            return _too_few(of)
        best, *others = sorted(of, key=lambda gamma: of[gamma].on_test("ece"))
        rival = next((gamma for gamma in others if near(gamma) != near(best)), others[0])
        told = [
            f"{100 * of[gamma].on_test('ece'):.2f} ± {100 * of[gamma].ece_error.value:.2f} % at gamma {gamma:g}"
            for gamma in (best, rival)
        ]
        return _wherever_least(of, near), f"{told[0]}, against {told[1]}"

    return _of_nets(claim, "Figure 2", {net: nets[net] for net in wanted if net in nets}, judged)


def _between(nets: Nets, loss: str) -> Finding:
    """ECE is least where the trace is below that of gamma = 0, and not at its lowest."""

    def judged(of: dict[float, Point]) -> Judged:
        if 0 not in of:
            return "gamma 0 is not stored, from which the trace would be reduced"
        if len(of) < 3:
            return _too_few(of)
        errors = {gamma: Error(LOSSES[loss](point)["trace"].get("stderr", 0.0)) for gamma, point in of.items()}
        traces = {gamma: LOSSES[loss](point)["trace"]["value"] for gamma, point in of.items()}
        best = min(of, key=lambda gamma: of[gamma].on_test("ece"))
        low = min(traces, key=lambda gamma: traces[gamma])
        told = f"least ECE at gamma {best:g}, where the trace is {traces[best]:.4g}"
        if best:
            told += f" ({traces[0]:.4g} at gamma 0"
            told += f", lowest {traces[low]:.4g} at gamma {low:g})" if low != best else ", and nowhere lower)"
        else:
            told += " and not reduced"

        def below(lower: float, upper: float) -> bool | None:
            return clearly(traces[upper] - traces[lower], errors[upper].beside(errors[lower]))

        def reduced(gamma: float) -> bool | None:
            return gamma not in (low, 0) and all_of((below(low, gamma), below(gamma, 0)))

        return _wherever_least(of, reduced), told

    claim = f"ECE is least where the trace is reduced to some extent, but not at its lowest: that of the {loss}."
    return _of_nets(claim, "Figure 3", nets, judged)


def _follows_confidence(nets: Nets) -> Finding:
    """What ECE goes with instead: the size of mean confidence less accuracy."""

    def judged(of: dict[float, Point]) -> Judged:
        if len(of) < 3:
            return _too_few(of)
        eces = [point.on_test("ece") for point in of.values()]
        against = {"over-confidence": [abs(point.overconfidence) for point in of.values()]}
        against |= {f"trace of the {loss.partition(' at ')[0]}": [measured(p)["trace"]["value"] for p in of.values()]
                    for loss, measured in LOSSES.items()}  # fmt: skip
        ranks = {name: rank_correlation(values, eces) for name, values in against.items()}
        first, *others = ranks.values()
        told = f"rank correlation of ECE with the {', with the '.join(f'{k} {v:+.2f}' for k, v in ranks.items())}"
        return first > max(STRONG, *others), told

    claim = "ECE rises with the size of mean confidence less accuracy, more than with curvature."
    return replace(_of_nets(claim, "our own question", nets, judged), ours=True)
