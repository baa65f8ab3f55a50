"""What the paper claims of losses trained alike, each with the criterion it is judged by: here of trained networks, in
epochs.py of their training."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trueup.metrics import Interval
from trueup.papers.chance import NO_ERROR, Error, clearly
from trueup.papers.mukhoti2020.grid import DATASETS, PLAIN, beside_run, label, weighted
from trueup.papers.mukhoti2020.settings import Setting
from trueup.papers.reproduction import UNTESTED, Finding, all_of, listed, verdict
from trueup.papers.summary import has_predictions

CE, FL1, FL2, FL3, FLSD = "cross-entropy", "focal:1", "focal:2", "focal:3", "flsd-53"
BRIER, MMCE, PLAIN_MMCE = "brier", "cross-entropy+mmce-mukhoti2020:2", "cross-entropy+mmce:2"
Verdict = tuple[bool | None, str]
"""Whether it holds, None where that cannot be told, and the numbers that say so."""


@dataclass(frozen=True)
class Claim:
    """``judge`` sees only settings that have all of the losses it needs."""

    text: str
    where: str
    needs: tuple[str, ...]
    judge: Callable[[Setting], Verdict]
    on: tuple[str, ...] = ("cifar10",)
    """The data sets of which the paper says or prints it."""
    staged: bool = False
    """Whether it speaks of the falls of the learning rate."""
    only_there: bool = False
    """Whether it says nothing of other data sets: its numbers are of these."""
    histograms: bool = False
    """Whether it needs the histograms of training samples, which not every history has."""
    predictions: bool = False
    """Whether it needs single predictions, which not every stored run has."""
    ours: bool = False
    """Whether it is a question of our own."""

    def ready(self, settings: list[Setting], data: str) -> list[Setting]:
        return [
            setting
            for setting in self.fitting(settings, data)
            if len({setting.trained(loss) for loss in self.needs} & set(setting.networks)) == len(self.needs)
            and (
                not self.predictions
                or all(has_predictions(setting.networks[setting.trained(loss)][0].run) for loss in self.needs)
            )
        ]

    def fitting(self, settings: list[Setting], data: str) -> list[Setting]:
        """Those of a data set, with the networks that it can be judged of."""
        seen = (setting.with_histograms() if self.histograms else setting for setting in settings)
        return [setting for setting in seen if setting.data == data and (setting.staged or not self.staged)]


def judged(claim: Claim, settings: list[Setting]) -> list[Finding]:
    """A verdict for each data set that the claim is about, on the setting there that is most like the paper's. The
    others, and other data sets, are told beside it."""
    findings = []
    elsewhere = [data for data in dict.fromkeys(setting.data for setting in settings) if data not in claim.on]
    for data in claim.on:
        ready = claim.ready(settings, data)
        first = ready[0] if ready and ready[0].as_published else None
        beside = ready[1:] if first else ready
        if data == claim.on[0] and not claim.only_there:
            beside = beside + [setting for other in elsewhere for setting in claim.ready(settings, other)]
        others = tuple((setting.title, *_told(claim, setting)) for setting in beside)
        if first is None:
            lacking = _lacked(claim, settings, data)
            findings.append(Finding(claim.text, claim.where, UNTESTED, DATASETS[data], lacking, others, claim.ours))
        else:
            found, needs = _told(claim, first), map(first.trained, claim.needs)
            short_title = first.in_short(*needs, without=[label(loss) for loss in _lacking(claim, first)])
            verdict_and_on = (found[0], first.title, found[1])
            findings.append(Finding(claim.text, claim.where, *verdict_and_on, others, claim.ours, short_title))
    return findings


def _lacked(claim: Claim, settings: list[Setting], data: str) -> str:
    """Which losses have yet to be trained before a claim can be judged on a data set, beside those that are there."""
    needs = [weighted(loss, data) for loss in claim.needs]
    best, there = None, list[str]()
    for setting in claim.fitting(settings, data):
        if setting.as_published:
            exact = [loss for loss in needs if loss in setting.networks]
            else_there = set(setting.networks) - set(exact)
            found = [loss for loss in needs if loss in exact or setting.trained(loss) in else_there]
            best, there = (setting, found) if len(found) > len(there) else (best, there)
    missing = [loss for loss in needs if loss not in there] or needs
    runs = f"runs of {', '.join(missing)}"
    runs += " with histograms of training samples in their history" if claim.histograms else ""
    if best is None or len(missing) == len(needs):
        return f"it needs {runs} with the authors' step"
    known = [best.trained(loss) for loss in there]
    before, after = each(best, known, "ece"), each(best, known, "ece", "ece")
    others = f"ECE of the others before T {before}, after {after} %"
    return f"{best.title} lacks {runs}; {others} ({best.seeds(*known)})"


def _told(claim: Claim, setting: Setting) -> tuple[str, str]:
    holds, evidence = claim.judge(setting)
    for loss in _lacking(claim, setting):
        evidence += f"; {label(loss)} is not run"
    if "seed" in evidence:
        return verdict(holds), evidence
    needed = dict.fromkeys([*map(setting.trained, claim.needs), *named_in(evidence, list(setting.networks))])
    lead, *items = evidence.split("\n")
    return verdict(holds), listed(f"{lead} ({setting.seeds(*needed)})", items)


def named_in(text: str, losses: list[str]) -> list[str]:
    """The losses that a text names. One label may hold another: a longer one is looked for first, and struck out."""
    found = set()
    for loss in sorted(losses, key=lambda loss: -len(label(loss))):
        text, times = re.subn(rf"\b{re.escape(label(loss))}\b", "", text)
        if times:
            found.add(loss)
    return [loss for loss in losses if loss in found]


def _lacking(claim: Claim, setting: Setting) -> list[str]:
    """FLSD-53, where a claim names it and it is not run: the claim is judged of the other losses alone."""
    return [FLSD] if label(FLSD) in claim.text and FLSD not in setting.networks else []


def over_networks(changes: Sequence[Interval]) -> Verdict:
    """Whether a change lowers a figure on networks that share their test samples, and the numbers. It has to do so on
    average, with its 95 % interval over the networks; on most of them; and on more of them clearly (by
    the interval over test samples) than it clearly raises it. False where all of this is so the other way round."""
    values = np.array([change.value for change in changes])
    error = Error(float(values.std(ddof=1)) / len(values) ** 0.5, len(values) - 1) if len(values) > 1 else NO_ERROR
    below, above = sum(change.high < 0 for change in changes), sum(change.low > 0 for change in changes)
    less, more = int((values < 0).sum()), int((values > 0).sum())
    agree = {True: less > len(values) / 2 and below > above, False: more > len(values) / 2 and above > below}
    found = clearly(-float(values.mean()), error)
    told = (
        f"lower on {less} of {len(values)}; the mean change is {100 * values.mean():+.2f} points (standard error "
        f"{100 * error.value:.2f}); the 95 % interval of the difference is below 0 on {below}, above 0 on {above}"
    )
    return (found if found is not None and agree[found] else None), told


def lower(
    setting: Setting, loss: str, than: str, quantity: str, state: str = "before", times: float = 1.0
) -> bool | None:
    """Whether ``times`` a loss's figure is below that of another by more than their errors."""
    gap = setting.figure(than, quantity, state) - times * setting.figure(loss, quantity, state)
    error = setting.error_of(than, quantity, state).beside(setting.error_of(loss, quantity, state).times(times))
    return clearly(gap, error)


