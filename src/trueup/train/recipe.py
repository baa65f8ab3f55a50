"""A recipe: everything that decides what a training gives, frozen, with a digest.

>>> from trueup.train import named
>>> recipe = named("mukhoti2020-short", loss="focal:3", seed=1)
>>> recipe.epochs, recipe.lr_at(44), round(recipe.lr_at(45), 6)
(105, 0.1, 0.01)
>>> recipe.digest == named("mukhoti2020-short", loss="focal:3", seed=2).digest
False
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from trueup.inputs import InputError, count, positive

CHOICES = {
    "optimiser": ("sgd", "adam", "adamw", "adagrad"),
    "augmentation": ("none", "crop-flip"),
    "normalisation": ("data", "none", "imagenet-test"),
    "reduction": ("mean", "sum", "per-sample"),
    "precision": ("auto", "float32", "bf16"),
    "keep": ("last", "best-val"),
}
LABELS = ("name",)
"""Fields that only name a recipe: they are not in the digest."""
LATER: dict[str, Any] = {"embedding_lr": None}
"""Fields that earlier recipes do not have, and their value there, at which they are not in the digest either."""


@dataclass(frozen=True)
class Recipe:
    """What is trained on what, and how. Epochs are counted from 0."""

    name: str = "custom"
    data: str = "digits"
    """A source of ``trueup.data`` with its options, as in "gaussians:classes=10"."""
    model: str = "cnn"
    loss: str = "cross-entropy"
    """In the language of ``trueup.losses.parse``."""
    seed: int = 0
    """Of the first weights, the order of the samples, their augmentation, and dropout."""
    split: str = "seeded"
    split_seed: int = 0
    """Of the train and val split: the same for all seeds, so that runs can be compared sample by sample."""
    epochs: int = 30
    lr: float = 0.1
    milestones: tuple[int, ...] = ()
    """The epochs from which the learning rate is ``lr`` times the factor beside it."""
    factors: tuple[float, ...] = ()
    optimiser: str = "sgd"
    momentum: float = 0.9
    """Of SGD; beta_1 of Adam."""
    nesterov: bool = False
    weight_decay: float = 0.0
    """Of all parameters, biases and batch norms among them, as the papers' code has it."""
    batch: int = 128
    """The last batch of an epoch holds what is left."""
    augmentation: str = "none"
    """crop-flip: four black pixels around, a random crop to the old size, a random mirror image."""
    normalisation: str = "data"
    """data: with the mean and standard deviation of the data; none: pixels in [0, 1]; imagenet-test: as data, but the
    test images with ImageNet's, which is what the code of mukhoti2020 does on CIFAR-100. These are scored both ways."""
    reduction: str = "mean"
    """Over all losses of a batch; per-sample: the sum over the nodes of each tree, and the mean of these."""
    clip: float | None = None
    """The largest norm of the whole gradient."""
    precision: str = "auto"
    """auto: bf16 autocast on a GPU, float32 on a CPU."""
    keep: str = "last"
    """Which epoch's weights are kept: the last, or the first with the lowest error on val. Then both are scored."""
    embedding_lr: float | None = None
    """Of plain SGD on the word vectors; 0 leaves them as they are; None trains them as all else."""

    def __post_init__(self) -> None:
        for field, known in CHOICES.items():
            if getattr(self, field) not in known:
                raise InputError(f"{field}: expected one of {', '.join(known)}, got {getattr(self, field)!r}")
        for field, least in (("epochs", 1), ("batch", 1), ("seed", 0), ("split_seed", 0)):
            count(getattr(self, field), field, least)
        for field in ("name", "data", "model", "loss", "split"):
            if not isinstance(getattr(self, field), str) or not getattr(self, field):
                raise InputError(f"{field}: expected a name, got {getattr(self, field)!r}")
        for field in ("lr", "momentum", "weight_decay"):
            object.__setattr__(self, field, _not_negative(getattr(self, field), field))
        object.__setattr__(self, "factors", tuple(_not_negative(factor, "factors") for factor in self.factors))
        if self.momentum >= 1:
            raise InputError(f"momentum: expected a number below 1, got {self.momentum:g}")
        if self.clip is not None:
            object.__setattr__(self, "clip", positive(self.clip, "clip"))
        if self.embedding_lr is not None:
            object.__setattr__(self, "embedding_lr", _not_negative(self.embedding_lr, "embedding_lr"))
        if len(self.milestones) != len(self.factors):
            raise InputError(f"milestones: {len(self.milestones)} of them, but {len(self.factors)} factors")
        for earlier, later in pairwise((0, *self.milestones)):
            if count(later, "milestones") <= earlier:
                raise InputError(f"milestones: expected rising epochs, got {', '.join(map(str, self.milestones))}")
        if self.nesterov and (self.optimiser != "sgd" or not self.momentum):
            raise InputError("nesterov: only sgd with momentum has it")

    @property
    def loss_reduction(self) -> str:
        """What the loss does with a batch: for per-sample the sum, which a step then divides by the samples."""
        return "sum" if self.reduction == "per-sample" else self.reduction

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch, the first being 0."""
        passed = bisect_right(self.milestones, epoch)
        return self.lr * self.factors[passed - 1] if passed else self.lr

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Recipe:
        """What ``to_dict`` gave, in this release or an earlier one; a field that is missing or unknown is an error."""
        known, content = {field.name for field in fields(cls)}, LATER | dict(content)
        if set(content) != known:
            raise InputError(f"recipe: fields {', '.join(sorted(set(content) ^ known))} are missing or unknown")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
        return cls(**values)

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal characters over every field that matters."""
        content = {k: v for k, v in self.to_dict().items() if k not in LABELS and (k not in LATER or v != LATER[k])}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def changed(self, settings: Mapping[str, Any]) -> Recipe:
        """The same with other settings; texts are read as the field they are for ("150,250", "none", "0.1")."""
        for field in settings:
            if field not in _READERS:
                raise InputError(f"unknown setting {field!r}; a recipe has {', '.join(_READERS)}")
        return replace(self, **{k: _read(k, v) if isinstance(v, str) else v for k, v in settings.items()})

    def differences(self, other: Recipe) -> list[str]:
        """The fields that matter and differ, as "lr 0.1, not 0.2"."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [f"{k} {mine[k]}, not {theirs[k]}" for k in mine if mine[k] != theirs[k] and k not in LABELS]


def _not_negative(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InputError(f"{field}: expected a number of at least 0, got {value!r}")
    return float(value)


def _truth(text: str) -> bool:
    return {"true": True, "false": False, "yes": True, "no": False}[text.lower()]


def _several(read: Any) -> Any:
    return lambda text: tuple(read(part) for part in text.split(",") if part.strip())


_READERS: dict[str, Any] = {
    **{field.name: str for field in fields(Recipe)},
    **dict.fromkeys(("seed", "split_seed", "epochs", "batch"), int),
    **dict.fromkeys(("lr", "momentum", "weight_decay"), float),
    "milestones": _several(int),
    "factors": _several(float),
    "nesterov": _truth,
    "clip": lambda text: None if text.lower() == "none" else float(text),
    "embedding_lr": lambda text: None if text.lower() == "none" else float(text),
}


def _read(field: str, text: str) -> Any:
    try:
        return _READERS[field](text)
    except (ValueError, KeyError):
        raise InputError(f"{field}: {text!r} cannot be read; an example is {_example(field)}") from None


def _example(field: str) -> str:
    examples = {"milestones": "150,250", "factors": "0.1,0.01", "nesterov": "true", "clip": "2 or none"}
    examples |= {"embedding_lr": "0.1 or none"}
    return examples.get(field) or str(getattr(Recipe, field))


# The learning rate falls at epochs 150 and 250, as the paper says. In the authors' code the scheduler steps before the
# epoch, so that it falls one epoch earlier: milestones=149,249.
_MUKHOTI = Recipe(
    name="mukhoti2020", data="cifar10", model="resnet50", split="mukhoti2020", epochs=350, lr=0.1,
    milestones=(150, 250), factors=(0.1, 0.01), weight_decay=5e-4, batch=128, augmentation="crop-flip",
    reduction="sum", clip=2.0,
)  # fmt: skip

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        _MUKHOTI,
        replace(_MUKHOTI, name="mukhoti2020-short", epochs=105, milestones=(45, 75)),
        # all 100 000 images train; those that validate are those that test, as in the authors' code
        replace(
            _MUKHOTI, name="mukhoti2020-tiny", data="tiny-imagenet", model="resnet50-tiny", epochs=100,
            milestones=(40, 60), batch=64,
        ),
        Recipe(
            name="mukhoti2020-20newsgroups", data="20newsgroups", model="text-cnn", epochs=50, lr=1e-3,
            optimiser="adam", batch=128, keep="best-val", embedding_lr=0.0,
        ),
        Recipe(
            name="mukhoti2020-sst", data="sst", model="tree-lstm", epochs=25, lr=0.05, optimiser="adagrad",
            weight_decay=1e-4, batch=25, reduction="per-sample", precision="float32", keep="best-val", embedding_lr=0.1,
        ),
        Recipe(
            name="wang2021", data="cifar10", model="resnet32", split="wang2021", epochs=200, lr=0.1,
            milestones=(100, 150), factors=(0.1, 0.01), weight_decay=1e-4, batch=512, augmentation="crop-flip",
        ),
        Recipe(
            name="digits", data="digits", model="mlp", epochs=30, lr=0.1, milestones=(20, 26), factors=(0.1, 0.01),
            weight_decay=1e-4, batch=64,
        ),
        Recipe(
            name="gaussians", data="gaussians", model="mlp", epochs=40, lr=0.05, milestones=(25, 35),
            factors=(0.1, 0.01), batch=100,
        ),
    )
}  # fmt: skip
"""By name. ``named`` gives one with other settings."""

BY_DATA = {
    "gaussians": "gaussians", "tiny-imagenet": "mukhoti2020-tiny", "20newsgroups": "mukhoti2020-20newsgroups",
    "sst": "mukhoti2020-sst",
}  # fmt: skip
"""The recipe of a data set, where none is named; all others have that of digits."""
DEFAULT = "digits"

BY_LOSS: dict[str, dict[str, dict[str, Any]]] = {
    "mukhoti2020": {"brier": {"reduction": "mean"}},
    "mukhoti2020-short": {"brier": {"reduction": "mean"}},
    "mukhoti2020-tiny": {"brier": {"reduction": "mean", "lr": 0.035}},
}
"""What a recipe does otherwise for a loss: the authors' code sums every loss over the batch but Brier's."""


def recipe_for(*data: str) -> str:
    """The name of the recipe for data sets where none is named; an error where one is not for all.

    >>> recipe_for("sst:vectors=glove.6B.100d"), recipe_for("digits"), recipe_for()
    ('mukhoti2020-sst', 'digits', 'digits')
    """
    found = {each: BY_DATA.get(each.partition(":")[0], DEFAULT) for each in data}
    if len(set(found.values())) > 1:
        told = ", ".join(f"{each} with {recipe}" for each, recipe in found.items())
        raise InputError(f"data: one study at a time: {told}; or name a recipe for all of them")
    return next(iter(found.values()), DEFAULT)


def named(name: str, /, **settings: Any) -> Recipe:
    """The recipe of that name with other settings, which win over what the recipe does for a loss."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}")
    base = RECIPES[name]
    return base.changed(BY_LOSS.get(name, {}).get(settings.get("loss", base.loss), {}) | settings)
