"""Runs that are kept: complete run folders without their weights, their predictions in float16, with the SHA-256 of
every file beside them.

    results/PAPER/runs/NAME/    recipe.json, history.jsonl.gz, val.safetensors, test.safetensors, run.json,
                                what else was scored (last-, usual- and outputs-), what the predictions say
                                (figures.json), and what a paper measured of it, as curvature.json
    results/PAPER/tables/NAME/  the same without predictions, which for a run of a large data set are megabytes
    results/PAPER/SHA256SUMS    as ``sha256sum`` writes and checks it

NAME is ``run_name`` of the recipe. A run without a line in SHA256SUMS is read too, and held to what its own files say
of each other.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from trueup.files import read, write, write_whole
from trueup.inputs import InputError
from trueup.metrics import error, nll, score_logits
from trueup.papers.summary import FILE, VERSION, has_predictions, stored_summary, summarise
from trueup.train import RECIPES, Recipe, Run, folder_name, load_run, named
from trueup.train.loop import BESIDE
from trueup.train.measure import measured

SUMS = "SHA256SUMS"
STORING = ".storing-"
"""What such names have is there while a run is stored."""
KEPT = ("recipe.json", "history.jsonl", "run.json")
PREDICTIONS = ("val.safetensors", "test.safetensors")
SCORED_BESIDE = tuple(f"{name}.safetensors" for name in BESIDE)
"""Kept too where a run has it: what else was scored."""
MEASURED = ("curvature.json",)
"""And what was measured while the weights were there."""
SCHEDULES = {
    "mukhoti2020": "full", "mukhoti2020-short": "short", "mukhoti2020-20newsgroups": "adam",
    "mukhoti2020-sst": "adagrad", "mukhoti2020-tiny": "tiny",
}  # fmt: skip
"""The recipes of mukhoti2020, and the word for each in the name of a run."""
AXES = ("data", "model", "loss", "seed")
"""What a grid varies; they are named in a run's name by themselves."""
ARITHMETIC = "precision"
"""What no grid varies: "auto" leaves it to the machine. Runs of the same training in another precision are the same run
to a grid, and each tells in what arithmetic it was made."""


def changes(recipe: Recipe) -> dict[str, object]:
    """The fields, but for the axes of a grid, in which a recipe differs from the named one it was made from."""
    own = recipe.to_dict()
    usual = named(recipe.name, **{axis: own[axis] for axis in AXES}).to_dict()
    return {field: own[field] for field in own if own[field] != usual[field]}


def run_name(recipe: Recipe) -> str:
    """A name that tells every recipe from all others, and people what it is; the precision is not in it.

    >>> from trueup.train import named
    >>> run_name(named("mukhoti2020-short", model="resnet18", loss="focal:3", reduction="mean", clip=None))
    'cifar10_resnet18_focal-3_short_reduction-mean_clip-none_seed0'
    """
    if recipe.name not in RECIPES:
        return folder_name(recipe)
    parts = [recipe.data, recipe.model, recipe.loss, SCHEDULES.get(recipe.name, recipe.name)]
    parts += [f"{field}-{_plain(value)}" for field, value in changes(recipe).items() if field != ARITHMETIC]
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


def keeps_predictions(recipe: Recipe) -> bool:
    """Whether a run is kept with its predictions. Those of large data sets are kept of a few runs only, so that a clone
    stays small: 5 MB each on CIFAR-100, half a megabyte on 20 Newsgroups."""
    if recipe.data not in ("cifar100", "20newsgroups"):
        return True
    plain = recipe.seed == 0 and recipe.name in RECIPES and set(changes(recipe)) <= {"normalisation", ARITHMETIC}
    few = recipe.loss in ("cross-entropy", "focal:3") and recipe.model in ("resnet18", "resnet50")
    return plain and (few or recipe.data == "20newsgroups")


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)


# ---------------------------------------------------------------------- reading


def load_runs(folder: Path, *, tables: bool = False) -> dict[str, Run]:
    """Every run under ``folder``/runs by its name, and with ``tables`` those that were kept without predictions; a file
    that is missing or was changed is an error."""
    sums = read_sums(folder)
    for name, wanted in sums.items():
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path}: missing; {folder / SUMS} lists it")
        if _sum(path) != wanted:
            raise InputError(f"{path}: changed; its SHA-256 is not the one in {folder / SUMS}")
    found = [path for place in (["runs", "tables"] if tables else ["runs"]) for path in _folders(folder / place)]
    return {path.name: checked_run(path) for path in found}


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []


