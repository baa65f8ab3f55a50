"""What the paper's conclusion and its explanation depend on, in a few answers made from the numbers."""

from __future__ import annotations

from collections.abc import Iterable

from trueup.papers.mukhoti2020 import checks, neutral
from trueup.papers.mukhoti2020.claims import CE, FL3, FLSD, lower, percent
from trueup.papers.mukhoti2020.epochs import clipped_of
from trueup.papers.mukhoti2020.grid import DATASETS, MEAN, SUMMED, TEXTS, WEAK_DECAY, beside_run, label
from trueup.papers.mukhoti2020.settings import TITLES, Setting
from trueup.papers.reproduction import FAILS, HOLDS, UNCLEAR, UNTESTED, Point, Sheet, verdict

DEPENDS = {HOLDS: "yes", FAILS: "no", UNCLEAR: UNCLEAR}
"""Whether something depends on another, by the verdict on that it does."""


def gist(settings: list[Setting]) -> tuple[Point, ...]:
    """Only of what has been trained."""
    ready = [setting for setting in settings if setting.as_published and {CE, FL3} <= set(setting.networks)]
    images = [setting for setting in ready if setting.data not in TEXTS]
    found = [
        conclusion(ready),
        shortfall(settings),
        neutral_class(settings),
        *step(settings),
        decay(settings),
        ending([setting for setting in images if setting.staged]),
        explanation(images),
        after(ready),
    ]
    return tuple(point for point in found if point is not None)


def _name(setting: Setting) -> str:
    """With the number of epochs, which tells a short schedule from a long one."""
    return f"{TITLES.get(setting.model, setting.model)}, {DATASETS[setting.data]}, {setting.epochs} epochs"


def _row_name(setting: Setting) -> str:
    return f"{TITLES.get(setting.model, setting.model)}, {DATASETS[setting.data]}"


def _epochs(settings: Iterable[Setting]) -> str:
    """Of each kind of data, for a note."""
    return ", ".join(dict.fromkeys(f"{each.epochs} epochs on {DATASETS[each.data]}" for each in settings))


def conclusion(settings: list[Setting]) -> Point | None:
    """Every data set with the authors' step."""
    details, rows = [], []
    for each in settings:
        ece = [each.figure(loss, "ece") for loss in (CE, FL3)]
        entries = [beside_run(each.networks[loss][0].run.recipe).get(("ece", "before")) for loss in (CE, FL3)]
        printed = [entry.value if entry else "-" for entry in entries]
        answers = [verdict(lower(each, FL3, CE, "ece", times=times)) for times in (1, 2)]
        t, gap = ", ".join(f"{t:.1f}" for t in each.temperatures(FL3)), 100 * each.figure(FL3, "overconfidence")
        details.append(
            f"{_name(each)}, {each.seeds(CE, FL3)}: CE {percent(ece[0])} %, FL-3 {percent(ece[1])} % (printed "
            f"{' and '.join(printed)}); lower: {answers[0]}, at most half: {answers[1]}; FL-3 is "
            f"{_sided(gap)}, its T {t}"
        )
        seeds = str(min(len(each.networks[loss]) for loss in (CE, FL3)))
        rows.append((
            _row_name(each), seeds, *map(percent, ece), *(_SHORT[answer] for answer in answers), *printed,
            f"{gap:+.2f}", t,
        ))  # fmt: skip
    columns = ("net, data", "seeds", "CE", "FL-3", "lower?", "at most half?", "CE, printed", "FL-3, printed",
               "FL-3 over-conf.", "its T")  # fmt: skip
    note = (
        "ECE in %. Over-conf.: mean confidence less accuracy, in points, below 0 where focal loss is under-confident. "
        f"T of each seed. {_epochs(settings)}."
    )
    told = (
        "The conclusion: before T focal loss has a lower ECE than cross-entropy, at most half of it (the half is a "
        "limit of ours). With the authors' step:"
    )
    return Point(told, tuple(details), Sheet("", columns, tuple(rows), note)) if rows else None


def shortfall(settings: list[Setting]) -> Point | None:
    """Why the paper's own net is further from its printed numbers than the smaller one that is put beside it."""
    found = checks.short_schedule(settings)
    whole = any(setting.model == "resnet50" and setting.schedule == "mukhoti2020" for setting in settings)
    if found.verdict != FAILS or whole:
        return None
    told = (
        "Why is ResNet-50, the paper's own net, further from the printed numbers than ResNet-18? It fits the training "
        "set as well, and yet has more errors on test: 105 epochs for 350 are the likely reason, and all 350 are not "
        "tried."
    )
    return Point(told, (found.evidence,))


def neutral_class(settings: list[Setting]) -> Point | None:
    """Where the under-confidence that is printed for SST comes from."""
    found = neutral.explains(settings)
    if found.verdict != HOLDS:
        return None
    told = (
        "Why is focal loss under-confident on SST in the paper, and not here? The net has a third output, for neutral "
        "parts of a sentence, and the authors' code leaves it its share of the softmax: what it has is missing from "
        "the confidence. Taken so, our networks with focal losses are under-confident too, some of them more than "
        "what is printed; among the two classes that are judged FL-3 and FLSD-53 are not."
    )
    setting = next(each for each in settings if each.title == found.on)
    return Point(told, (found.evidence,), neutral.in_short(setting))


_SHORT = {HOLDS: "yes", FAILS: "no", UNCLEAR: UNCLEAR}


