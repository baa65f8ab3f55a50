"""Losses with the arguments and shapes of torch.nn.CrossEntropyLoss, exact everywhere, and penalties that add to them.

A loss is called with (logits, labels). What needs more says so through one of three hooks, which a training loop calls
where they exist: ``set_progress(fraction)``, ``observe_validation(probs, labels)``, ``penalty(model, inputs, labels)``.
A value that changes during training lives in a buffer, so that a captured CUDA graph sees it.
"""

from trueup.losses.base import HOOKS, Loss, Penalty, Sum
from trueup.losses.focal import AdaFocal, ByConfidence, DualFocal, Focal, Scheduled
from trueup.losses.proper import Brier, CrossEntropy
from trueup.losses.regularised import MMCE, EntropyPenalty, LabelSmoothing, LogitNorm
from trueup.losses.spec import LOSSES, PENALTIES, examples, parse

__all__ = [
    # by name
    "LOSSES",
    "PENALTIES",
    "examples",
    "parse",
    # losses
    "AdaFocal",
    "Brier",
    "CrossEntropy",
    "DualFocal",
    "Focal",
    "LabelSmoothing",
    # their gammas
    "ByConfidence",
    "Scheduled",
    # penalties
    "EntropyPenalty",
    "LogitNorm",
    "MMCE",
    # to build one's own
    "HOOKS",
    "Loss",
    "Penalty",
    "Sum",
]
