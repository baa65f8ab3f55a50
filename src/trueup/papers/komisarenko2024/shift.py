"""What needs the weights of a run: test images that were corrupted, and the training samples themselves.

Maps are fitted on the clean validation set, as everywhere, and judged on images that are not like it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from trueup import data as sources
from trueup import models
from trueup.calibrators import Auto, CalibrationMap, FocalTemperature, Temperature
from trueup.calibrators.focal import FocalTemperatureMap
from trueup.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from trueup.inputs import InputError
from trueup.metrics import Resampler, ece, error, nll, overconfidence, score_logits
from trueup.papers.komisarenko2024.networks import Shelf, training_gamma
from trueup.papers.stored import run_name
from trueup.train import Run, load_run
from trueup.train.batches import Normaliser, normalisers, on_device
from trueup.train.loop import TRAIN_SAMPLES, chosen_device
from trueup.train.measure import logits_of

VERSION = 1
MEASURED = {"nll": nll, "ece": ece}


def score_run(
    folder: Path,
    results: Path,
    *,
    device: str = "auto",
    data_dir: Path | None = None,
    resamples: int = 300,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> str:
    """Scores a complete run that still has its weights, and keeps the figures in ``results``/shift; the run's name."""
    run = load_run(folder)
    weights = run.folder / "weights.safetensors"
    if not weights.is_file():
        raise InputError(f"{weights}: no such file; the run was kept without its weights, and has to be trained again")
    shelf, name, sums = Shelf(results / "shift", VERSION), run_name(run.recipe), {"recipe": run.recipe.digest}
    if shelf.fresh(name, sums, resamples) is None:
        content = figures(run, device=device, data_dir=data_dir, resamples=resamples, seed=seed, progress=progress)
        about = {"name": name, "recipe": run.recipe.to_dict(), "run": run.info, "resamples": resamples, "seed": seed}
        shelf.put(name, about | content, sums)
    return name


def figures(
    run: Run,
    *,
    device: str,
    data_dir: Path | None,
    resamples: int,
    seed: int,
    progress: Callable[[float], None] | None,
) -> dict[str, Any]:
    """Each map on each corruption, and the confidence on the training samples before and after the focal map."""
    recipe, place = run.recipe, chosen_device(device)
    data = sources.load(recipe.data, data_dir, split=recipe.split, seed=recipe.split_seed)
    if data.checksum != run.info["data_checksum"]:
        raise InputError(f"{run.folder}: {recipe.data} has changed since (another checksum)")
    if data.test.inputs.dtype != torch.uint8:
        raise InputError(f"{run.folder}: a run on {recipe.data}, which has no images to corrupt")
    model = models.build(recipe.model, data.classes, data.input_shape, data.words)
    model.load_state_dict(safetensors.torch.load_file(run.folder / "weights.safetensors"))
    model.to(place)
    usual, for_test = normalisers(recipe, data, place)
    bf16 = recipe.precision == "bf16" or (recipe.precision == "auto" and place.type == "cuda")
    autocast = partial(torch.autocast, place.type, torch.bfloat16) if bf16 else nullcontext

    def logits(images: Tensor, normaliser: Normaliser) -> Tensor:
        return logits_of(model, on_device(images, place), normaliser, autocast).cpu().double()

    val, gamma = run.val, training_gamma(recipe.loss)
    maps: dict[str, CalibrationMap | None] = {
        "none": None,
        "temperature": Temperature().fit(val.logits, val.labels),
        "focal-temperature": FocalTemperature().fit(val.logits, val.labels),
        "focal-temperature by adaptive ECE": FocalTemperature(criterion="mukhoti2020_adaptive_ece").fit(
            val.logits, val.labels
        ),
        "auto": Auto().fit(val.logits, val.labels),
    }
    psi = FocalTemperatureMap(data.classes, 1.0, gamma) if gamma else None
    some = slice(TRAIN_SAMPLES)
    confidence = {
        "train": _confidence(logits(data.train.inputs[some], usual), data.train.labels[some], psi),
        "test": _confidence(logits(data.test.inputs, for_test), data.test.labels, psi),
    }
    cells = [("clean", 0), *((kind, severity) for kind in CORRUPTIONS for severity in SEVERITIES)]
    entries = []
    for i, (kind, severity) in enumerate(cells):
        images = data.test.inputs if kind == "clean" else corrupt(data.test.inputs, kind, severity, seed)
        found = _judged(logits(images, for_test), data.test.labels, maps, resamples, seed)
        entries.append({"kind": kind, "severity": severity, **found})
        if progress:
            progress((i + 1) / len(cells))
    return {"gamma": gamma, "confidence": confidence, "cells": entries}


def _judged(
    z: Tensor, labels: Tensor, maps: dict[str, CalibrationMap | None], resamples: int, seed: int
) -> dict[str, Any]:
    scores = {name: score_logits(z if made is None else made.scores(z), labels) for name, made in maps.items()}
    focal, plain = (Resampler(scores[name], resamples, seed) for name in ("focal-temperature", "temperature"))
    return {
        "error": error(scores["none"]),
        "maps": {
            name: {key: metric(each) for key, metric in MEASURED.items()} | {"overconfidence": overconfidence(each)}
            for name, each in scores.items()
        },
        "difference": {key: list(focal.difference(plain, metric)) for key, metric in MEASURED.items()},
    }


def _confidence(z: Tensor, labels: Tensor, psi: CalibrationMap | None) -> dict[str, Any]:
    """Accuracy and mean confidence, as trained and after the focal map of the training gamma."""
    before = score_logits(z, labels)
    after = before if psi is None else score_logits(psi.scores(z), labels)
    return {
        "accuracy": 1 - error(before),
        "before": float(before.confidence.mean()), "after": float(after.confidence.mean()),
        "ece_before": ece(before), "ece_after": ece(after),
    }  # fmt: skip


def stored(results: Path) -> list[dict[str, Any]]:
    """What was scored, by the run's name."""
    shelf = Shelf(results / "shift", VERSION)
    return [found for name in shelf.names() if (found := shelf.stored(name)) is not None]
