"""Komisarenko & Kull, "Improving Calibration by Relating Focal Loss, Temperature Scaling, and Properness" (ECAI 2024).

Focal temperature scaling is Psi_gamma(softmax(z / T)). The paper (arXiv 2408.11598) leaves four questions and three
checks; here they are answered from every network whose logits are here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trueup.papers.komisarenko2024 import bounds, sheets, shift
from trueup.papers.komisarenko2024.claims import findings, is_consistent
from trueup.papers.komisarenko2024.gathering import Study, gather
from trueup.papers.komisarenko2024.line import limit_slopes
from trueup.papers.page import Answer, Answered
from trueup.papers.reproduction import Sheet
from trueup.papers.stored import run_name
from trueup.train import Recipe, named

TITLE = "Improving Calibration by Relating Focal Loss, Temperature Scaling, and Properness"
READS_DATA = True
"""``reproduce`` takes a ``data_dir``, where public logits may lie."""
ANY_RUN = True
"""Every network is studied, of whatever grid."""
FIGURES = "figures/focal-temperature"
LOSSES = ("cross-entropy", "focal:1", "focal:2", "focal:3", "focal:5", "focal:7", "flsd-53", "adafocal")


def recipes() -> dict[str, Recipe]:
    """The paper's training losses on ResNet-50, in the short schedule; those of mukhoti2020 serve as well."""
    made = (named("mukhoti2020-short", loss=loss) for loss in LOSSES)
    return {run_name(recipe): recipe for recipe in made}


def score_shift(results: Path, folders: list[Path], **options: Any) -> list[str]:
    """Scores runs that have their weights on corrupted images, and keeps the figures."""
    return [shift.score_run(folder, results / "komisarenko2024", **options) for folder in folders]


def reproduce(
    results: Path,
    *,
    resamples: int = 300,
    progress: Callable[[float], None] | None = None,
    data_dir: Path | None = None,
) -> Answered:
    """The questions answered and the claims judged; what is not stored yet is computed, and stored."""
    made = gather(results, resamples=resamples, data_dir=data_dir, progress=progress)
    here = {entry["name"] for entry in made.networks}
    missing = tuple(name for name in recipes() if name not in here)
    rows = [{k: v for k, v in entry.items() if k != "landscape"} for entry in made.networks]
    return Answered(
        "komisarenko2024", TITLE, (), tuple(findings(made)), missing, tuple(rows),
        answers=tuple(answers(made)), notes=tuple(made.notes),
    )  # fmt: skip


def draw(results: Path, folder: Path) -> list[Path]:
    """The figures of the page."""
    from trueup.papers.komisarenko2024 import drawing

    return drawing.draw(gather(results), folder)


def answers(made: Study) -> list[Answer]:
    """Each question, the answer in a sentence, its tables and figures, and what remains open."""
    return [_helps(made), _question_1(made), _question_2(made), _question_3(made), _question_4(made), _shift(made)]


