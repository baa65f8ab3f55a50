"""What the paper claims of losses trained alike, each with the criterion it is judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trueup.papers.mukhoti2020.grid import METHODS, beside_run, later
from trueup.papers.mukhoti2020.settings import Setting
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED, Finding

CE, FL1, FL2, FL3, FLSD = "cross-entropy", "focal:1", "focal:2", "focal:3", "flsd-53"
Verdict = tuple[bool, str]
"""Whether it holds, and the numbers that say so."""


@dataclass(frozen=True)
class Claim:
    """``judge`` sees only settings that have all of the losses it needs."""

    text: str
    where: str
    needs: tuple[str, ...]
    judge: Callable[[Setting], Verdict]


def judged(claim: Claim, settings: list[Setting]) -> Finding:
    """The verdict on the setting that is most like the paper's; the others beside it."""
    ready = [setting for setting in settings if set(claim.needs) <= set(setting.networks)]
    told = []
    for setting in ready:
        holds, evidence = claim.judge(setting)
        told.append((setting, HOLDS if holds else FAILS, evidence))
    first = told[0] if told and told[0][0].as_published else None
    others = tuple((setting.title, verdict, evidence) for setting, verdict, evidence in told[1 if first else 0 :])
    if first is None:
        lacking = f"it needs runs of {', '.join(claim.needs)} with the authors' step"
        return Finding(claim.text, claim.where, UNTESTED, "", lacking, others)
    return Finding(claim.text, claim.where, first[1], first[0].title, first[2], others)


def focal_of(setting: Setting) -> list[str]:
    return [loss for loss in (FL1, FL2, FL3, FLSD) if loss in setting.networks]


def short(loss: str) -> str:
    return later(METHODS.get(loss, loss))


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def each(setting: Setting, losses: list[str], quantity: str, state: str = "before") -> str:
    return ", ".join(f"{short(loss)} {percent(setting.figure(loss, quantity, state))}" for loss in losses)


# ---------------------------------------------------------------------- the last epoch


def half_the_ece(setting: Setting) -> Verdict:
    values = {loss: setting.figure(loss, "ece") for loss in (CE, FL3, FLSD)}
    ratios = ", ".join(f"{values[CE] / values[loss]:.1f} times {short(loss)}'s" for loss in (FL3, FLSD))
    signs = ", ".join(
        f"{short(loss)} {'over' if setting.figure(loss, 'overconfidence') > 0 else 'under'}-confident"
        for loss in values
    )
    found = f"ECE before T: {each(setting, list(values), 'ece')} %; cross-entropy's is {ratios}; {signs}"
    ends = {loss: [n.figures.before.measures["ece"] for n in setting.networks[loss]] for loss in values}
    low = min(measure.low or 0.0 for measure in ends[CE])
    high = max(measure.high or 1.0 for loss in (FL3, FLSD) for measure in ends[loss])
    if low >= 2 * high:
        found += "; so it is at the near ends of the 95 % intervals"
    return all(values[CE] >= 2 * values[loss] for loss in (FL3, FLSD)), found


def temperatures(setting: Setting) -> Verdict:
    ours = {loss: setting.temperatures(loss) for loss in (CE, FL3, FLSD)}
    inside = all(2 <= t <= 3 for t in ours[CE]) and all(0.9 <= t <= 1.3 for loss in (FL3, FLSD) for t in ours[loss])
    texts = (f"{short(loss)} {', '.join(f'{t:.1f}' for t in found)}" for loss, found in ours.items())
    return inside, "T by the ECE grid: " + "; ".join(texts)


def errors_as_published(setting: Setting) -> Verdict:
    gaps = []
    for loss, networks in setting.networks.items():
        entry = beside_run(networks[0].run.recipe).get(("error", "before"))
        if entry is not None:
            gaps.append((100 * setting.figure(loss, "error") - entry.number, loss, entry))
    texts = (
        f"{short(loss)} {percent(setting.figure(loss, 'error'))} ({entry.value}, {gap:+.2f})"
        for gap, loss, entry in gaps
    )
    return all(abs(gap) <= 1.5 for gap, *_ in gaps), "error in % (published, ours less theirs): " + ", ".join(texts)


