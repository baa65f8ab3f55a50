"""What the paper's conclusion and its explanation depend on, in a few answers made from the numbers."""

from __future__ import annotations

from trueup.papers.mukhoti2020 import checks
from trueup.papers.mukhoti2020.claims import CE, FL3, FLSD, half_the_ece, percent, short
from trueup.papers.mukhoti2020.epochs import clipped_of
from trueup.papers.mukhoti2020.grid import DATASETS, MEAN, SUMMED, TEXTS, WEAK_DECAY, beside_run
from trueup.papers.mukhoti2020.settings import TITLES, Setting
from trueup.papers.reproduction import FAILS, HOLDS, UNCLEAR, UNTESTED, Point, verdict

DEPENDS = {HOLDS: "yes", FAILS: "no", UNCLEAR: UNCLEAR}
"""Whether something depends on another, by the verdict on that it does."""


def gist(settings: list[Setting]) -> tuple[Point, ...]:
    """Only of what has been trained."""
    ready = [setting for setting in settings if setting.as_published and {CE, FL3} <= set(setting.networks)]
    images = [setting for setting in ready if setting.data not in TEXTS]
    found = [
        conclusion(images),
        texts([setting for setting in ready if setting.data in TEXTS]),
        step(settings),
        decay(settings),
        ending([setting for setting in images if setting.staged]),
        explanation(images),
        after(ready),
    ]
    return tuple(point for point in found if point is not None)


def _name(setting: Setting) -> str:
    """With the number of epochs, which tells a short schedule from a long one."""
    return f"{TITLES.get(setting.model, setting.model)}, {DATASETS[setting.data]}, {setting.epochs} epochs"


def _ratio(setting: Setting) -> str:
    """The conclusion on one setting."""
    ece = [setting.figure(loss, "ece") for loss in (CE, FL3)]
    return (
        f"{_name(setting)}: {verdict(half_the_ece(setting)[0])} ({percent(ece[0])} % and FL-3's {percent(ece[1])} %, "
        f"{ece[0] / ece[1]:.1f} times)"
    )


def conclusion(images: list[Setting]) -> Point | None:
    told = "The conclusion: cross-entropy's ECE before T is at least twice focal loss's, with the authors' step."
    return Point(told, tuple(map(_ratio, images))) if images else None


def texts(settings: list[Setting]) -> Point | None:
    parts = []
    for each in settings:
        printed = [beside_run(each.networks[loss][0].run.recipe).get(("ece", "before")) for loss in (CE, FL3)]
        theirs = " and ".join(f"{entry.value} %" for entry in printed if entry)
        gap, t = 100 * each.figure(FL3, "overconfidence"), ", ".join(f"{t:.1f}" for t in each.temperatures(FL3))
        parts.append(f"{_ratio(each)}; printed are {theirs}; FL-3 is {_sided(gap)}, its T {t} ({each.seeds(FL3)})")
    return Point("The same on texts.", tuple(parts)) if parts else None


def step(settings: list[Setting]) -> Point | None:
    """Every data set that has two steps, with its numbers."""
    tested = {data: groups[0] for data in DATASETS if (groups := checks.by_step(settings, data))}
    if not tested:
        return None
    factor, sign = (
        _answers({data: asked(settings, data).verdict for data in tested})
        for asked in (checks.step_decides, checks.sign_decides)
    )
    told = (
        "Does it depend on how a batch's gradient becomes a step, of which the paper's text says nothing? "
        f"{factor}. And whether focal loss ends over- or under-confident? {sign}."
    )
    return Point(told, tuple(map(_by_step, tested.values())))


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
        f"{early[0]:.0f} % of the batches with {short(loss)}" for loss, (early, _) in clipped_of(clipped[0]).items()
    )
    return Point(
        "The explanation is that focal loss has smaller gradients, and so smaller updates (Proposition 1). But "
        "clipping, in the authors' step, makes updates equally long whatever the loss: before the first fall of the "
        f"learning rate for at least {least} ({_name(clipped[0])})."
    )


def after(settings: list[Setting]) -> Point | None:
    """ECE and NLL after T."""
    parts = []
    for each in settings:
        focal = FLSD if FLSD in each.networks else FL3
        ece, nll = (
            " and ".join(percent(each.figure(loss, quantity, "ece")) for loss in (CE, focal))
            for quantity in ("ece", "nll")
        )
        parts.append(f"{_name(each)}: ECE {ece}, NLL {nll} ({short(focal)})")
    return Point("After T, cross-entropy and focal loss, in %:", tuple(parts)) if parts else None