def _helps(made: Study) -> Answer:
    pairs = (("nll", "nll"), ("nll", "ece"), ("adaptive_ece", "adaptive_ece"), ("adaptive_ece", "nll"))
    nll, ece, own, cost = (sheets.counted(made.networks, *pair) for pair in pairs)
    gammas = [entry["criteria"]["nll"]["focal-temperature"]["gamma"] for entry in made.networks]
    consistent = [
        f"{sheets.TITLES[metric]} when fitted by {sheets.TITLES[criterion]}"
        for criterion in sheets.CRITERIA
        for metric in sheets.JUDGED
        if is_consistent(sheets.counted(made.networks, criterion, metric))
    ]
    answer = (
        f"Often, not always: fitted by NLL it lowers NLL on test on {nll.lower} of {nll.networks} networks, and ECE on "
        f"{ece.lower}. NLL is clearly lower on {nll.clearly_lower}, by {-1000 * nll.mean:.1f} thousandths in the mean "
        "of all. Fitted by adaptive ECE, as in the paper, it lowers adaptive ECE on "
        f"{own.lower}, clearly on {own.clearly_lower}, by {-100 * own.mean:.2f} points in the mean, and raises NLL "
        f"clearly on {cost.clearly_higher}. What it lowers consistently, on four of five of the networks on which "
        "the maps differ and clearly higher on no more than chance makes of them: "
        f"{', '.join(consistent) or 'nothing'}. By NLL the fitted γ is negative on {sum(g < 0 for g in gammas)} of "
        f"{len(gammas)}."
    )
    remains = (
        "training losses of most public networks are not stated; trainings are single ones, so seeds are not judged."
    )
    pictures = (
        ("Two classes, posterior .8: the expected focal loss is least below .8, the proper loss behind it at .8, and "
         "the map lies between two temperatures", f"{FIGURES}/decomposition.svg"),
        ("Focal temperature less temperature, a point a network, by training loss; circle: clearly lower, square: "
         "clearly higher, bar: neither, cross: the same map", f"{FIGURES}/differences.svg"),
        ("NLL on val over temperature and γ on a few networks, dark where it is low; line: the best T of each γ; star: "
         "the optimum (triangle: beyond the panel); dot: temperature scaling", f"{FIGURES}/landscapes.png"),
    )  # fmt: skip
    tables = (sheets.criteria_sheet(made), sheets.losses_sheet(made), sheets.networks_sheet(made))
    return Answer("Does focal temperature scaling improve on temperature scaling?", answer, tables, pictures, remains)


def _question_1(made: Study) -> Answer:
    three, many = ([each for each in made.bounds if each.classes == k] for k in (3, 1000))
    highest = max(many, key=lambda each: each.high)
    answer = (
        "For every K the map acts like a temperature above 1/(1+γ), the paper's lower bound, which is sharp; the "
        "upper bound of two classes does not carry over: with three classes the temperatures reach up to "
        f"{three[0].high:g} for every γ, from four on above 1 for γ below γ*(1/(K-1)), with a thousand up to "
        f"{highest.high:.3f} at γ = {highest.gamma:g}."
    )
    pictures = (
        (
            "The focal map on the simplex of three classes: each arrow leads from a report to what the map makes of it",
            f"{FIGURES}/simplex.svg",
        ),
        (
            "The temperature that gives the most probable class what the map gives it: beside equal other classes, and "
            "the highest (above) and lowest over all reports",
            f"{FIGURES}/temperatures.svg",
        ),
    )
    remains = (
        "a closed form of the highest temperature for K between 4 and about 15 (it is the least value of one function)."
    )
    question = "Open question 1: the bounds for more than two classes"
    return Answer(question, answer, (sheets.bounds_sheet(made),), pictures, remains)


def _question_2(made: Study) -> Answer:
    lines = [entry["line"] for entry in made.networks]
    ratio = np.array([line["tangent"] / line["predicted"] for line in lines])
    loses = sum(line["one_parameter"]["less_two"][1] > 0 for line in lines)
    gains = sum(line["one_parameter"]["less_two"][2] < 0 for line in lines)
    mean = 1000 * np.mean([line["one_parameter"]["less_two"][0] for line in lines])
    answer = (
        "T(γ) ≈ T(0) (1 + s γ), where s is the mean over the samples, weighted with the variance of their logits, of "
        f"a slope between {limit_slopes(10)[0]:.2f} (no margin, ten classes) and 1 (large margin); computed without "
        f"labels it is within {100 * np.median(np.abs(ratio - 1)):.0f} % of the measured one in the median. A search "
        f"of γ alone along that line changes NLL on test by {mean:+.2f} thousandths in the mean: clearly worse on "
        f"{loses}, clearly better on {gains} of {len(lines)} networks."
    )
    remains = "the line bends beyond γ = 1, as the table shows; its curvature is not derived."
    tables = (sheets.lines_by_loss_sheet(made), sheets.line_sheet(made))
    figure = ("The best T against γ (grey: where the line is fitted), and its slope at 0", f"{FIGURES}/line.svg")
    return Answer("Open question 2: the relation of γ and T", answer, tables, (figure,), remains)


