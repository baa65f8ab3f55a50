"""The claims beside our trainings: the authors' networks, the choice of T, the mathematics, the linear model."""

from __future__ import annotations

import numpy as np
import torch

from trueup.focal import gamma_star, phi, risk_minimiser
from trueup.papers.judged import Figures
from trueup.papers.mukhoti2020.authors import Author
from trueup.papers.mukhoti2020.claims import CE, FL3, half_the_ece, short
from trueup.papers.mukhoti2020.grid import DATASETS, MEAN, METHODS, SUMMED, WEAK_DECAY, later, steps_of
from trueup.papers.mukhoti2020.linear import linear_model
from trueup.papers.mukhoti2020.settings import Network, Setting
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED, Finding


def printed_figures(authors: tuple[Author, ...]) -> list[Finding]:
    """Whether the printed figures come out of the authors' own networks."""
    told = []
    for text, where, wanted in (
        ("The printed error, ECE, AdaECE, NLL and MCE come out of the authors' networks.", "Tables 1-3, 7-13", False),
        ("The printed S99 comes out of the authors' network.", "Table 6", True),
    ):
        found = [
            (author, entry, ours)
            for author in authors
            for entry, ours in author.compared()
            if entry.tag == "paper" and entry.quantity.startswith("s99") == wanted
        ]
        wrong = [(author, entry, ours) for author, entry, ours in found if entry.value != ours]
        evidence = f"{len(found) - len(wrong)} of {len(found)} to the last printed digit"
        if wrong:
            evidence += "; not: " + ", ".join(
                f"{entry.model} {later(entry.method)} {entry.quantity} {entry.state} {entry.value} (ours {ours})"
                for _, entry, ours in wrong
            )
        networks = len({author.name for author, *_ in found})
        on = f"{networks} network{'s' if networks > 1 else ''} of the authors"
        told.append(Finding(text, where, HOLDS if not wrong else FAILS, on, evidence))
    return told


def grid_or_nll(authors: tuple[Author, ...], networks: list[Network]) -> Finding:
    """Whether T by the ECE grid gives a lower ECE on test than T by NLL."""
    text = "T from the grid search on ECE gives better results than T fitted by NLL, in general."
    groups = {
        f"{len(authors)} networks of the authors": [author.figures for author in authors],
        f"{len(networks)} networks of ours": [network.figures for network in networks],
    }
    told = [(on, *_gain(found)) for on, found in groups.items() if found]
    everything = [figures for found in groups.values() for figures in found]
    if not everything:
        return Finding(text, "Section 6", UNTESTED, "", "there are no networks")
    verdict, evidence = _gain(everything)
    return Finding(text, "Section 6", verdict, f"all {len(everything)} networks", evidence, tuple(told))


def _gain(found: list[Figures]) -> tuple[str, str]:
    gains = np.array([figures.grid_less_nll.value for figures in found])
    better, same = int((gains < 0).sum()), int((gains == 0).sum())
    surely = sum(figures.grid_less_nll.high < 0 for figures in found)
    surely_not = sum(figures.grid_less_nll.low > 0 for figures in found)
    spread = float(gains.std(ddof=1)) / len(found) ** 0.5 if len(found) > 1 else 0.0
    evidence = (
        f"ECE on test lower with the grid on {better} of {len(found)} ({same} equal), by "
        f"{-100 * gains.mean():.2f} points on average (standard error {100 * spread:.2f}); the 95 % interval of the "
        f"difference is below 0 on {surely}, above 0 on {surely_not}"
    )
    return (HOLDS if gains.mean() < -2 * spread and better > len(found) / 2 else FAILS), evidence


def step_decides(settings: list[Setting], data: str) -> Finding:
    """Whether another step from a batch's gradient leaves the paper's main conclusion as it is, on one data set."""
    text = "Whether cross-entropy's ECE is twice focal loss's does not depend on how the loss is summed and clipped."
    where = "not discussed; the authors' code sums and clips for images, and does neither for texts"
    groups: dict[tuple[str, str], list[Setting]] = {}
    for setting in settings:
        ready = {CE, FL3} <= set(setting.networks) and setting.step in steps_of(setting.schedule)
        if setting.data == data and ready:
            groups.setdefault((setting.model, setting.schedule), []).append(setting)
    told = []
    for alike in groups.values():
        if len(alike) > 1:
            verdicts = [half_the_ece(setting) for setting in alike]
            lines = (
                f"{setting.step}: {'yes' if holds else 'no'} ({found})"
                for setting, (holds, found) in zip(alike, verdicts, strict=True)
            )
            evidence = "cross-entropy's ECE at least twice theirs? " + "; ".join(lines)
            same = len({holds for holds, _ in verdicts}) == 1
            told.append((alike[0].title.removesuffix(f", {alike[0].step}"), HOLDS if same else FAILS, evidence))
    if not told:
        lacking = "it needs cross-entropy and FL-3 with another step than the authors'"
        return Finding(text, where, UNTESTED, DATASETS[data], lacking)
    on, verdict, evidence = told[0]
    return Finding(text, where, verdict, on, evidence, tuple(told[1:]))


