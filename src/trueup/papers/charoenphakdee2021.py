"""Charoenphakdee et al., "On Focal Loss for Class-Posterior Probability Estimation: A Theoretical Perspective" (2021).

Focal loss finds the most probable class but not its probability; the map Psi gives the posterior back. What we have of
the paper (CVPR 2021, arXiv 2011.09172) are the slides of its talk. Beyond them: posteriors that are known, since we
drew the data, and posteriors that people gave, the votes of CIFAR-10H.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueup.focal import confidence_thresholds, focal_map, risk_minimiser
from trueup.inputs import InputError
from trueup.papers.chance import by_chance
from trueup.papers.komisarenko2024.networks import Shelf, networks
from trueup.papers.komisarenko2024.sheets import named as labelled
from trueup.papers.komisarenko2024.sheets import title as title_of
from trueup.papers.page import Answer, Answered
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED, Finding, Sheet, at_most
from trueup.papers.stored import run_name
from trueup.papers.votes import MEASURES, compared, votes_file
from trueup.train import Recipe, named

TITLE = "On Focal Loss for Class-Posterior Probability Estimation: A Theoretical Perspective"
READS_DATA = True
ANY_RUN = True
FIGURES = "figures/focal-temperature"
PRINTED = {1: (0.78, 0.22), 3: (0.65, 0.35), 5: (0.60, 0.40)}
"""The slides' minimisers for the posterior .90/.10, by gamma."""
POSTERIOR = (0.9, 0.1)
VERSION = 2


def recipes() -> dict[str, Recipe]:
    """Focal networks whose test images people have voted on, and cross-entropy beside them."""
    losses = ("cross-entropy", "focal:1", "focal:2", "focal:3", "focal:5")
    made = (named("mukhoti2020-short", model="resnet18", loss=loss) for loss in losses)
    return {run_name(recipe): recipe for recipe in made}


def reproduce(
    results: Path,
    *,
    resamples: int = 300,
    progress: Callable[[float], None] | None = None,
    data_dir: Path | None = None,
) -> Answered:
    """The slides' table, the regions, and how near Psi comes to posteriors that are known."""
    drawn = gaussians(results)
    voted, notes = against_votes(results, data_dir, progress)
    here = {entry["name"] for entry in voted}
    missing = tuple(name for name in recipes() if name not in here)
    of_the_map = (*slides(), exact(), accuracy_kept(), classes_kept(), regions_finding())
    findings = (*of_the_map, on_gaussians(drawn), *on_votes(voted))
    return Answered(
        "charoenphakdee2021", TITLE, (table(), regions()), findings, missing, tuple(voted),
        answers=(_known(drawn), _people(voted)), notes=tuple(notes),
    )  # fmt: skip


# ---------------------------------------------------------------------- the slides


def table() -> Sheet:
    rows = []
    for gamma in (1, 2, 3, 4, 5, 7):
        q = [float(x) for x in risk_minimiser(list(POSTERIOR), gamma)]
        back = [float(np.exp(x)) for x in focal_map([float(np.log(x)) for x in q], gamma)]
        printed = PRINTED.get(gamma)
        given = "-" if printed is None else "/".join(f"{x:.2f}"[1:] for x in printed)
        mapped = "-" if printed is None else f"{float(np.exp(focal_map(np.log(np.array(printed)), gamma)).max()):.4f}"
        rows.append(
            (str(gamma), given, "/".join(f"{x:.5f}"[1:] for x in q), mapped, "/".join(f"{x:.4f}"[1:] for x in back))
        )
    columns = ("γ", "printed", "minimiser", "the printed one is mapped to", "the minimiser is mapped to")
    note = (
        "Posterior .90/.10. Erratum: at γ = 1 the minimiser rounds to .77/.23, not .78/.22. The second row of the "
        "slides' matrices, .10/.90, is a second example."
    )
    return Sheet("The slides' table", columns, tuple(rows), note)


