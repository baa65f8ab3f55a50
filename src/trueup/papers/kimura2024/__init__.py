"""Kimura & Naganuma, "Geometric Insights into Focal Loss: Reducing Curvature for Enhanced Model Calibration" (2024).

Focal loss is said to calibrate because it lowers the curvature of the loss surface; so should a penalty on the trace of
the Hessian.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trueup.papers.kimura2024 import networks, penalty, theory
from trueup.papers.kimura2024.grid import Place, places, recipes
from trueup.papers.kimura2024.measure import FILE, curvature_of_run
from trueup.papers.page import Answer, Answered
from trueup.papers.reproduction import FAILS, HOLDS, UNCLEAR, UNTESTED, Finding
from trueup.papers.stored import command_of, origin

__all__ = ["FILES", "TITLE", "curvature_of_run", "draw", "measure_run", "recipes", "reproduce"]

TITLE = "does focal loss calibrate by lowering curvature?"
FILES = (FILE,)
"""What a stored run of this paper has beside the usual; ``measure_run`` writes it."""
FIGURES = "figures/curvature"
CAPTION = ("gamma = 1 is cross-entropy", "no limit of the gradient for gamma below 1", "sure samples count less")
UNSEEN = "Our text of the paper has no formulas; this is what abstract and captions say of them."
THEORY = ("Lemma 1", "a corollary on predictions", "Theorem 1", "a corollary on weights", "the PAC-Bayes remark",
          "Theorem 2")  # fmt: skip
PENALTY = ("a larger tau lowers the trace on CIFAR-10", "a larger tau lowers the trace on digits",
           "a larger tau lowers ECE on CIFAR-10", "a larger tau lowers ECE on digits")  # fmt: skip
GAMMA = ("falls", "falls, CE", "least", "least, ViT", "between", "between, CE", "confidence")
"""The claims in a few words, in the order of their findings."""


def reproduce(results: Path, *, resamples: int = 300, progress: Callable[[float], None] | None = None) -> Answered:
    """The stored runs with their curvature, and a verdict on each claim."""
    points = networks.stored_points(results)
    analysis = theory.analysis()
    if progress:
        progress(0.5)
    of_gamma = [finding for data in networks.DATASETS for finding in networks.gamma_findings(points, data)]
    of_tau = penalty.tau_findings(points)
    there = {point.name for point in points}
    missing = tuple(name for name in recipes() if name not in there)
    commands = tuple((f"`{point.name}`, {origin(point.run)}", command_of(point.run.recipe)) for point in points)
    answers = _answers(points, analysis, of_gamma, of_tau)
    if progress:
        progress(1.0)
    return Answered(
        "kimura2024", TITLE, (), (*analysis, *of_gamma, *of_tau), missing,
        tuple(point.to_dict() for point in points), commands, answers, _notes(points),
    )  # fmt: skip


def _answers(
    points: Any, analysis: list[Finding], of_gamma: list[Finding], of_tau: list[Finding]
) -> tuple[Answer, ...]:
    from trueup.papers.kimura2024.drawing import figures

    drawn = figures(points)

    def shown(*names: str) -> tuple[tuple[str, str], ...]:
        return tuple((titles[name], f"{FIGURES}/{name}.svg") for name in names if name == "figure1" or name in drawn)

    titles = {
        "figure1": "Loss and gradient against p",
        "figure4": "Trace, ECE and error against the weight tau of the penalty, CIFAR-10, by the learning rate",
        "digits": "The same on digits, by the seed",
    }
    for data, title in networks.DATASETS.items():
        titles[f"figure2-{data}"] = f"λ max of both Hessians, and ECE, against gamma, {title}"
        titles[f"figure3-{data}"] = f"ECE against the trace, {title}: a point for each gamma, which stands beside it"
    of_gamma_sheets = [networks.gamma_sheet(points, data) for data in networks.DATASETS]
    of_tau_sheets = [penalty.tau_sheet(points), penalty.digits_sheet(points)]
    return (
        Answer(
            "Does Figure 1 say what it shows?", _told(analysis[:3], CAPTION), (theory.figure_1(),), shown("figure1")
        ),
        Answer("Does the theory hold?", f"{_told(analysis[3:], THEORY)} {UNSEEN}"),
        Answer(
            "Does more gamma mean less curvature, and that less ECE?", _counted(of_gamma),
            tuple(sheet for sheet in (networks.trends_sheet(points), *of_gamma_sheets) if sheet),
            shown(*(f"figure{number}-{data}" for data in networks.DATASETS for number in (2, 3))),
        ),
        Answer(
            "Does a penalty on the trace calibrate?", _told(of_tau, PENALTY),
            tuple(sheet for sheet in of_tau_sheets if sheet), shown("figure4", "digits"),
        ),
    )  # fmt: skip


def _told(findings: list[Finding], names: tuple[str, ...]) -> str:
    """Every claim in a few words under its verdict."""
    parts = []
    for verdict in (HOLDS, FAILS, UNCLEAR, UNTESTED):
        own = [name for finding, name in zip(findings, names, strict=True) if finding.verdict == verdict]
        if own:
            parts.append(f"{verdict}: {', '.join(own)}")
    return ". ".join(f"{part[0].upper()}{part[1:]}" for part in parts) + "."


def _counted(findings: list[Finding]) -> str:
    """On how many nets of both data sets each claim holds."""
    counts = {name: Counter() for name in GAMMA}
    for i, finding in enumerate(findings):
        counts[GAMMA[i % len(GAMMA)]] += Counter(networks.each_verdict(finding))
    if not any(found.total() > found[UNTESTED] for found in counts.values()):
        return "Not tested: no run is stored."

    def on(name: str) -> str:
        found = counts[name]
        left = f" ({found[UNCLEAR]} cannot be told)" if found[UNCLEAR] else ""
        return f"on {found[HOLDS]} of {found.total() - found[UNTESTED]} nets{left}"

    return (
        f"λ max of the training loss falls with every step of gamma {on('falls')}, ECE is least near gamma = 3 or 4 "
        f"{on('least')}, and ECE rises with the size of over- or under-confidence, more than with curvature, "
        f"{on('confidence')}. λ max of cross-entropy at the same weights falls with every step of gamma "
        f"{on('falls, CE')}; ECE of the ViT is least near gamma = 10 {on('least, ViT')}; ECE is least where the trace "
        f"is reduced, but not at its lowest, {on('between')} for the training loss and {on('between, CE')} for "
        "cross-entropy."
    )


def _notes(points: list[networks.Point]) -> tuple[str, ...]:
    def at(place: Place) -> str:
        if place.figure == "gamma":
            return f"Figures 2 and 3, {networks.DATASETS[place.data]}"
        return "Figure 4" if place.figure == "tau" else "digits"

    wanted = [at(place) for place, _ in places().values()]
    have = [at(point.place) for point in points]
    return tuple(
        f"{name}: {have.count(name)} of {wanted.count(name)} runs are stored" for name in dict.fromkeys(wanted)
    )


def measure_run(
    folder: Path, *, device: str, data_dir: Path | None, progress: Callable[[float], None] | None = None
) -> None:
    """What ``FILES`` names, for a complete run with its weights."""
    curvature_of_run(folder, device=device, data_dir=data_dir, relative=0.02, progress=progress)


def draw(results: Path, folder: Path) -> list[Path]:
    """Figure 1; 2 to 4 and that of digits where runs are stored."""
    from trueup.papers.kimura2024 import drawing

    return drawing.draw(networks.stored_points(results), folder)
