"""What the paper says, and what came of it."""

from __future__ import annotations

import numpy as np
import torch

from trueup.focal import focal_map, gamma_star, inverse_focal_map, risk_minimiser
from trueup.papers.chance import by_chance
from trueup.papers.komisarenko2024.gathering import Study
from trueup.papers.komisarenko2024.line import GAMMAS
from trueup.papers.komisarenko2024.sheets import SCALES, TITLES, Count, counted
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED, Finding, at_most

CONSISTENT = 0.8
"""Consistently: lower on at least this share of the networks on which the maps differ, and clearly higher on no more
than chance makes of them."""
NEAR_LINE = 0.1
"""Close to linear: no best temperature is further from the line than this share of it."""


def findings(study: Study) -> list[Finding]:
    return [
        decomposition(), raises_confidence(), two_classes(study), many_classes(study),
        *(consistently(study, *pair) for pair in (
            ("adaptive_ece", "adaptive_ece"), ("ece", "ece"), ("nll", "ece"), ("nll", "nll"))),
        keeps_accuracy(study), linear(study), *mechanism(study), other_architectures(study),
        under_shift(study),
    ]  # fmt: skip


def decomposition() -> Finding:
    """FL(q, y) = S(Psi(q), y), and S is proper: its expectation has its least value at the posterior."""
    generator = torch.Generator().manual_seed(0)
    gap, slack = 0.0, np.inf
    for classes in (2, 3, 10):
        posterior = torch.randn(200, classes, generator=generator, dtype=torch.float64).softmax(1)
        other = torch.randn(200, classes, generator=generator, dtype=torch.float64).softmax(1)
        for gamma in (0.5, 1.0, 3.0, 5.0):
            found = focal_map(risk_minimiser(posterior, gamma).log(), gamma).exp()
            gap = max(gap, float((found - posterior).abs().max()))
            slack = min(
                slack, float((expected_s(other, posterior, gamma) - expected_s(posterior, posterior, gamma)).min())
            )
    return Finding(
        "Focal loss is a proper loss behind the focal calibration map.", "decomposition",
        HOLDS if gap < 1e-9 and slack > 0 else FAILS, "600 random posteriors of 2, 3 and 10 classes, gamma 0.5 to 5",
        f"the map takes the minimiser of the focal risk to the posterior within {at_most(gap)}; any other report has a "
        f"larger expected proper loss, by {slack:.0e} at the least; proved in docs/theory.md, section 4",
    )  # fmt: skip


def expected_s(report: torch.Tensor, posterior: torch.Tensor, gamma: float) -> torch.Tensor:
    """(N,) sum over y of pi_y S(report, y), S(r, y) = FL(Psi^-1(r), y)."""
    log_q = inverse_focal_map(report.log(), gamma)
    return -(posterior * (-torch.expm1(log_q)) ** gamma * log_q).sum(-1)


def raises_confidence() -> Finding:
    """The top probability of q and of Psi(q), over grids and draws that are chosen to fail."""
    rng, told, least = np.random.default_rng(0), [], {}
    for classes in (2, 3, 4, 5, 7, 10, 20):
        drops = []
        for gamma in (0.25, 1.0, 3.0):
            ties = np.array([np.r_[np.full(classes - 1, (1 - b) / (classes - 1)), b]
                             for b in np.linspace(1e-4, 1 / classes, 60)])  # fmt: skip
            draws = rng.dirichlet(np.ones(classes) * 3, 2000)
            q = np.concatenate([ties[:-1], draws])
            drops.append(float((np.exp(focal_map(np.log(q), gamma)).max(1) - q.max(1)).min()))
        least[classes] = min(drops)
        told.append(f"K = {classes}: {min(drops):+.1e}")
    first = min((classes for classes, drop in least.items() if drop < -1e-9), default=None)
    return Finding(
        "The focal map raises confidence for any gamma > 0.", "abstract, Figure on the 3-simplex",
        FAILS if first else HOLDS, "equal entries beside a small one, and 2000 draws, gamma 0.25, 1, 3",
        f"least change of the top probability: {', '.join(told)}; it falls from K = {first} on, for gamma below "
        f"gamma*(1/(K-1)) ({gamma_star(1 / 3):.2f} for K = 4); it never falls where the top probability is 1/2 or "
        "more",
    )  # fmt: skip


