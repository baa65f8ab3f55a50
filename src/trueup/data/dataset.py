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

KINDS = {
    (torch.uint8, 4): "images (N, C, H, W)",
    (torch.float32, 2): "features (N, D)",
    (torch.int32, 2): "tokens (N, L)",
    (torch.int32, 3): "trees (N, M, 2)",
}
"""What samples can be, by the type of their entries and the number of dimensions."""


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Inputs, labels and, where they are known, the class probabilities of each sample."""

    inputs: Tensor
    """uint8 images (N, C, H, W); float32 features (N, D); int32 tokens (N, L), each a row of the data set's ``words``;
    or int32 trees (N, M, 2), packed as :mod:`trueup.data.trees` says."""
    labels: Tensor
    """(N,) int64."""
    posteriors: Tensor | None = None
    """(N, K) float64, true or human."""
    targets: Tensor | None = None
    """(N, M) int64, a class for each node of the trees, to be trained on in place of the labels: K for a node of none
    of the K classes, and -100 past the end of a tree."""

    def __post_init__(self) -> None:
        x, y, p = self.inputs, self.labels, self.posteriors
        if (x.dtype, x.ndim) not in KINDS:
            wanted = " or ".join(f"{str(dtype)[6:]} {kind}" for (dtype, _), kind in KINDS.items())
            raise InputError(f"inputs: expected {wanted}; got {x.dtype} {tuple(x.shape)}")
        if len(x) == 0:
            raise InputError("inputs: empty; at least one sample is needed")
        if y.dtype != torch.int64 or y.shape != (len(x),):
            raise InputError(f"labels: expected int64 of shape ({len(x)},), got {y.dtype} {tuple(y.shape)}")
        if p is not None and (p.dtype != torch.float64 or p.ndim != 2 or len(p) != len(x)):
            raise InputError(f"posteriors: expected float64 of shape ({len(x)}, K), got {p.dtype} {tuple(p.shape)}")
        t = self.targets
        if t is not None and (t.dtype != torch.int64 or x.ndim != 3 or t.shape != x.shape[:2]):
            raise InputError(f"targets: expected int64, one for each node of trees, got {t.dtype} {tuple(t.shape)}")

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
    words: Tensor | None = None
    """(V, D) float32, a vector for each token of texts; the first is that of padding, zero."""
    notes: tuple[str, ...] = ()
    """What whoever reads the results has to know of how the data were made, as tokens without a vector."""

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
            if split.targets is not None and not bool(((split.targets >= 0) | (split.targets == -100)).all()):
                raise InputError(f"{part}: targets below 0, where -100 alone means none")
            if split.targets is not None and int(split.targets.max()) > self.classes:
                raise InputError(f"{part}: targets above {self.classes}, which stands for none of the classes")
        self._check_words()

    def _check_words(self) -> None:
        texts = self.train.inputs.dtype == torch.int32
        if texts != (self.words is not None):
            raise InputError(f"words: {'texts need' if texts else 'only texts have'} a vector for each token")
        if self.words is None:
            return
        if self.words.dtype != torch.float32 or self.words.ndim != 2 or bool(self.words[0].any()):
            raise InputError("words: expected float32 vectors (V, D), the first of them zero")
        for part, split in self.splits().items():
            tokens = split.inputs if split.inputs.ndim == 2 else split.inputs[..., 0]
            if int(tokens.min()) < 0 or int(tokens.max()) >= len(self.words):
                raise InputError(f"{part}: tokens outside 0 to {len(self.words) - 1}, the rows of words")

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W), (D,), (L,) or (M, 2)."""
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
    words: Tensor | None = None,
    notes: tuple[str, ...] = (),
) -> Dataset:
    """The Dataset of three splits, with its checksum.

    >>> import torch
    >>> half = Split(torch.zeros(2, 3), torch.tensor([0, 1]))
    >>> assemble("mine", train=half, val=half, test=half, class_names=("no", "yes"))
    Dataset(mine: 2 train, 2 val, 2 test of (3,), 2 classes, ebc5770bbd7a)
    """
    taken = checksum(train, val, test, words)
    return Dataset(name, train, val, test, tuple(class_names), taken, tuple(mean), tuple(std), words, tuple(notes))


def checksum(train: Split, val: Split, test: Split, words: Tensor | None = None) -> str:
    """SHA-256 over every tensor in a fixed order, each after a line with its name, dtype and shape."""
    parts = (("train", train), ("val", val), ("test", test))
    fields = ("inputs", "labels", "posteriors", "targets")
    tensors = {f"{part}.{field}": getattr(split, field) for part, split in parts for field in fields}
    digest = hashlib.sha256()
    for name, tensor in (tensors | {"words": words}).items():
        if tensor is not None:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.cpu().contiguous().view(-1).numpy().data)
    return digest.hexdigest()


def select(samples: np.ndarray, labels: np.ndarray, rows: np.ndarray | slice) -> Split:
    """The split of these rows, in their order; a slice shares the memory. (NumPy gathers bytes faster than torch.)"""
    return Split(torch.from_numpy(samples[rows]), torch.from_numpy(labels[rows]))


# ---------------------------------------------------------------------- train and validation

Rows = tuple[np.ndarray, np.ndarray]


def _seeded(count: int, held_out: int, seed: int) -> Rows:
    order = np.random.RandomState(seed).permutation(count)
    return order[: count - held_out], order[count - held_out :]


def _mukhoti2020(count: int, held_out: int, seed: int) -> Rows:
    order = np.arange(count)
    np.random.RandomState(1).shuffle(order)
    return order[held_out:], order[:held_out]


def _wang2021(count: int, held_out: int, seed: int) -> Rows:
    return _seeded(count, held_out, 101)


SPLITS: dict[str, Callable[[int, int, int], Rows]] = {
    "seeded": _seeded,
    "mukhoti2020": _mukhoti2020,
    "wang2021": _wang2021,
}
"""``seeded``: a permutation from the seed, the first nine tenths train. ``mukhoti2020``: the authors' own,
``np.random.seed(1)``, shuffle, the first tenth validates. ``wang2021``: theirs, the permutation of seed 101."""


def split_rows(count: int, split: str = "seeded", seed: int = 0, share: float = VALIDATION_SHARE) -> Rows:
    """The rows of a training set of ``count`` samples that train and that validate, a tenth (at least one).

    The streams are NumPy's ``RandomState``, which are frozen: a split is the same with every version.

    >>> [len(rows) for rows in split_rows(50_000, "mukhoti2020")]
    [45000, 5000]
    """
    check_split(split, seed)
    if count < 2:
        raise InputError(f"train: {count} sample; at least two are needed, one to train and one to validate")
    return SPLITS[split](count, validation_size(count, share), seed)


def check_split(split: str, seed: int) -> None:
    if split not in SPLITS:
        raise InputError(f"split: unknown {split!r}; known: {', '.join(SPLITS)}")
    if inputs.count(seed, "seed", least=0) >= 2**32:
        raise InputError(f"seed: expected a whole number below 2**32, got {seed}")


def validation_size(count: int, share: float = VALIDATION_SHARE) -> int:
    return max(1, round(share * count))
