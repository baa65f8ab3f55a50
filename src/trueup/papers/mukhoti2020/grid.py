"""Which trainings answer the paper, and which of its rows each is put beside."""

from __future__ import annotations

from functools import partial
from typing import Any

from trueup.papers.published import Printed, printed
from trueup.papers.stored import ARITHMETIC, changes, run_name
from trueup.train import Recipe, named

DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "20newsgroups": "20 Newsgroups",
    "sst": "SST Binary",
    "tiny-imagenet": "Tiny-ImageNet",
}
STUDIED_DATA = ("cifar10", "cifar100", "20newsgroups", "sst")
"""Those of the grid."""
MODELS = {
    "resnet50": "ResNet 50",
    "resnet110-bottleneck": "ResNet 110",
    "wrn26-10": "Wide ResNet 26-10",
    "densenet121": "DenseNet 121",
    "text-cnn": "Global Pooling CNN",
    "tree-lstm": "Tree LSTM",
    "resnet50-tiny": "ResNet 50",
}
TEXTS = {"20newsgroups": "mukhoti2020-20newsgroups", "sst": "mukhoti2020-sst"}
"""The texts, and the recipe of each."""
METHODS = {
    "cross-entropy": "CE",
    "brier": "Brier",
    "cross-entropy+mmce-mukhoti2020:2": "MMCE",
    "cross-entropy+mmce-mukhoti2020:8": "MMCE",
    "cross-entropy+mmce-mukhoti2020:1": "MMCE",
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
MMCE_WEIGHTS = {
    "cross-entropy+mmce-mukhoti2020": {"20newsgroups": 8, "sst": 1},
    "cross-entropy+mmce": {"20newsgroups": 8, "sst": 8},
}
"""How much MMCE weighs where it is not 2, as on images. On texts the paper says 8; the authors' code for SST takes that
number for the name of a file alone."""
PLAIN = {"cross-entropy+mmce:2": "plain MMCE", "cross-entropy+mmce:8": "plain MMCE"}
"""MMCE by the formula, MMCE_m, whose square the authors' code has too; what it trains with, as does the code of MMCE's
own authors, is a weighted form. Our names -> what is shown; they stand beside the same printed rows."""


def other_form(loss: str) -> str:
    """The same method by its formula, where the authors trained another form of it."""
    return loss.replace("mmce-mukhoti2020", "mmce")


def label(loss: str) -> str:
    """What a reader sees for a loss."""
    return PLAIN.get(loss) or later(METHODS.get(loss, loss))


def weighted(loss: str, data: str) -> str:
    """The loss of a method on that data: MMCE does not weigh the same on all."""
    form, _, _ = loss.rpartition(":")
    return f"{form}:{MMCE_WEIGHTS[form].get(data, 2)}" if form in MMCE_WEIGHTS else loss


def losses_of(data: str) -> tuple[str, ...]:
    """Every loss of the paper's tables, as it is on that data."""
    return tuple(dict.fromkeys(weighted(loss, data) for loss in METHODS))


def later(method: str) -> str:
    """The name of the paper's later version, by which a method is known: FLA-53 became FLSD-53."""
    return method.replace("FLA-", "FLSD-").replace("FLS-", "FLSc-")


NEAREST = {"resnet18": "ResNet 50"}
"""The paper's net that a net of ours, which it does not have, is put beside."""

STUDIED = ("cross-entropy", "focal:3", "flsd-53")
SUMMED, MEAN, WEAK_DECAY = "summed, clipped at 2", "mean, not clipped", "summed, lr 0.1/128, not clipped"
STEPS: dict[str, dict[str, Any]] = {
    SUMMED: {},
    MEAN: {"reduction": "mean", "clip": None},
    WEAK_DECAY: {"lr": 0.1 / 128, "clip": None},
    "mean, clipped at 2": {"reduction": "mean"},
}
"""How a batch's gradient becomes a step. The first is the authors' code; the paper's text does not say. The third is
the second with a weight decay 128 times weaker."""
STEPS_OF_TEXTS: dict[str, dict[str, Any]] = {MEAN: {}, SUMMED: {"reduction": "sum", "clip": 2.0}}
"""The same for texts, where the code that the paper names takes the mean and does not clip."""
AS_AUTHORS: dict[str, dict[str, Any]] = {"cifar100": {"normalisation": "imagenet-test"}}
"""What the authors' code does otherwise for a data set."""
SEEDS = range(3)


def steps_of(recipe: str) -> dict[str, dict[str, Any]]:
    """The steps of a named recipe, the authors' first."""
    return STEPS_OF_TEXTS if recipe in TEXTS.values() else STEPS


def grid() -> dict[str, dict[str, Recipe]]:
    """The parts of the grid in the order in which they are worth running, each name -> recipe."""
    found: dict[str, dict[str, Recipe]] = {}

    def part(title: str, *made: Recipe) -> None:
        found[title] = {run_name(recipe): recipe for recipe in made}

    def image(loss: str, data: str = "cifar10", recipe: str = "mukhoti2020-short", **more: Any) -> Recipe:
        return named(recipe, data=data, loss=loss, **AS_AUTHORS.get(data, {}), **more)

    first, others = (*STUDIED, "brier"), [loss for loss in losses_of("cifar10") if loss not in (*STUDIED, "brier")]
    small: dict[str, Any] = {"model": "resnet18"}
    on_images, on_texts = PLAIN
    part("recipe study", *(image(loss, **small, **step) for step in STEPS.values() for loss in STUDIED))
    part("seeds", *(image(loss, seed=seed, **small) for seed in SEEDS for loss in first))
    part("ResNet-50", *(image(loss) for loss in ("cross-entropy", "flsd-53", "focal:3", "brier", *others, on_images)))
    full = partial(image, recipe="mukhoti2020", **small)
    part("full length", *(full(loss, **STEPS[step]) for step in (SUMMED, MEAN) for loss in STUDIED))
    for data, recipe in TEXTS.items():
        part(
            DATASETS[data],
            *(named(recipe, loss=loss, seed=seed) for seed in SEEDS for loss in losses_of(data)),
            *(named(recipe, loss=loss, seed=seed, **STEPS_OF_TEXTS[SUMMED]) for seed in SEEDS for loss in STUDIED),
            *(named(recipe, loss=on_texts, seed=seed) for seed in SEEDS),
        )
    hundred = partial(image, data="cifar100")
    part("CIFAR-100 recipe study", *(hundred(loss, **small, **step) for step in STEPS.values() for loss in STUDIED))
    part("CIFAR-100 seeds", *(hundred(loss, seed=seed, **small) for seed in SEEDS for loss in first))
    fewer = [loss for loss in others if "schedule" not in loss and loss != "flsd-532"]
    part("CIFAR-100 ResNet-50", *(hundred(loss) for loss in (*first, *fewer)))
    nets, ends = ("wrn26-10", "densenet121"), ("cross-entropy", "flsd-53")
    part("CIFAR-100 other nets", *(hundred(loss, model=net) for net in nets for loss in ends))
    return found


def recipes() -> dict[str, Recipe]:
    """The whole grid, name -> recipe."""
    return {name: recipe for part in grid().values() for name, recipe in part.items()}


def step_of(recipe: Recipe) -> str:
    """The title of the recipe's step."""
    no_step = AS_AUTHORS.get(recipe.data, {}) | {ARITHMETIC: recipe.precision}
    own = {k: v for k, v in changes(recipe).items() if k not in no_step or no_step[k] != v}
    usual = named(recipe.name, loss=recipe.loss).to_dict()
    for title, settings in steps_of(recipe.name).items():
        if own == {k: v for k, v in settings.items() if usual[k] != v}:
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
    method = next((METHODS[loss] for loss in METHODS if recipe.loss in (loss, other_form(loss))), "")
    return beside(DATASETS.get(recipe.data, ""), model, method)


def differences(recipe: Recipe) -> list[str]:
    """What the recipe does otherwise than the authors' code, as "epochs 105, not 350"; but for its arithmetic."""
    whole = "mukhoti2020" if recipe.name == "mukhoti2020-short" else recipe.name
    axes = {"data": recipe.data, "loss": recipe.loss, "seed": recipe.seed, ARITHMETIC: recipe.precision}
    axes |= AS_AUTHORS.get(recipe.data, {})
    return recipe.differences(named(whole, **axes, **({"model": recipe.model} if recipe.model in MODELS else {})))