def focal_of(setting: Setting) -> list[str]:
    return [loss for loss in (FL1, FL2, FL3, FLSD) if loss in setting.networks]


def named_of(setting: Setting) -> list[str]:
    """FL-3, and FLSD-53 where it is trained."""
    return [loss for loss in (FL3, FLSD) if loss in setting.networks]


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def each(setting: Setting, losses: list[str], quantity: str, state: str = "before") -> str:
    return ", ".join(f"{label(loss)} {percent(setting.figure(loss, quantity, state))}" for loss in losses)


def half_the_ece(setting: Setting) -> Verdict:
    focal = named_of(setting)
    values = {loss: setting.figure(loss, "ece") for loss in (CE, *focal)}
    ratios = ", ".join(f"{values[CE] / values[loss]:.1f} times {label(loss)}'s" for loss in focal)
    signs = ", ".join(
        f"{label(loss)} {'over' if setting.figure(loss, 'overconfidence') > 0 else 'under'}-confident"
        for loss in values
    )
    found = f"ECE before T: {each(setting, list(values), 'ece')} %; cross-entropy's is {ratios}; {signs}"
    return all_of(lower(setting, loss, CE, "ece", times=2) for loss in focal), found


def lower_ece(state: str, *losses: str) -> Callable[[Setting], Verdict]:
    """Whether ECE is lower than cross-entropy's, with these losses or FL-3 and FLSD-53."""

    def judge(setting: Setting) -> Verdict:
        focal = list(losses) or named_of(setting)
        told = f"ECE {each(setting, [CE, *focal], 'ece', state)} %"
        return all_of(lower(setting, loss, CE, "ece", state) for loss in focal), told

    return judge


def temperatures_within(of_ce: tuple[float, float], of_focal: tuple[float, float]) -> Callable[[Setting], Verdict]:
    def judge(setting: Setting) -> Verdict:
        ours = {loss: setting.temperatures(loss) for loss in (CE, *named_of(setting))}
        inside = all(
            low <= t <= high
            for loss, found in ours.items()
            for low, high in [of_ce if loss == CE else of_focal]
            for t in found
        )
        texts = (f"{label(loss)} {', '.join(f'{t:.1f}' for t in found)}" for loss, found in ours.items())
        return inside, "T by the ECE grid: " + "; ".join(texts)

    return judge


