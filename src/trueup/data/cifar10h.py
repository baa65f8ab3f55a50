"""CIFAR-10H (Peterson et al. 2019): what some fifty people each said of the 10 000 CIFAR-10 test images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from trueup.data import cifar, folders
from trueup.data.dataset import Dataset, assemble, check_split
from trueup.data.folders import PathLike
from trueup.inputs import InputError

FILES = ("counts.npz", "cifar10h-counts.npy", "cifar10h-probs.npy")
"""Counts under the name ``counts``, or the authors' own files; the first that is there is read."""
AGREEMENT = 0.9
"""The share of images whose most frequent vote has to be their label. People agree on 99 %, another order on 10 %."""


def cifar10h(data_dir: PathLike | None = None, *, split: str = "seeded", seed: int = 0) -> Dataset:
    """CIFAR-10 whose test split carries the shares of human votes as posteriors (10 000, 10). Not downloaded."""
    check_split(split, seed)
    names = ("cifar10h", "cifar10h/data")
    folder = folders.find(names, data_dir, lambda place: any((place / name).is_file() for name in FILES))
    if folder is None:
        origin = (
            "Fetch cifar10h-counts.npy from https://github.com/jcpeterson/cifar-10h into cifar10h/ beside cifar10/."
        )
        raise folders.missing("cifar10h", f"votes ({', '.join(FILES)})", names, data_dir, origin)
    path = next(folder / name for name in FILES if (folder / name).is_file())
    train, val, test = cifar.splits(cifar.CIFAR10, "label", data_dir, split, seed)
    posteriors = votes(path, test.labels.numpy(), len(cifar.CIFAR10_CLASSES))
    return assemble(
        "cifar10h",
        train=train,
        val=val,
        test=replace(test, posteriors=torch.from_numpy(posteriors)),
        class_names=cifar.CIFAR10_CLASSES,
        mean=cifar.MEAN,
        std=cifar.STD,
    )


def votes(path: Path, labels: np.ndarray, classes: int) -> np.ndarray:
    """(N, K) float64 shares of votes from a file of counts or shares, in the order of the labels."""
    counts = _array(path)
    if counts.shape != (len(labels), classes) or counts.dtype.kind not in "iuf":
        shape = (len(labels), classes)
        raise InputError(f"{path}: expected votes of shape {shape}, got {counts.dtype.name} {counts.shape}")
    counts = counts.astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(counts).all(1) | (counts < 0).any(1) | (counts.sum(1) <= 0))
    if len(wrong):
        raise InputError(f"{path}: row {wrong[0]} holds no votes, or a negative or infinite number of them")
    agreement = float((counts.argmax(1) == labels).mean())
    if agreement < AGREEMENT:
        raise InputError(
            f"{path}: the most frequent vote is the label of {agreement:.0%} of the images, expected "
            f"{AGREEMENT:.0%} or more; the votes and the images are not in the same order"
        )
    return counts / counts.sum(1, keepdims=True)


def _array(path: Path) -> np.ndarray:
    try:
        with open(path, "rb") as file:
            found = np.load(file, allow_pickle=False)
            return np.asarray(found if isinstance(found, np.ndarray) else found["counts"])
    except Exception as error:  # damaged archives fail in many ways
        raise InputError(f"{path}: not an array of votes ({str(error) or type(error).__name__})") from None
