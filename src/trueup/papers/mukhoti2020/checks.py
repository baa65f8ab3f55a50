"""The claims beside our trainings: the authors' networks, the choice of T, the mathematics, the linear model."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from trueup.focal import gamma_star, phi, risk_minimiser
from trueup.papers.chance import clearly
from trueup.papers.mukhoti2020.authors import Author
from trueup.papers.mukhoti2020.claims import CE, FL3, Verdict, half_the_ece, over_networks
from trueup.papers.mukhoti2020.grid import DATASETS, MEAN, STUDIED_DATA, SUMMED, WEAK_DECAY, label, later, steps_of
from trueup.papers.mukhoti2020.linear import linear_model
from trueup.papers.mukhoti2020.settings import Network, Setting, alike
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED, Finding, all_of, at_most, listed, verdict


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


def grid_or_nll(authors: tuple[Author, ...], networks: list[Network]) -> list[Finding]:
    """Whether T by the ECE grid gives a lower ECE on test than T by NLL: the authors' networks, and each data set."""
    text = "T from the grid search on ECE gives a lower ECE on test than T fitted by NLL."
    groups = {f"{len(authors)} networks of the authors": [author.figures for author in authors]}
    for data in STUDIED_DATA:
        mine = [network.figures for network in networks if network.run.recipe.data == data]
        groups[f"{len(mine)} networks of ours, {DATASETS[data]}"] = mine
    findings = []
    for on, found in groups.items():
        if found:
            holds, evidence = over_networks([figures.grid_less_nll for figures in found])
            findings.append(Finding(text, "Section 6", verdict(holds), on, evidence))
    return findings or [Finding(text, "Section 6", UNTESTED, "", "there are no networks")]


def by_step(settings: list[Setting], data: str) -> list[list[Setting]]:
    """Settings of one data set that differ in their step alone, each with the losses and seeds that all of them have;
    only where cross-entropy and FL-3 are left."""
    groups: dict[tuple[str, str], list[Setting]] = {}
    for setting in settings:
        ready = {CE, FL3} <= set(setting.networks) and setting.step in steps_of(setting.schedule)
        if setting.data == data and ready:
            groups.setdefault((setting.model, setting.schedule), []).append(setting)
    restricted = [alike(group) for group in groups.values() if len(group) > 1]
    return [group for group in restricted if {CE, FL3} <= set(group[0].networks)]


def _of_steps(
    text: str,
    where: str,
    lacking: str,
    settings: list[Setting],
    data: str,
    judge: Callable[[list[Setting]], Verdict | None],
) -> Finding:
    """A question to settings of one data set that differ in their step; ``judge`` gives None where one is missing."""
    groups = by_step(settings, data)
    judged = [(_without_step(group[0]), judge(group)) for group in groups]
    told = [(on, verdict(found[0]), found[1]) for on, found in judged if found is not None]
    if not told:
        return Finding(text, where, UNTESTED, DATASETS[data], lacking, ours=True)
    on, first, evidence = told[0]
    short = next(group[0].in_short(CE, FL3) for group in groups if _without_step(group[0]) == on)
    return Finding(text, where, first, on, evidence, tuple(told[1:]), ours=True, short=short)


CODE = "not discussed; the authors' code sums and clips for images, and does neither for texts"
TWO_STEPS = "it needs cross-entropy and FL-3 with another step than the authors', of the same seed"


def step_decides(settings: list[Setting], data: str) -> Finding:
    """Whether another step from a batch's gradient changes the paper's main conclusion, on one data set."""
    text = "Whether cross-entropy's ECE is twice focal loss's depends on how the loss is summed and clipped."

    def judge(group: list[Setting]) -> Verdict:
        verdicts = [half_the_ece(setting) for setting in group]
        lines = (
            f"{setting.step}: {_ANSWERS[holds]} ({found})"
            for setting, (holds, found) in zip(group, verdicts, strict=True)
        )
        evidence = f"cross-entropy's ECE at least twice theirs, {group[0].seeds(*group[0].networks)}?"
        return _differ(holds for holds, _ in verdicts), listed(evidence, lines)

    return _of_steps(text, CODE, TWO_STEPS, settings, data, judge)


_ANSWERS = {True: "yes", False: "no", None: "cannot be told"}