temperatures = temperatures_within((2, 2.8), (0.9, 1.1))


def seems_under_confident(temperatures: Iterable[float], gaps: Iterable[float], of_focal: float, of_ce: float) -> bool:
    """As SST is printed: T below 0.9, confidence below accuracy, and FL-3's ECE at least twice cross-entropy's."""
    return all(t < 0.9 for t in temperatures) and max(gaps) < 0 and of_focal >= 2 * of_ce


def under_confident(setting: Setting) -> Verdict:
    ours = {loss: setting.temperatures(loss) for loss in (FL3, FLSD)}
    gaps = {loss: setting.figure(loss, "overconfidence") for loss in ours}
    texts = (
        f"{label(loss)} {100 * gaps[loss]:+.2f} points, T {', '.join(f'{t:.1f}' for t in found)}"
        for loss, found in ours.items()
    )
    every_t = [t for found in ours.values() for t in found]
    holds = seems_under_confident(every_t, gaps.values(), setting.figure(FL3, "ece"), setting.figure(CE, "ece"))
    found = (
        f"mean confidence less accuracy: {'; '.join(texts)}; ECE before T: {each(setting, [CE, FL3, FLSD], 'ece')} %"
    )
    ece, gap = setting.followed(FL3, "test", "ece"), _gap_of_two_classes(setting, FL3)
    worst = int(np.where(gap < 0, ece, 0).argmax())
    found += (
        f"; over the epochs FL-3's is under-confident in {int((gap < 0).sum())} of {len(gap)}, most at epoch {worst}"
    )
    return holds, f"{found}: ECE {percent(ece[worst])} %, {100 * gap[worst]:+.2f} points"


def _gap_of_two_classes(setting: Setting, loss: str) -> np.ndarray:
    """(epochs,) mean confidence less accuracy on test: of two classes the predicted one has p_y, or 1 - p_y."""
    wrong = setting.followed(loss, "test", "error")
    sure = [setting.followed(loss, "test", part, "true_probability") for part in ("correct", "wrong")]
    return (1 - wrong) * (sure[0] - 1) + wrong * (1 - sure[1])


def errors_within(points: float) -> Callable[[Setting], Verdict]:
    def judge(setting: Setting) -> Verdict:
        gaps = []
        for loss, networks in setting.networks.items():
            entry = beside_run(networks[0].run.recipe).get(("error", "before"))
            stands_in = loss not in PLAIN or setting.trained(MMCE) == loss
            if entry is not None and entry.tag != "recall" and stands_in:  # a recalled number is confirmed by nothing
                gaps.append((100 * setting.figure(loss, "error") - entry.number, loss, entry))
        texts = (
            f"{label(loss)} {percent(setting.figure(loss, 'error'))} ({entry.value}, {gap:+.2f})"
            for gap, loss, entry in gaps
        )
        told = listed("error in % (published, ours less theirs):", texts)
        return all(abs(gap) <= points for gap, *_ in gaps), told

    return judge


def errors_alike(setting: Setting) -> Verdict:
    losses = [CE, *focal_of(setting)]
    order = sorted(losses, key=lambda loss: setting.figure(loss, "error"))
    apart = setting.figure(order[-1], "error") - setting.figure(order[0], "error")
    spread = setting.error_of(order[-1], "error").beside(setting.error_of(order[0], "error"))
    told = f"error {each(setting, losses, 'error')} %; {percent(apart)} points apart at the most, "
    return clearly(0.01 - apart, spread), f"{told}with a standard error of {percent(spread.value)}"


def lowest_ece(state: str) -> Callable[[Setting], Verdict]:
    def judge(setting: Setting) -> Verdict:
        baselines = [setting.trained(loss) for loss in (CE, BRIER, MMCE)]
        lowest = all_of(lower(setting, FLSD, loss, "ece", state) for loss in baselines)
        told = f"ECE {each(setting, [FLSD, *baselines], 'ece', state)} %"
        return lowest, told

    return judge


def gamma_order(setting: Setting) -> Verdict:
    losses = [FL1, FL2, FL3]
    holds = all_of((lower(setting, FL2, FL1, "ece"), lower(setting, FL3, FL2, "ece")))
    return holds, f"ECE before T: {each(setting, losses, 'ece')} %"


def better_schedule(setting: Setting) -> Verdict:
    losses = [first, second] = ["focal-schedule:5,3,2", "focal-schedule:5,3,1"]
    return lower(setting, first, second, "ece"), f"ECE before T: {each(setting, losses, 'ece')} %"


