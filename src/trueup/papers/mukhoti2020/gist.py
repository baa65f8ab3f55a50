"""What the paper's conclusion and its explanation depend on, in a few sentences made from the numbers."""

from __future__ import annotations

from trueup.papers.mukhoti2020 import checks
from trueup.papers.mukhoti2020.claims import CE, FL3, FLSD, half_the_ece, percent, short
from trueup.papers.mukhoti2020.epochs import clipped_of
from trueup.papers.mukhoti2020.grid import DATASETS, MEAN, SUMMED, TEXTS, WEAK_DECAY, beside_run
from trueup.papers.mukhoti2020.settings import TITLES, Setting
from trueup.papers.reproduction import FAILS, HOLDS, UNCLEAR, UNTESTED, verdict

DEPENDS = {FAILS: "yes", HOLDS: "no", UNCLEAR: UNCLEAR}
"""Whether something depends on another, by the verdict on that it does not."""


def gist(settings: list[Setting]) -> tuple[str, ...]:
    """Only of what has been trained."""
    ready = [setting for setting in settings if setting.as_published and {CE, FL3} <= set(setting.networks)]
    images = [setting for setting in ready if setting.data not in TEXTS]
    found = [
        conclusion(images),
        step(settings),
        decay(settings),
        ending([setting for setting in images if setting.staged]),
        explanation(images),
        texts([setting for setting in ready if setting.data in TEXTS]),
        after(ready),
    ]
    return tuple(sentence for sentence in found if sentence)


def _name(setting: Setting) -> str:
    """With the number of epochs, which tells a short schedule from a long one."""
    return f"{TITLES.get(setting.model, setting.model)}, {DATASETS[setting.data]}, {setting.epochs} epochs"


def _ratio(setting: Setting) -> str:
    ece = [setting.figure(loss, "ece") for loss in (CE, FL3)]
    return f"{percent(ece[0])} % and FL-3's {percent(ece[1])} %, {ece[0] / ece[1]:.1f} times"


def _each(settings: list[Setting]) -> str:
    return "; ".join(f"{_name(each)}: {verdict(half_the_ece(each)[0])} ({_ratio(each)})" for each in settings)


def conclusion(images: list[Setting]) -> str:
    told = "The conclusion, that cross-entropy's ECE before T is at least twice focal loss's, with the authors' step"
    return f"{told}. {_each(images)}." if images else ""


def step(settings: list[Setting]) -> str:
    """Every data set that has two steps, with its numbers."""
    tested = {data: groups[0] for data in DATASETS if (groups := checks.by_step(settings, data))}
    if not tested:
        return ""
    factor, sign = (
        _answers({data: asked(settings, data).verdict for data in tested})
        for asked in (checks.step_decides, checks.sign_decides)
    )
    return (
        "Does it depend on how a batch's gradient becomes a step, of which the paper's text says nothing? "
        f"{factor}. And whether focal loss ends over- or under-confident? {sign}. ECE of cross-entropy and of FL-3, "
        f"and FL-3's mean confidence less accuracy, by step. {' '.join(map(_by_step, tested.values()))}"
    )


def _by_step(group: list[Setting]) -> str:
    parts = (
        f"{each.step}: {percent(each.figure(CE, 'ece'))} and {percent(each.figure(FL3, 'ece'))} %, "
        f"{100 * each.figure(FL3, 'overconfidence'):+.2f} points"
        for each in group
    )
    return f"{_name(group[0])}, {group[0].seeds(CE, FL3)}: {'; '.join(parts)}."


def _answers(verdicts: dict[str, str]) -> str:
    return "; ".join(f"{DATASETS[data]}: {DEPENDS[found]}" for data, found in verdicts.items())


def decay(settings: list[Setting]) -> str:
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
        parts.append(
            f"{_name(strong)}, {strong.seeds(FL3)}, the mean, not clipped: a decay "
            f"{strong.networks[FL3][0].run.recipe.batch} times weaker takes FL-3's mean confidence less accuracy from "
            f"{' to '.join(gaps)} points, and its error from {' to '.join(errors)} %. "
            f"{checks.beside_decay(of_step[SUMMED])}."
        )
    told = "Does it depend on weight decay whether focal loss ends under-confident?"
    return f"{told} {_answers(found)}. {' '.join(parts)}" if parts else ""


def ending(images: list[Setting]) -> str:
    parts = []
    for each in images:
        ratios = (each.followed(CE, "test", "ece") / each.followed(FL3, "test", "ece"))[each.drops(CE)[1] :]
        parts.append(
            f"{_name(each)}: {DEPENDS[verdict(checks.last_stage(each)[0])]} (cross-entropy's ECE is {ratios.min():.1f} "
            f"to {ratios.max():.1f} times FL-3's in its {len(ratios)} epochs, {ratios[-1]:.1f} times in the last)"
        )
    return f"Does it depend on when the last stage ends? {'; '.join(parts)}." if parts else ""


def explanation(images: list[Setting]) -> str:
    """Of the setting most like the paper's, where steps are clipped."""
    clipped = [each for each in images if each.staged and each.networks[CE][0].run.recipe.clip is not None]
    if not clipped:
        return ""
    least = ", ".join(
        f"{early[0]:.0f} % of the batches with {short(loss)}" for loss, (early, _) in clipped_of(clipped[0]).items()
    )
    return (
        "The explanation is that focal loss has smaller gradients, and so smaller updates (Proposition 1). Clipping in "
        "the authors' step makes updates equally long, before the first fall of the learning rate for at least "
        f"{least} ({_name(clipped[0])})."
    )


def texts(settings: list[Setting]) -> str:
    parts = []
    for each in settings:
        printed = [beside_run(each.networks[loss][0].run.recipe).get(("ece", "before")) for loss in (CE, FL3)]
        theirs = " and ".join(f"{entry.value} %" for entry in printed if entry)
        gap, t = 100 * each.figure(FL3, "overconfidence"), ", ".join(f"{t:.1f}" for t in each.temperatures(FL3))
        parts.append(
            f"{_each([each])}; printed are {theirs}; FL-3's mean confidence less accuracy is {gap:+.2f} points, its T "
            f"{t} ({each.seeds(FL3)})"
        )
    return f"The same on texts. {'. '.join(parts)}." if parts else ""


def after(settings: list[Setting]) -> str:
    """ECE and NLL after T."""
    parts = []
    for each in settings:
        focal = FLSD if FLSD in each.networks else FL3
        ece, nll = (
            " and ".join(percent(each.figure(loss, quantity, "ece")) for loss in (CE, focal))
            for quantity in ("ece", "nll")
        )
        parts.append(f"{_name(each)}: ECE {ece}, NLL {nll} ({short(focal)})")
    return f"After T, cross-entropy and focal loss, in %. {'; '.join(parts)}." if parts else ""
