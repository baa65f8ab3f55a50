"""A study: a grid of runs, each judged before and after calibration, and a table with intervals."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from trueup import data as sources
from trueup import models
from trueup.calibrators import calibrator
from trueup.data import Dataset
from trueup.inputs import InputError, count
from trueup.train.loop import check_mode, check_names, chosen_device
from trueup.train.recipe import DEFAULT, Recipe, named, recipe_for
from trueup.train.run import Run, is_complete, whole_run
from trueup.train.worker import Event, Task, run_all

FIXED_FOCAL = re.compile(r"focal:([0-9.]+)")


def folder_name(recipe: Recipe) -> str:
    """A name for the run of a recipe: what people look for, and the digest, which tells it from all others."""
    parts = (recipe.data, recipe.model, recipe.loss, f"seed{recipe.seed}", recipe.digest[:8])
    return "_".join(re.sub(r"[^\w.+-]+", "-", part) for part in parts)


@dataclass(frozen=True)
class Study:
    """data x models x losses x seeds, each run calibrated by every one of the calibrators.

    The calibrator "focal-map" stands for the map with the training gamma: it is there after a fixed focal loss only.
    """

    name: str
    recipe: str
    losses: tuple[str, ...]
    calibrators: tuple[str, ...] = ("none", "temperature", "focal-temperature", "focal-map")
    seeds: tuple[int, ...] = (0, 1, 2)
    data: tuple[str, ...] = ()
    """The recipe's own where none is named; models likewise."""
    models: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the recipe, other than its own."""
    by_data: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further settings for the runs of a data set; ``settings`` win."""
    redraw: bool = False
    """Each seed draws its own samples (split_seed = seed), where they are made and not stored: the spread over the
    seeds is then that of the whole experiment."""

    def __post_init__(self) -> None:
        for axis in ("losses", "calibrators", "seeds", "data", "models"):
            values = getattr(self, axis)
            if not values and axis not in ("data", "models"):
                raise InputError(f"{axis}: none is named")
            if len(set(values)) != len(values):
                raise InputError(f"{axis}: {', '.join(map(str, values))} names one twice")
        for each in self.calibrators:
            if each != "focal-map":
                calibrator(each)

    def recipes(self) -> dict[str, Recipe]:
        """By the name of the run's folder, which tells the recipe by its digest. A bad name is told before all work."""
        base, found = named(self.recipe), {}
        grid = product(self.data or (base.data,), self.models or (base.model,), self.losses, self.seeds)
        for data, model, loss, seed in grid:
            settings = {"split_seed": seed} if self.redraw else {}
            settings |= self.by_data.get(data, {}) | self.settings
            made = named(self.recipe, data=data, model=model, loss=loss, seed=seed, **settings)
            check_names(made)
            found[folder_name(made)] = made
        return found

    def calibrators_of(self, loss: str) -> dict[str, str]:
        """The name in the table -> the calibrator, for the runs of a loss."""
        fixed = FIXED_FOCAL.fullmatch(loss)
        found = {}
        for each in self.calibrators:
            if each != "focal-map":
                found[each] = each
            elif fixed:
                found[each] = f"focal-map:{fixed[1]}"
        return found


_LOSSES = (
    "cross-entropy", "brier", "cross-entropy+mmce:2", "label-smoothing:0.05", "focal:1", "focal:2", "focal:3",
    "flsd-53", "focal-schedule:5,3,2", "dual-focal:5", "cross-entropy+entropy:0.1", "cross-entropy+l1:0.01",
)  # fmt: skip

_OF_TEXTS = tuple(loss.replace("mmce:2", "mmce:8") for loss in _LOSSES)
"""MMCE weighs more on texts, as in mukhoti2020."""

# 400 steps each, whatever the number of samples. Adam, because the gradients of focal loss shrink with gamma, and under
# SGD one learning rate would train one gamma further than another.
_GAUSSIANS = {
    f"gaussians:classes={classes},train={train},test=2000": {
        "epochs": epochs, "batch": train * epochs // 400, "milestones": (epochs * 6 // 10, epochs * 9 // 10),
    }
    for classes in (2, 10, 100)
    for train, epochs in ((200, 20), (1000, 10), (10_000, 5))
    if train >= 20 * classes
}  # fmt: skip

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study("digits", recipe="digits", losses=_LOSSES),
        Study(
            "gaussians",
            recipe="gaussians",
            losses=("cross-entropy", "focal:1", "focal:2", "focal:3", "focal:5"),
            seeds=(0, 1, 2, 3, 4),
            data=tuple(_GAUSSIANS),
            models=("linear", "mlp", "mlp:400,400"),
            settings={"optimiser": "adam", "lr": 0.02},
            by_data=_GAUSSIANS,
            redraw=True,
        ),
        Study("20newsgroups", recipe="mukhoti2020-20newsgroups", losses=_OF_TEXTS),
        Study("sst", recipe="mukhoti2020-sst", losses=_OF_TEXTS),
    )
}
"""By name."""


