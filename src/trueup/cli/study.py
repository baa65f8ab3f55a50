"""train, study, curvature, reproduce: for someone who trains networks, or studies those who did."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group

from trueup import tables
from trueup.audit import finite
from trueup.cli.app import AsJson, DataDir, Device, Mode, Resamples, Seed, app, resumable, show
from trueup.cli.report import check_page, write_study
from trueup.inputs import InputError
from trueup.tables import progress as progress_bar

if TYPE_CHECKING:
    from trueup.train import Run


@app.command()
def train(
    recipe: Annotated[
        str | None, typer.Option(help="a named recipe; that of the data set, where it has one, or digits by default")
    ] = None,
    data: Annotated[str | None, typer.Option(help="a data set, as in cifar10 or gaussians:classes=5")] = None,
    model: Annotated[str | None, typer.Option(help="a net, as in resnet18")] = None,
    loss: Annotated[str | None, typer.Option(help="a loss, as in focal:3")] = None,
    seed: Annotated[int | None, typer.Option(help="of everything random")] = None,
    changed: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE of the recipe (can be repeated)")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="the run's folder; runs/... by default")] = None,
    device: Device = "auto",
    mode: Mode = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Train a network as a recipe says. A run that was stopped goes on where it was: give the same command.

    A recipe, data set, net, loss or setting that is not known lists those that are, as in --loss list.
    """
    from trueup import train as training
    from trueup.train.measure import measured

    named = {"data": data, "model": model, "loss": loss, "seed": seed}
    named, pairs = {k: v for k, v in named.items() if v is not None}, _pairs(changed or [])
    if twice := sorted(set(named) & set(pairs)):
        raise InputError(f"--{twice[0]} {named[twice[0]]} and --set {twice[0]}={pairs[twice[0]]}: give one of them")
    settings = named | pairs
    of_data = training.recipe_for(str(settings["data"])) if "data" in settings else training.recipe_for()
    made = training.named(recipe or of_data, **settings)
    folder = out or Path("runs") / training.folder_name(made)
    with progress_bar(made.loss, made.epochs, tables.EPOCHS) as progress, resumable(folder), _notes_told_later():
        shown = progress if sys.stderr.isatty() else _where_to_look(folder)
        run = training.train(made, folder, device=device, mode=mode, data_dir=data_dir, progress=shown)
    found = finite(measured(run.test.logits, run.test.labels))
    content = {"folder": str(folder), "recipe": made.to_dict(), "run": run.info, "test": found}
    columns = {"": found}
    if run.last is not None:  # another may be kept
        content["last_epoch"] = finite(measured(run.last[1].logits, run.last[1].labels))
        columns = {f"{run.info['kept_epoch']}, kept": found, f"{made.epochs - 1}, last": content["last_epoch"]}
    shown = tables.table("", "epoch, from 0", *columns)
    shown.show_header = len(columns) > 1
    for name in ("error", "nll", "ece"):
        shown.add_row(tables.title(name), *(tables.number(name, each[name]) for each in columns.values()))
    shown.add_row("seconds", f"{run.seconds:.1f}")
    shown.add_row("folder", str(folder))
    title = f"{made.data}, {made.model}, {made.loss}, seed {made.seed}: on test"  # wider than the table
    show(Group(title, shown), finite(content), as_json)
    if not as_json:
        _tell_notes([run])


