"""What the paper claims of the training: quantities over the epochs, and histograms of training samples."""

from __future__ import annotations

import numpy as np

from trueup.papers.chance import Error, clearly
from trueup.papers.mukhoti2020.claims import CE, FL3, Claim, Verdict, focal_of, percent
from trueup.papers.mukhoti2020.grid import label
from trueup.papers.mukhoti2020.settings import Setting
from trueup.papers.reproduction import all_of, listed
from trueup.train.loop import TRAIN_SAMPLES
from trueup.train.measure import GRADIENT_EDGES

OF_CONFIDENCES, OF_GRADIENTS = (100, 200, 300, 350), (10, 100, 200)
"""The epochs, of 350, of Figures 2 and 4b to d."""
PERFECT = 0.9995
"""An accuracy that is printed as 100.0 %, an error as 0.0 %: what counts as perfect."""
_GROUPS = {"all": ("nll",), "right": ("correct", "nll"), "wrong": ("wrong", "nll")}


def overfits_on_the_wrong(setting: Setting) -> Verdict:
    start, end = setting.drops(CE)[0], -1
    parts = {name: setting.followed(CE, "test", *keys) for name, keys in _GROUPS.items()}
    texts = ", ".join(f"{name} {values[start]:.3f} to {values[end]:.3f}" for name, values in parts.items())
    rise = {name: values[end] - values[start] for name, values in parts.items()}
    holds = rise["all"] > 0 and rise["wrong"] > 0 and rise["right"] < 0
    return holds, f"test NLL from the first fall of the learning rate (epoch {start}) to the end: {texts}"


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
    # thirds of the stage, as single epochs are up and down by chance
    thirds = [float(part.mean()) for part in np.array_split(values[first:second], 3)]
    least = Error.of_share(thirds[1], TRAIN_SAMPLES)
    rises = thirds[2] > thirds[1] and clearly(thirds[2] - thirds[1], least.beside(least))
    holds = all_of((thirds[2] < 0.05, rises, bool(1 - values[-1] >= PERFECT)))
    texts = (
        f"{percent(values[first - 1])} before the first fall, {', '.join(map(percent, thirds))} in the thirds of the "
    )
    texts += f"stage after it, {percent(values[-1])} at the end"
    return holds, f"error in % on 10 000 training samples: {texts}"


def ece_rises(setting: Setting) -> Verdict:
    start = setting.drops(CE)[0]
    values = setting.followed(CE, "test", "ece")
    error = setting.error_of(CE, "ece")
    told = f"ECE on test: {percent(values[start])} at epoch {start}, {percent(values[-1])} last"
    return clearly(float(values[-1] - values[start]), error.beside(error)), told


def milder_rise(setting: Setting) -> Verdict:
    start = setting.drops(CE)[0]
    rises = {}
    for loss in (CE, *focal_of(setting)):
        values = setting.followed(loss, "test", "wrong", "nll")
        rises[loss] = values[-1] - values[start]
    texts = ", ".join(f"{label(loss)} {rise:+.2f}" for loss, rise in rises.items())
    return all(rises[CE] > rise for loss, rise in rises.items() if loss != CE), f"NLL of the wrong, change: {texts}"


def less_sure_of_mistakes(setting: Setting) -> Verdict:
    base = setting.followed(CE, "test", "wrong", "entropy")
    texts, holds = [], True
    for loss in focal_of(setting):
        values = setting.followed(loss, "test", "wrong", "entropy")
        share = float(np.mean(values > base))
        holds = holds and share > 0.9 and values[-1] > base[-1]
        texts.append(
            f"{label(loss)} in {100 * share:.0f} % of the epochs, {values[-1]:.3f} against {base[-1]:.3f} last"
        )
    return holds, listed("entropy of the wrong above cross-entropy's:", texts)


def true_probabilities(setting: Setting) -> Verdict:
    losses = [CE, *focal_of(setting)]
    right, wrong = (
        {loss: setting.followed(loss, "test", key, "true_probability")[-1] for loss in losses}
        for key in ("correct", "wrong")
    )
    holds = all(wrong[loss] > wrong[CE] and right[loss] < right[CE] for loss in losses[1:])
    texts = ", ".join(f"{label(loss)} {right[loss]:.3f} / {wrong[loss]:.3f}" for loss in losses)
    return holds and min(right.values()) > 0.95, f"mean p_y of the right / the wrong, last epoch: {texts}"


