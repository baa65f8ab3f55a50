"""Trains what a paper's grid has and the results do not: each run can be stopped at any moment, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path

from trueup import data as sources
from trueup.inputs import InputError, count
from trueup.papers.stored import store
from trueup.train import Recipe
from trueup.train.run import is_complete
from trueup.train.worker import Event, Task, run_all


def open_runs(recipes: dict[str, Recipe], results: Path, only: str | None = None) -> dict[str, Recipe]:
    """The runs of a grid that no paper has under ``results``; ``only`` is a pattern of their names, as "*resnet50*"."""
    chosen = {name: recipe for name, recipe in recipes.items() if only is None or fnmatch(name, only)}
    if not chosen:
        raise InputError(f"--only {only}: no run of the grid is named so; the names are {', '.join(recipes)}")
    there = {path.parent.name for path in results.glob("*/runs/*/run.json")}
    return {name: recipe for name, recipe in chosen.items() if name not in there}


def retrain(
    recipes: dict[str, Recipe],
    target: Path,
    work: Path,
    *,
    jobs: int = 1,
    device: str = "auto",
    mode: str = "auto",
    data_dir: Path | None = None,
    watch: Callable[[Sequence[Task], Event | None], None] | None = None,
) -> dict[str, str]:
    """Trains each recipe in ``work``/NAME and takes it into ``target``; the runs that failed, and why."""
    count(jobs, "jobs")
    for name, split, seed in {(recipe.data, recipe.split, recipe.split_seed) for recipe in recipes.values()}:
        sources.load(name, data_dir, split=split, seed=seed)  # what is missing is told before all work
    options = {"device": device, "mode": mode, "half": True, "data_dir": None if data_dir is None else str(data_dir)}
    tasks = [Task(name, recipe, work / name, options) for name, recipe in recipes.items()]
    waiting = [task for task in tasks if not is_complete(task.folder, task.recipe)]
    logs = work / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    if watch is not None:
        watch(waiting, None)
    try:
        failed = run_all(waiting, jobs, logs, None if watch is None else lambda event: watch(waiting, event))
    finally:
        store([task.folder for task in tasks if is_complete(task.folder, task.recipe)], target)
    return failed
