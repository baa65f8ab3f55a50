"""A run: one training in one folder, which can be killed at any moment and goes on from its last checkpoint.

    recipe.json             the recipe and its digest
    history.jsonl           a line an epoch, to be followed while it runs (.gz in a run that is kept)
    checkpoint.safetensors  the state after an epoch, the history so far; gone when the run is complete
    val.safetensors         Predictions; test.safetensors likewise
    last-test.safetensors   those of the last epoch, where the best on val is kept; last-val.safetensors likewise
    usual-test.safetensors  with the test images normalised as all others, where the recipe does otherwise
    outputs-val.safetensors, outputs-test.safetensors  all outputs, where there is one for what is of no class
    posteriors.safetensors  the true or human class probabilities of the test samples, where they are known
    weights.safetensors     the kept weights
    run.json                versions, hardware, seconds, date; written last, so that a folder with it is complete

Every file but the history is written under another name first, so that it is there whole or not at all. The history is
written anew from the checkpoint when a run goes on.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

import trueup
from trueup import data as sources
from trueup.data import Dataset
from trueup.files import Content, told_as, write_whole
from trueup.files import write as write_predictions
from trueup.inputs import InputError
from trueup.predictions import Predictions, load
from trueup.train.checkpoint import CHECKPOINT, read_checkpoint, write_checkpoint
from trueup.train.loop import BESIDE, NO_CLASS, Fitted, Progress, check_names, chosen_device, fit
from trueup.train.recipe import Recipe
from trueup.train.step import State

FILES = (
    "recipe.json", "history.jsonl", CHECKPOINT, "val.safetensors", "test.safetensors", "posteriors.safetensors",
    "weights.safetensors", "run.json", *(f"{name}.safetensors" for name in BESIDE),
)  # fmt: skip
"""All that a run writes. What else is in its folder is somebody else's."""

CHECKPOINT_SHARE = 0.02
"""Checkpoints take at most about this share of the time, as long as they come more often than they have to."""


@dataclass(frozen=True)
class Run:
    """A complete run, read from its folder."""

    folder: Path
    recipe: Recipe
    info: dict[str, Any]
    """What run.json holds."""

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """An entry for each epoch."""
        return read_history(self.folder)

    @cached_property
    def val(self) -> Predictions:
        return load(self.folder / "val.safetensors")

    @cached_property
    def test(self) -> Predictions:
        return load(self.folder / "test.safetensors")

    @cached_property
    def last(self) -> tuple[Predictions, Predictions] | None:
        """Those of val and test of the last epoch, where the best on val is kept."""
        return (self.beside("last-val"), self.beside("last-test")) if self.recipe.keep == "best-val" else None

    def beside(self, name: str) -> Predictions:
        """What else was scored, as "last-test", "usual-test" or "outputs-test"; see
        :class:`trueup.train.loop.Fitted`."""
        path = self.folder / f"{name}.safetensors"
        if not path.is_file():
            raise InputError(
                f"{path}: no such file; keep=best-val gives last-val and last-test, "
                "normalisation=imagenet-test gives usual-test"
            )
        return load(path)

    @cached_property
    def test_posteriors(self) -> Tensor | None:
        """(N, K) float64, the true or human class probabilities of the test samples, where they are known."""
        path = self.folder / "posteriors.safetensors"
        return safetensors.torch.load_file(path)["test"] if path.exists() else None

    @property
    def seconds(self) -> float:
        return self.info["seconds"]


def train(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    device: str = "auto",
    mode: str = "auto",
    data_dir: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 20.0,
    half: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Run:
    """Trains in ``folder``, or goes on there; a complete run is only read.

    A checkpoint is written every ``checkpoint_seconds``, more often where that costs next to nothing, and after every
    epoch with 0. ``half`` stores the predictions in float16. ``progress`` sees how many epochs are done, as in 3.25,
    now and then.
    """
    folder = Path(folder)
    chosen_device(device)
    check_names(recipe)
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder), _as_it_was_if_refused(folder, new):
        _settle_recipe(folder, recipe)
        if is_complete(folder, recipe) or is_kept(folder):
            (folder / CHECKPOINT).unlink(missing_ok=True)
            return load_run(folder)
        (folder / "run.json").unlink(missing_ok=True)  # of a run that has lost a file since: it is trained anew
        data = sources.load(recipe.data, data_dir, split=recipe.split, seed=recipe.split_seed)
        place = where(device)
        saved = read_checkpoint(folder, recipe, data.checksum, place)
        keeper = _Keeper(folder, recipe, data.checksum, checkpoint_seconds, place)
        if saved:
            keeper.take_over(*saved[2:])
        keeper.rewrite(saved[1].history if saved else [])  # what was written after the checkpoint, or by half, goes
        with _explained(folder, recipe):
            fitted = fit(
                recipe,
                data,
                device=device,
                mode=mode,
                saved=saved[:2] if saved else None,
                after_epoch=keeper.after_epoch,
                watch=progress,
            )
        _finish(folder, recipe, data, fitted, keeper, half)
        (folder / CHECKPOINT).unlink(missing_ok=True)
        return load_run(folder)