@app.command()
def study(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="that of the data set, where it has one, or digits by default"),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="runs side by side; a CPU's cores, or 1 on a GPU, by default")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="its folder; studies/NAME by default")] = None,
    seeds: Annotated[str | None, typer.Option(help='as in "0 1 2"')] = None,
    losses: Annotated[str | None, typer.Option(help='as in "cross-entropy focal:3"')] = None,
    models: Annotated[str | None, typer.Option(help='as in "resnet18 resnet50"')] = None,
    data: Annotated[str | None, typer.Option(help='as in "cifar10 cifar100", or 20newsgroups, or sst')] = None,
    calibrators: Annotated[str | None, typer.Option(help='as in "none temperature auto"')] = None,
    recipe: Annotated[str | None, typer.Option(help="a named recipe in place of the study's own")] = None,
    changed: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE of the recipe (can be repeated)")
    ] = None,
    resamples: Resamples = 1000,
    device: Device = "auto",
    mode: Mode = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Train every loss with every seed, calibrate each, and show all in one table. Complete runs are not run again.

    A name that is not known lists those that are, as in --losses list.
    """
    from trueup import train as training
    from trueup.train.figures import draw_figures
    from trueup.train.watch import StudyView

    chosen = training.study_named(
        name, losses=_words(losses, "--losses"), models=_words(models, "--models"), data=_words(data, "--data"),
        calibrators=_words(calibrators, "--calibrators"), recipe=recipe,
        seeds=None if seeds is None else tuple(_whole(word, "seeds") for word in seeds.replace(",", " ").split()),
        settings=_pairs(changed) if changed else None,
    )  # fmt: skip
    folder = out or Path("studies") / chosen.name
    with StudyView(Console(stderr=True)) as view, resumable(folder), _notes_told_later():
        found = training.run_study(chosen, folder, jobs=jobs, device=device, mode=mode, data_dir=data_dir, watch=view)
    if not found.runs:
        raise InputError(f"every run failed; the first: {next(iter(found.failed.values()))}")
    with progress_bar("judging") as progress, resumable(folder):
        table = training.judge(found, resamples=resamples, progress=progress)
    saved = table.save(folder)
    drawn, why_not = {}, ""
    with progress_bar("drawing") as progress, resumable(folder):
        try:
            drawn = draw_figures(found, folder / "figures", progress=progress)
        except InputError as error:  # a study without pictures is still one
            why_not = str(error)
    page, no_page = folder / "report.html", ""
    with resumable(folder), _notes_told_later():
        try:
            check_page(page)
            write_study(folder, page, data_dir)
        except InputError as error:
            no_page = str(error)
    content = {"study": chosen.name, "folder": str(folder), "rows": table.to_list(), "failed": table.failed}
    content |= {"figures": [str(path) for path in drawn.values()], "page": None if no_page else str(page)}
    content["notes"] = _notes(found.runs)
    show(table, content, as_json)
    if not as_json:
        _tell_notes(found.runs)
        typer.echo(f"{saved['csv']} and {saved['json'].name} hold all numbers; the runs are beside them")
    if not as_json and (drawn or why_not):
        typer.echo(
            f"no figures: {why_not}"
            if why_not
            else f"{len(drawn)} figures are in {folder / 'figures'}: {_some(list(drawn))}"
        )
    if not as_json:
        typer.echo(f"no page: {no_page}" if no_page else f"{page} shows all of it: open it in a browser")
    if table.failed:
        raise typer.Exit(1)


@app.command()
def curvature(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a complete run, with its weights")],
    split: Annotated[str, typer.Option(help="train, val or test")] = "val",
    samples: Annotated[int | None, typer.Option(help="only the first so many; all by default")] = None,
    batch: Annotated[int, typer.Option(help="samples that go through the network at once")] = 500,
    relative: Annotated[
        float, typer.Option(help="the standard error of a trace that is not exact, as a share of it")
    ] = 0.01,
    seed: Seed = 0,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure how sharply the loss bends at the weights of RUN: the largest eigenvalue and the trace of its Hessian."""
    from trueup.papers.kimura2024 import curvature_of_run

    options = {"samples": samples, "batch": batch, "relative": relative, "device": device, "data_dir": data_dir}
    with progress_bar("curvature") as progress:
        found = curvature_of_run(folder, split=split, seed=seed, progress=progress, **options)
    show(found, finite(found.content), as_json)
    if not as_json:
        typer.echo(f"{found.file} holds these numbers")


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="a paper by its short name, as in mukhoti2020, or all")],
    results: Annotated[Path | None, typer.Option(help="where stored runs lie; the clone's results/ by default")] = None,
    retrain: Annotated[bool, typer.Option("--retrain", help="train the runs of the grid that are not stored")] = False,
    only: Annotated[str | None, typer.Option(help='of --retrain: runs named so, as in "*resnet50*"')] = None,
    jobs: Annotated[int, typer.Option(help="of --retrain: runs side by side")] = 1,
    out: Annotated[Path | None, typer.Option(help="of --retrain: its folder; runs/PAPER by default")] = None,
    store: Annotated[list[Path] | None, typer.Option(help="take a complete run into the results first")] = None,
    authors: Annotated[bool, typer.Option("--authors", help="compute the authors' figures from their logits")] = False,
    shift: Annotated[
        list[Path] | None, typer.Option(help="komisarenko2024: score a run with its weights on corrupted images first")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="draw the paper's figures into this folder; of all, a folder each")
    ] = None,
    docs: Annotated[Path | None, typer.Option(help="write the page of that name, or all pages into a folder")] = None,
    resamples: Annotated[int, typer.Option(min=1, help="for the intervals")] = 300,
    device: Device = "auto",
    mode: Mode = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Put a paper's numbers beside ours and judge its claims, from stored results: no GPU, no network."""
    from trueup import papers
    from trueup.train.watch import StudyView

    for option, given in (("--only", only), ("--out", out), ("--jobs", jobs != 1)):
        if given and not retrain:
            raise InputError(f"{option}: it is of --retrain, which was not asked for")
    if figures and figures.exists() and not figures.is_dir():
        raise InputError(f"{figures}: a file, not a folder for figures")
    modules, folder = papers.chosen(paper), papers.results_folder(results, new=retrain or bool(store))
    if docs:
        papers.pages_at(docs, modules)
    papers.take_in(modules, folder, store or [], authors, data_dir)
    failed: dict[str, str] = {}
    grids = papers.named_so({name: module.recipes() for name, module in modules.items()}, only) if retrain else {}
    for name, chosen in grids.items():
        module, work = modules[name], out or Path("runs") / name
        waiting = papers.open_runs(chosen, folder, getattr(module, "FILES", ()))
        with StudyView(Console(stderr=True)) as view, resumable(work):
            options = {"jobs": jobs, "device": device, "mode": mode, "data_dir": data_dir, "watch": view}
            failed |= papers.retrain(waiting, folder / name, work, **options)
        with progress_bar("measuring") as progress, resumable(work):
            if hasattr(module, "measure_run"):
                options = {"device": device, "data_dir": data_dir, "progress": progress}
                failed |= papers.measure_runs(module, waiting, folder / name, work, **options)
    with progress_bar("corrupted images") as progress:
        options = {"device": device, "data_dir": data_dir, "resamples": resamples, "progress": progress}
        papers.score_shift(modules, folder, shift or [], **options)
    with progress_bar("judging") as progress, resumable(folder):
        options = {"resamples": resamples, "data_dir": data_dir, "progress": progress}
        found = [papers.reproduced(module, folder, **options) for module in modules.values()]
    if figures:
        for name, module in modules.items():
            place = figures / name if len(modules) > 1 else figures  # their figures have the same numbers
            typer.echo("\n".join(f"drawn: {path}" for path in module.draw(folder, place)), err=True)
    if docs:
        papers.write_page(docs, found)
    content = [each.to_dict() for each in found]
    show(Group(*found), content if paper == "all" else content[0], as_json, piped_width=160)
    if failed:
        typer.echo("\n".join(f"failed: {name}: {message}" for name, message in failed.items()), err=True)
        raise typer.Exit(1)


