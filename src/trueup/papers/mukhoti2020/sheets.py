"""The tables that a reader sees: the authors' networks, ours, and the study of the step."""

from __future__ import annotations

import numpy as np
import torch

from trueup.audit import Measure
from trueup.papers.mukhoti2020.authors import Author
from trueup.papers.mukhoti2020.grid import METHODS, beside_run, differences, grid, later, step_of
from trueup.papers.mukhoti2020.settings import TITLES, Network, Setting
from trueup.papers.published import Printed
from trueup.papers.reproduction import Sheet

ABSENT = "not run"


def percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f}"


def with_interval(measure: Measure) -> str:
    if measure.low is None or measure.high is None:
        return percent(measure.value)
    return f"{percent(measure.value)} [{percent(measure.low)}, {percent(measure.high)}]"


def theirs(entry: Printed | None) -> str:
    """A printed number, with its temperature and a mark where nothing in the paper's text confirms it."""
    if entry is None:
        return "-"
    mark = "" if entry.tag == "paper" else f" [{entry.tag}]"
    return f"{entry.value} ({float(entry.temperature):.1f}){mark}" if entry.temperature else f"{entry.value}{mark}"


def authors_sheet(authors: tuple[Author, ...]) -> Sheet:
    """Printed / computed, a line a network."""
    columns = (
        "error",
        "ECE before",
        "after (T)",
        "AdaECE before",
        "after (T)",
        "MCE before",
        "after",
        "NLL before",
        "after",
    )
    keys = [("error", "before")] + [(q, s) for q in ("ece", "adaptive_ece", "mce", "nll") for s in ("before", "after")]
    rows = []
    for author in authors:
        found = {(entry.quantity, entry.state): (entry, ours) for entry, ours in author.compared()}
        cells = []
        for key in keys:
            entry, ours = found[key]
            cells.append(theirs(entry) + (" =" if ours == entry.value else f" / {ours}"))
        rows.append((f"{author.dataset} {author.model} {later(author.method)}", *cells))
    note = "In %. = : the authors' logits give the printed number to its last digit; else ours stands behind it."
    return Sheet("The authors' own networks", ("network", *columns), tuple(rows), note)


def authors_more(authors: tuple[Author, ...]) -> Sheet:
    """What the paper does not print of them."""
    rows = []
    for author in authors:
        before, after, nll = (author.figures.states[name] for name in ("before", "ece", "nll"))
        rows.append((
            f"{author.dataset} {author.model} {later(author.method)}",
            with_interval(before.measures["ece"]), with_interval(after.measures["ece"]), f"{after.temperature:.1f}",
            percent(nll["ece"]), f"{nll.temperature:.2f}",
            f"{percent(before['classwise_ece'])} / {percent(after['classwise_ece'])}",
            f"{percent(before['s99'])} / {percent(after['s99'])}",
        ))  # fmt: skip
    columns = (
        "network",
        "ECE before",
        "by the grid",
        "T",
        "by NLL",
        "T",
        "classwise before / after",
        "S99 before / after",
    )
    return Sheet("The same networks: what the paper does not print", columns, tuple(rows), "In %, 95 % intervals.")


def ours_sheet(setting: Setting) -> Sheet:
    """Our networks of one setting, published numbers in brackets."""
    rows = []
    for loss, networks in setting.networks.items():
        for network in networks:
            before, after, nll = (network.figures.states[name] for name in ("before", "ece", "nll"))
            adaptive, printed = network.figures.states["adaptive_ece"], beside_run(network.run.recipe)
            rows.append((
                f"{later(METHODS.get(loss, loss))}, seed {network.run.recipe.seed}",
                _pair(with_interval(before.measures["error"]), printed.get(("error", "before"))),
                _pair(with_interval(before.measures["ece"]), printed.get(("ece", "before"))),
                _pair(
                    f"{with_interval(after.measures['ece'])} ({after.temperature:.1f})", printed.get(("ece", "after"))
                ),
                f"{percent(nll['ece'])} ({nll.temperature:.2f})",
                _pair(percent(before["adaptive_ece"]), printed.get(("adaptive_ece", "before"))),
                _pair(
                    f"{percent(adaptive['adaptive_ece'])} ({adaptive.temperature:.1f})",
                    printed.get(("adaptive_ece", "after")),
                ),
            ))  # fmt: skip
    columns = (
        "loss",
        "error",
        "ECE before T",
        "ECE after (T)",
        "T by NLL: ECE (T)",
        "AdaECE before",
        "AdaECE after (T)",
    )
    note = "In %, 95 % intervals over test samples; behind the dot what the paper prints"
    nearest = setting.networks[next(iter(setting.networks))][0].run.recipe
    told = "; ".join(differences(nearest))
    return Sheet(
        f"{setting.title}", columns, tuple(rows), f"{note}. Other than the authors' code: {told or 'nothing'}."
    )


