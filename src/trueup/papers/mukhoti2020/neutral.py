"""SST: the net has a third output, for neutral parts of a sentence, and its softmax has two meanings.

Whole sentences that are neutral are left out, so that what is judged is one of two classes, and our probabilities are
those of the two. The authors' code takes the softmax over all three and the larger of the two as the confidence: what
the neutral class has is missing from it, and a loss that leaves it more seems under-confident.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trueup.audit import Measure
from trueup.papers.mukhoti2020.claims import CE, FL3, FLSD, each, percent, seems_under_confident, under_confident
from trueup.papers.mukhoti2020.grid import DATASETS, beside_run, label
from trueup.papers.mukhoti2020.settings import Network, Setting
from trueup.papers.mukhoti2020.sheets import pair, with_interval
from trueup.papers.reproduction import UNTESTED, Finding, Sheet, verdict
from trueup.papers.shares import Shared

DATA = "sst"


def scored(setting: Setting, loss: str) -> list[tuple[Network, Shared]]:
    """The networks of a loss whose third output was kept."""
    found = ((network, network.summary.shared) for network in setting.networks.get(loss, ()))
    return [(network, shared) for network, shared in found if shared is not None]


def sheets(settings: Sequence[Setting]) -> list[Sheet]:
    """For each step; a network whose third output was not kept is not in it."""
    return [sheet for setting in settings if setting.data == DATA if (sheet := _sheet(setting)) is not None]


def _sheet(setting: Setting) -> Sheet | None:
    rows = []
    for loss in setting.networks:
        for network, shared in scored(setting, loss):
            alone = network.figures
            printed = beside_run(network.run.recipe) if setting.as_published else {}
            after = f"{with_interval(shared.after['ece'])} ({shared.temperature:.1f})"
            rows.append((
                f"{label(loss)}, seed {network.run.recipe.seed}", percent(shared.rest),
                pair(with_interval(shared.before["ece"]), printed.get(("ece", "before"))),
                pair(after, printed.get(("ece", "after"))), _points(shared.before["overconfidence"]),
                percent(alone.before["ece"]), f"{percent(alone.after['ece'])} ({alone.after.temperature:.1f})",
                _points(alone.before.measures["overconfidence"]),
            ))  # fmt: skip
    if not rows:
        return None
    columns = ("loss", "neutral", "ECE before T", "ECE after (T)", "over-conf.", "two classes: ECE before",
               "ECE after (T)", "over-conf.")  # fmt: skip
    note = (
        "In %, 95 % intervals over test samples; behind the dot what the paper prints. Neutral: its mean share of the "
        "softmax over the three outputs. First the larger of the other two shares as the confidence, as the authors' "
        "code has it, before and after the T of its own grid; then, as everywhere else here, the softmax over the two "
        "classes alone. Over-conf.: mean confidence less accuracy, in points, before T."
    )
    return Sheet(f"{setting.title}: the neutral class in the softmax, and not", columns, tuple(rows), note)


def _points(measure: Measure) -> str:
    return f"{100 * measure.value:+.2f}"


def explains(settings: Sequence[Setting]) -> Finding:
    """Whether the paper's under-confidence on SST is there with the neutral class in the softmax, and not without."""
    text = "That FL-3 and FLSD-53 are under-confident on SST comes of the neutral class, left in the softmax."
    where = "Tables 1, 4; the authors' code"
    judged = [
        (setting, *_judge(setting))
        for setting in settings
        if setting.data == DATA and all(scored(setting, loss) for loss in (CE, FL3, FLSD))
    ]
    if not judged or not judged[0][0].as_published:
        needs = "it needs runs of cross-entropy, FL-3 and FLSD-53 whose third output was kept"
        return Finding(text, where, UNTESTED, DATASETS[DATA], needs, ours=True)
    setting, holds, evidence = judged[0]
    others = tuple((other.title, verdict(found), told) for other, found, told in judged[1:])
    return Finding(
        text, where, verdict(holds), setting.title, evidence, others, ours=True, short=setting.in_short(CE, FL3, FLSD)
    )


def in_short(setting: Setting) -> Sheet:
    """A row for each loss that is printed, the mean over its seeds."""
    rows = []
    for loss in setting.networks:
        found = [shared for _, shared in scored(setting, loss)]
        if not found or ("ece", "before") not in beside_run(setting.networks[loss][0].run.recipe):
            continue
        printed = beside_run(setting.networks[loss][0].run.recipe)
        mean = {name: float(np.mean([shared.before[name].value for shared in found])) for name in found[0].before}
        rows.append((
            label(loss), str(len(found)), f"{printed['ece', 'before'].value} ({printed['ece', 'after'].temperature})",
            percent(mean["ece"]), ", ".join(f"{shared.temperature:.1f}" for shared in found),
            f"{100 * mean['overconfidence']:+.2f}", percent(setting.figure(loss, "ece")),
            f"{100 * setting.figure(loss, 'overconfidence'):+.2f}",
        ))  # fmt: skip
    columns = ("loss", "seeds", "printed (T)", "with the neutral class", "T of each seed", "over-conf.",
               "two classes alone", "over-conf.")  # fmt: skip
    note = "ECE before T in %; over-conf.: mean confidence less accuracy, in points."
    return Sheet("", columns, tuple(rows), note)


def _judge(setting: Setting) -> tuple[bool, str]:
    with_share = {loss: [shared for _, shared in scored(setting, loss)] for loss in (CE, FL3, FLSD)}
    mean_ece = {loss: float(np.mean([s.before["ece"].value for s in of])) for loss, of in with_share.items()}
    gaps = {loss: float(np.mean([s.before["overconfidence"].value for s in of])) for loss, of in with_share.items()}
    temperatures = [shared.temperature for loss in (FL3, FLSD) for shared in with_share[loss]]
    under = seems_under_confident(temperatures, (gaps[FL3], gaps[FLSD]), mean_ece[FL3], mean_ece[CE])
    alone = {loss: setting.figure(loss, "overconfidence") for loss in (FL3, FLSD)}
    told = ", ".join(
        f"{label(loss)} {percent(mean_ece[loss])} ({100 * gaps[loss]:+.2f} points, T "
        f"{', '.join(f'{shared.temperature:.1f}' for shared in of)})"
        for loss, of in with_share.items()
    )
    losses = [CE, FL3, FLSD]
    theirs = [beside_run(setting.networks[loss][0].run.recipe) for loss in losses]
    printed = ", ".join(f"{of['ece', 'before'].value} (T {of['ece', 'after'].temperature})" for of in theirs)
    return under and not under_confident(setting)[0], (
        f"ECE before T with it in %, confidence less accuracy: {told}; of the two classes alone: "
        f"ECE {each(setting, losses, 'ece')} %, FL-3 {100 * alone[FL3]:+.2f}, FLSD-53 {100 * alone[FLSD]:+.2f} points; "
        f"printed: {printed} ({setting.seeds(*losses)})"
    )