def slides() -> list[Finding]:
    made = []
    for gamma, printed in PRINTED.items():
        q = float(risk_minimiser(list(POSTERIOR), gamma)[0])
        made.append(Finding(
            f"The focal minimiser of the posterior .90/.10 at gamma = {gamma} is {printed[0]:.2f}/{printed[1]:.2f}.",
            "main result, table", HOLDS if round(q, 2) == printed[0] else FAILS, "the minimiser of the focal risk",
            f"it is {q:.5f}/{1 - q:.5f}, so {q:.2f}/{1 - q:.2f}",
        ))  # fmt: skip
    return made


def _posteriors(classes: int, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(count, classes, generator=generator, dtype=torch.float64)).softmax(1)


def exact() -> Finding:
    gaps = {}
    for classes in (2, 3, 10, 100, 1000):
        p = _posteriors(classes, 50)
        for gamma in (0.5, 1.0, 3.0, 5.0):
            back = focal_map(risk_minimiser(p, gamma).log(), gamma).exp()
            gaps[classes] = max(gaps.get(classes, 0.0), float((back - p).abs().max()))
    return Finding(
        "Psi recovers the posterior from the focal minimiser.", "solution",
        HOLDS if max(gaps.values()) < 1e-9 else FAILS,
        "50 random posteriors of each K from 2 to 1000, gamma 0.5 to 5",
        ", ".join(f"K = {classes}: within {at_most(gap)}" for classes, gap in gaps.items()),
    )  # fmt: skip


def classes_kept() -> Finding:
    p = _posteriors(10, 5000)
    flips = sum(int((risk_minimiser(p, gamma).argmax(1) != p.argmax(1)).sum()) for gamma in (0.5, 1.0, 3.0, 5.0))
    moved = float((risk_minimiser(p, 1.0) - p).abs().max())
    return Finding(
        "Focal loss is classification-calibrated, and not strictly proper.", "main result",
        HOLDS if not flips and moved > 0.01 else FAILS, "5000 random posteriors of 10 classes, gamma 0.5 to 5",
        f"the minimiser names another class in {flips} cases; at gamma = 1 it differs from the posterior by up to "
        f"{moved:.3f}",
    )  # fmt: skip


def accuracy_kept() -> Finding:
    """Of any report, not only of a minimiser."""
    flips, tried = 0, 0
    for classes in (2, 3, 10, 100, 1000):
        q = _posteriors(classes, 1000, seed=1).log()
        for gamma in (0.5, 1.0, 3.0, 5.0):
            flips, tried = flips + int((focal_map(q, gamma).argmax(1) != q.argmax(1)).sum()), tried + len(q)
    return Finding(
        "Psi preserves accuracy.", "solution", HOLDS if not flips else FAILS,
        "1000 random reports of each K from 2 to 1000, gamma 0.5 to 5",
        f"another class is named in {flips} of {tried} cases; proved in docs/theory.md, section 4",
    )  # fmt: skip


def one_against_rest(classes: int, gamma: float, top: np.ndarray) -> np.ndarray:
    """The posterior of the top class where the minimiser gives it ``top`` and all the others the same."""
    q = np.concatenate([top[:, None], np.repeat((1 - top[:, None]) / (classes - 1), classes - 1, axis=1)], 1)
    return np.exp(np.asarray(focal_map(np.log(q), gamma)))[:, 0]


def regions() -> Sheet:
    rows = []
    for gamma in (1.0, 2.0, 3.0, 5.0):
        over, under = (float(t) for t in confidence_thresholds(gamma))
        cells = []
        for classes in (2, 10, 1000):
            top = np.linspace(1 / classes + 1e-4, 0.999, 400 if classes > 100 else 2000)
            gap = top - one_against_rest(classes, gamma, top)
            above = top[gap > 1e-12]
            cells.append(f"up to {above.max():.3f}, by {gap.max():.3f}" if len(above) else "nowhere")
        rows.append((f"{gamma:g}", f"{over:.4f}", f"{under:.4f}", *cells))
    columns = ("γ", "over-confident below", "under-confident above", "K = 2", "K = 10", "K = 1000")
    note = (
        "The two thresholds of the largest entry, whatever the rest; then, for one class against equal others, up to "
        "where the minimiser is over-confident, and by how much at most. Proved in docs/theory.md, section 5."
    )
    return Sheet("Under- and over-confidence of the focal minimiser", columns, tuple(rows), note)


