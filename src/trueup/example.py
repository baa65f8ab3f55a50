"""Predictions to try things on: a made-up classifier whose confidence is far too high."""

from __future__ import annotations

import numpy as np

from trueup.predictions import Predictions

ANIMALS = ("cat", "deer", "dog", "frog", "horse")


def example_predictions(seed: int = 0, temperature: float = 2.5) -> dict[str, Predictions]:
    """``val`` and ``test``, 2000 samples each.

    The labels are drawn from softmax(logits / temperature), so this temperature is what calibrates the logits.
    """
    rng = np.random.default_rng(seed)
    found = {}
    for name in ("val", "test"):
        center = rng.integers(0, len(ANIMALS), 2000)
        logits = rng.normal(0, 3, (2000, len(ANIMALS)))
        logits[np.arange(2000), center] += rng.gamma(2.0, 4.0, 2000)
        powers = np.exp(logits / temperature)
        draw = rng.random((2000, 1)) * powers.sum(1, keepdims=True)
        labels = (draw > powers.cumsum(1)).sum(1)
        meta = {"source": "made up by trueup example", "seed": seed, "temperature": temperature}
        found[name] = Predictions(logits=logits.astype(np.float32), labels=labels, class_names=ANIMALS, meta=meta)
    return found