def _notes(runs: Sequence[Run]) -> dict[str, str]:
    """What is to be known of each data set, as the share of tokens without a vector."""
    notes = {run.recipe.data: "; ".join(run.info.get("data_notes", ())) for run in runs}
    return {data: note for data, note in notes.items() if note}


def _tell_notes(runs: Sequence[Run]) -> None:
    for data, note in _notes(runs).items():
        typer.echo(f"{data}: {note}")


def _where_to_look(folder: Path) -> Callable[[float], None]:
    """Where no bar can be shown, a line at the beginning says what can be followed."""
    lines = [f"training; {folder / 'history.jsonl'} gets a line for each epoch that is done"]
    return lambda done: typer.echo(lines.pop(), err=True) if lines else None


@contextmanager
def _notes_told_later() -> Iterator[None]:
    """Beside the numbers, also where the runs are complete and no data are read: so not while they are read."""
    log = logging.getLogger("trueup.data")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _pairs(texts: list[str]) -> dict[str, str]:
    """KEY=VALUE, KEY=VALUE, ..."""
    for text in texts:
        if "=" not in text:
            raise InputError(f"--set {text}: expected KEY=VALUE, as in epochs=10")
    return dict(text.split("=", 1) for text in texts)


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")


def _words(text: str | None, option: str) -> tuple[str, ...] | None:
    if text is not None and not text.split():
        raise InputError(f"{option}: none is named")
    return None if text is None else tuple(text.split())


def _whole(text: str, name: str) -> int:
    if not text.isdecimal():
        raise InputError(f"{name}: {text!r} is not a whole number")
    return int(text)
