"""audit, calibrate, apply, compare, example: for someone with a file of predictions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import trueup
from trueup import tables
from trueup.audit import finite
from trueup.calibrators import CALIBRATORS, Auto, FocalMap, FocalTemperature, Identity, Temperature
from trueup.calibrators.grid import CRITERIA
from trueup.cli.app import AsJson, Binary, File, Ignore, Resamples, Seed, Test, Val, app, show
from trueup.cli.report import Html, audited, check_page, compared, loaded, tell_page, write_page
from trueup.compare import params_of
from trueup.files import WRITERS
from trueup.inputs import InputError, writable
from trueup.tables import progress as progress_bar


@app.command()
def audit(
    file: File,
    bins: Annotated[int, typer.Option(help="of the calibration errors")] = 15,
    resamples: Resamples = 1000,
    seed: Seed = 0,
    binary: Binary = False,
    ignore: Ignore = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Can the confidences in FILE be trusted? Every metric, with intervals, and a verdict."""
    check_page(html)
    predictions = loaded(file, binary, ignore)
    found = audited(predictions, resamples=resamples, bins=bins, seed=seed)
    show(found, found.to_dict(), as_json)
    tell_page(write_page(html, found), as_json)


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
    predictions = loaded(val, binary, ignore)
    _warn_of_few(len(predictions), predictions.classes, settings)
    with progress_bar(f"fitting {method}") as progress:
        made = settings.fit(predictions.logits, predictions.labels, progress=progress)
    made.class_names = predictions.class_names
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
    show(shown, finite(content), as_json)


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
    predictions = loaded(file, binary, ignore)
    if made.classes != predictions.classes:
        raise InputError(f"{file}: {predictions.classes} classes, where the map {map_file} is for {made.classes}")
    _require_same_order(file, predictions.class_names, map_file, made.class_names)
    calibrated = predictions.calibrated(made(predictions.logits), calibrated_by=made.kind)
    calibrated.save(save)
    content = {"n": len(calibrated), "classes": calibrated.classes, "saved": str(save)}
    show(f"{len(calibrated)} calibrated predictions of {calibrated.classes} classes are in {save}", content, as_json)


@app.command()
def export(
    map_file: Annotated[Path, typer.Argument(metavar="MAP", help="what calibrate --save wrote")],
    save: Annotated[Path, typer.Option(help="where it goes: .onnx, or .pt2 for torch.export")],
    as_json: AsJson = False,
) -> None:
    """Write a map as a file that can be served without this package: logits in, probabilities out."""
    made = trueup.load_map(map_file)
    written = trueup.export(made, save)
    content = {"calibrator": made.kind, "classes": made.classes, "saved": str(written)}
    show(f"logits (N, {made.classes}) -> probs (N, {made.classes}), by {made.kind}: {written}", content, as_json)


@app.command()
def compare(
    val: Val,
    test: Test,
    method: Annotated[list[str] | None, typer.Option(help="a calibrator (can be repeated); all by default")] = None,
    resamples: Resamples = 1000,
    seed: Seed = 0,
    binary: Binary = False,
    ignore: Ignore = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Fit every calibrator to VAL, judge it on TEST, and show all side by side."""
    check_page(html)
    fitted_on, judged_on = (loaded(file, binary, ignore) for file in (val, test))
    found = compared(fitted_on, judged_on, method, resamples=resamples, seed=seed)
    show(found, found.to_list(), as_json)
    tell_page(write_page(html, found), as_json)


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


def _require_same_order(
    file: Path, names: tuple[str, ...] | None, map_file: Path, of_map: tuple[str, ...] | None
) -> None:
    """A map that treats classes unlike would take one for another, and every result would look as good as any."""
    for i, (name, wanted) in enumerate(zip(names or (), of_map or (), strict=False)):
        if name != wanted:
            raise InputError(f"{file}: class {i} is {name!r}, where the map {map_file} was fitted to {wanted!r} there")


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
