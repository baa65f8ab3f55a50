"""Predictions to test on: the golden fixture, and shapes that have broken other libraries."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.special import softmax


def golden() -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of a fixture that needs no random numbers; its metrics were computed once, elsewhere."""
    i, k = np.arange(1000)[:, None], np.arange(10)[None]
    logits = 3 * np.sin(0.7 * i + 1.3 * k) + 1.5 * np.cos(0.11 * i * (k + 1))
    other = np.floor(10 * np.modf(0.61803398875 * i[:, 0])[0]).astype(int)
    return logits, np.where(i[:, 0] % 3 != 0, logits.argmax(1), other)


def drawn(n: int, classes: int, seed: int, scale: float = 3.0, temperature: float = 1.0):
    """Probabilities of random logits, and labels drawn from softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, scale, (n, classes))
    truth = softmax(logits / temperature, axis=1)
    labels = (rng.random((n, 1)) > truth.cumsum(1)).sum(1).clip(max=classes - 1)
    return softmax(logits, axis=1), labels


def one_hot(n: int, classes: int, right: float, seed: int = 0):
    """Predictions with all their mass on one class, of which a share is right."""
    rng = np.random.default_rng(seed)
    top = rng.integers(0, classes, n)
    labels = np.where(np.arange(n) < right * n, top, (top + 1) % classes)
    return np.eye(classes)[top], labels


def constant(n: int, classes: int, confidence: float, seed: int = 0):
    """The same confidence everywhere, which holds."""
    rng = np.random.default_rng(seed)
    probs = np.full((n, classes), (1 - confidence) / (classes - 1))
    probs[:, 0] = confidence
    return probs, np.where(rng.random(n) < confidence, 0, 1)


PREDICTIONS = {
    "golden": lambda: (softmax(golden()[0], axis=1), golden()[1]),
    "calibrated": lambda: drawn(2000, 10, 1),
    "over-confident": lambda: drawn(2000, 10, 2, temperature=3),
    "under-confident": lambda: drawn(1999, 4, 3, temperature=0.3),
    "binary": lambda: drawn(500, 2, 4, temperature=2),
    "hundred classes": lambda: drawn(700, 100, 5),
    "certain and right": lambda: one_hot(100, 3, 1.0),
    "certain and half wrong": lambda: one_hot(100, 3, 0.5),
    "constant": lambda: constant(300, 5, 0.95),
    "uniform": lambda: (np.full((60, 4), 0.25), np.arange(60) % 4),
    "one sample": lambda: (np.array([[0.2, 0.8]]), np.array([1])),
    "on the edges": lambda: (np.array([[k / 15, 1 - k / 15] for k in range(16)]), np.arange(16) % 2),
    "ties": lambda: (np.repeat([[0.6, 0.4], [0.9, 0.1]], 50, axis=0), np.tile([0, 0, 1], 34)[:100]),
}


@st.composite
def predictions(draw, least: int = 1, most: int = 60):
    """(probs, labels) of any size, dtype float64, ties and extremes included."""
    n, classes = draw(st.integers(least, most)), draw(st.integers(2, 6))
    logits = draw(
        arrays.arrays(np.float64, (n, classes), elements=st.sampled_from([0.0, 1.0, -1.0, 2.5, 7.0, -40.0, 800.0]))
    )
    logits = logits + draw(arrays.arrays(np.float64, (n, classes), elements=st.floats(-3, 3)))
    labels = draw(arrays.arrays(np.int64, n, elements=st.integers(0, classes - 1)))
    return softmax(logits, axis=1), labels


@st.composite
def calibration_sets(draw, least: int = 12, most: int = 80):
    """(logits, labels) as a calibrator gets them."""
    n, classes = draw(st.integers(least, most)), draw(st.integers(2, 5))
    scale = draw(st.sampled_from([0.1, 1.0, 5.0, 100.0]))
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, scale, (n, classes))
    labels = np.where(
        rng.random(n) < draw(st.sampled_from([0.0, 0.5, 0.9])), logits.argmax(1), rng.integers(0, classes, n)
    )
    return logits, labels
