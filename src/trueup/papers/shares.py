"""A net with one more output than there are classes, for what is of none of them: two ways to take its confidence.

Over the classes alone, as all else here does, the probabilities of the classes add up to one. Where the softmax is over
all outputs, the one that is of no class keeps its share: the confidence is the probability of the likeliest class, and
the more that output has, the lower it is, whatever the classes are to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from trueup.audit import Measure
from trueup.calibrators.grid import TEMPERATURES
from trueup.metrics import Resampler, Scores, ece, overconfidence, score_logits
from trueup.predictions import Predictions

QUANTITIES = {"ece": ece, "overconfidence": overconfidence}


@dataclass(frozen=True)
class Shared:
    """ECE and over-confidence on test where the output that is of no class keeps its share of the softmax."""

    temperature: float
    """The first of the paper's grid with the least ECE on val, taken in the same way."""
    before: dict[str, Measure]
    after: dict[str, Measure]
    rest: float
    """The mean share of the output that is of no class, before the temperature."""

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Shared:
        """What ``to_dict`` gave."""
        before, after = ({name: Measure(**of) for name, of in content[state].items()} for state in ("before", "after"))
        return cls(content["temperature"], before, after, content["rest"])


def shared(val: Predictions, test: Predictions, *, resamples: int = 300, seed: int = 0) -> Shared:
    """From the logits (N, K + 1) of all outputs; the labels are below K."""
    errors = [ece(scores_of_classes(val, float(t))) for t in TEMPERATURES]
    temperature = float(TEMPERATURES[errors.index(min(errors))])
    resamplers = (Resampler(scores_of_classes(test, t), resamples, seed) for t in (1.0, temperature))
    before, after = (
        {name: Measure(*resampler.interval(metric)) for name, metric in QUANTITIES.items()} for resampler in resamplers
    )
    rest = float(test.logits.double().softmax(1)[:, -1].mean())
    return Shared(temperature, before, after, rest)


def scores_of_classes(predictions: Predictions, temperature: float = 1.0) -> Scores:
    """The scores of the likeliest class, its probability being that among all outputs."""
    logits, labels = predictions.logits.double() / temperature, predictions.labels
    classes = logits.shape[1] - 1
    confidence = logits.softmax(1)[:, :classes].amax(1)
    correct = logits[:, :classes].argmax(1) == torch.as_tensor(labels)
    return replace(score_logits(logits, labels), confidence=confidence.numpy(), correct=correct.numpy())
