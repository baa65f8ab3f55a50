"""Where a training stands, in one file that is there whole or not at all.

It says with what versions on what hardware it came so far: a training may go on elsewhere, and its result tells of both
places. From bf16 to float32 or back, which ``precision="auto"`` leaves to the hardware, it does not go on.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trueup.files import write_whole
from trueup.inputs import InputError
from trueup.train.loop import Progress, in_bf16
from trueup.train.recipe import Recipe
from trueup.train.step import State

FORMAT = "1"
CHECKPOINT = "checkpoint.safetensors"


def write_checkpoint(
    folder: Path,
    recipe: Recipe,
    checksum: str,
    state: State,
    progress: Progress,
    seconds: float,
    places: list[dict[str, Any]],
) -> None:
    """One file with the state, the history so far, and what they belong to. ``places``: as ``run.where`` tells one."""
    tensors = state.tensors() | {f"best.{name}": tensor for name, tensor in (progress.best or {}).items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about = {
        "format": FORMAT,
        "digest": recipe.digest,
        "data": checksum,
        "sum": _sum(tensors),
        "seconds": repr(seconds),
        "places": json.dumps(places),
        "best_error": json.dumps(progress.best_error),
        "history": json.dumps(progress.history),
    }
    write_whole(folder / CHECKPOINT, safetensors.torch.save(tensors, about))


def read_checkpoint(
    folder: Path, recipe: Recipe, checksum: str, place: dict[str, Any]
) -> tuple[dict[str, Tensor], Progress, float, list[dict[str, Any]]] | None:
    """The state, where the training stands, the seconds it took, and its places, of which ``place`` is to be the next;
    None where there is no checkpoint yet."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about["format"] != FORMAT:
            raise InputError(f"{path}: format version {about['format']!r}; this release reads {FORMAT}")
        history, best_error = json.loads(about["history"]), json.loads(about["best_error"])
        digest, data, seconds = about["digest"], about["data"], float(about["seconds"])
        places = json.loads(about.get("places", "[]"))  # the first ones do not tell
        whole = about["sum"] == _sum(tensors)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: damaged ({error}); without it the run begins anew: remove it") from None
    if not whole:
        raise InputError(f"{path}: damaged (its sum differs); without it the run begins anew: remove it")
    if digest != recipe.digest:
        raise InputError(f"{path}: of another recipe ({digest}, not {recipe.digest}); take another folder")
    if data != checksum:
        raise InputError(f"{path}: {recipe.data} has changed since (another checksum); take another folder")
    kinds = [in_bf16(recipe, on_gpu="gpu" in each["hardware"]) for each in (*places[-1:], place)]
    if len(set(kinds)) == 2:
        before, now = ("bf16" if half else "float32" for half in kinds)
        raise InputError(
            f"{path}: the training came so far in {before}, and here it would go on in {now}; "
            "go on where it began (--device), or remove the file to begin anew"
        )
    best = {name.removeprefix("best."): t for name, t in tensors.items() if name.startswith("best.")}
    state = {name: tensor for name, tensor in tensors.items() if not name.startswith("best.")}
    return state, Progress(history, best_error, best or None), seconds, places


def _sum(tensors: dict[str, Tensor]) -> str:
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy(), total)  # type: ignore[arg-type]
    return f"{total:08x}"
