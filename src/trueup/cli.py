"""The command line: one thin function a command. Tables for people, ``--json`` for programs, errors to stderr."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from typer.core import TyperGroup

import trueup
from trueup import tables
from trueup.audit import finite
from trueup.calibrators import Auto, FocalTemperature, Temperature
from trueup.compare import DEFAULT, params_of
from trueup.inputs import InputError


class _Commands(TyperGroup):
    """What the user can mend ends in one line and exit code 2, never in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (InputError, OSError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_Commands,
    help="Makes a classifier's confidence true: measure its calibration, and mend it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

File = Annotated[
    Path, typer.Argument(help=".npz, .safetensors, .parquet, .csv or .tsv with logits or probs, and labels")
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for programs")]
Binary = Annotated[bool, typer.Option("--binary", help="the file holds one score a sample")]
Ignore = Annotated[list[str] | None, typer.Option("--ignore", help="a column to leave out (can be repeated)")]
Seed = Annotated[int, typer.Option(help="of everything random")]
Resamples = Annotated[int, typer.Option(help="for the intervals; 0 leaves them out")]


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
    val: File,
    method: Annotated[str, typer.Option(help="a calibrator, or several joined by +, as in softplus+vector")] = "auto",
    save: Annotated[Path | None, typer.Option(help="write the fitted map here, as JSON")] = None,
    criterion: Annotated[str, typer.Option(help="of temperature and focal-temperature")] = "nll",
    keep_ranking: Annotated[bool, typer.Option("--keep-ranking", help="auto: never change a predicted class")] = False,
    seed: Seed = 0,
    binary: Binary = False,
    ignore: Ignore = None,
    as_json: AsJson = False,
) -> None:
    """Fit a calibrator to the predictions in VAL, which the network was not trained on."""
    settings = _settings(method, criterion, keep_ranking, seed)
    predictions = trueup.load(val, binary=binary, ignore=ignore or ())
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
    shown = tables.table(f"{method}, fitted to {len(predictions)} samples", "", "")
    shown.columns[1].justify, shown.show_header = "left", False
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
    calibrated = predictions.calibrated(made(predictions.logits), calibrated_by=made.kind)
    calibrated.save(save)
    content = {"n": len(calibrated), "classes": calibrated.classes, "saved": str(save)}
    _print(f"{len(calibrated)} calibrated predictions of {calibrated.classes} classes are in {save}", content, as_json)


@app.command()
def compare(
    val: File,
    test: File,
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
    folder: Annotated[Path, typer.Argument(help="where val.npz and test.npz are written")],
    seed: Seed = 0,
) -> None:
    """Write the predictions of a made-up, over-confident classifier, to try the other commands on."""
    from trueup.example import example_predictions

    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    for name, predictions in example_predictions(seed).items():
        predictions.save(folder / f"{name}.npz")
        typer.echo(f"{len(predictions)} predictions of {predictions.classes} classes are in {folder / name}.npz")


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


def _print(for_people: Any, for_programs: Any, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(for_programs, indent=1, allow_nan=False))
    else:
        Console().print(for_people, highlight=False)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[float], None]]:
    """A bar on stderr, where that is a terminal, once the work has taken a second."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn(what), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn(),
        console=console, transient=True,
    )  # fmt: skip
    task, begun = bar.add_task(what, total=1.0), time.monotonic()

    def advance(share: float) -> None:
        if console.is_terminal and not bar.live.is_started and time.monotonic() - begun > 1:
            bar.start()
        bar.update(task, completed=share)

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()


def main() -> None:
    app()