def regions_finding() -> Finding:
    top = {2: np.linspace(0.5001, 0.999, 500), 1000: np.linspace(0.0011, 0.2, 200)}
    found = {k: one_against_rest(k, 1.0, t) - t for k, t in top.items()}
    holds = bool((found[2] > 0).all()) and bool((found[1000] < 0).all())
    return Finding(
        "The focal minimiser is under-confident for K = 2 and can be over-confident for K = 1000.",
        "slide on confidence",
        HOLDS if holds else FAILS, "one class against equal others, gamma 1",
        "K = 2: the posterior is above the report everywhere; K = 1000: below it up to .2, by "
        f"{-found[1000].min():.3f} at most; above one half it is under-confident for every K",
    )  # fmt: skip


# ---------------------------------------------------------------------- posteriors that are known


def gaussians(results: Path) -> list[dict[str, str]]:
    """The focal networks of the study of Gaussian classes, after the focal map: what results/gaussians holds."""
    path = results / "gaussians" / "table.csv"
    if not path.is_file():
        return []
    with open(path, newline="") as file:
        return [
            row for row in csv.DictReader(file) if row["calibrator"] == "focal-map" and row["loss"] != "cross-entropy"
        ]


def _changes(rows: list[dict[str, str]], quantity: str) -> tuple[int, int, int]:
    """How many went down, up, and neither, by their intervals over the seeds."""
    low, high = (np.array([float(row[f"{quantity}_change_{end}"]) for row in rows]) for end in ("low", "high"))
    down, up = int((high < 0).sum()), int((low > 0).sum())
    return down, up, len(rows) - down - up


def _part(row: dict[str, str], name: str) -> str:
    return dict(each.split("=") for each in row["data"].partition(":")[2].split(","))[name]


def on_gaussians(rows: list[dict[str, str]]) -> Finding:
    text = "Psi brings what a trained network reports nearer to the posterior."
    if not rows:
        return Finding(text, "solution", UNTESTED, "", "results/gaussians/table.csv is not there")
    down, up, neither = _changes(rows, "confidence_error")
    many = [row for row in rows if _part(row, "train") == "10000" and _part(row, "classes") in ("2", "10")]
    told = _changes(many, "confidence_error")
    return Finding(
        text, "solution, shown of the minimiser", HOLDS if down > up and up <= by_chance(len(rows)) else FAILS,
        f"Gaussian classes with known posteriors, {len(rows)} settings",
        f"the error of the confidence falls in {down}, rises in {up}, neither in {neither}; with 10 000 samples and 2 "
        f"or 10 classes it falls in {told[0]} of {len(many)}: it holds where the network is near the minimiser, not "
        "where it overfits",
    )  # fmt: skip


def _known(rows: list[dict[str, str]]) -> Answer:
    cells = []
    for name, values in (("classes", ("2", "10", "100")), ("train", ("200", "1000", "10000"))):
        for value in values:
            some = [row for row in rows if _part(row, name) == value]
            if some:
                title = f"K = {value}" if name == "classes" else f"{value} samples"
                counts = (*_changes(some, "confidence_error"), *_changes(some, "excess_nll"))
                cells.append((title, str(len(some)), *map(str, counts)))
    columns = ("", "settings", "confidence error: lower", "higher", "open", "divergence: lower", "higher", "open")
    sheet = Sheet("After the focal map, on Gaussian classes", columns, tuple(cells),
                  "Against the network as trained, over 5 seeds; docs/gaussians.md has every setting.")  # fmt: skip
    found = on_gaussians(rows)
    return Answer("Does Psi recover posteriors that are known?", f"{found.evidence[0].upper()}{found.evidence[1:]}.",
                  (sheet,) if cells else ())  # fmt: skip


