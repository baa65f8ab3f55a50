"""Figures 1 to 7 of the paper."""

from __future__ import annotations

import numpy as np
import torch

from trueup.focal import phi, risk_minimiser
from trueup.papers.figures import Panel, Picture
from trueup.papers.mukhoti2020.claims import CE, FL3, focal_of
from trueup.papers.mukhoti2020.epochs import OF_CONFIDENCES, OF_GRADIENTS
from trueup.papers.mukhoti2020.grid import label
from trueup.papers.mukhoti2020.linear import linear_model
from trueup.papers.mukhoti2020.settings import Setting
from trueup.train.measure import CONFIDENCE_BINS, GRADIENT_EDGES

FOLLOWED = {
    "a: NLL on test": ("test", "nll"),
    "b: NLL of the right": ("test", "correct", "nll"),
    "c: NLL of the wrong": ("test", "wrong", "nll"),
    "d: entropy of the wrong": ("test", "wrong", "entropy"),
    "e: p_y of the right": ("test", "correct", "true_probability"),
    "f: p_y of the wrong": ("test", "wrong", "true_probability"),
    "g: ECE on test": ("test", "ece"),
    "h: norm of the last weights": ("weight_norm",),
}
"""The panels of Figure 3."""
POINTS_SHOWN = 400
LACKING = "with the authors' step has histograms of training samples in its history"


def pictures(settings: list[Setting]) -> list[Picture]:
    """Each from the setting most like the paper's that has what it needs; without one it says so."""
    like = [setting for setting in settings if setting.as_published and setting.staged]
    counted = [setting.with_histograms() for setting in like]
    return [
        figure1(_first(like, CE)),
        figure2(_first(counted, CE)),
        figure3(_first(like, CE)),
        figure4(_first(counted, CE, FL3)),
        figure5(),
        figure6(),
        figure7(),
    ]


def _first(settings: list[Setting], *losses: str) -> Setting | None:
    return next((setting for setting in settings if set(losses) <= set(setting.networks)), None)


def figure1(setting: Setting | None) -> Picture:
    """NLL and entropy of cross-entropy over the epochs, the right and the wrong apart; errors and ECE."""
    if setting is None:
        return Picture("figure1", "Figure 1 is not drawn: no run of cross-entropy with the authors' step is stored.")

    def line(*keys: str) -> tuple[np.ndarray, np.ndarray]:
        values = setting.followed(CE, *keys)
        return np.arange(len(values)), values

    panels = []
    for letter, split in (("a", "train"), ("b", "test")):
        lines = {f"NLL, {name}": line(split, *keys, "nll") for name, keys in _GROUPS.items()}
        lines |= {f"entropy, {name}": line(split, *keys, "entropy") for name, keys in _GROUPS.items() if keys}
        panels.append(Panel(f"{letter}: {split}", "epoch", "NLL, entropy", lines, marks=setting.drops(CE)))
    lines = {f"{split} error": line(split, "error") for split in ("train", "test")} | {"test ECE": line("test", "ece")}
    panels.append(Panel("c: error and ECE", "epoch", "share", lines, marks=setting.drops(CE)))
    told = f"Figure 1: cross-entropy over the epochs, right and wrong samples apart. {_of(setting, CE)}; {_FALLS}."
    return Picture("figure1", told, panels, legend_below=True)


_GROUPS: dict[str, tuple[str, ...]] = {"all": (), "right": ("correct",), "wrong": ("wrong",)}
_FALLS = "upright lines: the learning rate falls"


def figure2(setting: Setting | None) -> Picture:
    """Accuracy in each confidence bin and the share of samples there, cross-entropy on training samples."""
    if setting is None:
        return Picture("figure2", f"Figure 2 is not drawn: no stored run of cross-entropy {LACKING}.")
    edges = np.linspace(0, 1, CONFIDENCE_BINS + 1)
    counts, right = (setting.histogram(CE, name, OF_CONFIDENCES) for name in ("confidence", "correct"))
    share = 100 * counts / counts.sum(1, keepdims=True)
    accuracy = np.divide(right, counts, out=np.full_like(counts, np.nan), where=counts > 0)
    top, bottom = [], []
    for i, title in enumerate(_when(setting, OF_CONFIDENCES)):
        whole = 100 * right[i].sum() / counts[i].sum()
        top.append(Panel(
            f"{title}\naccuracy {whole:.2f} %", "confidence", "accuracy", stairs={"accuracy": (edges, accuracy[i])},
            limits=(0, 1), span=(0, 1.02), diagonal=True,
        ))  # fmt: skip
        bottom.append(Panel(
            f"{share[i, -1]:.1f} % in the highest bin", "confidence", "% of samples",
            stairs={"share": (edges, share[i])}, limits=(0, 1), span=(0, 102),
        ))  # fmt: skip
    told = (
        f"Figure 2: accuracy in {CONFIDENCE_BINS} confidence bins, and the share of samples in each, on train with "
        f"cross-entropy. {_of(setting, CE)}; {_scaled(setting)}; {_samples(counts)}; a gap is an empty bin."
    )
    return Picture("figure2", told, [*top, *bottom], columns=len(top))


def _of(setting: Setting, *losses: str) -> str:
    return f"{setting.title}; {setting.seeds(*losses)}"


def _when(setting: Setting, epochs: tuple[int, ...]) -> list[str]:
    scaled = setting.scaled(epochs)
    return [f"after {n} epochs (paper: {epoch})" for n, epoch in zip(scaled, epochs, strict=True)]