def two_classes(study: Study) -> Finding:
    some = [each for each in study.bounds if each.classes == 2]
    inside = all(each.low <= each.found_low + 1e-9 and each.found_high <= each.theorem for each in some)
    told = "; ".join(
        f"gamma {each.gamma:g}: {each.found_low:.4f} to {each.found_high:.4f}, theorem {each.low:.4f} to "
        f"{each.theorem:.4f}"
        for each in some if each.gamma in (1.0, 3.0, 10.0)
    )  # fmt: skip
    return Finding(
        "With two classes the map lies between two temperatures, and experimentally in a tighter interval.", "theorem",
        HOLDS if inside else FAILS, f"descent over all predictions, gamma {some[0].gamma:g} to {some[-1].gamma:g}",
        told,
    )  # fmt: skip


def many_classes(study: Study) -> Finding:
    some = [each for each in study.bounds if each.classes > 2]
    above = [each for each in some if each.found_high > 1]
    below = all(each.found_low > each.low for each in some)
    widest = max(some, key=lambda each: each.found_high)
    return Finding(
        "With more classes the map acts like a temperature below 1.", "abstract",
        FAILS if above else HOLDS, "descent over the simplex, K = 3 to 1000, gamma 0.25 to 10",
        f"a temperature above 1 in {len(above)} of {len(some)} cases, up to {widest.found_high:.3f} (K = "
        f"{widest.classes}, gamma {widest.gamma:g}); with three classes 1 is the limit; "
        + ("never below 1/(1+gamma)" if below else "even below 1/(1+gamma)"),
    )  # fmt: skip


def is_consistent(found: Count) -> bool:
    """Lower on most of those that have another map, and clearly higher on no more than chance makes of them."""
    changed = found.networks - found.same
    return found.lower >= CONSISTENT * changed and found.clearly_higher <= by_chance(changed)


def consistently(study: Study, criterion: str, metric: str) -> Finding:
    found = counted(study.networks, criterion, metric)
    holds = is_consistent(found)
    name = {"adaptive_ece": "adaptive ECE, as in the paper", "ece": "ECE", "nll": "NLL"}[criterion]
    unit = "thousandths" if metric in ("nll", "brier") else "points"
    return Finding(
        f"Focal temperature scaling consistently improves on temperature scaling: fitted by {name}, judged by "
        f"{TITLES[metric]}.",
        "abstract, experiments", HOLDS if holds else FAILS, f"{found.networks} networks, on test",
        f"lower on {found.lower}, clearly so on {found.clearly_lower}; clearly higher on {found.clearly_higher}; the "
        f"same map on {found.same}; mean change {found.text(SCALES[metric])} {unit}",
    )  # fmt: skip


def keeps_accuracy(study: Study) -> Finding:
    changed = sum(
        of["focal-temperature"]["test"]["error"] != entry["before"]["error"]
        for entry in study.networks
        for of in entry["criteria"].values()
    )
    return Finding(
        "Accuracy is kept.", "summary", HOLDS if not changed else FAILS,
        f"{len(study.networks)} networks, three criteria", f"the error on test changes in {changed} cases",
    )  # fmt: skip


def linear(study: Study) -> Finding:
    lines = [entry["line"] for entry in study.networks]
    worst = np.array([line["worst"] for line in lines])
    ratio = np.array([line["tangent"] / line["predicted"] for line in lines])
    beyond = np.array([line["temperatures"][-1] / (line["intercept"] + 5 * line["slope"]) for line in lines])
    near = int((worst <= NEAR_LINE).sum())
    return Finding(
        "The best T is close to linear in gamma.", "experiments",
        HOLDS if near >= CONSISTENT * len(lines) else FAILS,
        f"{len(lines)} networks, gamma {GAMMAS[0]:g} to {GAMMAS[-1]:g}",
        f"within {100 * NEAR_LINE:.0f} % of the line on {near}, {100 * np.median(worst):.1f} % off in the median; the "
        f"slope at 0 is {np.median(ratio):.2f} times the predicted one in the median ({ratio.min():.2f} to "
        f"{ratio.max():.2f}); at gamma = 5 T is {np.median(beyond):.2f} times what the line says",
    )  # fmt: skip


