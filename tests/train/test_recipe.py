"""Recipes: valid, frozen, told apart by their digests."""

import json
from dataclasses import FrozenInstanceError, fields, replace

import pytest
import torch

from trueup import losses, models
from trueup.data import registry as sources
from trueup.inputs import InputError
from trueup.train import RECIPES, Recipe, named


def test_a_digest_is_the_same_for_ever():
    assert Recipe().digest == "815c643c361c25e9"
    assert named("mukhoti2020").digest == "782e96ded0862be0"


@pytest.mark.parametrize("name", RECIPES)
def test_every_named_recipe_is_valid(name):
    recipe = RECIPES[name]
    assert recipe.name == name
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    losses.parse(recipe.loss, reduction=recipe.loss_reduction)
    source, _ = sources.parse(recipe.data)
    shape = {
        "cifar10": (3, 32, 32), "digits": (1, 8, 8), "gaussians": (5,),
        "tiny-imagenet": (3, 64, 64), "20newsgroups": (1000,), "sst": (9, 2),
    }[source]  # fmt: skip
    models.build(recipe.model, 10, shape, torch.zeros(5, 3) if recipe.model in models.OF_WORDS else None)
    assert all(0 < m < recipe.epochs for m in recipe.milestones)


def test_every_field_but_the_name_is_in_the_digest():
    other = {
        "data": "gaussians", "model": "linear", "loss": "brier", "seed": 5, "split": "wang2021", "split_seed": 3,
        "epochs": 31, "lr": 0.2, "milestones": (3,), "factors": (0.5,), "optimiser": "adam", "momentum": 0.5,
        "nesterov": True, "weight_decay": 1e-4, "batch": 17, "augmentation": "crop-flip", "normalisation": "none",
        "reduction": "sum", "clip": 1.0, "precision": "float32", "keep": "best-val", "embedding_lr": 0.0,
    }  # fmt: skip
    base = Recipe()
    assert set(other) | {"name"} == {field.name for field in fields(Recipe)}
    assert replace(base, name="other").digest == base.digest
    made = [base.digest]
    for field, value in other.items():
        pair = {"milestones": {"factors": (1.0,)}, "factors": {"milestones": (4,)}}.get(field, {})
        made.append(replace(base, **{field: value}, **pair).digest)
    assert len(set(made)) == len(made)


def test_a_whole_number_and_the_same_float_are_one_recipe():
    assert replace(Recipe(), lr=1, clip=2).digest == replace(Recipe(), lr=1.0, clip=2.0).digest


def test_a_recipe_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Recipe().lr = 3.0  # type: ignore[misc]


def test_the_learning_rates_of_mukhoti2020():
    lr = [named("mukhoti2020").lr_at(epoch) for epoch in (0, 149, 150, 249, 250, 349)]
    assert lr == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert Recipe(milestones=(), factors=()).lr_at(10**6) == 0.1


def test_brier_is_averaged_where_the_authors_average_it_and_a_setting_wins():
    assert named("mukhoti2020").reduction == "sum"
    assert named("mukhoti2020", loss="brier").reduction == "mean"
    assert named("mukhoti2020", loss="brier", reduction="sum").reduction == "sum"


def test_settings_are_read_from_text():
    made = named("digits", epochs="7", milestones="2,5", factors="0.5,0.1", clip="none", nesterov="true", lr="1e-2")
    assert (made.epochs, made.milestones, made.factors) == (7, (2, 5), (0.5, 0.1))
    assert (made.clip, made.nesterov, made.lr) == (None, True, 0.01)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"epoch": "3"}, "unknown setting 'epoch'; a recipe has name, data, model"),
        ({"epochs": "many"}, "epochs: 'many' cannot be read; an example is 30"),
        ({"epochs": "0"}, "epochs: expected a whole number of at least 1"),
        ({"lr": "-1"}, "lr: expected a number of at least 0"),
        ({"lr": "nan"}, "lr: expected"),
        ({"momentum": "1"}, "momentum"),
        ({"clip": "0"}, "clip: expected a number above 0"),
        ({"milestones": "5,3", "factors": "1,1"}, "milestones: expected rising epochs"),
        ({"milestones": "5", "factors": ""}, "milestones: 1 of them, but 0 factors"),
        ({"reduction": "none"}, "reduction: expected one of mean, sum"),
        ({"keep": "all"}, "keep: expected one of last, best-val"),
        ({"optimiser": "adam", "nesterov": "yes"}, "nesterov"),
        ({"nesterov": "perhaps"}, "nesterov: 'perhaps'"),
        ({"model": ""}, "model: expected a name"),
    ],
)
def test_bad_settings_say_what_is_wrong(settings, says):
    with pytest.raises(InputError, match="^" + says.replace("(", r"\(")):
        named("digits", **settings)


def test_bad_recipes_say_what_is_wrong():
    with pytest.raises(InputError, match="unknown recipe 'digit'; known: mukhoti2020"):
        named("digit")
    with pytest.raises(InputError, match="colour"):
        Recipe.from_dict(Recipe().to_dict() | {"colour": 1})