def _scaled(setting: Setting) -> str:
    first = setting.drops(next(iter(setting.networks)))[0]
    return (
        "our epochs are those most like the paper's: the same one before the learning rate first falls, which ours "
        f"does after {first} epochs (of a later one in that stage our last), then one as far along in its stage"
    )


def _samples(counts: np.ndarray) -> str:
    return f"{counts[0].sum():,.0f} training samples".replace(",", " ")


def figure3(setting: Setting | None) -> Picture:
    """Cross-entropy and the focal losses over the epochs."""
    if setting is None:
        return Picture("figure3", "Figure 3 is not drawn: no run of cross-entropy with the authors' step is stored.")
    losses, panels = (CE, *focal_of(setting)), []
    for title, keys in FOLLOWED.items():
        lines = {}
        for loss in losses:
            values = setting.followed(loss, *keys)
            lines[label(loss)] = (np.arange(len(values)), values)
        panels.append(Panel(title, "epoch", "", lines, marks=setting.drops(CE)))
    told = f"Figure 3: cross-entropy and focal losses over the epochs. {_of(setting, *losses)}; {_FALLS}."
    return Picture("figure3", told, panels, columns=4, legend_below=True)


def figure4(setting: Setting | None) -> Picture:
    """g(p, gamma), the factor between the gradients of focal loss and of cross-entropy; and the norms of samples'
    gradients, where there are histograms of them."""
    p = torch.linspace(0, 1, 501, dtype=torch.float64)
    lines = {f"γ = {gamma:g}": (p.numpy(), phi(p, gamma).numpy()) for gamma in (0.0, 1.0, 2.0, 3.0, 5.0, 7.0)}
    told = "Figure 4: the factor g between the gradients of focal loss and of cross-entropy (a)"
    first = Panel("a: g(p, γ)" if setting else "", "p", "g(p, γ)", lines)
    if setting is None:
        told += f". b to d are not drawn: no stored pair of cross-entropy and FL-3 {LACKING}."
        return Picture("figure4", told, [first], columns=1)
    losses = (CE, *focal_of(setting))
    found = {loss: setting.histogram(loss, "gradient_norm", OF_GRADIENTS) for loss in losses}
    inner = np.log10(GRADIENT_EDGES)
    edges = np.array([2 * inner[0] - inner[1], *inner, 2 * inner[-1] - inner[-2]])
    panels = [first]
    for i, (letter, title) in enumerate(zip("bcd", _when(setting, OF_GRADIENTS), strict=True)):
        shares = {label(loss): (edges, 100 * counts[i] / counts[i].sum()) for loss, counts in found.items()}
        panels.append(Panel(f"{letter}: {title}", "log10 of the gradient's norm", "% of samples", stairs=shares))
    told += (
        ", and the norms of single samples' gradients in the last layer's weights (b to d). "
        f"{_of(setting, *losses)}; {_scaled(setting)}; {_samples(found[CE])}; the outermost bins hold all beyond."
    )
    return Picture("figure4", told, panels, columns=4, legend_below=True)


def figure5() -> Picture:
    """The norms of logits and weights of the linear model."""
    model, names = linear_model(), ("cross-entropy", "focal loss, γ = 1")
    thousands = model.iterations / 1000
    panels = [
        Panel(title, "thousand iterations", "", {name: (thousands, norms[:, k]) for k, name in enumerate(names)})
        for title, norms in (("a: mean |logit|", model.logit_norm), ("b: norm of the weights", model.weight_norm))
    ]
    return Picture("figure5", "Figure 5: logits and weights of the linear model.", panels, columns=2)


def figure6() -> Picture:
    """The confidences of its mistakes, and its decision boundaries."""
    model, names = linear_model(), ("cross-entropy", "focal loss, γ = 1")
    edges, across = np.linspace(0.5, 1, 26), np.array([-2.5, 2.5])
    mistakes = {
        name: (edges, np.histogram(found, edges)[0])
        for name, found in zip(names, model.mistaken_confidence, strict=True)
    }
    boundaries = {name: (-model.weights[1, k] / model.weights[0, k] * across, across) for k, name in enumerate(names)}
    shown = slice(POINTS_SHOWN)
    points = {f"label {label}": tuple(model.points[shown][model.labels[shown] == label].T) for label in (0, 1)}
    panels = [
        Panel("a: confidence of mistakes", "confidence", "test points", stairs=mistakes),
        Panel("b, c: decision boundaries", "x1", "x2", boundaries, points=points, limits=(-2.5, 2.5), span=(-2.5, 2.5)),
    ]
    told = (
        "Figure 6: mistakes and decision boundaries of the linear model. Both boundaries in one panel, with "
        f"{POINTS_SHOWN} of the test points, a tenth of which have the other label."
    )
    return Picture("figure6", told, panels, columns=2, legend_below=True)


def figure7() -> Picture:
    """The minimiser q of the expected loss for a posterior p, two classes."""
    p = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    both = torch.stack([p, 1 - p], 1)
    lines = {
        f"γ = {gamma:g}": (p.numpy(), risk_minimiser(both, gamma)[:, 0].numpy()) for gamma in (0.0, 1.0, 2.0, 3.0, 5.0)
    }
    told = "Figure 7: what focal loss makes a network report for a posterior p, two classes."
    return Picture("figure7", told, [Panel("", "posterior p", "minimiser q", lines)], columns=1)