def weight_norms(setting: Setting) -> Verdict:
    first, second = setting.drops(CE)
    base = setting.followed(CE, "weight_norm")
    texts, holds = [], True
    for loss in focal_of(setting):
        values = setting.followed(loss, "weight_norm")
        above = [float(np.mean((values > base)[stage])) for stage in (slice(first), slice(first, second))]
        holds = holds and above[0] > 0.5 and values[second] < base[second] and values[-1] < base[-1]
        texts.append(f"{label(loss)} {values[first - 1]:.2f}, {values[second - 1]:.2f}, {values[-1]:.2f}")
    told = f"{label(CE)} {base[first - 1]:.2f}, {base[second - 1]:.2f}, {base[-1]:.2f}"
    return holds, f"norm before the first fall, before the second, at the end: {told}; {'; '.join(texts)}"


def gradient_norms(setting: Setting) -> Verdict:
    first, second = setting.drops(CE)
    losses = [CE, *focal_of(setting)]
    ends = {loss: setting.followed(loss, "gradient_norm", "mean")[[0, first - 1, second - 1, -1]] for loss in losses}
    holds = all((ends[loss][1:] < ends[CE][1:]).all() for loss in losses[1:])
    texts = ", ".join(f"{label(loss)} {' / '.join(f'{v:.3g}' for v in ends[loss])}" for loss in losses)
    return holds, f"mean norm of a batch's whole gradient before clipping, epoch 0 / before each fall / last: {texts}"


def gradients_reach_the_weights(setting: Setting) -> Verdict:
    """Whether a smaller gradient is a smaller step, which depends on what makes a step of a gradient."""
    recipe = setting.networks[CE][0].run.recipe
    if recipe.optimiser != "sgd":
        clipped = "" if recipe.clip is None else f" Clipped at {recipe.clip:g} before."
        return None, (
            f"{_DIVIDES.get(recipe.optimiser, recipe.optimiser)} divides a gradient by the size that it had so far: "
            "one that is smaller by a factor makes the same step. Smaller gradients do not reach the weights in that "
            f"form; the history has no lengths of steps.{clipped}"
        )
    means = {loss: setting.followed(loss, "gradient_norm", "mean") for loss in (CE, FL3)}
    smaller = 100 * float(np.mean(means[FL3] < means[CE]))
    told = f"the mean norm of a batch's gradient is smaller with FL-3 in {smaller:.0f} % of the epochs"
    if recipe.clip is None:
        return smaller > 50, f"{told}, and SGD without clipping steps in proportion to it"
    shares = clipped_of(setting)
    early = [of_early for of_early, _ in shares.values()]
    holds = None
    if all(least >= 50 for least, _ in early):
        holds = False
    elif all(most < 50 for _, most in early):
        holds = smaller > 50
    parts = (
        f"{label(loss)} {first[0]:.0f} to {first[1]:.0f} % before the first fall of the learning rate, "
        f"{whole[0]:.0f} to {whole[1]:.0f} % in all"
        for loss, (first, whole) in shares.items()
    )
    told += (
        f"; but clipping at {recipe.clip:g} makes all steps equally long whose gradient is above it. The share of such "
        "batches, as far as the mean and the largest norm of each epoch bound it:"
    )
    return holds, listed(told, parts)


_DIVIDES = {"adam": "Adam", "adamw": "AdamW", "adagrad": "AdaGrad"}


def clipped_of(setting: Setting) -> dict[str, tuple[tuple[float, float], tuple[float, float]]]:
    """Loss -> the least and the greatest share of batches in % that can have been clipped, before the first fall of the
    learning rate, and in all."""
    first, found = setting.drops(CE)[0] if setting.staged else None, {}
    for loss in (CE, FL3):
        mean, largest = (setting.followed(loss, "gradient_norm", name) for name in ("mean", "max"))
        least, most = clipped_share(mean, largest, setting.networks[loss][0].run.recipe.clip or np.inf)
        found[loss] = tuple((100 * least[:end].mean(), 100 * most[:end].mean()) for end in (first, None))
    return found


