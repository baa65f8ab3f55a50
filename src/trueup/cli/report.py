"""report: for someone who would rather look than read. And what the commands with ``--html`` share with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import trueup
from trueup.audit import Audit
from trueup.cli.app import AsJson, Binary, DataDir, Ignore, Resamples, Seed, app, show
from trueup.compare import DEFAULT, Comparison
from trueup.inputs import InputError
from trueup.predictions import Predictions
from trueup.tables import progress as progress_bar

Html = Annotated[Path | None, typer.Option(metavar="OUT", help="also write a page to look at, OUT.html")]


@app.command()
def report(
    what: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE | VAL TEST | FOLDER", help="predictions; two files of them; or a study's or a run's folder"
        ),
    ],
    html: Annotated[
        Path | None, typer.Option(metavar="OUT", help="the page; report.html, in FOLDER where one is given, by default")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="of VAL TEST: a calibrator (can be repeated); all by default")
    ] = None,
    resamples: Resamples = 1000,
    seed: Seed = 0,
    binary: Binary = False,
    ignore: Ignore = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write one page to look at, to turn knobs on, and to mail: it needs neither Python nor a network.

    Of FILE: its audit.
    Of VAL and TEST: also every calibrator, fitted to VAL and judged on TEST.
    Of a study's FOLDER: every loss and seed.
    """
    folder = what[0] if what[0].is_dir() else None
    if folder is not None and len(what) > 1:
        raise InputError(f"{what[1]}: a folder, {folder}, is given alone")
    if len(what) > 2:
        raise InputError(f"{what[2]}: one file, or two (VAL and TEST), or a folder is expected; these are {len(what)}")
    out = html or (folder or Path()) / "report.html"
    check_page(out)
    if folder is not None and not (folder / "table.json").exists() and (folder / "run.json").exists():
        what, folder = [folder / f"{part}.safetensors" for part in ("val", "test")], None
    if folder is not None:
        write_study(folder, out, data_dir)
    else:
        if method and len(what) == 1:
            raise InputError("--method: a calibrator is fitted to VAL and judged on TEST; give both files")
        *val, test = (loaded(file, binary, ignore) for file in what)
        options = {"resamples": resamples, "seed": seed}
        found = compared(val[0], test, method, **options) if val else audited(test, **options)
        write_page(out, found)
    show(f"{out} holds the page: open it in a browser", {"page": str(out)}, as_json)


def loaded(file: Path, binary: bool, ignore: list[str] | None) -> Predictions:
    return trueup.load(file, binary=binary, ignore=ignore or ())


def audited(predictions: Predictions, **options: Any) -> Audit:
    with progress_bar("resampling") as progress:
        return trueup.audit(predictions, **options, progress=progress)


def compared(val: Predictions, test: Predictions, method: list[str] | None, **options: Any) -> Comparison:
    with progress_bar("comparing") as progress:
        return trueup.compare(val, test, method or DEFAULT, **options, progress=progress)


def check_page(out: Path | None) -> None:
    """Before the work, not after it."""
    if out is not None:
        from trueup.report import page_path

        page_path(out)


def write_page(out: Path | None, found: Audit | Comparison) -> Path | None:
    if out is not None:
        with progress_bar("drawing") as progress:
            found.to_html(out, progress)
    return out


def tell_page(out: Path | None, as_json: bool) -> None:
    if out is not None and not as_json:
        typer.echo(f"{out} holds the page")


def write_study(folder: Path, out: Path, data_dir: Path | None) -> None:
    """The page of the study in a folder."""
    from trueup import report as pages

    table, runs = pages.read_study(folder)
    with progress_bar("drawing the page") as progress:
        pages.write(out, pages.of_study(table, runs, data_dir=data_dir, progress=progress))
