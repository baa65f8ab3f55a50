"""Recipes of a fraction of a second."""

from trueup.train import Recipe

SMALL = Recipe(
    data="gaussians:classes=3,dimension=2,train=90,val=30,test=60",
    model="mlp:8",
    loss="focal-schedule:5,3,2",
    epochs=6,
    lr=0.1,
    milestones=(2, 4),
    factors=(0.1, 0.01),
    weight_decay=1e-3,
    batch=32,
    reduction="sum",
    clip=2.0,
)


def but_for_seconds(history):
    return [{k: v for k, v in entry.items() if not k.startswith("seconds")} for entry in history]