def checked_run(folder: Path) -> Run:
    """A run whose files belong together: one recipe, all epochs, and predictions that give the history's figures."""
    wanted = (*KEPT, *((FILE,) if folder.parent.name == "tables" else PREDICTIONS))
    for name in wanted:
        if not ((folder / name).is_file() or (name == "history.jsonl" and (folder / f"{name}.gz").is_file())):
            raise InputError(f"{folder / name}: missing; a stored run has {', '.join(wanted)}")
    run = load_run(folder)
    _check_content(run)
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
    for name in (*MEASURED, FILE):
        if (folder / name).is_file() and _read_json(folder / name).get("digest") != run.recipe.digest:
            raise InputError(f"{folder / name}: of another recipe than {folder / 'recipe.json'}")
    kept = kept_entry(run)
    entries = {"val": kept, "test": kept, "last-val": run.history[-1], "last-test": run.history[-1], "usual-test": None}
    for name, entry in entries.items():
        path = folder / f"{name}.safetensors"
        if path.is_file():
            predictions = getattr(run, name) if name in ("val", "test") else run.beside(name)
            if predictions.meta.get("digest") != run.recipe.digest:
                raise InputError(f"{path}: of another recipe than {folder / 'recipe.json'}")
            if entry is not None:
                scores = score_logits(predictions.logits, predictions.labels)
                found = (error(scores), nll(scores), len(predictions))
                _check_against_history(path, *found, entry, name.rpartition("-")[2])
    summary = stored_summary(run)
    if summary is not None:
        before = summary.figures.before
        found = (before["error"], before["nll"], summary.figures.n_test)
        _check_against_history(folder / FILE, *found, kept, "test")
    return run


def _check_content(run: Run) -> None:
    """All that tables and figures read is there."""
    needed = {"date": "", "seconds": 0.0, "hardware": {"cpu": ""}, "versions": {"torch": ""}}
    if lacking := _lacking(run.info, needed):
        raise InputError(f"{run.folder / 'run.json'}: damaged; {lacking} is missing")
    for line, entry in enumerate(run.history, 1):
        if lacking := _lacking(entry, _an_epoch()):
            raise InputError(f"{run.folder / 'history.jsonl'}: damaged; line {line}: {lacking} is missing")


@cache
def _an_epoch() -> dict[str, Any]:
    """An entry of a history, as far as every one has it."""
    of_split = measured(2 * torch.eye(2), torch.tensor([0, 1]))
    splits = dict.fromkeys(("train", "val", "test"), of_split)
    return {"epoch": 0, "lr": 0.0, "gradient_norm": {"mean": 0.0, "max": 0.0}, "weight_norm": 0.0, **splits}


def _lacking(content: Any, needed: dict[str, Any]) -> str:
    """The first key of ``needed`` that is missing, as "test.wrong.nll"; empty where none is."""
    if not isinstance(content, dict):
        return "an object"
    for key, value in needed.items():
        if key not in content:
            return key
        if isinstance(value, dict) and (deeper := _lacking(content[key], value)):
            return f"{key}.{deeper}"
    return ""


def kept_entry(run: Run) -> dict[str, Any]:
    """The history of the epoch whose weights were kept: the last, or the first with the lowest error on val."""
    if run.recipe.keep == "last":
        return run.history[-1]
    errors = [entry["val"]["error"] for entry in run.history]
    best = errors.index(min(errors))
    if run.info.get("kept_epoch") != best:
        raise InputError(
            f"{run.folder / 'run.json'}: epoch {run.info.get('kept_epoch')} was kept, where the history has the lowest "
            f"error on val at epoch {best}"
        )
    return run.history[best]


def _check_against_history(
    path: Path, its_error: float, its_nll: float, samples: int, epoch: dict[str, Any], split: str
) -> None:
    """Predictions may be rounded to float16: a tie may flip, and the NLL moves in its fourth digit."""
    entry, flipped = epoch[split], max(1e-3, 1.5 / samples)
    if abs(its_error - entry["error"]) > flipped or abs(its_nll - entry["nll"]) > 1e-3 + 1e-2 * entry["nll"]:
        raise InputError(
            f"{path}: changed; error {its_error:.4f} and NLL {its_nll:.4f}, where the history has "
            f"{entry['error']:.4f} and {entry['nll']:.4f} at epoch {epoch['epoch']}"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error})") from None
    return found if isinstance(found, dict) else {}