def _question_3(made: Study) -> Answer:
    told = []
    for size in (100, 5000):
        table = {name: of for name in sheets.NAMES if (of := sheets.by_network(made.networks, size, name))}
        own = table.pop("focal-temperature", {})
        shared = set(own).intersection(*table.values())
        lower = {name: sum(of[each]["nll"] < own[each]["nll"] for each in shared) for name, of in table.items()}
        better = sorted((name for name in lower if lower[name] > len(shared) / 2), key=lambda name: -lower[name])
        if shared:
            each = ", ".join(f"{name} ({lower[name]} of {len(shared)})" for name in better) or "none"
            told.append(f"with {size} samples {each}")
    answer = (
        "It is a small step beyond temperature scaling that never changes a prediction, and these have a lower NLL "
        f"than it on most networks: {', '.join(told)}. Maps with parameters for each class need samples for each class."
    )
    figure = ("NLL and ECE on test against the number of calibration samples, the median over the networks",
              f"{FIGURES}/rivals.svg")  # fmt: skip
    question = "Open question 3: among vector, matrix, Dirichlet, isotonic, histogram, ensemble and auto"
    remains = "no set with a thousand classes is among these networks."
    return Answer(question, answer, (sheets.rivals_sheet(made),), (figure,), remains)


def _question_4(made: Study) -> Answer:
    focal = [entry for entry in made.networks if entry["psi"]]
    before = [entry["overconfidence"][0] for entry in focal]
    after = [entry["psi"]["overconfidence"][0] for entry in focal]
    worse = sum(entry["psi"]["difference"]["ece"][1] > 0 for entry in focal)
    better = [entry for entry in focal if entry["psi"]["difference"]["ece"][2] < 0]
    under = sum(entry["overconfidence"][2] < 0 for entry in better)
    answer = (
        f"On {len(focal)} focal networks mean confidence less accuracy on test is {100 * np.mean(before):+.2f} points "
        f"as trained and {100 * np.mean(after):+.2f} with the focal map. The softmax of a focal network leaves out the "
        f"map that its loss was trained behind. The map makes ECE clearly worse on {worse}, and clearly better on "
        f"{len(better)}, of which {under} are clearly under-confident as trained: leaving the layer out corrects for "
        "what overfitting adds, right where the two are of a size, too much where the network has not overfitted."
        if focal else "No focal network is here."
    )  # fmt: skip
    tables: tuple[Sheet | None, ...] = (sheets.histories_sheet(made), sheets.weights_sheet(made))
    figure = ("Train and test over the epochs, by the training loss: a larger γ is less confident on both",
              f"{FIGURES}/histories.svg")  # fmt: skip
    figures = (figure,) if made.histories else ()
    question = "Open question 4: what the decomposition says about generalisation"
    shown = tuple(sheet for sheet in tables if sheet is not None and sheet.rows)
    remains = "confidence on train after the map needs training samples, hence weights: --shift RUN adds it."
    return Answer(question, answer, shown, figures, remains)


def _shift(made: Study) -> Answer:
    table = sheets.shift_sheet(made)
    if table is None:
        return Answer("Next check: under shift", "Not run: no run with its weights was scored yet.", (), (),
                      "trueup reproduce komisarenko2024 --shift RUN scores a run that has its weights.")  # fmt: skip
    cells = [cell for run in made.shift for cell in run["cells"] if cell["kind"] != "clean"]
    ece = {name: 100 * np.mean([cell["maps"][name]["ece"] for cell in cells]) for name in cells[0]["maps"]}
    answer = (
        f"Over {len(made.shift)} runs, maps fitted on clean images and judged on corrupted ones have a mean ECE of "
        + ", ".join(f"{value:.2f} % ({name})" for name, value in ece.items()) + "."
    )  # fmt: skip
    figure = ("ECE on corrupted test images against severity, the mean over the kinds; maps fitted on clean images",
              f"{FIGURES}/shift.svg")  # fmt: skip
    remains = "our corruptions are not CIFAR-10-C's; larger nets are scored by --shift RUN."
    return Answer("Next check: under shift", answer, (table,), (figure,), remains)


__all__ = ["LOSSES", "READS_DATA", "TITLE", "answers", "bounds", "draw", "recipes", "reproduce", "score_shift"]