def errors_alike(setting: Setting) -> Verdict:
    losses = [CE, *focal_of(setting)]
    values = [setting.figure(loss, "error") for loss in losses]
    return max(values) - min(values) < 0.01, f"error {each(setting, losses, 'error')} %"


def lowest_ece(state: str) -> Callable[[Setting], Verdict]:
    def judge(setting: Setting) -> Verdict:
        baselines = [loss for loss in (CE, "brier", "cross-entropy+mmce:2") if loss in setting.networks]
        own = setting.figure(FLSD, "ece", state)
        lowest = all(own < setting.figure(loss, "ece", state) for loss in baselines)
        return lowest, f"ECE {each(setting, [FLSD, *baselines], 'ece', state)} %"

    return judge


def gamma_order(setting: Setting) -> Verdict:
    values = [setting.figure(loss, "ece") for loss in (FL1, FL2, FL3)]
    return values[0] > values[1] > values[2], f"ECE before T: {each(setting, [FL1, FL2, FL3], 'ece')} %"


def better_schedule(setting: Setting) -> Verdict:
    losses = ["focal-schedule:5,3,2", "focal-schedule:5,3,1"]
    first, second = (setting.figure(loss, "ece") for loss in losses)
    return first < second, f"ECE before T: {each(setting, losses, 'ece')} %"


def lower_nll(setting: Setting) -> Verdict:
    losses = [CE, FL3, FLSD]
    before = all(setting.figure(loss, "nll") < setting.figure(CE, "nll") for loss in (FL3, FLSD))
    return before, f"NLL in %: before T {each(setting, losses, 'nll')}; after {each(setting, losses, 'nll', 'ece')}"


def confident_after(setting: Setting) -> Verdict:
    before, after = ({loss: setting.figure(loss, "s99", state) for loss in (CE, FLSD)} for state in ("before", "ece"))
    found = f"|S99| in %: before T {each(setting, [CE, FLSD], 's99')}; after {each(setting, [CE, FLSD], 's99', 'ece')}"
    return before[FLSD] < before[CE] and after[FLSD] > after[CE], found


# ---------------------------------------------------------------------- over the epochs


def overfits_on_the_wrong(setting: Setting) -> Verdict:
    start, end = setting.drops(CE)[0], -1
    parts = {name: setting.followed(CE, "test", *keys) for name, keys in _GROUPS.items()}
    texts = ", ".join(f"{name} {values[start]:.3f} to {values[end]:.3f}" for name, values in parts.items())
    rise = {name: values[end] - values[start] for name, values in parts.items()}
    holds = rise["all"] > 0 and rise["wrong"] > 0 and rise["right"] < 0
    return holds, f"test NLL from the first fall of the learning rate (epoch {start}) to the end: {texts}"


_GROUPS = {"all": ("nll",), "right": ("correct", "nll"), "wrong": ("wrong", "nll")}


def peakier(setting: Setting) -> Verdict:
    first, second = setting.drops(CE)
    texts, falls = [], True
    for name, key in (("right", "correct"), ("wrong", "wrong")):
        entropy = setting.followed(CE, "test", key, "entropy")
        stages = [entropy[:first].mean(), entropy[first:second].mean(), entropy[second:].mean()]
        falls = falls and stages[0] > stages[1] > stages[2]
        texts.append(f"{name} {' > '.join(f'{stage:.3f}' for stage in stages)}")
    return falls, "mean entropy on test in the three stages of the learning rate: " + "; ".join(texts)


def train_error(setting: Setting) -> Verdict:
    first, second = setting.drops(CE)
    values = setting.followed(CE, "train", "error")
    middle = values[first:second]
    low = int(middle.argmin())
    rises = middle[low:].max() - middle[low] > 0
    holds = middle[-1] < 0.05 and rises and values[-1] == 0
    texts = f"{percent(values[first - 1])} before the first fall, then least {percent(middle[low])}, "
    texts += f"up to {percent(middle[low:].max())} after it, and {percent(values[-1])} at the end"
    return holds, f"error in % on 10 000 training samples: {texts}"