# ---------------------------------------------------------------------- keeping


def store(run_folders: Iterable[Path], folder: Path) -> list[Path]:
    """Takes complete runs into ``folder``, without weights and with a packed history, and notes their sums.

    A run of a large data set goes without its predictions into ``tables``, what they say being kept as figures.json.
    Runs that were stored elsewhere can be taken in too. A run is put together and checked beside the others, and takes
    its place whole: one that was refused, or whose storing was stopped, is not there by half. One process at a time
    stores into a folder, for all write the same sums.
    """
    stored = []
    for source in run_folders:
        run = load_run(source)
        with alone_in(folder):
            stored.append(_store_one(run, folder))
    return stored


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Others wait. What a process that was killed has left is removed."""
    from filelock import FileLock

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{STORING}lock"):
        for abandoned in folder.glob(f"{STORING}*/"):
            shutil.rmtree(abandoned)
        yield


def _store_one(run: Run, folder: Path) -> Path:
    source = run.folder
    whole = keeps_predictions(run.recipe)
    target = folder / ("runs" if whole else "tables") / run_name(run.recipe)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=STORING, dir=folder) as beside:
        made = Path(beside) / target.relative_to(folder)
        if target.is_dir():
            shutil.copytree(target, made)
        try:
            _take_in(source, made, run, whole)
            checked_run(made)
        except InputError as error:  # of a copy that nobody will find
            raise InputError(str(error).replace(str(made), str(source))) from None
        for path in made.iterdir() if target.is_dir() else ():
            path.replace(target / path.name)
        if not target.is_dir():
            made.replace(target)
    (target / "history.jsonl").unlink(missing_ok=True)  # it is packed
    write_sums(folder, sorted(path for path in target.iterdir() if path.is_file()))
    return target


def _take_in(source: Path, target: Path, run: Run, whole: bool) -> None:
    """The files of ``source`` that are kept, in ``target``, where an earlier storing of the run may lie."""
    target.mkdir(parents=True, exist_ok=True)
    summed_up = stored_summary(run) is not None
    again = (target / "run.json").is_file() and load_run(target).info == run.info
    optional = (*(SCORED_BESIDE if whole else ()), *MEASURED, *((FILE,) if summed_up else ()))
    there = [name for name in optional if (source / name).is_file()]
    more_scored = any(name in SCORED_BESIDE and not (target / name).is_file() for name in there)
    known = summed_up or (again and not more_scored and stored_summary(load_run(target)) is not None)
    names = ["recipe.json", "run.json", *(PREDICTIONS if whole else ()), *there]
    for name in set(MEASURED) & set(names) if has_predictions(run) else ():
        of = _read_json(source / name)
        if (of.get("split"), of.get("samples")) != ("val", len(run.val)):
            told = f"of {of.get('samples')} samples of {of.get('split')}"
            raise InputError(f"{source / name}: {told}, where all of val is kept; measure the run again")
    lines = (source / "history.jsonl").read_bytes() if (source / "history.jsonl").is_file() else None
    if lines is not None:
        write_whole(target / "history.jsonl.gz", gzip.compress(lines, mtime=0))
        (target / "history.jsonl").unlink(missing_ok=True)
    else:
        names.append("history.jsonl.gz")
    for name in names:
        shutil.copyfile(source / name, target / name)
        if name in (*PREDICTIONS, *SCORED_BESIDE):
            _halve(target / name)
    if not known:
        kept = load_run(target) if whole else run
        content = {"version": VERSION, "digest": run.recipe.digest, **summarise(kept).to_dict()}
        write_whole(target / FILE, json.dumps(content).encode() + b"\n")


def _halve(path: Path) -> None:
    """Logits in float16, where they fit, and labels in two bytes: in eight they would be a third of a file."""
    content = read(path)
    values, labels = map(torch.as_tensor, (content.values, content.labels))
    halves, small = values.half(), labels.short()
    halves = halves if bool(halves.isfinite().all()) else values
    small = small if bool((small == labels).all()) else labels
    if (values.dtype, labels.dtype) != (halves.dtype, small.dtype):
        write(path, content._replace(values=halves.numpy(), labels=small.numpy()))


def read_sums(folder: Path) -> dict[str, str]:
    """Path below ``folder`` -> SHA-256."""
    path = folder / SUMS
    if not path.is_file():
        return {}
    try:
        lines = [line.split("  ", 1) for line in path.read_text().splitlines() if line]
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path}: damaged ({error})") from None
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
