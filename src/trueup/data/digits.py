"""The handwritten digits that come with scikit-learn: 1 797 real images of 8 x 8, nothing to download."""

from __future__ import annotations

from typing import Any

import numpy as np

from trueup.data.dataset import Dataset, assemble, check_split, select, split_rows
from trueup.data.folders import PathLike
from trueup.inputs import InputError

MEAN, STD = (0.3053,), (0.3759,)
TEST_SHARE, VALIDATION_SHARE = 0.25, 0.2


def digits(data_dir: PathLike | None = None, *, split: str = "seeded", seed: int = 0) -> Dataset:
    """Digits (1, 8, 8) of 10 classes: 1 078 train, 269 val, 450 test (60, 15 and 25 %).

    The pixels' 0 to 16 are stretched to 0 to 255. The test set is a quarter of each class and the same for every seed,
    as it is for the other sources. The seed draws a fifth of each class from the rest for validation; the papers'
    splits hold out a tenth of the rest as they do elsewhere. There is nothing to look for in ``data_dir``.
    """
    check_split(split, seed)
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError("digits: needs scikit-learn; install trueup[data]") from None
    raw: Any = load_digits()
    images = np.rint(raw.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = raw.target.astype(np.int64)
    rest, test = stratified(labels, TEST_SHARE, seed=0)
    if split == "seeded":
        train, val = stratified(labels[rest], VALIDATION_SHARE, seed)
    else:
        train, val = split_rows(len(rest), split, seed)
    return assemble(
        "digits",
        train=select(images, labels, rest[train]),
        val=select(images, labels, rest[val]),
        test=select(images, labels, test),
        class_names=tuple("0123456789"),
        mean=MEAN,
        std=STD,
    )


def stratified(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(kept, held out): rows in a seeded order, that share of each class held out."""
    order = np.random.RandomState(seed).permutation(len(labels))
    held_out = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels[order] == label)
        held_out[of_class[: round(share * len(of_class))]] = True
    return order[~held_out], order[held_out]