def ece_rises(setting: Setting) -> Verdict:
    start = setting.drops(CE)[0]
    values = setting.followed(CE, "test", "ece")
    return values[-1] > values[
        start
    ], f"ECE on test: {percent(values[start])} at epoch {start}, {percent(values[-1])} last"


def milder_rise(setting: Setting) -> Verdict:
    start = setting.drops(CE)[0]
    rises = {}
    for loss in (CE, *focal_of(setting)):
        values = setting.followed(loss, "test", "wrong", "nll")
        rises[loss] = values[-1] - values[start]
    texts = ", ".join(f"{short(loss)} {rise:+.2f}" for loss, rise in rises.items())
    return all(rises[CE] > rise for loss, rise in rises.items() if loss != CE), f"NLL of the wrong, change: {texts}"


def less_sure_of_mistakes(setting: Setting) -> Verdict:
    base = setting.followed(CE, "test", "wrong", "entropy")
    texts, holds = [], True
    for loss in focal_of(setting):
        values = setting.followed(loss, "test", "wrong", "entropy")
        share = float(np.mean(values > base))
        holds = holds and share > 0.9 and values[-1] > base[-1]
        texts.append(
            f"{short(loss)} in {100 * share:.0f} % of the epochs, {values[-1]:.3f} against {base[-1]:.3f} last"
        )
    return holds, "entropy of the wrong above cross-entropy's: " + "; ".join(texts)


def true_probabilities(setting: Setting) -> Verdict:
    losses = [CE, *focal_of(setting)]
    right, wrong = (
        {loss: setting.followed(loss, "test", key, "true_probability")[-1] for loss in losses}
        for key in ("correct", "wrong")
    )
    holds = all(wrong[loss] > wrong[CE] and right[loss] < right[CE] for loss in losses[1:])
    texts = ", ".join(f"{short(loss)} {right[loss]:.3f} / {wrong[loss]:.3f}" for loss in losses)
    return holds and min(right.values()) > 0.95, f"mean p_y of the right / the wrong, last epoch: {texts}"


def weight_norms(setting: Setting) -> Verdict:
    first, second = setting.drops(CE)
    base = setting.followed(CE, "weight_norm")
    texts, holds = [], True
    for loss in focal_of(setting):
        values = setting.followed(loss, "weight_norm")
        above = [float(np.mean((values > base)[stage])) for stage in (slice(first), slice(first, second))]
        holds = holds and above[0] > 0.5 and values[second] < base[second] and values[-1] < base[-1]
        texts.append(f"{short(loss)} {values[first - 1]:.2f}, {values[second - 1]:.2f}, {values[-1]:.2f}")
    told = f"{short(CE)} {base[first - 1]:.2f}, {base[second - 1]:.2f}, {base[-1]:.2f}"
    return holds, f"norm before the first fall, before the second, at the end: {told}; {'; '.join(texts)}"


def gradient_norms(setting: Setting) -> Verdict:
    first, second = setting.drops(CE)
    losses = [CE, *focal_of(setting)]
    ends = {loss: setting.followed(loss, "gradient_norm", "mean")[[0, first - 1, second - 1, -1]] for loss in losses}
    holds = all((ends[loss][1:] < ends[CE][1:]).all() for loss in losses[1:])
    texts = ", ".join(f"{short(loss)} {' / '.join(f'{v:.3g}' for v in ends[loss])}" for loss in losses)
    return holds, f"mean norm of a batch's whole gradient before clipping, epoch 0 / before each fall / last: {texts}"


