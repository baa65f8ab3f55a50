"""The tables that a reader sees: the authors' networks, ours, and the study of the step."""

from __future__ import annotations

import numpy as np

from trueup.audit import Measure
from trueup.papers.mukhoti2020.authors import Author
from trueup.papers.mukhoti2020.grid import (
    DATASETS,
    METHODS,
    MODELS,
    NEAREST,
    PLAIN,
    TEXTS,
    beside,
    beside_run,
    differences,
    grid,
    label,
    later,
    step_of,
)
from trueup.papers.mukhoti2020.settings import TITLES, Network, Setting
from trueup.papers.published import Printed, printed
from trueup.papers.reproduction import Sheet
from trueup.papers.stored import run_name
from trueup.train import Recipe, Run
from trueup.train.loop import in_bf16

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


OVERVIEW = ("cross-entropy", "brier", "cross-entropy+mmce-mukhoti2020:2", "focal:3", "flsd-53")
"""The losses of Table 1, and FL-3."""


def overview(settings: list[Setting]) -> Sheet:
    """Table 1 on every data set: ECE before T and after, ours above what is printed, and what is not run."""
    ours = [setting for setting in settings if setting.as_published]
    known = dict.fromkeys((entry.dataset, entry.model) for entry in printed("mukhoti2020"))
    rows = []
    for data, title in DATASETS.items():
        for model in (*(name for name in NEAREST if data.startswith("cifar")), *MODELS):
            name = MODELS.get(model) or NEAREST[model]
            if (title, name) not in known or (model == "resnet50-tiny") != (data == "tiny-imagenet"):
                continue
            own, printed_there = [], []
            for method in OVERVIEW:
                ready = [s for s in ours if (s.data, s.model) == (data, model) and s.trained(method) in s.networks]
                found = beside(title, name, METHODS[method])
                each = [theirs(found.get(("ece", state))) for state in ("before", "after")]
                tag = each[1][each[1].find(" [") :] if each[1].endswith("]") else ""
                printed_there.append(" → ".join((each[0].removesuffix(tag), each[1])))
                if ready:
                    loss = ready[0].trained(method)
                    before, after = (percent(ready[0].figure(loss, "ece", state)) for state in ("before", "ece"))
                    form = " plain" if loss in PLAIN else ""
                    own.append(f"{before} → {after} ({np.mean(ready[0].temperatures(loss)):.1f}){form}")
                else:
                    own.append(ABSENT)
            net = TITLES.get(model, model)
            rows += [(title, net, "ours", *own)] if any(cell != ABSENT for cell in own) else []
            rows += [(title, net, "printed", *printed_there)] if model in MODELS else []
    note = (
        "ECE in % before T → after it (T); ours is the mean over the seeds, with the authors' step. A net without a "
        "line of ours is not run. The paper has no ResNet-18: ours stands above the ResNet-50. Plain: MMCE by its "
        "formula, not in the form of the authors' code. On SST the printed numbers leave the neutral class its share, "
        "ours do not: a table below has both."
    )
    columns = ("data", "net", "", *(label(loss) for loss in OVERVIEW))
    return Sheet("Table 1 on all data sets", columns, tuple(rows), note)


