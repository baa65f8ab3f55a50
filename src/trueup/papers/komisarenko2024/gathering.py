"""All that the answers are drawn from: the networks' figures, the bounds, the histories, the corrupted images."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

from trueup.inputs import InputError
from trueup.papers.komisarenko2024 import bounds, shift
from trueup.papers.komisarenko2024.measure import VERSION, measure
from trueup.papers.komisarenko2024.networks import Network, Shelf, networks, training_gamma
from trueup.papers.stored import load_runs

BOUNDS_VERSION = 1
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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
    if not here and not shelf.names():
        raise InputError(
            f"{results}: no network: no stored run with enough samples, no stored figures, none in TRUEUP_DATA/logits"
        )
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
    stored = {name: found for name in shelf.names() if (found := shelf.stored(name)) and found["version"] == VERSION}
    elsewhere = [name for name, found in stored.items() if name not in sums and not found["ours"]]
    if elsewhere:
        notes.append(f"{len(elsewhere)} sets of public logits: figures as stored, the logits are not here")
    known = [found for name, found in stored.items() if name in sums or name in elsewhere]
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
    if workers == 1 or not jobs:
        yield from ((job, _compute(job, resamples)) for job in jobs)
        return
    others = set(active_children())
    with _single_threaded():
        pool = ProcessPoolExecutor(min(workers, len(jobs)), get_context("spawn"), _ends_with_its_parent)
        try:
            # the longest first: one that is left alone at the end keeps the other cores idle
            ordered = sorted(jobs, key=lambda job: -job.val.stat().st_size if isinstance(job, Network) else -1e12)
            futures = {pool.submit(_compute, job, resamples): job for job in ordered}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            for child in set(active_children()) - others:
                child.terminate()  # what it is at would else be waited for
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ends_with_its_parent() -> None:
    """With Ctrl-C, without a word, and where the parent was killed: else it would wait for work for ever."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    if parent is not None:
        Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Processes that are started within have one thread each, in torch and in every BLAS that NumPy and SciPy bring.

    Those threads spin while they wait for each other, so that two processes on two cores take several times as long.
    """
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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
