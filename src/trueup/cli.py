"""The command line: one thin function a command. Tables for people, ``--json`` for programs, errors to stderr."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from typer.core import TyperGroup

import trueup
from trueup import tables
from trueup.audit import finite
from trueup.calibrators import CALIBRATORS, Auto, FocalMap, FocalTemperature, Identity, Temperature
from trueup.calibrators.grid import CRITERIA
from trueup.compare import DEFAULT, params_of
from trueup.files import WRITERS
from trueup.inputs import InputError, writable
from trueup.tables import progress as _progress


class _Commands(TyperGroup):
    """What the user can mend ends in one line and exit code 2, never in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
        except OSError as error:
            where = error.filename2 or error.filename
            typer.echo(f"error: {where}: {error.strerror}" if where else f"error: {error}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("\nstopped", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Commands,
    help="Makes a classifier's confidence true: measure its calibration, and mend it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_PREDICTIONS = ".npz, .safetensors, .parquet, .csv or .tsv with logits or probs, and labels"
File = Annotated[Path, typer.Argument(metavar="FILE", help=_PREDICTIONS)]
Val = Annotated[Path, typer.Argument(metavar="VAL", help=_PREDICTIONS)]
Test = Annotated[Path, typer.Argument(metavar="TEST", help="the same, of other samples")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for programs")]
Binary = Annotated[bool, typer.Option("--binary", help="the file holds one score a sample")]
Ignore = Annotated[list[str] | None, typer.Option("--ignore", help="a column or array to leave out (can be repeated)")]
Seed = Annotated[int, typer.Option(min=0, help="of everything random")]
Resamples = Annotated[int, typer.Option(help="for the intervals; 0 leaves them out")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]
Mode = Annotated[str, typer.Option(help="how a step runs: auto, eager, graph or compiled-graph")]
DataDir = Annotated[Path | None, typer.Option(help="where the data sets lie; TRUEUP_DATA by default")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trueup {trueup.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


@app.command()
def audit(
    file: File,
    bins: Annotated[int, typer.Option(help="of the calibration errors")] = 15,
    resamples: Resamples = 1000,
    seed: Seed = 0,
    binary: Binary = False,
    ignore: Ignore = None,
    as_json: AsJson = False,
) -> None:
    """Can the confidences in FILE be trusted? Every metric, with intervals, and a verdict."""
    predictions = trueup.load(file, binary=binary, ignore=ignore or ())
    with _progress("resampling") as progress:
        found = trueup.audit(predictions, resamples=resamples, bins=bins, seed=seed, progress=progress)
    _print(found, found.to_dict(), as_json)


@app.command()
def calibrate(
    val: Val,
    method: Annotated[
        str, typer.Option(help=f"{', '.join(CALIBRATORS)}; or several joined by +, as in softplus+vector")
    ] = "auto",
    save: Annotated[Path | None, typer.Option(help="write the fitted map here, as JSON")] = None,
    criterion: Annotated[
        str, typer.Option(help=f"of temperature and focal-temperature: {', '.join(CRITERIA)}")
    ] = "nll",
    keep_ranking: Annotated[bool, typer.Option("--keep-ranking", help="auto: never change a predicted class")] = False,
    seed: Seed = 0,
    binary: Binary = False,
    ignore: Ignore = None,
    as_json: AsJson = False,
) -> None:
    """Fit a calibrator to the predictions in VAL, which the network was not trained on."""
    settings = _settings(method, criterion, keep_ranking, seed)
    if save and writable(save).suffix.lower() in WRITERS:
        raise InputError(f"--save {save}: this is where the map goes, which is JSON; apply writes the predictions")
    predictions = trueup.load(val, binary=binary, ignore=ignore or ())
    _warn_of_few(len(predictions), predictions.classes, settings)
    with _progress(f"fitting {method}") as progress:
        made = settings.fit(predictions.logits, predictions.labels, progress=progress)
    report = made.fit_report
    if save:
        made.save(save)
    content = {
        "calibrator": method,
        "params": params_of(made),
        "fit_report": None if report is None else asdict(report),
        "saved": None if save is None else str(save),
    }
    title = f"{method}, fitted to {len(predictions)} samples"
    shown = tables.table(title, "", "")
    shown.columns[1].justify, shown.show_header, shown.min_width = "left", False, len(title)
    for name, value in content["params"].items():
        shown.add_row(name, f"{value:.6g}" if isinstance(value, float) else str(value))
    if report is not None:
        shown.add_row(report.criterion, f"{report.before:.6f} -> {report.after:.6f}")
        if report.at_bound:
            shown.add_row("note", "a parameter is at the limit of its range: these data cannot tell its value")
        if report.note:
            shown.add_row("chosen", report.note)
    shown.add_row("saved", str(save) if save else "nowhere; --save MAP.json keeps the map")
    _print(shown, finite(content), as_json)


@app.command()
def apply(
    map_file: Annotated[Path, typer.Argument(metavar="MAP", help="what calibrate --save wrote")],
    file: File,
    save: Annotated[Path, typer.Option(help="write the calibrated predictions here")],
    binary: Binary = False,
    ignore: Ignore = None,
    as_json: AsJson = False,
) -> None:
    """Write the calibrated probabilities of FILE, with its labels."""
    made = trueup.load_map(map_file)
    predictions = trueup.load(file, binary=binary, ignore=ignore or ())
    if made.classes != predictions.classes:
        raise InputError(f"{file}: {predictions.classes} classes, where the map {map_file} is for {made.classes}")
    calibrated = predictions.calibrated(made(predictions.logits), calibrated_by=made.kind)
    calibrated.save(save)
    content = {"n": len(calibrated), "classes": calibrated.classes, "saved": str(save)}
    _print(f"{len(calibrated)} calibrated predictions of {calibrated.classes} classes are in {save}", content, as_json)


@app.command()
def compare(
    val: Val,
    test: Test,
    method: Annotated[list[str] | None, typer.Option(help="a calibrator (can be repeated); all by default")] = None,
    resamples: Resamples = 1000,
    seed: Seed = 0,
    binary: Binary = False,
    ignore: Ignore = None,
    as_json: AsJson = False,
) -> None:
    """Fit every calibrator to VAL, judge it on TEST, and show all side by side."""
    fitted_on, judged_on = (trueup.load(file, binary=binary, ignore=ignore or ()) for file in (val, test))
    with _progress("comparing") as progress:
        found = trueup.compare(
            fitted_on, judged_on, method or DEFAULT, resamples=resamples, seed=seed, progress=progress
        )
    _print(found, found.to_list(), as_json)


@app.command()
def example(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where val.npz and test.npz are written")],
    seed: Seed = 0,
) -> None:
    """Write the predictions of a made-up, over-confident classifier, to try the other commands on."""
    from trueup.example import example_predictions

    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: a file, not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, predictions in example_predictions(seed).items():
        predictions.save(folder / f"{name}.npz")
        typer.echo(f"{len(predictions)} predictions of {predictions.classes} classes are in {folder / name}.npz")


@app.command()
def train(
    recipe: Annotated[str, typer.Option(help="a named recipe")] = "digits",
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
    """Train a network as a recipe says. A run that was stopped goes on where it was: give the same command."""
    from trueup import train as training
    from trueup.train.measure import measured

    named = {"data": data, "model": model, "loss": loss, "seed": seed}
    settings = {k: v for k, v in named.items() if v is not None} | _pairs(changed or [])
    made = training.named(recipe, **settings)
    folder = out or Path("runs") / training.folder_name(made)
    with _progress(f"{made.loss}, {made.epochs} epochs") as progress, _resumable(folder):
        run = training.train(
            made, folder, device=device, mode=mode, data_dir=data_dir,
            progress=lambda entry: progress((entry["epoch"] + 1) / made.epochs),
        )  # fmt: skip
    found = finite(measured(run.test.logits, run.test.labels))
    content = {"folder": str(folder), "recipe": made.to_dict(), "run": run.info, "test": found}
    shown = tables.table(f"{made.data}, {made.model}, {made.loss}, seed {made.seed}: on test", "", "")
    shown.show_header = False
    for name in ("error", "nll", "ece"):
        shown.add_row(tables.title(name), tables.number(name, found[name]))
    shown.add_row("seconds", f"{run.seconds:.1f}")
    shown.add_row("folder", str(folder))
    _print(shown, finite(content), as_json)


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="a named study")] = "digits",
    jobs: Annotated[
        int | None, typer.Option(help="runs side by side; a CPU's cores, or 1 on a GPU, by default")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="its folder; studies/NAME by default")] = None,
    seeds: Annotated[str | None, typer.Option(help='as in "0 1 2"')] = None,
    losses: Annotated[str | None, typer.Option(help='as in "cross-entropy focal:3"')] = None,
    models: Annotated[str | None, typer.Option(help='as in "resnet18 resnet50"')] = None,
    data: Annotated[str | None, typer.Option(help='as in "cifar10 cifar100"')] = None,
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
    """Train every loss with every seed, calibrate each, and show all in one table. Complete runs are not run again."""
    from trueup import train as training
    from trueup.train.figures import draw_figures
    from trueup.train.watch import StudyView

    chosen = training.study_named(
        name, losses=_words(losses), models=_words(models), data=_words(data), recipe=recipe,
        seeds=None if seeds is None else tuple(_whole(word, "seeds") for word in seeds.replace(",", " ").split()),
        settings=_pairs(changed) if changed else None,
    )  # fmt: skip
    folder = out or Path("studies") / name
    with StudyView(Console(stderr=True)) as view, _resumable(folder):
        found = training.run_study(chosen, folder, jobs=jobs, device=device, mode=mode, data_dir=data_dir, watch=view)
    with _progress("judging") as progress, _resumable(folder):
        table = training.judge(found, resamples=resamples, progress=progress)
    saved = table.save(folder)
    drawn, why_not = {}, ""
    with _progress("drawing") as progress, _resumable(folder):
        try:
            drawn = draw_figures(found, folder / "figures", progress=progress)
        except InputError as error:  # a study without pictures is still one
            why_not = str(error)
    content = {"study": name, "folder": str(folder), "rows": table.to_list(), "failed": table.failed}
    _print(table, content | {"figures": [str(path) for path in drawn.values()]}, as_json)
    if not as_json:
        typer.echo(f"{saved['csv']} and {saved['json'].name} hold all numbers; the runs are beside them")
    if not as_json and (drawn or why_not):
        typer.echo(why_not or f"{len(drawn)} figures are in {folder / 'figures'}: {_some(list(drawn))}")
    if table.failed:
        raise typer.Exit(1)


@app.command()
def curvature(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a complete run, with its weights")],
    split: Annotated[str, typer.Option(help="train, val or test")] = "val",
    samples: Annotated[int | None, typer.Option(help="only the first so many; all by default")] = None,
    batch: Annotated[int, typer.Option(help="samples that go through the network at once")] = 500,
    relative: Annotated[float, typer.Option(help="the standard error of the trace, as a share of it")] = 0.01,
    seed: Seed = 0,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure how sharply the loss bends at the weights of RUN: the largest eigenvalue and the trace of its Hessian."""
    from trueup.papers.kimura2024 import curvature_of_run

    options = {"samples": samples, "batch": batch, "relative": relative, "device": device, "data_dir": data_dir}
    with _progress("curvature") as progress:
        found = curvature_of_run(folder, split=split, seed=seed, progress=progress, **options)
    _print(found, finite(found.content), as_json)
    if not as_json:
        typer.echo(f"{folder / 'curvature.json'} holds these numbers")


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(help="mukhoti2020, lossfunctions or all")],
    results: Annotated[Path | None, typer.Option(help="where stored runs lie; the clone's results/ by default")] = None,
    retrain: Annotated[bool, typer.Option("--retrain", help="train the runs of the grid that are not stored")] = False,
    only: Annotated[str | None, typer.Option(help='of --retrain: runs named so, as in "*resnet50*"')] = None,
    jobs: Annotated[int, typer.Option(help="of --retrain: runs side by side")] = 1,
    out: Annotated[Path | None, typer.Option(help="of --retrain: its folder; runs/PAPER by default")] = None,
    store: Annotated[list[Path] | None, typer.Option(help="take a complete run into the results first")] = None,
    authors: Annotated[bool, typer.Option("--authors", help="compute the authors' figures from their logits")] = False,
    figures: Annotated[Path | None, typer.Option(help="draw the paper's figures into this folder")] = None,
    docs: Annotated[Path | None, typer.Option(help="write the page of the documentation")] = None,
    resamples: Resamples = 300,
    device: Device = "auto",
    mode: Mode = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Put a paper's numbers beside ours and judge its claims, from stored results: no GPU, no network."""
    from trueup import papers
    from trueup.train.watch import StudyView

    modules, folder = papers.chosen(paper), papers.results_folder(results)
    papers.take_in(modules, folder, store or [], authors, data_dir)
    failed: dict[str, str] = {}
    for name, module in modules.items() if retrain else ():
        work = out or Path("runs") / name
        waiting = papers.open_runs(module.recipes(), folder, only)
        with StudyView(Console(stderr=True)) as view, _resumable(work):
            options = {"jobs": jobs, "device": device, "mode": mode, "data_dir": data_dir, "watch": view}
            failed |= papers.retrain(waiting, folder / name, work, **options)
    with _progress("judging") as progress:
        found = [module.reproduce(folder, resamples=resamples, progress=progress) for module in modules.values()]
    for module in modules.values() if figures else ():
        typer.echo("\n".join(f"drawn: {path}" for path in module.draw(folder, figures)), err=True)
    if docs:
        papers.write_page(docs, found)
    content = [each.to_dict() for each in found]
    _print(Group(*found), content if paper == "all" else content[0], as_json)
    if failed:
        typer.echo("\n".join(f"failed: {name}: {message}" for name, message in failed.items()), err=True)
        raise typer.Exit(1)


def _settings(method: str, criterion: str, keep_ranking: bool, seed: int) -> trueup.Calibrator:
    settings = trueup.calibrator(method)
    if isinstance(settings, Auto):
        settings = Auto(keep_ranking=keep_ranking, seed=seed)
    elif keep_ranking and not settings.keeps_ranking:
        raise InputError(f"--keep-ranking: {method} can change the predicted class")
    if criterion != "nll":
        if not isinstance(settings, Temperature | FocalTemperature):
            raise InputError(f"--criterion: {method} is fitted by nll; temperature and focal-temperature have others")
        settings = type(settings)(criterion=criterion)
    return settings


def _warn_of_few(samples: int, classes: int, settings: trueup.Calibrator) -> None:
    wanted = max(100, 10 * classes)
    if samples < wanted and not isinstance(settings, Identity | FocalMap):  # which fit nothing
        found = f"{samples} samples of {classes} classes are few to fit to"
        typer.echo(f"warning: {found}; the map may not hold for others (at least {wanted} are advised)", err=True)


def _pairs(texts: list[str]) -> dict[str, str]:
    """KEY=VALUE, KEY=VALUE, ..."""
    for text in texts:
        if "=" not in text:
            raise InputError(f"--set {text}: expected KEY=VALUE, as in epochs=10")
    return dict(text.split("=", 1) for text in texts)


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(text.split())


def _whole(text: str, name: str) -> int:
    if not text.isdecimal():
        raise InputError(f"{name}: {text!r} is not a whole number")
    return int(text)


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Ctrl-C ends with a line that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; what is done is in {folder}, and the same command goes on from there", err=True)
        raise typer.Exit(130) from None


def _print(for_people: Any, for_programs: Any, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(for_programs, indent=1, allow_nan=False))
    else:
        Console().print(for_people, highlight=False)


def main() -> None:
    app()
