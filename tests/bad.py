"""Bad input, as it comes: each entry is what to pass and what the message has to say."""

from __future__ import annotations

import numpy as np

from tests import cases

PROBS, LABELS = cases.drawn(20, 4, 0)
LOGITS = np.log(PROBS) * 2


def changed(array, row, value, column=None):
    array = np.array(array, dtype=float)
    array[row if column is None else (row, column)] = value
    return array


BAD_LABELS = {
    "out of range": (changed(LABELS, 7, 4), "labels: row 7 is 4"),
    "negative": (changed(LABELS, 2, -1), "labels: row 2 is -1"),
    "fractional": (changed(LABELS, 3, 1.5), "labels: row 3 is 1.5"),
    "NaN": (changed(LABELS, 3, np.nan), "labels: row 3 is nan"),
    "infinite": (changed(LABELS, 5, np.inf), "labels: row 5 is inf"),
    "of another length": (LABELS[:-1], "19 labels for 20 rows"),
    "two-dimensional": (np.eye(4)[LABELS], "one label a row"),
    "text": (np.array(["a"] * 20), "labels"),
    "missing": ([None] * 20, "labels"),
}

BAD_PROBS = {
    "NaN": (changed(PROBS, 4, np.nan, 1), "probs: row 4, class 1 is nan"),
    "infinite": (changed(PROBS, 4, np.inf, 1), "probs: row 4, class 1 is inf"),
    "empty": (np.zeros((0, 4)), "probs: empty"),
    "a row that sums to 1.5": (changed(PROBS, 6, PROBS[6] * 1.5), "probs: row 6 sums to 1.5"),
    "a negative probability": (
        changed(changed(PROBS, 6, -0.25, 0), 6, PROBS[6, 1] + PROBS[6, 0] + 0.25, 1),
        "probs: row 6, class 0 is -0.25",
    ),
    "logits": (LOGITS, "logits"),
    "one class": (np.ones((20, 1)), "at least two"),
    "one dimension": (PROBS[:, 0], "two dimensions"),
    "three dimensions": (PROBS[None], "two dimensions"),
    "ragged": ([[0.5, 0.5], [1.0]], "rectangular"),
    "text": ([["a", "b"]] * 20, "probs"),
}

BAD_LOGITS = {
    "NaN": (changed(LOGITS, 4, np.nan, 1), "logits: row 4, class 1 is nan"),
    "infinite": (changed(LOGITS, 4, -np.inf, 1), "logits: row 4, class 1 is -inf"),
    "empty": (np.zeros((0, 4)), "logits: empty"),
    "probabilities": (PROBS, "these are probabilities, not logits"),
    "one class": (np.ones((20, 1)), "at least two"),
    "one dimension": (LOGITS[:, 0], "two dimensions"),
    "ragged": ([[0.5, 2.5], [1.0]], "rectangular"),
}
