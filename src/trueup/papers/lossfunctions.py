"""An unpublished comparison of losses on CIFAR-10: cross-entropy, entropy penalty, L1 norm of the logits, focal loss.

After Wang, Feng & Zhang, "Rethinking Calibration of Deep Neural Networks: Do Not Be Afraid of Overconfidence" (NeurIPS
2021). It prints no number: its one figure shows ECE at every epoch for three nets. It names neither the weights of the
penalties nor the training; ours are those of Wang et al. where they give them (L1 0.05, gamma 3), an entropy penalty of
0.1, the short recipe of mukhoti2020, and VGG16 with batch norm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from trueup.audit import Measure, finite
from trueup.inputs import InputError
from trueup.papers.chance import Error, clearly
from trueup.papers.figures import Picture, ece_of_nets, on_page, save_pictures
from trueup.papers.judged import Figures, figures
from trueup.papers.mukhoti2020.settings import series
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED, Finding, Reproduction, Sheet, verdict
from trueup.papers.stored import command_of, load_runs, origin, run_name
from trueup.train import Recipe, Run, named

TITLE = "how a model calibrates with different loss functions"
MODELS = {"resnet18": "ResNet18", "vgg16-bn": "VGG16", "resnet50": "ResNet50"}
CE, ENTROPY, L1, FOCAL = "cross-entropy", "cross-entropy+entropy:0.1", "cross-entropy+l1:0.05", "focal:3"
HELPS = 0.2
"""So much of cross-entropy's over-confidence has to go for a loss to mitigate it; a limit of ours."""
LOSSES = {CE: "cross-entropy", ENTROPY: "entropy penalty", L1: "L1 norm", FOCAL: "focal loss"}


def recipes() -> dict[str, Recipe]:
    """The grid, name -> recipe."""
    made = (named("mukhoti2020-short", model=model, loss=loss) for model in MODELS for loss in LOSSES)
    return {run_name(recipe): recipe for recipe in made}


@dataclass(frozen=True)
class Followed:
    """A run, its figures at the end, and ECE on test after every epoch."""

    run: Run
    figures: Figures
    ece: np.ndarray

    @property
    def unrest(self) -> float:
        """How much ECE jumps: the mean change from one epoch to the next in the last stage of the learning rate."""
        return float(np.abs(np.diff(self.ece[self.run.recipe.milestones[-1] :])).mean())


Nets = dict[str, dict[str, Followed]]
"""Net -> loss -> run."""


def stored_runs(results: Path) -> dict[str, Run]:
    """The runs of the grid; those that mukhoti2020 has too are read from its results."""
    if not results.is_dir():
        raise InputError(f"{results}: no such folder; results/ of a clone of the repository holds the stored runs")
    wanted = recipes()
    found = load_runs(results / "mukhoti2020") | load_runs(results / "lossfunctions")
    return {name: found[name] for name in wanted if name in found}


def reproduce(results: Path, *, resamples: int = 300, progress: Callable[[float], None] | None = None) -> Reproduction:
    """ECE of every net and loss, and a verdict on each claim."""
    runs = stored_runs(results)
    nets: Nets = {model: {} for model in MODELS}
    for i, run in enumerate(runs.values()):
        made = figures(run.val, run.test, resamples=resamples)
        nets[run.recipe.model][run.recipe.loss] = Followed(run, made, series(run.history, "test", "ece"))
        if progress:
            progress((i + 1) / len(runs))
    rows = []
    for name, run in runs.items():
        found = nets[run.recipe.model][run.recipe.loss]
        about = {"name": name, "recipe": run.recipe.to_dict(), "run": run.info, "command": command_of(run.recipe)}
        rows.append(finite(about | {"ece_by_epoch": found.ece.tolist(), "figures": found.figures.to_dict()}))
    missing = tuple(name for name in recipes() if name not in runs)
    commands = tuple((f"`{name}`, {origin(run)}", command_of(run.recipe)) for name, run in runs.items())
    findings = (*claims(nets), *theorems())
    drawn = on_page(pictures(runs))
    return Reproduction("lossfunctions", TITLE, (sheet(nets),), findings, missing, tuple(rows), commands, figures=drawn)