def load_run(folder: str | os.PathLike[str]) -> Run:
    """A complete run from its folder."""
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise InputError(f"{folder}: no complete run is in it (run.json is missing)")
    info = _read_json(folder / "run.json")
    if not isinstance(info, dict) or not {"date", "digest", "seconds"} <= set(info):
        raise InputError(f"{folder / 'run.json'}: damaged; remove it, and the same command trains the run anew")
    return Run(folder, read_recipe(folder / "recipe.json"), info)


def whole_run(folder: Path) -> Run:
    """The same, whose predictions and history can be read."""
    run = load_run(folder)
    try:
        _ = run.val, run.test, run.last, run.history
    except InputError as error:
        raise InputError(f"{error}; remove {folder}, and the same command trains the run anew") from None
    return run


def is_kept(folder: Path) -> bool:
    """Whether it is a run that was stored without its weights, which is not trained again."""
    return (folder / "run.json").is_file() and (folder / "history.jsonl.gz").is_file()


def is_complete(folder: Path, recipe: Recipe) -> bool:
    """Whether the folder holds this very recipe's run, with all of its files."""
    files = ["run.json", "recipe.json", "history.jsonl", "val.safetensors", "test.safetensors", "weights.safetensors"]
    files += ["last-val.safetensors", "last-test.safetensors"] * (recipe.keep == "best-val")
    try:
        return all((folder / name).is_file() for name in files) and (
            read_recipe(folder / "recipe.json").digest == recipe.digest
        )
    except InputError:  # which it is told when it is trained
        return False


