"""Where the files of a data set lie."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from trueup.inputs import InputError

PathLike = str | os.PathLike[str]


def find(names: Sequence[str], data_dir: PathLike | None, holds: Callable[[Path], bool]) -> Path | None:
    """The first folder that ``holds`` the files: DIR/NAME, DIR/data/NAME for each name, else DIR itself.

    DIR is ``data_dir``, else the environment's TRUEUP_DATA.
    """
    return next((folder for folder in places(names, data_dir) if folder.is_dir() and holds(folder)), None)


def places(names: Sequence[str], data_dir: PathLike | None) -> list[Path]:
    """Where :func:`find` looks, in its order."""
    given = data_dir or os.environ.get("TRUEUP_DATA")
    if not given:
        return []
    root = Path(given).expanduser()
    if not root.is_dir():
        raise InputError(f"{'data_dir' if data_dir else 'TRUEUP_DATA'}: {root} is not a folder")
    return [root / parent / name for name in names for parent in ("", "data")] + [root]


def missing(name: str, wanted: str, names: Sequence[str], data_dir: PathLike | None, origin: str) -> InputError:
    """The error for files that are in none of the places."""
    looked = ", ".join(str(place) for place in places(names, data_dir)) or "nowhere (no folder is set)"
    return InputError(
        f"{name}: no {wanted}; looked in {looked}. {origin} "
        "Then pass the folder above as data_dir (--data-dir) or set TRUEUP_DATA to it."
    )
