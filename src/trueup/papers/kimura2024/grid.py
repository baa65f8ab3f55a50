"""What is trained: gamma on CIFAR-10 and CIFAR-100; tau and the learning rate; tau on digits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trueup.papers.stored import run_name
from trueup.train import Recipe, named

CE = "cross-entropy"
GAMMAS = (0, 1, 2, 3, 4, 5, 7, 10)
FEWER_GAMMAS = (0, 1, 3, 5, 10)
NETS = {"mlp": GAMMAS, "resnet18": GAMMAS, "vgg16-bn": FEWER_GAMMAS, "vit-tiny": FEWER_GAMMAS}
GRID = {"cifar10": NETS, "cifar100": {"mlp": (0, 1, 2, 3, 5, 10), "resnet18": (0, 1, 2, 3, 5, 10)}}
"""Data -> net -> gammas of Figures 2 and 3, which the paper has on CIFAR-100."""
LEARNING_RATES = {"mlp": 0.01, "resnet18": 0.1, "vgg16-bn": 0.05, "vit-tiny": 0.01}
"""Without batch norm a net does not bear 0.1."""
TAUS = (0.0, 1e-5, 1e-4, 3e-4, 1e-3)
RATES = (0.001, 0.003, 0.01)
DIGITS_TAUS = (0.0, 0.001, 0.01, 0.03, 0.1)
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Place:
    """Where a run stands in the grid."""

    figure: str
    """ "gamma" (Figures 2 and 3), "tau" (Figure 4) or "digits"."""
    net: str
    gamma: float = 0.0
    tau: float = 0.0
    lr: float = 0.0
    seed: int = 0
    data: str = "cifar10"


@cache
def places() -> dict[str, tuple[Place, Recipe]]:
    """The whole grid by the names of its runs."""
    made = []
    of_gamma = ((data, net, gamma) for data, nets in GRID.items() for net, gammas in nets.items() for gamma in gammas)
    for data, net, gamma in of_gamma:
        recipe = named(
            "mukhoti2020-short", data=data, model=net, loss=f"focal:{gamma:g}" if gamma else CE, lr=LEARNING_RATES[net],
            epochs=30, milestones=(13, 22), reduction="mean", clip=None,
        )  # fmt: skip
        made.append((Place("gamma", net, gamma=gamma, lr=recipe.lr, data=data), recipe))
    for lr in RATES:
        for tau in TAUS:
            recipe = named(
                "mukhoti2020-short", model="mlp", loss=penalised(tau), lr=lr, epochs=10, milestones=(7, 9),
                augmentation="none", reduction="mean", clip=None,
            )  # fmt: skip
            made.append((Place("tau", "mlp", tau=tau, lr=lr), recipe))
    for tau in DIGITS_TAUS:
        for seed in SEEDS:
            recipe = named("digits", loss=penalised(tau), seed=seed)
            made.append((Place("digits", recipe.model, tau=tau, lr=recipe.lr, seed=seed, data="digits"), recipe))
    return {run_name(recipe): (place, recipe) for place, recipe in made}


def recipes() -> dict[str, Recipe]:
    return {name: recipe for name, (_, recipe) in places().items()}


def penalised(tau: float) -> str:
    return f"{CE}+hessian-trace:{tau:g}" if tau else CE