def sheet(nets: Nets) -> Sheet:
    """Figure 1 in numbers."""
    rows = []
    for model, of_loss in nets.items():
        for loss, title in LOSSES.items():
            found = of_loss.get(loss)
            if found is None:
                rows.append((MODELS[model], title, "not run", *[""] * 6))
                continue
            before, after = found.figures.before, found.figures.after
            first, second = found.run.recipe.milestones
            measure = before.measures["ece"]
            interval = f"{100 * measure.value:.2f} [{100 * (measure.low or 0):.2f}, {100 * (measure.high or 0):.2f}]"
            rows.append((
                MODELS[model], title, f"{100 * before['error']:.2f}",
                *(f"{100 * found.ece[epoch]:.2f}" for epoch in (first - 1, second - 1)), interval,
                f"{100 * before['overconfidence']:+.2f}", f"{100 * found.unrest:.2f}",
                f"{100 * after['ece']:.2f} ({after.temperature:.1f})",
            ))  # fmt: skip
    columns = ("net", "loss", "error", "ECE before the first fall", "before the second", "at the end",
               "over-conf.", "unrest", "ECE after (T)")  # fmt: skip
    note = (
        "In %; the falls are those of the learning rate. Over-conf.: mean confidence less accuracy at the end. "
        "Unrest: the mean change of ECE from one epoch to the next in the last stage. The source prints no numbers and "
        "names neither the weights of its penalties nor its training. Ours: entropy penalty 0.1, L1 norm of the logits "
        "0.05, focal loss with gamma 3, one seed, VGG16 with batch norm, and the short recipe of mukhoti2020 (105 "
        "epochs, the loss summed over batches of 128, the gradient clipped at 2)."
    )
    return Sheet("ECE on test over the training (Figure 1)", columns, tuple(rows), note)


Verdict = tuple[bool | None, str]
"""Whether it holds, None where that cannot be told, and the numbers that say so."""


def claims(nets: Nets) -> list[Finding]:
    """What the text says of its figure, a verdict for each net."""

    def judged(
        text: str, needs: tuple[str, ...], models: tuple[str, ...], judge: Callable[[dict[str, Followed]], Verdict]
    ) -> list[Finding]:
        findings = []
        for model in models:
            if set(needs) <= set(nets[model]):
                holds, evidence = judge(nets[model])
                on, short = MODELS[model], f"{MODELS[model]} (1 seed)"
                findings.append(Finding(text, "Section 3.2", verdict(holds), on, evidence, short=short))
            else:
                lacking = ", ".join(LOSSES[loss] for loss in needs if loss not in nets[model])
                findings.append(Finding(text, "Section 3.2", UNTESTED, MODELS[model], f"not run: {lacking}"))
        return findings

    every = tuple(MODELS)
    return [
        *judged("Cross-entropy is over-confident.", (CE,), every, _over_confident),
        *judged("The entropy penalty is not effective to mitigate over-confidence.", (CE, ENTROPY), every,
                lambda of: _turned(_mitigated(of, ENTROPY))),
        *judged("With the entropy penalty ECE fluctuates more than with the other losses.",
                tuple(LOSSES), ("vgg16-bn",), _restless),
        *judged("The L1 norm alleviates over-confidence on VGG16 and ResNet50.", (CE, L1), ("vgg16-bn", "resnet50"),
                lambda of: _mitigated(of, L1)),
        *judged("The L1 norm does not alleviate it on ResNet18.", (CE, L1), ("resnet18",),
                lambda of: _turned(_mitigated(of, L1))),
        *judged("Focal loss has a lower ECE than cross-entropy.", (CE, FOCAL), every, _lower_with_focal),
    ]  # fmt: skip