def clipped_share(mean: np.ndarray, largest: np.ndarray, clip: float) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest share of an epoch's batches that can be above ``clip``, given the mean and the
    largest of their norms: with share s, mean <= s largest + (1 - s) clip and mean >= s clip.

    >>> least, most = clipped_share(np.array([4.0, 1.0]), np.array([6.0, 1.5]), 2.0)
    >>> least.tolist(), most.tolist()
    ([0.5, 0.0], [1.0, 0.0])
    """
    above = largest > clip
    least = np.where(above, np.clip((mean - clip) / np.where(above, largest - clip, 1), 0, 1), 0)
    return least, np.where(above, np.clip(mean / clip, 0, 1), 0)


# ---------------------------------------------------------------------- training samples, in histograms


def median_norm(counts: np.ndarray) -> float:
    """The median of gradient norms that are counted between GRADIENT_EDGES, as if evenly spread on a logarithmic scale
    between two of them; the outermost edge where it lies beyond.

    >>> counts = np.zeros(len(GRADIENT_EDGES) + 1)
    >>> counts[[24, 25]] = 5, 5                                   # on both sides of 1
    >>> round(median_norm(counts), 3)
    1.0
    """
    below = np.cumsum(counts)[:-1] / np.sum(counts)
    return float(10 ** np.interp(0.5, below, np.log10(GRADIENT_EDGES)))


def pushed_to_the_top(setting: Setting) -> Verdict:
    counts, right = (setting.histogram(CE, name, OF_CONFIDENCES) for name in ("confidence", "correct"))
    share, accuracy = counts[:, -1] / counts.sum(1), right.sum(1) / counts.sum(1)
    holds = bool((np.diff(share) > 0).all()) and accuracy[2] >= PERFECT
    texts = (" / ".join(map(percent, values)) for values in (share, accuracy))
    told = "{} in the highest bin: {} %; accuracy on train: {} %"
    return holds, told.format(_after(setting, OF_CONFIDENCES, CE), *texts)


def norms_alike_at_first(setting: Setting) -> Verdict:
    medians = _medians(setting)
    ratios = [medians[loss][0] / medians[CE][0] for loss in medians]
    told = ", ".join(f"{label(loss)} {_norm(values[0])}" for loss, values in medians.items())
    return max(ratios) <= 2 and min(ratios) >= 0.5, f"median norm {_after(setting, OF_GRADIENTS[:1], *medians)}: {told}"


def norms_fall_slower(setting: Setting) -> Verdict:
    medians = _medians(setting)
    holds = all((np.diff(medians[CE] / medians[loss]) > 0).all() for loss in medians if loss != CE)
    told = ", ".join(f"{label(loss)} {' / '.join(map(_norm, values))}" for loss, values in medians.items())
    return holds, f"median norm {_after(setting, OF_GRADIENTS, *medians)}: {told}"


def _medians(setting: Setting) -> dict[str, np.ndarray]:
    losses = (CE, *focal_of(setting))
    counts = {loss: setting.histogram(loss, "gradient_norm", OF_GRADIENTS) for loss in losses}
    return {loss: np.array([median_norm(each) for each in of]) for loss, of in counts.items()}


def _norm(median: float) -> str:
    return f"below {median:.0e}" if median <= GRADIENT_EDGES[0] else f"{median:.3g}"


def _after(setting: Setting, epochs: tuple[int, ...], *losses: str) -> str:
    theirs, ours = " / ".join(map(str, epochs)), " / ".join(map(str, setting.scaled(epochs)))
    return f"after {ours} epochs for the paper's {theirs} ({setting.seeds(*losses)})"


CLAIMS = (
    Claim("After the learning rate falls, test NLL rises, by the misclassified samples only.", "Figure 1b",
          (CE,), overfits_on_the_wrong, staged=True),
    Claim("The entropies of right and of wrong test samples fall throughout training.", "Figure 1b",
          (CE,), peakier, staged=True),
    Claim("Train error is near 0 after the first fall, rises slightly, and is 0.0 % after the second.", "Figure 1c",
          (CE,), train_error, staged=True),
    Claim("ECE on test rises after the first fall.", "Figure 1c", (CE,), ece_rises, staged=True),
    Claim("Over time training samples are pushed towards the highest of 25 confidence bins, even after accuracy on "
          "them has reached 100 %.", "Figure 2", (CE,), pushed_to_the_top, staged=True, histograms=True),
    Claim("The rise of the NLL of misclassified samples is milder with focal loss.", "Figure 3c",
          (CE, FL3), milder_rise, staged=True),
    Claim("Misclassified test samples have a higher entropy with focal loss throughout.", "Figure 3d",
          (CE, FL3), less_sure_of_mistakes),
    Claim("With focal loss p_y is higher on wrong samples, lower on right ones, and above 0.95 there.", "Figures 3e, f",
          (CE, FL3), true_probabilities),
    Claim("The last layer's weight norm is first higher with focal loss, then lower, from the second stage on.",
          "Figure 3h", (CE, FL3), weight_norms, staged=True),
    Claim("Gradients become smaller with focal loss than with cross-entropy as training proceeds.", "Figure 4b-d",
          (CE, FL3), gradient_norms, staged=True),
    Claim("At first (epoch 10) the norms of single samples' gradients in the last layer are similar for cross-entropy "
          "and focal loss (medians within a factor of 2).", "Figure 4b", (CE, FL3), norms_alike_at_first, staged=True,
          histograms=True),
    Claim("Later (epochs 100, 200) those norms decrease less rapidly with cross-entropy than with focal loss.",
          "Figure 4b-d", (CE, FL3), norms_fall_slower, staged=True, histograms=True),
    Claim("Focal loss regularises by smaller updates of the weights.", "Section 4, Proposition 1",
          (CE, FL3), gradients_reach_the_weights),
)  # fmt: skip