def ours_more(setting: Setting) -> Sheet:
    """The other quantities, before / after the T of the grid."""
    rows = []
    for loss, networks in setting.networks.items():
        for network in networks:
            before, after, printed = network.figures.before, network.figures.after, beside_run(network.run.recipe)
            cells = []
            for quantity in ("nll", "mce", "s99"):
                for state, found in (("before", before), ("after", after)):
                    cells.append(_pair(percent(found[quantity]), printed.get((quantity, state))))
            classwise = f"{percent(before['classwise_ece'])} / {percent(after['classwise_ece'])}"
            rows.append((f"{later(METHODS.get(loss, loss))}, seed {network.run.recipe.seed}", *cells, classwise,
                         f"{100 * before['overconfidence']:+.2f}"))  # fmt: skip
    columns = ("loss", "NLL before", "after", "MCE before", "after", "S99 before", "after", "classwise before / after",
               "over-conf.")  # fmt: skip
    note = "In %; behind the dot what the paper prints. Over-conf.: mean confidence less accuracy, before T."
    return Sheet(f"{setting.title}: the rest", columns, tuple(rows), note)


def spread_sheet(setting: Setting) -> Sheet | None:
    """Mean and standard deviation over the seeds, where a loss has several."""
    rows = []
    for loss, networks in setting.networks.items():
        if len(networks) > 1:
            of_state = [(network.figures.before, network.figures.after) for network in networks]
            found = {
                "error": [100 * before["error"] for before, _ in of_state],
                "before": [100 * before["ece"] for before, _ in of_state],
                "after": [100 * after["ece"] for _, after in of_state],
                "temperature": [after.temperature for _, after in of_state],
                "nll": [100 * before["nll"] for before, _ in of_state],
            }
            cells = (f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" for values in found.values())
            rows.append((later(METHODS.get(loss, loss)), str(len(networks)), *cells))
    if not rows:
        return None
    columns = ("loss", "seeds", "error", "ECE before T", "ECE after", "T", "NLL before")
    return Sheet(f"{setting.title}: over the seeds", columns, tuple(rows), "In %, mean ± standard deviation.")


SHOWN_IMAGES = 4
QUALITATIVE = ("cross-entropy", "brier", "cross-entropy+mmce:2", "flsd-53")
"""The losses of Figure 8."""


def images_sheet(setting: Setting) -> Sheet | None:
    """Figure 8 without its pictures: the first test images that all losses get right, and that all get wrong."""
    losses = [loss for loss in QUALITATIVE if loss in setting.networks]
    if len(losses) < 2:
        return None
    networks = [setting.networks[loss][0] for loss in losses]
    test = networks[0].run.test
    names = test.class_names or tuple(map(str, range(test.classes)))
    answers, confidences = [], []
    for network in networks:
        logits = network.run.test.logits.double()
        answers.append(logits.argmax(1))
        confidences.append([(logits / t).softmax(1).amax(1) for t in (1.0, network.figures.after.temperature)])
    right = torch.stack([answer == test.labels for answer in answers])
    rows = []
    for kind, chosen in (("right", right.all(0)), ("wrong", ~right.any(0))):
        for i in torch.nonzero(chosen)[:SHOWN_IMAGES, 0].tolist():
            cells = (
                f"{names[int(answer[i])]} {before[i]:.4f} / {after[i]:.4f}"
                for answer, (before, after) in zip(answers, confidences, strict=True)
            )
            rows.append((kind, str(i), names[int(test.labels[i])], *cells))
    columns = ("", "test image", "label", *(later(METHODS[loss]) for loss in losses))
    note = "Predicted class, its confidence before / after T; seed 0. The first such images of the test set."
    return Sheet(f"{setting.title}: images that all get right or wrong (Figure 8)", columns, tuple(rows), note)


def _pair(ours: str, printed: Printed | None) -> str:
    return ours if printed is None else f"{ours} · {theirs(printed)}"


def step_sheet(networks: list[Network], schedule: str, part: str) -> Sheet:
    """Every step beside the authors', seed 0."""
    found = {network.name: network for network in networks}
    rows = []
    for name, recipe in grid()[part].items():
        network = found.get(name)
        title = (step_of(recipe), later(METHODS[recipe.loss]))
        if network is None:
            rows.append((*title, ABSENT, *[""] * 6))
            continue
        before, after, history = network.figures.before, network.figures.after, network.run.history
        norms = [history[i]["gradient_norm"]["mean"] for i in (0, recipe.milestones[0] - 1, -1)]
        rows.append((
            *title, percent(before["error"]), with_interval(before.measures["ece"]),
            f"{100 * before['overconfidence']:+.2f}", f"{percent(after['ece'])} ({after.temperature:.1f})",
            " / ".join(f"{norm:.3g}" for norm in norms),
            " / ".join(f"{(1 if recipe.clip is None else min(1, recipe.clip / norm)):.2g}" for norm in norms),
            f"{network.run.history[-1]['weight_norm']:.2f}",
        ))  # fmt: skip
    columns = ("step", "loss", "error", "ECE before T", "over-conf.", "ECE after (T)",
               "gradient norm", "kept of it", "weight norm")  # fmt: skip
    note = (
        "In %. Over-conf.: mean confidence less accuracy, before T. Gradient norm: mean over the batches of an epoch, "
        "of the whole network, before clipping, in the first "
        "epoch, before the first fall of the learning rate, and in the last; kept of it: clip / norm, the factor by "
        "which clipping shortens a gradient of that mean norm. Weight norm: of the last layer at the end."
    )
    return Sheet(f"What the step decides: {TITLES['resnet18']}, {schedule}", columns, tuple(rows), note)