def mechanism(study: Study) -> list[Finding]:
    """Focal networks against cross-entropy of the same net, data and schedule, at the last epoch."""
    lacks, errors = [], []
    for history in study.histories.values():
        base = _cross_entropy_of(study, history)
        if history["gamma"] and base is not None:
            ends = [{part: each["epochs"][part][-1] for part in ("train", "test")} for each in (history, base)]
            lacking = [end["train"]["accuracy"] - end["train"]["true_probability"] for end in ends]
            lacks.append(lacking[0] - lacking[1])
            errors.append(ends[1]["test"]["ece"] - ends[0]["test"]["ece"])
    made = []
    for text, found, what in (
        ("Focal training is less confident on the training data than cross-entropy.", lacks,
         "accuracy less the mean probability of the label is larger"),
        ("That makes it better calibrated on test data.", errors, "ECE on test is lower"),
    ):  # fmt: skip
        right = sum(gain > 0 for gain in found)
        verdict = UNTESTED if not found else HOLDS if right >= CONSISTENT * len(found) else FAILS
        told = (
            f"{what} on {right} of {len(found)}, by {100 * min(found):+.2f} to {100 * max(found):+.2f} points (median "
            f"{100 * np.median(found):+.2f}); each run is in the table of train and test against γ"
            if found else "no run is stored"
        )  # fmt: skip
        made.append(Finding(text, "mechanism 1", verdict, f"{len(found)} runs beside cross-entropy", told))
    return made


def _cross_entropy_of(study: Study, history: dict) -> dict | None:
    def key(of: dict) -> dict:
        return {k: v for k, v in of["recipe"].items() if k != "loss"}

    same = [each for each in study.histories.values() if each["loss"] == "cross-entropy" and key(each) == key(history)]
    return same[0] if same else None


def other_architectures(study: Study) -> Finding:
    some = [entry for entry in study.networks if not entry["model"].startswith("resnet")]
    found = counted(some, "nll", "nll") if some else None
    models = sorted({entry["model"] for entry in some})
    return Finding(
        "Other architectures than ResNet-50 behave in the same way.", "next check",
        UNTESTED if found is None else HOLDS if found.lower >= CONSISTENT * found.networks else FAILS,
        ", ".join(models), "no other network is here" if found is None else
        f"by NLL, NLL on test is lower on {found.lower} of {found.networks}, mean change {found.text(1000)} "
        "thousandths",
    )  # fmt: skip


def under_shift(study: Study) -> Finding:
    cells = [cell for run in study.shift for cell in run["cells"] if cell["kind"] != "clean"]
    if not cells:
        return Finding(
            "The gain carries over to data unlike the training set.", "next check", UNTESTED, "",
            "no run with weights was scored; trueup reproduce komisarenko2024 --shift RUN does it",
        )  # fmt: skip
    lower = {metric: sum(cell["difference"][metric][0] < 0 for cell in cells) for metric in ("nll", "ece")}
    clear = (
        sum(cell["difference"]["ece"][2] < 0 for cell in cells),
        sum(cell["difference"]["ece"][1] > 0 for cell in cells),
    )
    means = {metric: np.mean([cell["difference"][metric] for cell in cells], axis=0) for metric in ("nll", "ece")}
    holds = lower["nll"] >= CONSISTENT * len(cells) and lower["ece"] >= CONSISTENT * len(cells)
    return Finding(
        "The gain carries over to data unlike the training set.", "next check", HOLDS if holds else FAILS,
        f"{len(study.shift)} runs, 25 corruptions each",
        f"focal temperature against temperature: NLL lower on {lower['nll']} of {len(cells)}, ECE on {lower['ece']} "
        f"(clearly lower on {clear[0]}, higher on {clear[1]}); mean change of NLL {1000 * means['nll'][0]:+.2f} "
        f"thousandths, of ECE {100 * means['ece'][0]:+.2f} points",
    )  # fmt: skip