def form_of_mmce(setting: Setting) -> Verdict:
    defined, authors = [weighted(loss, setting.data) for loss in (PLAIN_MMCE, MMCE)]
    there = [CE] if CE in setting.networks else []
    return lower(
        setting, defined, authors, "ece"
    ), f"ECE before T: {each(setting, [*there, authors, defined], 'ece')} %"


def lower_nll(setting: Setting) -> Verdict:
    losses = [CE, *named_of(setting)]
    before = all_of(lower(setting, loss, CE, "nll") for loss in losses[1:])
    return before, f"NLL in %: before T {each(setting, losses, 'nll')}; after {each(setting, losses, 'nll', 'ece')}"


def confident_after(setting: Setting) -> Verdict:
    fewer, more = lower(setting, FLSD, CE, "s99"), lower(setting, CE, FLSD, "s99", "ece")
    found = f"|S99| in %: before T {each(setting, [CE, FLSD], 's99')}; after {each(setting, [CE, FLSD], 's99', 'ece')}"
    return all_of((fewer, more)), found


CIFAR = ("cifar10", "cifar100")
NEWS, SST = "20newsgroups", "sst"
BASELINES = (CE, BRIER, MMCE, FLSD)

CLAIMS = (
    Claim("FL-3 and FLSD-53 have a lower ECE than cross-entropy before T.", "Sections 1 and 7, Tables 1, 4",
          (CE, FL3), lower_ece("before"), (*CIFAR, NEWS)),
    Claim("FLSD-53 has a lower ECE than cross-entropy after T.", "Section 1, Table 1", (CE, FLSD),
          lower_ece("ece", FLSD), (*CIFAR, NEWS, SST)),
    Claim("Before T cross-entropy's ECE is at least twice that of FL-3 and of FLSD-53 (printed is 1.9 to 7.2 times; "
          "the limit is ours).", "Tables 1, 4", (CE, FL3), half_the_ece, (*CIFAR, NEWS)),
    Claim("FL-3 and FLSD-53 are under-confident on SST (T 0.5 and 0.7), FL-3's ECE at least twice cross-entropy's.",
          "Tables 1, 4", (CE, FL3, FLSD), under_confident, (SST,), only_there=True),
    Claim("T lies between 2.0 and 2.8 for cross-entropy, and mostly between 0.9 and 1.1 for focal losses.",
          "Section 6", (CE, FL3), temperatures, CIFAR, only_there=True),
    Claim("T is high for cross-entropy (3.4; here above 2.5) and lower for FL-3 and FLSD-53 (1.5; here 1.2 to 1.8, "
          "limits of ours).", "Tables 1, 4", (CE, FL3), temperatures_within((2.5, 10), (1.2, 1.8)), (NEWS,),
          only_there=True),
    *(
        Claim(f"Our errors are within {points:g} points of the published ones; the limit is ours.", "Tables 3, 9",
              (CE,), errors_within(points), on, only_there=True, ours=True)
        for points, on in ((1.5, CIFAR), (3, (NEWS,)), (3.5, (SST,)))
    ),
    Claim("Focal losses and cross-entropy have almost the same error (within 1 point, a limit of ours).",
          "Section 4, Table 3", (CE, FL3), errors_alike, (*CIFAR, SST)),
    Claim("FLSD-53 has a lower ECE than cross-entropy, Brier and MMCE before T.", "Table 1, Section 6",
          BASELINES, lowest_ece("before"), (*CIFAR, NEWS)),
    Claim("FLSD-53 has a lower ECE than cross-entropy, Brier and MMCE after T.", "Table 1, Section 6",
          BASELINES, lowest_ece("ece"), (*CIFAR, NEWS, SST)),
    Claim("By its plain formula MMCE has a lower ECE before T than in the weighted form that the authors' code trains.",
          "the authors' code", (PLAIN_MMCE, MMCE), form_of_mmce, (CIFAR[0], NEWS), ours=True, only_there=True),
    Claim("Gamma 3 is better calibrated than gamma 2, and gamma 2 than gamma 1.", "Section 4, Table 7",
          (FL1, FL2, FL3), gamma_order, (*CIFAR, NEWS)),
    Claim("The schedule 5,3,2 gives a lower ECE than 5,3,1.", "Section 6, Table 7",
          ("focal-schedule:5,3,2", "focal-schedule:5,3,1"), better_schedule, (*CIFAR, NEWS, SST)),
    Claim("FL-3 and FLSD-53 have a lower NLL than cross-entropy before T.", "Table 10",
          (CE, FL3), lower_nll, (*CIFAR, NEWS)),
    Claim("Fewer of FLSD-53's than of cross-entropy's predictions are above 0.99 before T, and more after.", "Table 6",
          (CE, FLSD), confident_after),
)  # fmt: skip
