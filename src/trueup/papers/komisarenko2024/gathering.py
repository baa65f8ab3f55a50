"""All that the answers are drawn from: the networks' figures, the bounds, the histories, the corrupted images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from trueup.papers.komisarenko2024 import bounds, shift
from trueup.papers.komisarenko2024.measure import VERSION, measure
from trueup.papers.komisarenko2024.networks import Network, Shelf, networks, training_gamma
from trueup.papers.stored import load_runs

BOUNDS_VERSION = 1


@dataclass(frozen=True)
class Study:
    """What is known."""

    networks: list[dict[str, Any]]
    """An entry for each, as ``measure`` gives it."""
    bounds: list[bounds.Bounds]
    histories: dict[str, dict[str, Any]]
    """Run -> its loss, gamma, net and, for train and test, quantities after every epoch."""
    shift: list[dict[str, Any]]
    notes: list[str]


def gather(
    results: Path,
    *,
    resamples: int = 300,
    data_dir: Path | None = None,
    workers: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Study:
    """Computes what is not stored yet, network by network, and stores it; a stopped run goes on where it was."""
    own = results / "komisarenko2024"
    here, notes = networks(results, data_dir)
    shelf = Shelf(own / "networks", VERSION)
    sums = {network.name: network.sums for network in here}
    waiting = [network for network in here if shelf.fresh(network.name, sums[network.name], resamples) is None]
    pages = Shelf(own, BOUNDS_VERSION)
    jobs: list[Network | str] = [*waiting, *(["bounds"] if pages.fresh("bounds", {}) is None else [])]
    for i, (job, content) in enumerate(_computed(jobs, resamples, workers or _cores())):
        if isinstance(job, Network):
            shelf.put(job.name, content, sums[job.name])
        else:
            pages.put(job, content, {})
        if progress:
            progress((i + 1) / (len(jobs) + 1))
    names = [network.name for network in here]
    elsewhere = []
    for name in shelf.names():
        found = shelf.stored(name)
        if name not in sums and found is not None and not found["ours"]:
            elsewhere.append(name)
    if elsewhere:
        notes.append(f"{len(elsewhere)} sets of public logits: figures as stored, the logits are not here")
    known = [found for name in sorted({*names, *elsewhere}) if (found := shelf.stored(name)) is not None]
    known.sort(key=lambda found: (found["ours"], found["classes"], found["name"]))
    made = [bounds.Bounds(**each) for each in (pages.stored("bounds") or {})["bounds"]]
    if progress:
        progress(1.0)
    return Study(known, made, dict(_histories(results)), shift.stored(own), notes)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _computed(
    jobs: list[Network | str], resamples: int, workers: int
) -> Iterator[tuple[Network | str, dict[str, Any]]]:
    """Side by side on the cores that there are, one thread each, as they are ready."""
    if workers == 1 or len(jobs) < 2:
        yield from ((job, _compute(job, resamples)) for job in jobs)
        return
    pool = ProcessPoolExecutor(min(workers, len(jobs)), get_context("spawn"), torch.set_num_threads, (1,))
    try:
        # the longest first: one that is left alone at the end keeps the other cores idle
        ordered = sorted(jobs, key=lambda job: -job.val.stat().st_size if isinstance(job, Network) else -1e12)
        futures = {pool.submit(_compute, job, resamples): job for job in ordered}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _compute(job: Network | str, resamples: int) -> dict[str, Any]:
    if isinstance(job, Network):
        return measure(job, resamples)
    return {"bounds": [bounds.bounds(k, gamma).to_dict() for k in bounds.CLASSES for gamma in bounds.GAMMAS]}


def _histories(results: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The runs whose loss has a focal gamma, cross-entropy's being 0."""
    for folder in sorted(path for path in results.iterdir() if (path / "runs").is_dir()):
        for name, run in load_runs(folder).items():
            gamma = training_gamma(run.recipe.loss)
            if gamma is None:
                continue
            epochs = {
                part: [
                    {"accuracy": 1 - entry[part]["error"], "true_probability": entry[part]["true_probability"],
                     "ece": entry[part]["ece"]}
                    for entry in run.history
                ]
                for part in ("train", "test")
            }  # fmt: skip
            yield name, {"loss": run.recipe.loss, "gamma": gamma, "model": run.recipe.model, "data": run.recipe.data,
                         "recipe": run.recipe.to_dict(), "epochs": epochs}  # fmt: skip
