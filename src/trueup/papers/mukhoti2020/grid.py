"""Which trainings answer the paper, and which of its rows each is put beside."""

from __future__ import annotations

from typing import Any

from trueup.papers.published import Printed, printed
from trueup.papers.stored import changes, run_name
from trueup.train import Recipe, named

DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
MODELS = {
    "resnet50": "ResNet 50",
    "resnet110-bottleneck": "ResNet 110",
    "wrn26-10": "Wide ResNet 26-10",
    "densenet121": "DenseNet 121",
}
METHODS = {
    "cross-entropy": "CE",
    "brier": "Brier",
    "cross-entropy+mmce:2": "MMCE",
    "focal:1": "FL-1",
    "focal:2": "FL-2",
    "focal:3": "FL-3",
    "focal-schedule:5,3,1": "FLS-531",
    "focal-schedule:5,3,2": "FLS-532",
    "flsd-532": "FLA-532",
    "flsd-53": "FLA-53",
    "label-smoothing:0.05": "LS-0.05",
}
"""Our names -> the paper's (Appendix E). LS-0.05 is in its later version only."""


def later(method: str) -> str:
    """The name of the paper's later version, by which a method is known: FLA-53 became FLSD-53."""
    return method.replace("FLA-", "FLSD-").replace("FLS-", "FLSc-")


NEAREST = {"resnet18": "ResNet 50"}
"""The paper's net that a net of ours, which it does not have, is put beside."""

STUDIED = ("cross-entropy", "focal:3", "flsd-53")
STEPS: dict[str, dict[str, Any]] = {
    "summed, clipped at 2": {},
    "mean, not clipped": {"reduction": "mean", "clip": None},
    "summed, lr 0.1/128, not clipped": {"lr": 0.1 / 128, "clip": None},
    "mean, clipped at 2": {"reduction": "mean"},
}
"""How a batch's gradient becomes a step. The first is the authors' code; the paper's text does not say."""


def grid() -> dict[str, dict[str, Recipe]]:
    """The parts of the grid in the order in which they are worth running, each name -> recipe."""

    def runs(*recipes: Recipe) -> dict[str, Recipe]:
        return {run_name(recipe): recipe for recipe in recipes}

    short, small = "mukhoti2020-short", {"model": "resnet18"}
    return {
        "recipe study": runs(
            *(named(short, loss=loss, **small, **step) for step in STEPS.values() for loss in STUDIED)
        ),
        "seeds": runs(
            *(named(short, loss=loss, seed=seed, **small) for seed in range(3) for loss in (*STUDIED, "brier"))
        ),
        "ResNet-50": runs(
            *(named(short, loss=loss) for loss in ("cross-entropy", "flsd-53", "focal:3", "brier")),
            *(named(short, loss=loss) for loss in METHODS if loss not in (*STUDIED, "brier")),
        ),
        "full length": runs(
            *(
                named("mukhoti2020", loss=loss, **small, **STEPS[step])
                for step in ("summed, clipped at 2", "mean, not clipped")
                for loss in STUDIED
            )
        ),
    }


def recipes() -> dict[str, Recipe]:
    """The whole grid, name -> recipe."""
    return {name: recipe for part in grid().values() for name, recipe in part.items()}


def step_of(recipe: Recipe) -> str:
    """The title of the recipe's step."""
    own = changes(recipe)
    for title, settings in STEPS.items():
        if own == {k: v for k, v in settings.items() if named(recipe.name, loss=recipe.loss).to_dict()[k] != v}:
            return title
    return ", ".join(f"{k} {v}" for k, v in own.items())


def beside(dataset: str, model: str, method: str) -> dict[tuple[str, str], Printed]:
    """(quantity, state) -> what the paper prints for that network; of several prints the first."""
    found: dict[tuple[str, str], Printed] = {}
    for entry in printed("mukhoti2020"):
        if (entry.dataset, entry.model, entry.method) == (dataset, model, method):
            found.setdefault((entry.quantity, entry.state), entry)
    return found


def beside_run(recipe: Recipe) -> dict[tuple[str, str], Printed]:
    """The same for a run of ours, or for the nearest net that the paper has."""
    model = MODELS.get(recipe.model) or NEAREST.get(recipe.model, "")
    return beside(DATASETS.get(recipe.data, ""), model, METHODS.get(recipe.loss, ""))


def differences(recipe: Recipe) -> list[str]:
    """What the recipe does otherwise than the authors' code, as "epochs 105, not 350"."""
    model = recipe.model if recipe.model in MODELS else "resnet50"
    return recipe.differences(named("mukhoti2020", data=recipe.data, model=model, loss=recipe.loss, seed=recipe.seed))
