"""Runs that are kept: complete run folders without their weights, with the SHA-256 of every file beside them.

    results/PAPER/runs/NAME/   recipe.json, history.jsonl.gz, val.safetensors, test.safetensors, run.json
                               and what a paper measured of it, as curvature.json
    results/PAPER/SHA256SUMS   as ``sha256sum`` writes and checks it

NAME is ``run_name`` of the recipe. A run without a line in SHA256SUMS is read too, and held to what its own files say
of each other.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trueup.inputs import InputError
from trueup.metrics import error, nll, score_logits
from trueup.train import RECIPES, Recipe, Run, folder_name, load_run, named
from trueup.train.run import write_whole

SUMS = "SHA256SUMS"
KEPT = ("recipe.json", "history.jsonl", "val.safetensors", "test.safetensors", "run.json")
MEASURED = ("curvature.json",)
"""Kept too where a run has it: what was measured while the weights were there."""
SCHEDULES = {"mukhoti2020": "full", "mukhoti2020-short": "short"}
AXES = ("data", "model", "loss", "seed")
"""What a grid varies; they are named in a run's name by themselves."""


def changes(recipe: Recipe) -> dict[str, object]:
    """The fields, but for the axes of a grid, in which a recipe differs from the named one it was made from."""
    own = recipe.to_dict()
    usual = named(recipe.name, **{axis: own[axis] for axis in AXES}).to_dict()
    return {field: own[field] for field in own if own[field] != usual[field]}


def run_name(recipe: Recipe) -> str:
    """A name that tells every recipe from all others, and people what it is.

    >>> from trueup.train import named
    >>> run_name(named("mukhoti2020-short", model="resnet18", loss="focal:3", reduction="mean", clip=None))
    'cifar10_resnet18_focal-3_short_reduction-mean_clip-none_seed0'
    """
    if recipe.name not in RECIPES:
        return folder_name(recipe)
    parts = [recipe.data, recipe.model, recipe.loss, SCHEDULES.get(recipe.name, recipe.name)]
    parts += [f"{field}-{_plain(value)}" for field, value in changes(recipe).items()]
    return "_".join(re.sub(r"[^\w.+-]+", "-", part) for part in (*parts, f"seed{recipe.seed}"))


def command_of(recipe: Recipe) -> str:
    """The command that trains this recipe again."""
    words = [f"trueup train --recipe {recipe.name}"]
    words += [f"--{axis} {getattr(recipe, axis)}" for axis in AXES]
    return " ".join(words + [f"--set {field}={_plain(value)}" for field, value in changes(recipe).items()])


def origin(run: Run) -> str:
    """On what, when and in how many seconds a run was made."""
    hardware, versions = run.info["hardware"], run.info["versions"]
    place = hardware.get("gpu") or hardware["cpu"]
    return f"{run.info['date'][:10]}, {place}, torch {versions['torch']}, {run.seconds:.0f} s"


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)


# ---------------------------------------------------------------------- reading


def load_runs(folder: Path) -> dict[str, Run]:
    """Every run under ``folder``/runs by its name; a file that is missing or was changed is an error."""
    sums = read_sums(folder)
    for name, wanted in sums.items():
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path}: missing; {folder / SUMS} lists it")
        if _sum(path) != wanted:
            raise InputError(f"{path}: changed; its SHA-256 is not the one in {folder / SUMS}")
    runs = folder / "runs"
    found = sorted(path for path in runs.iterdir() if path.is_dir()) if runs.is_dir() else []
    return {path.name: checked_run(path) for path in found}


def checked_run(folder: Path) -> Run:
    """A run whose files belong together: one recipe, all epochs, and predictions that give the history's figures."""
    for name in KEPT:
        if not ((folder / name).is_file() or (name == "history.jsonl" and (folder / f"{name}.gz").is_file())):
            raise InputError(f"{folder / name}: missing; a stored run has {', '.join(KEPT)}")
    run = load_run(folder)
    if run_name(run.recipe) != folder.name:
        raise InputError(
            f"{folder / 'recipe.json'}: a run of another recipe; its folder would be named {run_name(run.recipe)}"
        )
    if run.info.get("digest") != run.recipe.digest:
        raise InputError(f"{folder / 'run.json'}: of another recipe than {folder / 'recipe.json'}")
    if len(run.history) != run.recipe.epochs:
        raise InputError(
            f"{folder / 'history.jsonl'}: {len(run.history)} epochs, where the recipe has {run.recipe.epochs}"
        )
    for name in MEASURED:
        if (folder / name).is_file() and _read_json(folder / name).get("digest") != run.recipe.digest:
            raise InputError(f"{folder / name}: of another recipe than {folder / 'recipe.json'}")
    for split, predictions in (("val", run.val), ("test", run.test)):
        path = folder / f"{split}.safetensors"
        if predictions.meta.get("digest") != run.recipe.digest:
            raise InputError(f"{path}: of another recipe than {folder / 'recipe.json'}")
        if run.recipe.keep == "last":
            _check_against_history(path, run, split)
    return run


def _check_against_history(path: Path, run: Run, split: str) -> None:
    """Predictions may be rounded to float16: a tie may flip, and the NLL moves in its fourth digit."""
    predictions, entry = getattr(run, split), run.history[-1][split]
    scores = score_logits(predictions.logits, predictions.labels)
    if abs(error(scores) - entry["error"]) > 1e-3 or abs(nll(scores) - entry["nll"]) > 1e-3 + 1e-2 * entry["nll"]:
        raise InputError(
            f"{path}: changed; error {error(scores):.4f} and NLL {nll(scores):.4f}, where the history ends with "
            f"{entry['error']:.4f} and {entry['nll']:.4f}"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error})") from None
    return found if isinstance(found, dict) else {}


# ---------------------------------------------------------------------- keeping


def store(run_folders: Iterable[Path], folder: Path) -> list[Path]:
    """Takes complete runs into ``folder``/runs, without weights and with a packed history, and notes their sums."""
    stored = []
    for source in run_folders:
        run = load_run(source)
        target = folder / "runs" / run_name(run.recipe)
        target.mkdir(parents=True, exist_ok=True)
        for name in (*KEPT, *(name for name in MEASURED if (source / name).is_file())):
            if name != "history.jsonl" and source.resolve() != target.resolve():
                shutil.copyfile(source / name, target / name)
        lines = (source / "history.jsonl").read_bytes() if (source / "history.jsonl").is_file() else None
        if lines is not None:
            write_whole(target / "history.jsonl.gz", gzip.compress(lines, mtime=0))
            (target / "history.jsonl").unlink(missing_ok=True)
        elif source.resolve() != target.resolve():
            shutil.copyfile(source / "history.jsonl.gz", target / "history.jsonl.gz")
        checked_run(target)
        write_sums(folder, sorted(path for path in target.iterdir() if path.is_file()))
        stored.append(target)
    return stored


def read_sums(folder: Path) -> dict[str, str]:
    """Path below ``folder`` -> SHA-256."""
    path = folder / SUMS
    if not path.is_file():
        return {}
    lines = [line.split("  ", 1) for line in path.read_text().splitlines() if line]
    if any(len(line) != 2 for line in lines):
        raise InputError(f"{path}: damaged; a line is a SHA-256, two spaces and a path")
    return {name: digest for digest, name in lines}


def write_sums(folder: Path, paths: Iterable[Path]) -> None:
    """Adds the sums of these files, or replaces them."""
    sums = read_sums(folder) | {path.relative_to(folder).as_posix(): _sum(path) for path in paths}
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    write_whole(folder / SUMS, lines.encode())


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