def sign_decides(settings: list[Setting], data: str) -> Finding:
    """Whether focal loss ends on another side of the truth with another step."""
    text = "Whether focal loss ends over- or under-confident depends on how the loss is summed and clipped."

    def judge(group: list[Setting]) -> Verdict:
        lines = (
            f"{setting.step}: {100 * setting.figure(FL3, 'overconfidence'):+.2f} points, T "
            + ", ".join(f"{t:.1f}" for t in setting.temperatures(FL3))
            for setting in group
        )
        spread = max(setting.error_of(FL3, "overconfidence").value for setting in group)
        evidence = (
            f"FL-3's mean confidence less accuracy, {group[0].seeds(FL3)} (standard error, seeds elsewhere included, "
            f"up to {100 * spread:.2f} points):"
        )
        return _differ(_over_confident(setting) for setting in group), listed(evidence, lines)

    return _of_steps(text, CODE, TWO_STEPS, settings, data, judge)


def _over_confident(setting: Setting) -> bool | None:
    return clearly(setting.figure(FL3, "overconfidence"), setting.error_of(FL3, "overconfidence"))


def _differ(verdicts: Iterable[bool | None]) -> bool | None:
    """Whether some are yes and some no; None where some cannot be told and the others agree."""
    found = set(verdicts)
    return True if {True, False} <= found else None if None in found else False


def _without_step(setting: Setting) -> str:
    return setting.title.removesuffix(f", {setting.step}")


def decay_decides(settings: list[Setting], data: str) -> Finding:
    """Whether focal loss ends on another side of the truth with a weaker weight decay, all else alike.

    SGD subtracts lr (gradient + decay x weights). With the sum over a batch of 128 and lr / 128 that is
    lr (mean gradient + decay / 128 x weights): the step of the mean, and a weaker decay.
    """
    text = "That focal loss ends under-confident with the mean and no clipping depends on the weight decay."
    where = "weight decay is mentioned (Section 4), its part is not tested"
    lacking = "it needs cross-entropy and FL-3 with three steps: the authors', the mean, the sum at lr/128"

    def judge(group: list[Setting]) -> Verdict | None:
        of_step = {setting.step: setting for setting in group}
        if not {SUMMED, MEAN, WEAK_DECAY} <= set(of_step):
            return None
        strong, weak, authors = (of_step[step] for step in (MEAN, WEAK_DECAY, SUMMED))
        recipe = authors.networks[FL3][0].run.recipe
        items = (
            f"with the mean and not clipped, decay {recipe.weight_decay:g}: {_ending(strong)}",
            f"the same step with decay {recipe.weight_decay:g}/{recipe.batch} (the sum at lr/{recipe.batch}): "
            f"{_ending(weak)}",
            beside_decay(authors),
        )
        evidence = listed(f"FL-3, {strong.seeds(FL3)}:", items)
        return _differ(_over_confident(setting) for setting in (strong, weak)), evidence

    return _of_steps(text, where, lacking, settings, data, judge)


def _ending(setting: Setting) -> str:
    gap, norm = 100 * setting.figure(FL3, "overconfidence"), setting.followed(FL3, "weight_norm")[-1]
    error = 100 * setting.figure(FL3, "error")
    return f"confidence less accuracy {gap:+.2f} points, error {error:.2f} %, norm of the last weights {norm:.2f}"


def beside_decay(setting: Setting) -> str:
    """How much longer than the mean gradient the one that is summed and clipped is, beside the same decay: batch x
    min(1, clip / norm of the sum)."""
    recipe = setting.networks[FL3][0].run.recipe
    factors = {}
    for loss in (CE, FL3):
        norms = setting.followed(loss, "gradient_norm", "mean")
        factors[loss] = recipe.batch * np.minimum(1, (recipe.clip or np.inf) / norms)
    each = ", ".join(f"{of[0]:.1f} and {of[-1]:.0f} times ({label(loss)})" for loss, of in factors.items())
    weaker = all(of[-1] > 1 for of in factors.values())
    return (
        f"Summing and clipping {'acts as a weaker decay' if weaker else 'changes the part of the decay'} too: beside "
        f"it, the gradient is {each} as long as the mean's in the first and the last epoch, at the mean norm there"
    )


