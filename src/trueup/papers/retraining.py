"""Trains what a paper's grid has and the results do not: each run can be stopped at any moment, and goes on; each that
is complete is in the results at once, whatever happens to those after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from trueup.files import fault
from trueup.inputs import InputError, count
from trueup.papers.stored import store
from trueup.train import Recipe
from trueup.train.loop import chosen_device
from trueup.train.run import is_complete
from trueup.train.study import check_data_and_nets
from trueup.train.worker import Event, Task, run_all


def named_so(grids: Mapping[str, dict[str, Recipe]], only: str | None) -> dict[str, dict[str, Recipe]]:
    """Of each grid the runs whose names fit the pattern ``only``, as "*resnet50*"; of some grid there has to be one."""
    found = {
        paper: {name: recipe for name, recipe in recipes.items() if only is None or fnmatch(name, only)}
        for paper, recipes in grids.items()
    }
    if only is not None and not any(found.values()):
        names = dict.fromkeys(name for recipes in grids.values() for name in recipes)
        raise InputError(f"--only {only}: no run of the grid is named so; the names are {', '.join(names)}")
    return found


def open_runs(chosen: dict[str, Recipe], results: Path, files: Sequence[str] = ()) -> dict[str, Recipe]:
    """The runs that no paper has under ``results``, with these ``files`` of their own."""
    stored = [path.parent for place in ("runs", "tables") for path in results.glob(f"*/{place}/*/run.json")]
    there = {path.name for path in stored if all((path / name).is_file() for name in files)}
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
    check_data_and_nets(list(recipes.values()), data_dir)
    place = str(chosen_device(device))
    options = {"device": place, "mode": mode, "half": True, "data_dir": None if data_dir is None else str(data_dir)}
    tasks = [Task(name, recipe, work / name, options) for name, recipe in recipes.items()]
    waiting = [task for task in tasks if not is_complete(task.folder, task.recipe)]
    unkept: dict[str, str] = {}
    logs = work / "logs"
    logs.mkdir(parents=True, exist_ok=True)

    def keep(task: Task) -> None:
        try:
            store([task.folder], target)
        except (InputError, OSError) as error:  # the others are trained all the same
            unkept[task.name] = fault(error)

    def follow(event: Event) -> None:
        if watch is not None:
            watch(waiting, event)
        if event.kind == "done":
            keep(event.task)

    for task in tasks:
        if task not in waiting:
            keep(task)
    if watch is not None:
        watch(waiting, None)
    return run_all(waiting, jobs, logs, follow) | unkept


def measure_runs(
    module: Any,
    recipes: dict[str, Recipe],
    target: Path,
    work: Path,
    *,
    device: str = "auto",
    data_dir: Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[str, str]:
    """Has a paper measure what it needs of each complete run in ``work``, and keeps it; what failed, and why."""
    ready = [name for name, recipe in recipes.items() if is_complete(work / name, recipe)]
    failed = {}
    for i, name in enumerate(ready):

        def share(of_run: float, done: int = i) -> None:
            if progress is not None:
                progress((done + of_run) / len(ready))

        try:
            if not all((work / name / file).is_file() for file in module.FILES):
                module.measure_run(work / name, device=device, data_dir=data_dir, progress=share)
            store([work / name], target)
        except (InputError, OSError) as error:  # the next run is measured all the same
            failed[name] = fault(error)
    return failed
