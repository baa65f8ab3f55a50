"""A data set as tensors, its checksum, and the line between training and validation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trueup import inputs
from trueup.inputs import InputError

VALIDATION_SHARE = 0.1
"""5 000 of CIFAR's 50 000, as the papers have it, and in proportion elsewhere."""


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Inputs, labels and, where they are known, the class probabilities of each sample."""

    inputs: Tensor
    """uint8 images (N, C, H, W), or float32 features (N, D)."""
    labels: Tensor
    """(N,) int64."""
    posteriors: Tensor | None = None
    """(N, K) float64, true or human."""

    def __post_init__(self) -> None:
        x, y, p = self.inputs, self.labels, self.posteriors
        if not (x.dtype == torch.uint8 and x.ndim == 4) and not (x.dtype == torch.float32 and x.ndim == 2):
            raise InputError(
                f"inputs: expected uint8 images (N, C, H, W) or float32 features (N, D), got {x.dtype} {tuple(x.shape)}"
            )
        if len(x) == 0:
            raise InputError("inputs: empty; at least one sample is needed")
        if y.dtype != torch.int64 or y.shape != (len(x),):
            raise InputError(f"labels: expected int64 of shape ({len(x)},), got {y.dtype} {tuple(y.shape)}")
        if p is not None and (p.dtype != torch.float64 or p.ndim != 2 or len(p) != len(x)):
            raise InputError(f"posteriors: expected float64 of shape ({len(x)}, K), got {p.dtype} {tuple(p.shape)}")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        known = ", posteriors known" if self.posteriors is not None else ""
        return f"Split({len(self)} of {tuple(self.inputs.shape[1:])}{known})"


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training, validation and test data. :func:`assemble` makes one and takes the checksum."""

    name: str
    train: Split
    val: Split
    test: Split
    class_names: tuple[str, ...]
    checksum: str
    """SHA-256 over all the tensors, :func:`checksum`."""
    mean: tuple[float, ...] = ()
    """For each channel of images in [0, 1] (inputs / 255); () for features."""
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise InputError(f"class_names: {self.classes} class; at least two are needed")
        channels = self.input_shape[0] if len(self.input_shape) == 3 else 0
        if not len(self.mean) == len(self.std) == channels:
            raise InputError(f"mean, std: expected {channels} numbers each, got {len(self.mean)} and {len(self.std)}")
        for part, split in self.splits().items():
            if tuple(split.inputs.shape[1:]) != self.input_shape:
                raise InputError(
                    f"{part}: inputs of {tuple(split.inputs.shape[1:])} where train has {self.input_shape}"
                )
            inputs.labels(split.labels, torch.empty(1, 1).expand(len(split), self.classes), f"{part} labels")
            if split.posteriors is not None and split.posteriors.shape[1] != self.classes:
                raise InputError(f"{part}: posteriors of {split.posteriors.shape[1]} classes, not {self.classes}")

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W) or (D,)."""
        return tuple(self.train.inputs.shape[1:])

    def splits(self) -> dict[str, Split]:
        return {"train": self.train, "val": self.val, "test": self.test}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(split)} {part}" for part, split in self.splits().items())
        return f"Dataset({self.name}: {sizes} of {self.input_shape}, {self.classes} classes, {self.checksum[:12]})"


def assemble(
    name: str,
    *,
    train: Split,
    val: Split,
    test: Split,
    class_names: tuple[str, ...],
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
) -> Dataset:
    """The Dataset of three splits, with its checksum.

    >>> import torch
    >>> half = Split(torch.zeros(2, 3), torch.tensor([0, 1]))
    >>> assemble("mine", train=half, val=half, test=half, class_names=("no", "yes"))
    Dataset(mine: 2 train, 2 val, 2 test of (3,), 2 classes, ebc5770bbd7a)
    """
    return Dataset(name, train, val, test, tuple(class_names), checksum(train, val, test), tuple(mean), tuple(std))


def checksum(train: Split, val: Split, test: Split) -> str:
    """SHA-256 over every tensor in a fixed order, each after a line with its name, dtype and shape."""
    digest = hashlib.sha256()
    for part, split in (("train", train), ("val", val), ("test", test)):
        for field in ("inputs", "labels", "posteriors"):
            tensor = getattr(split, field)
            if tensor is not None:
                digest.update(f"{part}.{field} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                digest.update(tensor.cpu().contiguous().view(-1).numpy().data)
    return digest.hexdigest()


def select(images: np.ndarray, labels: np.ndarray, rows: np.ndarray | slice) -> Split:
    """The split of these rows, in their order; a slice shares the memory. (NumPy gathers bytes faster than torch.)"""
    return Split(torch.from_numpy(images[rows]), torch.from_numpy(labels[rows]))


# ---------------------------------------------------------------------- train and validation

Rows = tuple[np.ndarray, np.ndarray]


def _seeded(count: int, seed: int) -> Rows:
    order = np.random.RandomState(seed).permutation(count)
    kept = count - validation_size(count)
    return order[:kept], order[kept:]


def _mukhoti2020(count: int, seed: int) -> Rows:
    order = np.arange(count)
    np.random.RandomState(1).shuffle(order)
    held_out = validation_size(count)
    return order[held_out:], order[:held_out]


def _wang2021(count: int, seed: int) -> Rows:
    return _seeded(count, 101)


SPLITS: dict[str, Callable[[int, int], Rows]] = {
    "seeded": _seeded,
    "mukhoti2020": _mukhoti2020,
    "wang2021": _wang2021,
}
"""``seeded``: a permutation from the seed, the first nine tenths train. ``mukhoti2020``: the authors' own,
``np.random.seed(1)``, shuffle, the first tenth validates. ``wang2021``: theirs, the permutation of seed 101."""


def split_rows(count: int, split: str = "seeded", seed: int = 0) -> Rows:
    """The rows of a training set of ``count`` samples that train and that validate, a tenth (at least one).

    The streams are NumPy's ``RandomState``, which are frozen: a split is the same with every version.

    >>> [len(rows) for rows in split_rows(50_000, "mukhoti2020")]
    [45000, 5000]
    """
    check_split(split, seed)
    if count < 2:
        raise InputError(f"train: {count} sample; at least two are needed, one to train and one to validate")
    return SPLITS[split](count, seed)


def check_split(split: str, seed: int) -> None:
    if split not in SPLITS:
        raise InputError(f"split: unknown {split!r}; known: {', '.join(SPLITS)}")
    if inputs.count(seed, "seed", least=0) >= 2**32:
        raise InputError(f"seed: expected a whole number below 2**32, got {seed}")


def validation_size(count: int) -> int:
    return max(1, round(VALIDATION_SHARE * count))