# ---------------------------------------------------------------------- posteriors that people gave


def against_votes(
    results: Path, data_dir: Path | None = None, progress: Callable[[float], None] | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """An entry for each network on the CIFAR-10 test images; notes name those that do not line up with the votes."""
    shelf = Shelf(results / "charoenphakdee2021" / "votes", VERSION)
    found, notes = networks(results, data_dir)
    path = votes_file(data_dir)
    if path is None:
        notes.append("the votes of CIFAR-10H are not here (TRUEUP_DATA): as they were stored")
    counted = hashlib.sha256(path.read_bytes()).hexdigest() if path else ""
    left_out: dict[str, list[str]] = {}
    entries, done = {}, [network for network in found if network.data == "cifar10"] if path else []
    for i, network in enumerate(done):
        assert path is not None
        sums = network.sums | {"votes": counted}
        if shelf.fresh(network.name, sums) is None:
            try:
                made = compared(network, path)
            except InputError as problem:
                left_out.setdefault(str(problem).removeprefix(f"{path}: "), []).append(network.name)
                continue
            shelf.put(network.name, made, sums)
        entries[network.name] = shelf.stored(network.name)
        if progress:
            progress((i + 1) / len(done))
    notes += [f"left out against the votes, {why}: {', '.join(names)}" for why, names in left_out.items()]
    runs = {network.name for network in found}
    for name in shelf.names():
        stored = shelf.stored(name)
        if stored is not None and name not in entries and (not stored["ours"] or name in runs):
            entries[name] = stored
    return sorted(
        (e for e in entries.values() if e), key=lambda e: (e["gamma"] is None, not e["gamma"], e["name"])
    ), notes


def votes_sheet(voted: list[dict[str, Any]]) -> Sheet:
    rows = []
    for entry in voted:
        for name, of in entry["maps"].items():
            cells = []
            for measure in MEASURES:
                value, low, high = (1000 * v for v in of[measure]["less_softmax"])
                cells.append(
                    f"{of[measure]['value']:.4f}"
                    + ("" if name == "softmax" else f" ({value:+.1f} [{low:+.1f}, {high:+.1f}])")
                )
            first = name == "softmax"
            rows.append((title_of(entry) if first else "", entry["loss"] if first else "", name, *cells))
    columns = ("network", "training loss", "report", *(f"{title} to the votes" for title in MEASURES.values()))
    note = (
        "Mean over the 10 000 test images, of networks whose logits are of all of them; in brackets the change against "
        "the softmax in thousandths, with its 95 % interval. Focal map: with the training γ. About fifty people voted "
        "on an image, so their shares are themselves estimates."
    )
    return Sheet("Against the votes of people (CIFAR-10H)", columns, tuple(rows), note)


def on_votes(voted: list[dict[str, Any]]) -> list[Finding]:
    focal = [entry for entry in voted if "focal map" in entry["maps"]]
    made = []
    for measure, title in (("kl", "Kullback-Leibler divergence"), ("tv", "total variation")):
        text = f"Psi brings a focal network nearer to the votes of people, in {title}."
        if not focal:
            lacking = "no focal network on the whole CIFAR-10 test set is here"
            made.append(Finding(text, "not discussed", UNTESTED, "", lacking, ours=True))
            continue
        changes = [entry["maps"]["focal map"][measure]["less_softmax"] for entry in focal]
        lower, higher = sum(c[2] < 0 for c in changes), sum(c[1] > 0 for c in changes)
        values = [1000 * change[0] for change in changes]
        made.append(Finding(
            text, "not discussed", HOLDS if lower == len(focal) else FAILS, f"{len(focal)} focal networks on CIFAR-10",
            f"clearly nearer on {lower}, clearly further on {higher}; the change is {min(values):+.1f} to "
            f"{max(values):+.1f} thousandths (median {np.median(values):+.1f}); each is in the table of the votes",
            ours=True,
        ))  # fmt: skip
    return made


def _people(voted: list[dict[str, Any]]) -> Answer:
    focal = [entry for entry in voted if "focal map" in entry["maps"]]
    question = "Does Psi recover posteriors that people gave?"
    if not focal:
        return Answer(question, "Not tested: no focal network on the whole CIFAR-10 test set is here.")
    means = {
        name: {m: np.mean([entry["maps"][name][m]["value"] for entry in focal]) for m in MEASURES}
        for name in ("softmax", "focal map", "temperature", "focal-temperature")
    }
    nearer = np.mean([entry["nearer"] for entry in focal])
    best = {m: min(means, key=lambda name, m=m: means[name][m]) for m in ("kl", "tv")}
    answer = (
        f"On {len(focal)} focal networks the map takes the mean KL to the votes from {means['softmax']['kl']:.3f} to "
        f"{means['focal map']['kl']:.3f}, and the mean total variation from {means['softmax']['tv']:.3f} to "
        f"{means['focal map']['tv']:.3f}. A temperature gives "
        + ", focal temperature ".join(
            f"{means[name]['kl']:.3f} and {means[name]['tv']:.3f}" for name in ("temperature", "focal-temperature")
        )
        + f": KL is least with {best['kl']}, total variation with {best['tv']}. The map raises confidence. On "
        f"{100 * nearer:.0f} % of the "
        f"images that is nearer to the votes ({100 * focal[0]['unanimous']:.0f} % are unanimous), and on those that "
        "the network gets wrong it costs more, in logarithms, than it gains on all the others."
    )  # fmt: skip
    pictures = (
        ("The mean Kullback-Leibler divergence of what each focal network reports, by the map behind it, from the "
         "votes: the nearer to the left, the better", f"{FIGURES}/votes.svg"),
        ("The posterior against the largest entry of the focal minimiser, the other classes alike: above the diagonal "
         "the minimiser is under-confident, below it over-confident", f"{FIGURES}/regions.svg"),
    )  # fmt: skip
    remains = "votes are not the frequencies of labels; a network stopped before it overfits was not tried."
    return Answer(question, answer, (votes_sheet(voted),), pictures, remains)


def draw(results: Path, folder: Path) -> list[Path]:
    """Under- and over-confidence, and the distances to the votes."""
    from trueup import plots
    from trueup.papers.figures import Panel, save_panels

    panels = []
    for classes in (2, 1000):
        top = np.linspace(1 / classes + 1e-3, 0.99, 200)
        lines = {f"γ = {g:g}": (top, one_against_rest(classes, g, top)) for g in (1.0, 3.0, 5.0)}
        panels.append(
            Panel(f"K = {classes}", "largest entry of the minimiser", "posterior", lines | {"equal": (top, top)})
        )
    paths = [save_panels(panels, folder / "regions.svg", columns=2)]
    voted = [entry for entry in against_votes(results)[0] if "focal map" in entry["maps"]]
    if voted:
        names = ("softmax", "focal map", "temperature", "focal-temperature")
        drawn, (ax,) = plots.figure(1, 1, width=6.5, height=1.2 + 0.25 * len(voted))
        for (colour, _, marker), size, name in zip(plots.LOOKS, (7, 5, 6, 4), names, strict=False):
            values = [entry["maps"][name]["kl"]["value"] for entry in voted]
            ax.plot(values, range(len(voted)), marker, color=colour, label=name, markersize=size,
                    markerfacecolor="none")  # fmt: skip
        ax.set_yticks(range(len(voted)), [labelled(entry) for entry in voted], fontsize=6)
        ax.invert_yaxis()
        ax.set_xlabel("KL(votes, report)", fontsize=8)
        drawn.legend(loc="outside upper right", ncols=4, fontsize=7, frameon=False)
        plots.save(drawn, folder / "votes.svg")
        paths.append(folder / "votes.svg")
    return paths