def step(settings: list[Setting]) -> list[Point]:
    """Every data set that has two steps, with its numbers."""
    tested = {data: groups[0] for data in DATASETS if (groups := checks.by_step(settings, data))}
    if not tested:
        return []
    factor, sign = (
        _answers({data: asked(settings, data).verdict for data in tested})
        for asked in (checks.step_decides, checks.sign_decides)
    )
    first = (
        "Does it depend on how a batch's gradient becomes a step, of which the paper's text says nothing, whether "
        "focal loss has at most half of cross-entropy's ECE?"
    )
    rows = tuple(
        (_row_name(each), each.step, each.seeds(CE, FL3).split(" ", 1)[1],
         *(percent(each.figure(loss, "ece")) for loss in (CE, FL3)), f"{100 * each.figure(FL3, 'overconfidence'):+.2f}")
        for group in tested.values() for each in group
    )  # fmt: skip
    columns = ("net, data", "step", "seeds", "ECE of CE", "of FL-3", "FL-3 over-conf.")
    second = f"And on which side focal loss ends, over- or under-confident? {sign}."
    sheet = Sheet("", columns, rows, "In % and points; the first step is the authors'.")
    return [Point(first, (factor,)), Point(second, tuple(map(_by_step, tested.values())), sheet)]


def _by_step(group: list[Setting]) -> str:
    parts = (
        f"{each.step}: CE {percent(each.figure(CE, 'ece'))} %, FL-3 {percent(each.figure(FL3, 'ece'))} % and "
        f"{_sided(100 * each.figure(FL3, 'overconfidence'))}"
        for each in group
    )
    return f"ECE of {_name(group[0])}, {group[0].seeds(CE, FL3)}; {'; '.join(parts)}"


def _sided(points: float) -> str:
    """Mean confidence less accuracy, in words."""
    return f"{'over' if points > 0 else 'under'}-confident by {abs(points):.2f} points"


def _answers(verdicts: dict[str, str]) -> str:
    return "; ".join(f"{DATASETS[data]}: {DEPENDS[found]}" for data, found in verdicts.items())


def decay(settings: list[Setting]) -> Point | None:
    parts, found = [], {}
    for data in DATASETS:
        decides = checks.decay_decides(settings, data).verdict
        if decides == UNTESTED:
            continue
        found[data] = decides
        groups = ({each.step: each for each in group} for group in checks.by_step(settings, data))
        of_step = next(group for group in groups if {SUMMED, MEAN, WEAK_DECAY} <= set(group))
        strong, weak = of_step[MEAN], of_step[WEAK_DECAY]
        gaps = (f"{100 * each.figure(FL3, 'overconfidence'):+.2f}" for each in (strong, weak))
        errors = (percent(each.figure(FL3, "error")) for each in (strong, weak))
        parts += [
            f"{_name(strong)}, {strong.seeds(FL3)}, the mean, not clipped: a decay "
            f"{strong.networks[FL3][0].run.recipe.batch} times weaker takes FL-3's mean confidence less accuracy from "
            f"{' to '.join(gaps)} points, and its error from {' to '.join(errors)} %",
            checks.beside_decay(of_step[SUMMED]),
        ]
    told = "Does it depend on weight decay whether focal loss ends under-confident?"
    return Point(f"{told} {_answers(found)}.", tuple(parts)) if parts else None


def ending(images: list[Setting]) -> Point | None:
    parts = []
    for each in images:
        ratios = (each.followed(CE, "test", "ece") / each.followed(FL3, "test", "ece"))[each.drops(CE)[1] :]
        parts.append(
            f"{_name(each)}: {DEPENDS[verdict(checks.last_stage(each)[0])]} (cross-entropy's ECE is {ratios.min():.1f} "
            f"to {ratios.max():.1f} times FL-3's in its {len(ratios)} epochs, {ratios[-1]:.1f} times in the last)"
        )
    return Point("Does it depend on when the last stage ends?", tuple(parts)) if parts else None


def explanation(images: list[Setting]) -> Point | None:
    """Of the setting most like the paper's, where steps are clipped."""
    clipped = [each for each in images if each.staged and each.networks[CE][0].run.recipe.clip is not None]
    if not clipped:
        return None
    least = ", ".join(
        f"{early[0]:.0f} % of the batches with {label(loss)}" for loss, (early, _) in clipped_of(clipped[0]).items()
    )
    return Point(
        "The explanation is that focal loss has smaller gradients, and so smaller updates (Proposition 1). But "
        "clipping, in the authors' step, makes updates equally long whatever the loss: before the first fall of the "
        f"learning rate for at least {least} ({_name(clipped[0])})."
    )


def after(settings: list[Setting]) -> Point | None:
    """ECE and NLL after T."""
    details, rows = [], []
    for each in settings:
        focal = FLSD if FLSD in each.networks else FL3
        ece, nll = (
            [percent(each.figure(loss, quantity, "ece")) for loss in (CE, focal)] for quantity in ("ece", "nll")
        )
        answers = [_SHORT[verdict(lower(each, focal, CE, quantity, "ece"))] for quantity in ("ece", "nll")]
        details.append(f"{_name(each)}: ECE {' and '.join(ece)}, NLL {' and '.join(nll)} ({label(focal)})")
        rows.append((_row_name(each), label(focal), *ece, answers[0], *nll, answers[1]))
    columns = (
        "net, data",
        "focal loss",
        "ECE of CE",
        "of focal loss",
        "lower?",
        "NLL of CE",
        "of focal loss",
        "lower?",
    )
    told = "After T, cross-entropy and focal loss, in %:"
    return Point(told, tuple(details), Sheet("", columns, tuple(rows))) if rows else None
