"""What all commands share: the application, their options, how they print and how they fail."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

import trueup
from trueup.files import fault
from trueup.inputs import InputError


class _Commands(TyperGroup):
    """What the user can mend ends in one line and exit code 2, never in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
        except BrokenPipeError:  # whoever read, as head does, has seen enough: typer ends without a word
            raise
        except OSError as error:
            typer.echo(f"error: {fault(error)}", err=True)
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
Resamples = Annotated[int, typer.Option(min=0, help="for the intervals; 0 leaves them out")]
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


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Ctrl-C, and being asked to end (SIGTERM), end with a line that says how to go on."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; what is done is in {folder}, and the same command goes on from there", err=True)
        raise typer.Exit(130) from None


def show(for_people: Any, for_programs: Any, as_json: bool, *, piped_width: int | None = None) -> None:
    """Prints the one or the other. Wide tables need not be folded where no terminal is: see ``piped_width``."""
    if as_json:
        typer.echo(json.dumps(for_programs, indent=1, allow_nan=False))
    else:
        Console(width=None if sys.stdout.isatty() else piped_width).print(for_people, highlight=False)
