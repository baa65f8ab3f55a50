"""The papers: their grids, their published numbers as data, their claims with a verdict each, their figures.

Every paper is a module with ``reproduce(results, ...) -> Reproduction``, ``recipes() -> {name: Recipe}`` and
``draw(results, folder) -> list of files``. One that needs more of a run than its predictions, while its weights are
there, names ``FILES`` and has ``measure_run(folder, device=, data_dir=, progress=)``, which writes them. One that
studies any run, not only those of its grid, says ``ANY_RUN = True``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from trueup.inputs import InputError
from trueup.papers.page import page, pages_at, write_page
from trueup.papers.reproduction import Reproduction
from trueup.papers.retraining import measure_runs, named_so, open_runs, retrain
from trueup.papers.stored import run_name, store
from trueup.train import load_run

PAPERS = ("mukhoti2020", "lossfunctions", "komisarenko2024", "charoenphakdee2021", "kimura2024")

__all__ = [
    "PAPERS", "chosen", "measure_runs", "named_so", "open_runs", "page", "pages_at", "reproduced", "results_folder",
    "retrain", "score_shift", "take_in", "write_page",
]  # fmt: skip


def chosen(name: str) -> dict[str, Any]:
    """The module of a paper, or of all of them, by name."""
    if name not in (*PAPERS, "all"):
        raise InputError(f"unknown paper {name!r}; known: {', '.join(PAPERS)}, and all")
    return {each: import_module(f"trueup.papers.{each}") for each in PAPERS if name in (each, "all")}


def reproduced(
    module: Any, results: Path, *, resamples: int, data_dir: Path | None = None, progress: Any = None
) -> Reproduction:
    """A paper's reproduction; ``data_dir`` is for those that also read public logits or data."""
    more = {"data_dir": data_dir} if getattr(module, "READS_DATA", False) else {}
    return module.reproduce(results, resamples=resamples, progress=progress, **more)


def score_shift(modules: Mapping[str, Any], results: Path, runs: Sequence[Path], **options: Any) -> None:
    """Runs with their weights, on corrupted images, for a paper that asks for it."""
    if runs and (len(modules) > 1 or not all(hasattr(module, "score_shift") for module in modules.values())):
        raise InputError("--shift: it is komisarenko2024 that asks for corrupted images; name that paper")
    for module in modules.values() if runs else ():
        module.score_shift(results, list(runs), **options)


def results_folder(given: Path | None = None, *, new: bool = False) -> Path:
    """Where results lie: as given, else ``results`` here if it holds those of a paper, else that of the clone which
    this package runs from. Only what is to be filled may be ``new``."""
    here, clone = Path("results"), Path(__file__).parents[3] / "results"
    if given is None:
        return clone if clone.is_dir() and not any((here / paper).is_dir() for paper in PAPERS) else here
    if not new and not given.is_dir():
        raise InputError(f"{given}: no such folder; results/ of a clone of the repository holds the stored runs")
    return given


def take_in(
    modules: Mapping[str, Any], results: Path, runs: Sequence[Path], authors: bool, data_dir: Path | None
) -> None:
    """Stores complete runs; with ``authors``, also what a paper's own networks give, where their logits are public."""
    if (runs or authors) and len(modules) > 1:
        raise InputError("--store and --authors: name one paper")
    for name, module in modules.items():
        for folder in () if getattr(module, "ANY_RUN", False) else runs:
            recipe = load_run(folder).recipe
            if run_name(recipe) not in module.recipes():
                raise InputError(
                    f"--store {folder}: {run_name(recipe)} is no run of {name}'s grid; nothing was stored "
                    f"(trueup reproduce {name} --json lists what is missing)"
                )
        store(runs, results / name)
        if authors and not hasattr(module, "authors"):
            raise InputError(f"--authors: no network of {name} is public")
        if authors:
            module.authors.compute(results / name, data_dir)
