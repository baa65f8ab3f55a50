"""Gaussian classes whose posterior is known: what calibration can be measured against."""

from __future__ import annotations

import numpy as np
import torch

from trueup import inputs
from trueup.data.dataset import Dataset, Split, assemble, check_split
from trueup.data.folders import PathLike
from trueup.inputs import InputError


def gaussians(
    data_dir: PathLike | None = None,
    *,
    split: str = "seeded",
    seed: int = 0,
    classes: int = 10,
    dimension: int = 5,
    train: int = 1000,
    val: int = 1000,
    test: int = 10_000,
    separation: float = 3.0,
) -> Dataset:
    """Classes of equal weight, x | y = k ~ N(m_k, I), in ``dimension`` float32 features.

    The means are drawn from the seed and scaled: the root of the mean squared distance between two of them is
    ``separation``, in standard deviations. The posteriors are exact for the features as rounded to float32. Each part
    has a stream of its own, so that a larger training set leaves the test set as it is. Nothing is read, and nothing
    has to be held out: ``data_dir`` and ``split`` have no effect.
    """
    check_split(split, seed)
    inputs.count(classes, "classes", least=2)
    inputs.count(dimension, "dimension")
    if not (isinstance(separation, int | float) and 0 <= separation < float("inf")):
        raise InputError(f"separation: expected a number of at least 0, got {separation!r}")
    streams = [np.random.RandomState(np.random.MT19937(part)) for part in np.random.SeedSequence(seed).spawn(4)]
    means = class_means(classes, dimension, separation, streams[0])
    return assemble(
        "gaussians",
        train=_drawn(inputs.count(train, "train"), means, streams[1]),
        val=_drawn(inputs.count(val, "val"), means, streams[2]),
        test=_drawn(inputs.count(test, "test"), means, streams[3]),
        class_names=tuple(str(k) for k in range(classes)),
    )


def class_means(classes: int, dimension: int, separation: float, stream: np.random.RandomState) -> np.ndarray:
    """(K, D) float64 around the origin; the mean squared distance of two different ones is separation squared."""
    means = stream.standard_normal((classes, dimension))
    means -= means.mean(0)
    # over ordered pairs, sum |m_i - m_j|^2 = 2 K sum |m_i|^2 for centred means
    mean_square = 2 * classes * (means**2).sum() / (classes * (classes - 1))
    return means * (separation / np.sqrt(mean_square))


def posterior(features: np.ndarray, means: np.ndarray) -> np.ndarray:
    """(N, K) float64: P(k | x) = exp(x m_k - |m_k|^2 / 2) / sum_j exp(x m_j - |m_j|^2 / 2)."""
    scores = features.astype(np.float64) @ means.T - (means**2).sum(1) / 2
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _drawn(count: int, means: np.ndarray, stream: np.random.RandomState) -> Split:
    labels = stream.randint(len(means), size=count).astype(np.int64)
    features = (means[labels] + stream.standard_normal((count, means.shape[1]))).astype(np.float32)
    return Split(torch.from_numpy(features), torch.from_numpy(labels), torch.from_numpy(posterior(features, means)))