def gradients_reach_the_weights(setting: Setting) -> Verdict:
    clips = {loss: setting.networks[loss][0].run.recipe.clip for loss in (CE, FL3)}
    if None in clips.values():
        return True, "not clipped: a smaller gradient is a smaller step"
    shares = {
        loss: float(np.mean(setting.followed(loss, "gradient_norm", "mean") > (clip or 0)))
        for loss, clip in clips.items()
    }
    least = {loss: setting.followed(loss, "gradient_norm", "mean").min() for loss in clips}
    texts = ", ".join(
        f"{short(loss)} in {100 * shares[loss]:.0f} % of the epochs, {least[loss]:.3g} at the least" for loss in clips
    )
    return min(shares.values()) < 0.5, (
        f"the mean norm of a batch's gradient is above the clip of {clips[CE]:g} for {texts}: clipping makes such "
        "steps equally long, whatever the loss (single batches may be below it)"
    )


CLAIMS = (
    Claim("Cross-entropy's ECE before T is at least twice that of FL-3 and of FLSD-53.", "Tables 1, 4",
          (CE, FL3, FLSD), half_the_ece),
    Claim("T lies between 2 and 3 for cross-entropy, and between 0.9 and 1.3 for FL-3 and FLSD-53.", "Section 6",
          (CE, FL3, FLSD), temperatures),
    Claim("Errors are within 1.5 points of the published ones.", "Tables 3, 9", (CE,), errors_as_published),
    Claim("Focal losses and cross-entropy have almost the same error (within 1 point).", "Section 4",
          (CE, FL3), errors_alike),
    Claim("FLSD-53 has a lower ECE than cross-entropy, Brier and MMCE before T.", "Table 1, Section 6",
          (CE, "brier", "cross-entropy+mmce:2", FLSD), lowest_ece("before")),
    Claim("FLSD-53 has a lower ECE than cross-entropy, Brier and MMCE after T.", "Table 1, Section 6",
          (CE, "brier", "cross-entropy+mmce:2", FLSD), lowest_ece("ece")),
    Claim("Gamma 3 is better calibrated than gamma 2, and gamma 2 than gamma 1.", "Section 4, Table 7",
          (FL1, FL2, FL3), gamma_order),
    Claim("The schedule 5,3,2 gives a lower ECE than 5,3,1.", "Section 6, Table 7",
          ("focal-schedule:5,3,2", "focal-schedule:5,3,1"), better_schedule),
    Claim("FL-3 and FLSD-53 have a lower NLL than cross-entropy before T.", "Table 10", (CE, FL3, FLSD), lower_nll),
    Claim("Fewer of FLSD-53's than of cross-entropy's predictions are above 0.99 before T, and more after.", "Table 6",
          (CE, FLSD), confident_after),
    Claim("After the learning rate falls, test NLL rises, by the misclassified samples only.", "Figure 1b",
          (CE,), overfits_on_the_wrong),
    Claim("The entropies of right and of wrong test samples fall throughout training.", "Figure 1b", (CE,), peakier),
    Claim("Train error is near 0 after the first fall, rises slightly, and is exactly 0 after the second.", "Figure 1c",
          (CE,), train_error),
    Claim("ECE on test rises after the first fall.", "Figure 1c", (CE,), ece_rises),
    Claim("The rise of the NLL of misclassified samples is milder with focal loss.", "Figure 3c",
          (CE, FL3), milder_rise),
    Claim("Misclassified test samples have a higher entropy with focal loss throughout.", "Figure 3d",
          (CE, FL3), less_sure_of_mistakes),
    Claim("With focal loss p_y is higher on wrong samples, lower on right ones, and above 0.95 there.", "Figures 3e, f",
          (CE, FL3), true_probabilities),
    Claim("The last layer's weight norm is first higher with focal loss, then lower, from the second stage on.",
          "Figure 3h", (CE, FL3), weight_norms),
    Claim("Gradients become smaller with focal loss than with cross-entropy as training proceeds.", "Figure 4b-d",
          (CE, FL3), gradient_norms),
    Claim("Focal loss regularises by smaller updates of the weights.", "Section 4, Proposition 1",
          (CE, FL3), gradients_reach_the_weights),
)  # fmt: skip
