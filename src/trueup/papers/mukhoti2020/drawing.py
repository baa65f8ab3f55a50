"""Figures 1, 3, 4a, 5, 6 and 7 of the paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from trueup.focal import phi, risk_minimiser
from trueup.papers.figures import Panel, save_panels
from trueup.papers.mukhoti2020.claims import CE, focal_of, short
from trueup.papers.mukhoti2020.linear import linear_model
from trueup.papers.mukhoti2020.settings import Setting

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


def draw(settings: list[Setting], folder: Path) -> list[Path]:
    """What the stored runs allow, from the setting most like the paper's, and what needs none."""
    paths = [figure4a(folder), figure5(folder), figure6(folder), figure7(folder)]
    ready = [setting for setting in settings if setting.as_published and setting.staged and CE in setting.networks]
    if ready:
        paths += [figure1(ready[0], folder), figure3(ready[0], folder)]
    return sorted(paths)


def figure1(setting: Setting, folder: Path) -> Path:
    """NLL and entropy of cross-entropy over the epochs, the right and the wrong apart; errors and ECE."""

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
    return save_panels(panels, folder / "figure1.svg")


_GROUPS: dict[str, tuple[str, ...]] = {"all": (), "right": ("correct",), "wrong": ("wrong",)}


def figure3(setting: Setting, folder: Path) -> Path:
    """Cross-entropy and the focal losses over the epochs."""
    panels = []
    for title, keys in FOLLOWED.items():
        lines = {}
        for loss in (CE, *focal_of(setting)):
            values = setting.followed(loss, *keys)
            lines[short(loss)] = (np.arange(len(values)), values)
        panels.append(Panel(title, "epoch", "", lines, marks=setting.drops(CE)))
    return save_panels(panels, folder / "figure3.svg", columns=4)


def figure4a(folder: Path) -> Path:
    """g(p, gamma): the factor between the gradients of focal loss and of cross-entropy."""
    p = torch.linspace(0, 1, 501, dtype=torch.float64)
    lines = {f"gamma {gamma:g}": (p.numpy(), phi(p, gamma).numpy()) for gamma in (0.0, 1.0, 2.0, 3.0, 5.0, 7.0)}
    return save_panels([Panel("", "p", "g(p, gamma)", lines)], folder / "figure4a.svg", columns=1)


def figure5(folder: Path) -> Path:
    """The norms of logits and weights of the linear model."""
    model, names = linear_model(), ("cross-entropy", "focal loss")
    panels = [
        Panel(title, "iteration", "", {name: (model.iterations, norms[:, k]) for k, name in enumerate(names)})
        for title, norms in (("a: mean |logit|", model.logit_norm), ("b: norm of the weights", model.weight_norm))
    ]
    return save_panels(panels, folder / "figure5.svg", columns=2)


def figure6(folder: Path) -> Path:
    """The confidences of its mistakes, and its decision boundaries."""
    model, names = linear_model(), ("cross-entropy", "focal loss")
    mistakes = dict(zip(names, model.mistaken_confidence, strict=True))
    across = np.array([-2.5, 2.5])
    boundaries = {name: (-model.weights[1, k] / model.weights[0, k] * across, across) for k, name in enumerate(names)}
    panels = [
        Panel("a: confidence of mistakes", "confidence", "test points", bars=mistakes),
        Panel("b, c: decision boundaries", "x1", "x2", boundaries, limits=(-2.5, 2.5)),
    ]
    return save_panels(panels, folder / "figure6.svg", columns=2)


def figure7(folder: Path) -> Path:
    """The minimiser q of the expected loss for a posterior p, two classes."""
    p = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    both = torch.stack([p, 1 - p], 1)
    lines = {
        f"gamma {gamma:g}": (p.numpy(), risk_minimiser(both, gamma)[:, 0].numpy())
        for gamma in (0.0, 1.0, 2.0, 3.0, 5.0)
    }
    return save_panels([Panel("", "p", "q", lines)], folder / "figure7.svg", columns=1)