def read_recipe(path: Path) -> Recipe:
    """What recipe.json holds; its digest is checked."""
    content = _read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("recipe"), dict):
        raise InputError(f"{path}: not a recipe; remove the folder to begin anew")
    try:
        recipe = Recipe.from_dict(content["recipe"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if recipe.digest != content.get("digest"):
        raise InputError(
            f"{path}: the digest is not that of the recipe, which was changed by hand; remove the folder to begin anew"
        )
    return recipe


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The entries so far; a last line that is being written is left out. A run that is kept may have it gzipped."""
    path, packed = folder / "history.jsonl", folder / "history.jsonl.gz"
    try:
        if packed.is_file() and not path.is_file():
            path = packed
            lines = gzip.decompress(path.read_bytes()).decode().split("\n")
        else:
            lines = path.read_text().split("\n")
        return [json.loads(line) for line in lines[:-1]]
    except FileNotFoundError:
        return []
    except (EOFError, OSError, zlib.error, ValueError) as error:
        raise InputError(f"{path}: damaged ({error})") from None


# ---------------------------------------------------------------------- checkpoints


class _Keeper:
    """Keeps the history after every epoch, and a checkpoint now and then."""

    def __init__(self, folder: Path, recipe: Recipe, checksum: str, every: float, place: dict[str, Any]) -> None:
        self.folder, self.recipe, self.checksum, self.every = folder, recipe, checksum, every
        self.places = [place]
        self.begun = self.last = time.perf_counter()
        self.cost = 0.0

    def take_over(self, seconds: float, places: list[dict[str, Any]]) -> None:
        """What an earlier process took, and where."""
        self.begun -= seconds
        self.places = [*(place for place in places if place != self.places[0]), *self.places]

    def seconds(self) -> float:
        return time.perf_counter() - self.begun

    def rewrite(self, history: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in history)
        write_whole(self.folder / "history.jsonl", lines.encode())

    def after_epoch(self, state: State, progress: Progress) -> None:
        entry = progress.history[-1]
        path = self.folder / "history.jsonl"
        with told_as(path), open(path, "a") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")
        now = time.perf_counter()
        if now - self.last >= min(self.every, self.cost / CHECKPOINT_SHARE):
            write_checkpoint(self.folder, self.recipe, self.checksum, state, progress, self.seconds(), self.places)
            self.last = time.perf_counter()
            self.cost = self.last - now


# ---------------------------------------------------------------------- the folder


@contextmanager
def _as_it_was_if_refused(folder: Path, new: bool) -> Iterator[None]:
    """Where no epoch was done before an error, as where the data are missing or do not fit the net, nothing stays of
    what was begun, nor a folder that is new."""
    begun = (folder / "recipe.json").exists()
    try:
        yield
    except Exception:
        if not begun and not read_history(folder):
            for name in ("recipe.json", "history.jsonl"):
                (folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # somebody else's files
                if new:
                    folder.rmdir()
        raise


def _settle_recipe(folder: Path, recipe: Recipe) -> None:
    """Writes the recipe, or checks that what the folder holds is this recipe's."""
    path = folder / "recipe.json"
    for name in FILES:
        for stray in folder.glob(f".{name}.*"):  # of a process that was killed; no other process is in here
            stray.unlink(missing_ok=True)
    begun = (folder / CHECKPOINT).exists() or (folder / "run.json").exists() or read_history(folder)
    there = read_recipe(path) if begun or path.exists() else None
    if there is None or (there.digest != recipe.digest and not begun):
        content = {"recipe": recipe.to_dict(), "digest": recipe.digest}
        write_whole(path, json.dumps(content, indent=1).encode() + b"\n")
    elif there.digest != recipe.digest:
        raise InputError(
            f"{folder}: holds a run of another recipe ({'; '.join(there.differences(recipe))}); take another folder"
        )


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One process at a time; the system lets go of the lock when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(f"{folder}: another process is training in it") from None
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def _explained(folder: Path, recipe: Recipe) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{folder}: out of GPU memory with {recipe.model}, batch {recipe.batch} ({str(error).split('. ')[0]}); "
            "nothing is lost: free memory, or take a device with more, and run the same again"
        ) from None
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None


def _finish(folder: Path, recipe: Recipe, data: Dataset, fitted: Fitted, keeper: _Keeper, half: bool) -> None:
    keeper.rewrite(fitted.history)  # line by line it was not forced to the disk
    weights = {name: tensor.contiguous() for name, tensor in fitted.model.state_dict().items()}
    write_whole(folder / "weights.safetensors", safetensors.torch.save(weights, {"digest": recipe.digest}))
    meta = {"recipe": recipe.to_dict(), "digest": recipe.digest, "data_checksum": data.checksum}
    for name, logits in ({"val": fitted.val_logits, "test": fitted.test_logits} | fitted.beside).items():
        split = name.rpartition("-")[2]
        values, labels = logits.half() if half else logits, data.splits()[split].labels
        names = (*data.class_names, *[NO_CLASS] * (values.shape[1] - data.classes))
        content = Content("logits", values.numpy(), labels.numpy(), names, {**meta, "split": split})
        write_predictions(folder / f"{name}.safetensors", content)
    if data.test.posteriors is not None:
        known = safetensors.torch.save({"test": data.test.posteriors.contiguous()})
        write_whole(folder / "posteriors.safetensors", known)
    info = {
        "complete": True,
        "digest": recipe.digest,
        "data_checksum": data.checksum,
        "parameters": sum(p.numel() for p in fitted.model.parameters()),
        "epochs": recipe.epochs,
        "kept_epoch": fitted.kept_epoch,
        "data_notes": list(data.notes),
        "seconds": keeper.seconds(),
        "seconds_an_epoch": float(np.median([entry["seconds"] for entry in fitted.history])),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **keeper.places[-1],
    }
    if keeper.places[:-1]:
        info["earlier"] = keeper.places[:-1]  # it was begun elsewhere, or with other versions
    write_whole(folder / "run.json", json.dumps(info, indent=1).encode() + b"\n")


def where(device: str = "auto") -> dict[str, Any]:
    """The versions and the hardware."""
    place = chosen_device(device)
    hardware = {"cpu": _cpu(), "threads": torch.get_num_threads()}
    if place.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(place)
    versions = {
        "trueup": trueup.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
    }
    return {"versions": versions, "hardware": hardware}


def _cpu(info: Path = Path("/proc/cpuinfo")) -> str:
    """The name of the processor's model, where the system tells it."""
    with suppress(OSError):
        for line in info.read_text(errors="replace").splitlines():
            key, _, name = line.partition(":")
            if key.strip() == "model name" and name.strip():
                return " ".join(name.split())
    return platform.processor() or platform.machine()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: damaged ({error}); remove the folder to begin anew") from None