def _over_confident(of: dict[str, Followed]) -> Verdict:
    measure = of[CE].figures.before.measures["overconfidence"]
    text = f"{100 * measure.value:+.2f} [{100 * (measure.low or 0):+.2f}, {100 * (measure.high or 0):+.2f}] points"
    return clearly(measure.value, _error(measure)), text


def _mitigated(of: dict[str, Followed], loss: str) -> Verdict:
    """Whether at least ``HELPS`` of cross-entropy's over-confidence is gone."""
    own, base = (of[name].figures.before.measures["overconfidence"] for name in (loss, CE))
    gone = (1 - HELPS) * base.value - own.value
    ece = [100 * of[name].figures.before["ece"] for name in (CE, loss)]
    told = (
        f"mean confidence less accuracy {100 * base.value:+.2f} points without it, {100 * own.value:+.2f} with it "
        f"(ECE {ece[0]:.2f} and {ece[1]:.2f} %); it counts from {100 * HELPS:.0f} % less on, a limit of ours"
    )
    return clearly(gone, _error(own).beside(_error(base).times(1 - HELPS))), told


def _lower_with_focal(of: dict[str, Followed]) -> Verdict:
    own, base = (of[name].figures.before.measures["ece"] for name in (FOCAL, CE))
    told = f"ECE {100 * own.value:.2f} % against {100 * base.value:.2f} %"
    return clearly(base.value - own.value, _error(own).beside(_error(base))), told


def _turned(found: Verdict) -> Verdict:
    """Of a claim that something is not so."""
    holds, told = found
    return (None if holds is None else not holds), told


def _error(measure: Measure) -> Error:
    return Error.of_interval(measure.low, measure.high)


def _restless(of: dict[str, Followed]) -> Verdict:
    values = {loss: of[loss].unrest for loss in LOSSES}
    text = ", ".join(f"{LOSSES[loss]} {100 * value:.2f}" for loss, value in values.items())
    return max(values, key=lambda loss: values[loss]) == ENTROPY, f"mean change of ECE an epoch, in %: {text}"


def theorems() -> list[Finding]:
    """Both theorems on random draws; the second as it has to be read: its proof as printed loses f_y."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn((20_000, 10), generator=generator, dtype=torch.float64)
    t = 1 + 4 * torch.rand((20_000, 1), generator=generator, dtype=torch.float64)
    gain = (t * logits).softmax(1).amax(1) - logits.softmax(1).amax(1)
    first = Finding(
        "Logits scaled by t > 1 give a larger top probability.", "Theorem 1",
        HOLDS if float(gain.min()) > 0 else FAILS, "20 000 random logits of 10 classes",
        f"it grows by {float(gain.min()):.1e} at the least",
    )  # fmt: skip
    p = logits.softmax(1)
    y = torch.randint(10, (20_000, 1), generator=generator)
    own = p.gather(1, y)[:, 0]
    entropy = torch.special.entr(p).sum(1)
    slack = torch.stack(
        [(1 - own) ** gamma * -own.log() + own.log() + gamma * entropy for gamma in (0.25, 0.5, 1.0, 2.0, 3.0, 5.0)]
    )
    second = Finding(
        "Focal loss is at least cross-entropy less gamma times the entropy.", "Theorem 2",
        HOLDS if float(slack.min()) >= -1e-12 else FAILS, "the same with random labels, gamma 0.25 to 5",
        f"least slack {float(slack.min()):.1e}; the proof needs gamma of at least 1, the inequality does not",
    )  # fmt: skip
    return [first, second]


def pictures(runs: dict[str, Run]) -> list[Picture]:
    """Figure 1."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for run in runs.values():
        of_net = found.setdefault(MODELS[run.recipe.model], {})
        of_net[LOSSES[run.recipe.loss]] = series(run.history, "test", "ece")
    return ece_of_nets(found)


def draw(results: Path, folder: Path) -> list[Path]:
    """Figure 1, where runs are stored."""
    return save_pictures(pictures(stored_runs(results)), folder)
