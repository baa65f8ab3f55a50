"""Mukhoti et al., "Calibrating Deep Neural Networks using Focal Loss" (NeurIPS 2020; arXiv 2002.09437).

The tables are those of its first version, "The Intriguing Effects of Focal Loss on the Calibration of Deep Neural
Networks", and are kept in published.csv, each number as printed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trueup.inputs import InputError
from trueup.papers.figures import on_page, save_pictures
from trueup.papers.mukhoti2020 import authors, checks, claims, drawing, epochs, images, neutral, questions, sheets
from trueup.papers.mukhoti2020.gist import gist
from trueup.papers.mukhoti2020.grid import (
    DATASETS,
    METHODS,
    PLAIN,
    STUDIED_DATA,
    TEXTS,
    beside_run,
    differences,
    recipes,
)
from trueup.papers.mukhoti2020.settings import Network, settings_of
from trueup.papers.reproduction import Reproduction
from trueup.papers.stored import SCHEDULES, command_of, load_runs, origin
from trueup.papers.summary import summary_of
from trueup.train import Run

CLAIMS = (*claims.CLAIMS, *epochs.CLAIMS, *images.CLAIMS)
TITLE = "Calibrating Deep Neural Networks using Focal Loss"


def reproduce(results: Path, *, resamples: int = 300, progress: Callable[[float], None] | None = None) -> Reproduction:
    """Every number that we have beside the published one, and a verdict on each claim.

    ``results`` holds the paper's folder with authors.json and the stored runs.
    """
    folder = results / "mukhoti2020"
    runs = our_runs(folder)
    theirs = authors.stored(folder)
    networks = []
    for i, (name, run) in enumerate(runs.items()):
        networks.append(Network(name, run, summary_of(run, resamples=resamples)))
        if progress:
            progress((i + 1) / len(runs))
    settings = settings_of(networks)
    published_step = [network for setting in settings if setting.as_published for network in setting.all_networks]
    shown = [sheets.authors_sheet(theirs), sheets.authors_more(theirs), sheets.overview(settings)]
    for setting in settings:
        if setting.as_published:
            shown += [sheets.ours_sheet(setting), sheets.ours_more(setting)]
            more = (sheets.spread_sheet(setting), images.images_sheet(setting))
            shown += [sheet for sheet in more if sheet is not None]
    shown += [*neutral.sheets(settings), *sheets.step_sheets(networks), *questions.sheets(networks)]
    findings = [
        *checks.printed_figures(theirs),
        *(finding for claim in CLAIMS for finding in claims.judged(claim, settings)),
        neutral.explains(settings),
        *(checks.step_decides(settings, data) for data in STUDIED_DATA),
        *(checks.sign_decides(settings, data) for data in STUDIED_DATA),
        *(checks.decay_decides(settings, data) for data in STUDIED_DATA if data not in TEXTS),
        checks.stopping_decides(settings),
        checks.short_schedule(settings),
        *checks.grid_or_nll(theirs, published_step),
        *questions.findings(networks),
        *checks.mathematics(),
        *checks.linear(),
        *checks.not_run({setting.data for setting in settings}),
    ]
    missing = tuple(name for name in recipes() if name not in runs)
    rows = [_authors_row(author) for author in theirs] + [_row(network) for network in networks]
    commands = tuple(
        (f"`{network.name}`, {origin(network.run)}", command_of(network.run.recipe)) for network in networks
    )
    drawn = on_page(drawing.pictures(settings))
    return Reproduction(
        "mukhoti2020",
        TITLE,
        tuple(shown),
        tuple(findings),
        missing,
        tuple(rows),
        commands,
        figures=drawn,
        gist=gist(settings),
    )


def our_runs(folder: Path) -> dict[str, Run]:
    """The stored runs, every one of which has to be of the paper's recipes, data and losses."""
    runs = load_runs(folder, tables=True)
    for run in runs.values():
        path, recipe = run.folder / "recipe.json", run.recipe
        if recipe.name not in SCHEDULES:
            raise InputError(f"{path}: recipe {recipe.name!r} is none of this paper's ({', '.join(SCHEDULES)})")
        if recipe.data not in DATASETS:
            raise InputError(f"{path}: data {recipe.data!r} is none of this paper's ({', '.join(DATASETS)})")
        if recipe.loss not in (*METHODS, *PLAIN):
            raise InputError(f"{path}: loss {recipe.loss!r} is none of this paper's ({', '.join((*METHODS, *PLAIN))})")
    return runs


def draw(results: Path, folder: Path) -> list[Path]:
    """Figures 1 to 7 as far as the stored runs allow. Figure 8 is a table."""
    runs = our_runs(results / "mukhoti2020")
    settings = settings_of([Network(name, run, None) for name, run in runs.items()])  # type: ignore[arg-type]
    return save_pictures(drawing.pictures(settings), folder)


def _authors_row(author: authors.Author) -> dict[str, Any]:
    return {
        "name": author.name,
        "whose": "authors",
        "dataset": author.dataset,
        "model": author.model,
        "method": author.method,
        "provenance": author.provenance,
        "published": _published(author.printed),
        "figures": author.figures.to_dict(),
    }


def _row(network: Network) -> dict[str, Any]:
    run = network.run
    return {
        "name": network.name,
        "whose": "ours",
        "recipe": run.recipe.to_dict(),
        "differs": differences(run.recipe),
        "run": run.info,
        "command": command_of(run.recipe),
        "published": _published(beside_run(run.recipe)),
        "kept_epoch": network.kept["epoch"],
        **network.summary.to_dict(),
    }


def _published(printed: dict[Any, Any]) -> list[dict[str, str]]:
    return [vars(entry) for entry in printed.values()]