def study_named(name: str | None = None, **changes: Any) -> Study:
    """The study of that name with other losses, seeds, calibrators ...; None leaves one as it is.

    Without a name it is the study that is named as the data set, where there is one (texts need nets and an optimiser
    of their own), else that of digits with the recipe for the data, under their name. ``settings`` are added to the
    study's own; with another recipe they take the place of all of them.
    """
    changes = {k: v for k, v in changes.items() if v is not None}
    if name is None:
        asked = list(dict.fromkeys(data.partition(":")[0] for data in changes.get("data", ())))
        name = asked[0] if len(asked) == 1 and asked[0] in STUDIES else DEFAULT
        if asked and name == DEFAULT:
            changes["name"] = "-".join(asked)  # not in the folder of another
            if "recipe" not in changes:
                changes["recipe"] = recipe_for(*asked)
    if name not in STUDIES:
        raise InputError(f"unknown study {name!r}; known: {', '.join(STUDIES)}")
    base = STUDIES[name]
    if "recipe" in changes:
        base = replace(base, settings={}, by_data={})
    return replace(base, **changes | {"settings": base.settings | changes.get("settings", {})})


@dataclass(frozen=True)
class StudyRuns:
    """The runs of a study, and why others failed."""

    study: Study
    runs: tuple[Run, ...]
    failed: dict[str, str]


def run_study(
    study: Study,
    folder: str | Path,
    *,
    jobs: int | None = None,
    device: str = "auto",
    mode: str = "auto",
    data_dir: str | Path | None = None,
    watch: Callable[[Sequence[Task], Event | None], None] | None = None,
) -> StudyRuns:
    """Runs what is not complete yet, each in a folder of its own under ``folder``, ``jobs`` at a time.

    A run that fails is reported and does not stop the others. ``watch`` is called once with all tasks before the first
    event, and then with each. Without ``jobs`` a GPU has one run at a time, and a CPU one for each core.
    """
    place = chosen_device(device)
    check_mode(mode, place)
    jobs = count(jobs, "jobs") if jobs is not None else 1 if place.type == "cuda" else os.cpu_count() or 1
    folder = Path(folder)
    recipes = study.recipes()
    options = {"device": str(place), "mode": mode, "data_dir": None if data_dir is None else str(data_dir)}
    open_tasks = [
        Task(name, recipe, folder / name, options)
        for name, recipe in recipes.items()
        if not is_complete(folder / name, recipe)
    ]
    check_data_and_nets([task.recipe for task in open_tasks], data_dir)
    if watch is not None:
        watch(open_tasks, None)
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    failed = run_all(open_tasks, jobs, logs, None if watch is None else lambda event: watch(open_tasks, event))
    runs = []
    for name in recipes:
        if name not in failed:
            try:
                runs.append(whole_run(folder / name))
            except InputError as error:  # a file that was damaged later: the others have their table all the same
                failed[name] = str(error)
    failed |= of_other_data(runs)
    return StudyRuns(study, tuple(run for run in runs if run.folder.name not in failed), failed)


def of_other_data(runs: Sequence[Run]) -> dict[str, str]:
    """Runs by name whose data have changed since, as where a file was replaced: beside the newest of the same data set
    and split they would be compared with what was trained and tested on something else."""
    newest: dict[tuple[str, str, int], Run] = {}
    for run in sorted(runs, key=lambda run: run.info["date"]):
        newest[run.recipe.data, run.recipe.split, run.recipe.split_seed] = run
    found = {}
    for run in runs:
        other = newest[run.recipe.data, run.recipe.split, run.recipe.split_seed]
        if run.info.get("data_checksum") != other.info.get("data_checksum"):
            found[run.folder.name] = (
                f"{run.recipe.data} has changed since it was trained (another checksum than in {other.folder.name}); "
                f"remove {run.folder}, and the same command trains the run anew"
            )
    return found


def check_data_and_nets(recipes: Sequence[Recipe], data_dir: str | Path | None) -> None:
    """What no run of a data set or net could do without is told once, before all work."""
    loaded: dict[tuple[str, str], Dataset] = {}
    for recipe in {(recipe.data, recipe.split, recipe.model): recipe for recipe in recipes}.values():
        key = recipe.data, recipe.split
        if key not in loaded:
            loaded[key] = sources.load(recipe.data, data_dir, split=recipe.split, seed=recipe.split_seed)
        data = loaded[key]
        models.build(recipe.model, data.classes, data.input_shape, data.words)