def decay_decides(settings: list[Setting], data: str) -> Finding:
    """Whether focal loss is as confident with a weaker weight decay, all else alike.

    SGD subtracts lr (gradient + decay x weights). With the sum over a batch of 128 and lr / 128 that is
    lr (mean gradient + decay / 128 x weights): the step of the mean, and a weaker decay.
    """
    text = "That focal loss ends under-confident with the mean and no clipping does not depend on the weight decay."
    where = "not discussed; Proposition 1 explains calibration by the gradients alone"
    found: dict[str, dict[str, Setting]] = {}
    for setting in settings:
        if setting.data == data and {CE, FL3} <= set(setting.networks):
            found.setdefault(setting.model, {}).setdefault(setting.step, setting)
    for of_step in found.values():
        if {SUMMED, MEAN, WEAK_DECAY} <= set(of_step):
            strong, weak, authors = (of_step[step] for step in (MEAN, WEAK_DECAY, SUMMED))
            gaps = [100 * setting.figure(FL3, "overconfidence") for setting in (strong, weak)]
            norms = [setting.followed(FL3, "weight_norm")[-1] for setting in (strong, weak)]
            recipe = authors.networks[FL3][0].run.recipe
            raised = {
                loss: recipe.batch * (recipe.clip or 0) / authors.followed(loss, "gradient_norm", "mean")
                for loss in (CE, FL3)
            }
            told = (
                f"FL-3 with the mean and not clipped, decay {recipe.weight_decay:g}: confidence less accuracy "
                f"{gaps[0]:+.2f} points, norm of the last weights {norms[0]:.2f}; the same step with decay "
                f"{recipe.weight_decay:g}/{recipe.batch} (the sum at lr/{recipe.batch}): {gaps[1]:+.2f}, "
                f"{norms[1]:.2f}. The authors' step weakens the decay too: clipping the sum at {recipe.clip:g} makes "
                "the gradient longer than that of the mean, and leaves the decay, in the first and the last epoch "
                + ", ".join(
                    f"{raised[loss][0]:.1f} and {raised[loss][-1]:.0f} times ({short(loss)})" for loss in raised
                )
            )
            same = (gaps[0] < 0) == (gaps[1] < 0)
            return Finding(text, where, HOLDS if same else FAILS, strong.title.removesuffix(f", {MEAN}"), told)
    lacking = "it needs cross-entropy and FL-3 with three steps: the authors', the mean, the sum at lr/128"
    return Finding(text, where, UNTESTED, DATASETS[data], lacking)


def stopping_decides(settings: list[Setting]) -> Finding:
    """Whether the paper's main conclusion is the same at every epoch after the second fall of the learning rate."""
    text = "Whether cross-entropy's ECE is twice focal loss's does not depend on when the last stage ends."
    where = "not discussed; 100 epochs in the paper"
    told = []
    for setting in settings:
        if setting.staged and setting.as_published and {CE, FL3} <= set(setting.networks):
            begin = setting.drops(CE)[1]
            ece, of_focal = (setting.followed(loss, "test", "ece")[begin:] for loss in (CE, FL3))
            ratios = ece / of_focal
            most = int(ratios.argmax())
            evidence = (
                f"from epoch {begin} on cross-entropy's ECE is {ratios.min():.1f} to {ratios.max():.1f} times FL-3's, "
                f"most at epoch {begin + most} ({100 * ece[most]:.2f} and {100 * of_focal[most]:.2f} %), "
                f"{ratios[-1]:.1f} times at the end ({100 * ece[-1]:.2f} and {100 * of_focal[-1]:.2f} %)"
            )
            same = bool((ratios >= 2).all() or (ratios < 2).all())
            told.append((setting.title, HOLDS if same else FAILS, evidence))
    if not told:
        return Finding(text, where, UNTESTED, "", "it needs cross-entropy and FL-3 with the authors' step")
    on, verdict, evidence = told[0]
    return Finding(text, where, verdict, on, evidence, tuple(told[1:]))


def short_schedule(settings: list[Setting]) -> Finding:
    """Why ResNet-50 is further from the paper than ResNet-18: whether the short schedule serves the larger net too."""
    text = "The short schedule, 105 epochs for 350, serves ResNet-50 as well as ResNet-18."
    where = "our own question"
    nets = {
        setting.model: setting
        for setting in settings
        if setting.data == "cifar10" and setting.schedule == "mukhoti2020-short" and setting.as_published
    }
    small, large = nets.get("resnet18"), nets.get("resnet50")
    losses = [loss for loss in large.networks if loss in small.networks] if small and large else []
    if not (small and large and losses):
        return Finding(text, where, UNTESTED, "CIFAR-10", "it needs both nets with the authors' step")
    errors = {loss: (100 * large.figure(loss, "error"), 100 * small.figure(loss, "error")) for loss in losses}
    texts = ", ".join(
        f"{later(METHODS[loss])} {of_large:.2f}, {of_small:.2f}" for loss, (of_large, of_small) in errors.items()
    )
    worse = all(of_large > of_small for of_large, of_small in errors.values())
    evidence = f"error in % of ResNet-50, of ResNet-18: {texts}"
    if worse:
        evidence += "; the larger net is the worse one with every loss, so that it has not been trained to its end"
    return Finding(text, where, FAILS if worse else HOLDS, "CIFAR-10", evidence)