def last_stage(setting: Setting) -> Verdict:
    """Whether cross-entropy's ECE is twice FL-3's at some epochs after the second fall and not at others; None where at
    some it is so near that it cannot be told."""
    begin = setting.drops(CE)[1]
    ece, of_focal = (setting.followed(loss, "test", "ece")[begin:] for loss in (CE, FL3))
    ratios = ece / of_focal
    most = int(ratios.argmax())
    error = setting.error_of(CE, "ece").beside(setting.error_of(FL3, "ece").times(2))
    answers = [clearly(float(gap), error) for gap in ece - 2 * of_focal]
    told = (
        f"from epoch {begin} on cross-entropy's ECE is {ratios.min():.1f} to {ratios.max():.1f} times FL-3's, "
        f"most at epoch {begin + most} ({100 * ece[most]:.2f} and {100 * of_focal[most]:.2f} %), "
        f"{ratios[-1]:.1f} times at the end ({100 * ece[-1]:.2f} and {100 * of_focal[-1]:.2f} %); twice, beyond the "
        f"error, at {answers.count(True)} of {len(answers)} epochs, less than twice at {answers.count(False)}"
    )
    return _differ(answers), told


def stopping_decides(settings: list[Setting]) -> Finding:
    """Whether the paper's main conclusion is another at other epochs after the second fall of the learning rate."""
    text = "Whether cross-entropy's ECE is twice focal loss's depends on when the last stage ends."
    where = "not discussed; 100 epochs in the paper"
    told = []
    for setting in settings:
        if setting.staged and setting.as_published and {CE, FL3} <= set(setting.networks):
            same, evidence = last_stage(setting)
            told.append((setting.title, verdict(same), evidence, setting.in_short(CE, FL3)))
    if not told:
        return Finding(text, where, UNTESTED, "", "it needs cross-entropy and FL-3 with the authors' step", ours=True)
    on, first, evidence, short = told[0]
    others = tuple(other[:3] for other in told[1:])
    return Finding(text, where, first, on, evidence, others, ours=True, short=short)


def short_schedule(settings: list[Setting]) -> Finding:
    """Whether ResNet-50 is as good as ResNet-18 after the short schedule."""
    text = "After the short schedule, 105 epochs for 350, ResNet-50 has no higher error than ResNet-18."
    where = "our own question"
    nets = {
        setting.model: setting
        for setting in settings
        if setting.data == "cifar10" and setting.schedule == "mukhoti2020-short" and setting.as_published
    }
    small, large = nets.get("resnet18"), nets.get("resnet50")
    losses = [loss for loss in large.networks if loss in small.networks] if small and large else []
    if not (small and large and losses):
        return Finding(text, where, UNTESTED, "CIFAR-10", "it needs both nets with the authors' step", ours=True)
    answers, texts = [], []
    for loss in losses:
        errors = [setting.figure(loss, "error") for setting in (large, small)]
        spread = large.error_of(loss, "error").beside(small.error_of(loss, "error"))
        answers.append(clearly(errors[1] - errors[0], spread))
        on_train = (f"{100 * s.followed(loss, 'train', 'error')[-1]:.2f}" for s in (large, small))
        texts.append(f"{label(loss)} {100 * errors[0]:.2f} and {100 * errors[1]:.2f} ({' and '.join(on_train)})")
    evidence = (
        f"error in % on test of ResNet-50 and of ResNet-18 (on train at the end): {', '.join(texts)} "
        f"(ResNet-50: {large.seeds(*losses)}; ResNet-18: {small.seeds(*losses)})"
    )
    return Finding(text, where, verdict(all_of(answers)), "CIFAR-10", evidence, ours=True)


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
        f"g - 1 at most {at_most(worst - 1)} from p0 on, at least {below - 1:.1e} below it; "
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
        f"the entropy grows by up to {float(gaps.max()):.3f}, and falls by at most {at_most(-float(gaps.min()))}",
    )
    many = torch.full((20,), 0.9 / 19, dtype=torch.float64)
    many[0] = 0.1
    gap = float(entropy(risk_minimiser(many, 1.0)) - entropy(many))
    third = Finding(
        "Solutions to focal loss always have a higher entropy than those of cross-entropy: any number of classes.",
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
    text = f"The conclusions hold on other data too: {', '.join(absent)}."
    return [Finding(text, "Tables 1-13, later version", UNTESTED, "", evidence)]