def ours_sheet(setting: Setting) -> Sheet:
    """Our networks of one setting, published numbers in brackets."""
    rows = []
    for loss, networks in setting.networks.items():
        for network in networks:
            before, after, nll = (network.figures.states[name] for name in ("before", "ece", "nll"))
            adaptive, printed = network.figures.states["adaptive_ece"], beside_run(network.run.recipe)
            rows.append((
                f"{label(loss)}, seed {network.run.recipe.seed}",
                pair(with_interval(before.measures["error"]), printed.get(("error", "before"))),
                pair(with_interval(before.measures["ece"]), printed.get(("ece", "before"))),
                pair(
                    f"{with_interval(after.measures['ece'])} ({after.temperature:.1f})", printed.get(("ece", "after"))
                ),
                f"{percent(nll['ece'])} ({nll.temperature:.2f})",
                pair(percent(before["adaptive_ece"]), printed.get(("adaptive_ece", "before"))),
                pair(
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
    networks = [network for found in setting.networks.values() for network in found]
    told = "; ".join(otherwise(networks[0].run) + _in_other_arithmetic(networks))
    return Sheet(f"{setting.title}", columns, tuple(rows), f"{note}. Other than the authors' code: {told}.")


def otherwise(run: Run) -> list[str]:
    """What a run does otherwise than the authors' code, in its recipe, its data and its arithmetic."""
    recipe, told = run.recipe, differences(run.recipe)
    if recipe.data in TEXTS:
        told.append("word vectors of 100 dimensions" + (", not 300" if recipe.data == "sst" else ""))
        told += [note.rstrip(".") for note in run.info.get("data_notes", ())]
    found = arithmetic(run)
    return [*told, f"{found}, not float32" if found.startswith("bf16") else f"our own code, in {found}"]


def _in_other_arithmetic(networks: list[Network]) -> list[str]:
    """The networks that did not compute as the first of their sheet, of which ``otherwise`` speaks."""
    usual, found = arithmetic(networks[0].run), {}
    for network in networks:
        recipe = network.run.recipe
        found.setdefault(arithmetic(network.run), []).append(f"{label(recipe.loss)}, seed {recipe.seed}")
    return [f"but {how}: {'; '.join(names)}" for how, names in found.items() if how != usual]


def arithmetic(run: Run) -> str:
    on_gpu = bool(run.info["hardware"].get("gpu"))
    return f"{'bf16 autocast' if in_bf16(run.recipe, on_gpu=on_gpu) else 'float32'} on a {'GPU' if on_gpu else 'CPU'}"


def ours_more(setting: Setting) -> Sheet:
    """The other quantities, before / after the T of the grid."""
    rows = []
    for loss, networks in setting.networks.items():
        for network in networks:
            before, after, printed = network.figures.before, network.figures.after, beside_run(network.run.recipe)
            cells = []
            for quantity in ("nll", "mce", "s99"):
                for state, found in (("before", before), ("after", after)):
                    cells.append(pair(percent(found[quantity]), printed.get((quantity, state))))
            classwise = f"{percent(before['classwise_ece'])} / {percent(after['classwise_ece'])}"
            rows.append((f"{label(loss)}, seed {network.run.recipe.seed}", *cells, classwise,
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
            rows.append((label(loss), str(len(networks)), *cells))
    if not rows:
        return None
    columns = ("loss", "seeds", "error", "ECE before T", "ECE after", "T", "NLL before")
    return Sheet(f"{setting.title}: over the seeds", columns, tuple(rows), "In %, mean ± standard deviation.")


def pair(ours: str, printed: Printed | None) -> str:
    return ours if printed is None else f"{ours} · {theirs(printed)}"


def step_sheet(networks: list[Network], recipes: list[Recipe]) -> Sheet | None:
    """Every step beside the authors', seed 0; None where nothing of it is run."""
    found = {network.name: network for network in networks}
    rows, made_in = [], list[tuple[str, str, str]]()
    for recipe in recipes:
        network = found.get(run_name(recipe))
        title = (step_of(recipe), label(recipe.loss))
        if network is None:
            rows.append((*title, ABSENT, *[""] * 6))
            continue
        made_in.append((arithmetic(network.run), *title))
        before, after, history = network.figures.before, network.figures.after, network.run.history
        entries = [history[0], *(history[fall - 1] for fall in recipe.milestones[:1]), network.kept]
        norms = [entry["gradient_norm"]["mean"] for entry in entries]
        rows.append((
            *title, percent(before["error"]), with_interval(before.measures["ece"]),
            f"{100 * before['overconfidence']:+.2f}", f"{percent(after['ece'])} ({after.temperature:.1f})",
            " / ".join(f"{norm:.3g}" for norm in norms),
            " / ".join(f"{(1 if recipe.clip is None else min(1, recipe.clip / norm)):.2g}" for norm in norms),
            f"{network.kept['weight_norm']:.2f}",
        ))  # fmt: skip
    if not made_in:
        return None
    columns = ("step", "loss", "error", "ECE before T", "over-conf.", "ECE after (T)",
               "gradient norm", "kept of it", "weight norm")  # fmt: skip
    note = (
        "In %. Over-conf.: mean confidence less accuracy, before T. Gradient norm: mean over the batches of an epoch, "
        "of the whole network, before clipping, in the first epoch, before the first fall of the learning rate "
        "if it falls, and in the epoch that was kept; kept of it: clip / norm, the factor by which clipping shortens "
        "a gradient of that mean norm. Weight norm: of the last layer at that epoch."
    )
    if len({how for how, *_ in made_in}) > 1:
        told = _by_arithmetic(made_in)
        note += f" The steps differ in arithmetic too. {told[0].upper()}{told[1:]}."
    one = recipes[0]
    title = f"{TITLES[one.model]}, {DATASETS[one.data]}, {one.epochs} epochs, seed 0"
    return Sheet(f"What the step decides: {title}", columns, tuple(rows), note)


def _by_arithmetic(made_in: list[tuple[str, str, str]]) -> str:
    """What was trained in which arithmetic; a loss is named where a step has several."""
    hows = {step: {how for how, its, _ in made_in if its == step} for _, step, _ in made_in}
    found: dict[str, dict[str, list[str]]] = {}
    for how, step, loss in made_in:
        found.setdefault(how, {}).setdefault(step, []).append(loss)
    told = (
        (how, (step if len(hows[step]) == 1 else f"{step} ({', '.join(losses)})" for step, losses in steps.items()))
        for how, steps in found.items()
    )
    return "; ".join(f"{how}: {', '.join(steps)}" for how, steps in told)


def step_sheets(networks: list[Network]) -> list[Sheet]:
    """For each part of the grid that has more than one step, and a run; on texts the authors' own is the other one."""
    found = []
    for of_part in grid().values():
        recipes = [recipe for recipe in of_part.values() if recipe.seed == 0]
        losses = {recipe.loss for recipe in recipes if step_of(recipe) != step_of(recipes[0])}
        if losses:
            found.append(step_sheet(networks, [recipe for recipe in recipes if recipe.loss in losses]))
    return [sheet for sheet in found if sheet is not None]