def mathematics() -> list[Finding]:
    """Propositions 1 and 2, and the solutions of Figure 7."""
    p = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    thresholds = np.arange(0.02, 0.5, 0.02)
    worst = max(float(phi(p[p >= p0], float(gamma_star(p0))).max()) for p0 in thresholds)
    below = min(float(phi(p[p < p0 - 1e-6], float(gamma_star(p0))).min()) for p0 in thresholds)
    first = Finding(
        "g(p, gamma*) is at most 1 for p of at least p0, and above 1 below it.",
        "Propositions 1, 2, Figure 4a",
        HOLDS if worst <= 1 + 1e-9 and below > 1 else FAILS,
        "999 probabilities, 24 thresholds",
        f"g - 1 at most {worst - 1:.1e} from p0 on, at least {below - 1:.1e} below it; "
        f"gamma*(0.2) = {float(gamma_star(0.2)):.2f}, gamma*(0.25) = {float(gamma_star(0.25)):.2f}",
    )

    def entropy(q: torch.Tensor) -> torch.Tensor:
        return torch.special.entr(q).sum(-1)

    two = torch.stack([p, 1 - p], 1)
    gaps = torch.stack([entropy(risk_minimiser(two, gamma)) - entropy(two) for gamma in (1.0, 2.0, 3.0, 5.0)])
    second = Finding(
        "Solutions to focal loss always have a higher entropy than those of cross-entropy: two classes.",
        "Appendix H, Figure 7",
        HOLDS if float(gaps.min()) > -1e-12 else FAILS,
        "999 posteriors, gamma 1, 2, 3, 5",
        f"least gain of entropy {abs(float(gaps.min())):.1e}, largest {float(gaps.max()):.3f}",
    )
    many = torch.full((20,), 0.9 / 19, dtype=torch.float64)
    many[0] = 0.1
    gap = float(entropy(risk_minimiser(many, 1.0)) - entropy(many))
    third = Finding(
        "The same for any number of classes.",
        "Appendix H",
        HOLDS if gap > 0 else FAILS,
        "posterior 0.1 for one of 20 classes, the rest alike, gamma 1",
        f"the entropy changes by {gap:+.5f}: where no class is likely, focal loss is over-confident",
    )
    return [first, second, third]


def linear() -> list[Finding]:
    """Appendix G."""
    model = linear_model()
    on, where = "200 points, 50 000 steps, a tenth of the labels flipped", "Appendix G, Figure"
    (ce_w, fl_w), (ce_z, fl_z) = model.weight_norm[-1], model.logit_norm[-1]
    sure = [float((confidence > 0.9).mean()) for confidence in model.mistaken_confidence]
    return [
        Finding(
            "The norms of weights and logits of a linear model end larger with cross-entropy than with focal loss.",
            f"{where} 5",
            HOLDS if ce_w > fl_w and ce_z > fl_z else FAILS,
            on,
            f"weights {ce_w:.2f} and {fl_w:.2f}, mean |logit| {ce_z:.2f} and {fl_z:.2f}",
        ),
        Finding(
            "Both losses give the same decision regions.",
            f"{where} 6b, c",
            HOLDS if model.angle < 2 else FAILS,
            on,
            f"the boundaries differ by {model.angle:.1f} degrees",
        ),
        Finding(
            "Cross-entropy is almost always above 0.9 when wrong, focal loss much lower.",
            f"{where} 6a",
            HOLDS if sure[0] > 0.9 and sure[1] < sure[0] else FAILS,
            on,
            f"above 0.9: {100 * sure[0]:.0f} % and {100 * sure[1]:.0f} % of the mistakes; with a tenth flipped, the "
            "calibrated confidence is 0.9, and cross-entropy finds it",
        ),
    ]


def not_run(datasets: set[str]) -> list[Finding]:
    """What the paper says of data sets that we have no network of."""
    absent = [title for data, title in DATASETS.items() if data not in datasets]
    if not absent:
        return []
    evidence = f"no runs of ours on {', '.join(absent)}"
    if "cifar100" not in datasets:
        evidence += "; of CIFAR-100 one network of the authors is judged"
    text = f"The same holds over data sets: {', '.join(absent)}."
    return [Finding(text, "Tables 1-13, later version", UNTESTED, "", evidence)]
