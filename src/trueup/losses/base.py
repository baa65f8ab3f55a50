"""What every loss has: the arguments and shapes of torch.nn.CrossEntropyLoss, and ``+`` for penalties."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trueup import inputs
from trueup.inputs import Array, InputError, can_look

REDUCTIONS = ("mean", "sum", "none")
HOOKS = ("set_progress", "observe_validation", "penalty")
"""What a training loop calls where a loss has it: see ``trueup.losses``."""


class Loss(nn.Module, ABC):
    """(logits, labels) -> loss. Logits (N, K, d1, ...) or (K,), labels as classes or, where said, probabilities.

    Half-precision logits are computed in float32, and so is the result. Arrays, lists and DataFrames
    are taken, too, and the result is a tensor.
    """

    weight: Tensor | None

    def __init__(self, *, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction: {reduction!r} is none of {', '.join(REDUCTIONS)}")
        if weight is not None:
            # float64 where a tensor says so: a list may go to a device that has none
            exact = isinstance(weight, Tensor) and weight.dtype == torch.float64
            weight = inputs.as_tensor(weight, "weight").to(torch.float64 if exact else torch.float32)
            if weight.ndim != 1 or not bool((torch.isfinite(weight) & (weight >= 0)).all()):
                raise InputError("weight: expected one finite number for each class, none of them negative")
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction

    @abstractmethod
    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(N,) losses of (N, K) logits and (N,) labels, all within range."""

    def per_sample_soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        """(N,) losses of (N, K) logits and (N, K) target probabilities; class weights multiply the terms."""
        raise InputError(
            f"labels: {type(self).__name__} takes classes, not probabilities; its formula needs one true class"
        )

    def forward(self, logits: Array, labels: Array) -> Tensor:
        z, y, shape = as_rows(logits, labels)
        soft = y.is_floating_point()
        if self.weight is not None and len(self.weight) != z.shape[1]:
            raise InputError(f"weight: {len(self.weight)} weights for {z.shape[1]} classes")
        if soft:
            values = self.per_sample_soft(z, y, self.weight).to(result_dtype(z))
            return reduced(values, None, self.reduction, shape)
        y, used = usable(y, z, self.ignore_index)
        values = self.per_sample(z, y).to(result_dtype(z))
        weights = None if self.weight is None else self.weight.to(values.dtype)[y]
        if weights is not None:
            values = self.weighted(values, weights, z)
        if used is not None:
            weights = used.to(values.dtype) if weights is None else weights * used
            values = torch.where(used, values, 0.0)
        return reduced(values, weights, self.reduction, shape)

    def weighted(self, values: Tensor, weights: Tensor, logits: Tensor) -> Tensor:
        """(N,) losses times the (N,) weights of their labels; the mean is over the sum of those."""
        return values * weights

    def __add__(self, penalty: nn.Module) -> Sum:
        return Sum(self, penalty)

    def extra_repr(self) -> str:
        parts = [] if self.reduction == "mean" else [f"reduction={self.reduction!r}"]
        parts += [] if self.ignore_index == -100 else [f"ignore_index={self.ignore_index}"]
        return ", ".join(parts + ([] if self.weight is None else ["weight=..."]))


class Penalty(nn.Module, ABC):
    """Something that is added to a loss: ``Focal(3) + MMCE(2)``."""

    ignore_index: int = -100

    @abstractmethod
    def values(self, logits: Tensor, labels: Tensor, used: Tensor | None) -> Tensor:
        """The weighted penalty of (N, K) logits and (N,) labels: (N,) where it is one of each sample, else a number,
        to which only the ``used`` samples contribute (None: all)."""

    def forward(self, logits: Array, labels: Array) -> Tensor:
        """The penalty of a batch on its own: the mean, where each sample has one."""
        return penalty_of(self, logits, labels, "mean", -100)


class Sum(nn.Module):
    """A loss and its penalties. A penalty is unweighted by class; under ``reduction="sum"`` it counts N times,
    so that the ratio of the two does not depend on the reduction."""

    def __init__(self, loss: Loss, *penalties: nn.Module) -> None:
        super().__init__()
        for each in penalties:
            if not isinstance(each, Penalty) and not (isinstance(each, nn.Module) and hasattr(each, "penalty")):
                raise InputError(f"penalty: {each!r} is none; a loss adds to a Penalty, or to a module with that hook")
        self.loss = loss
        self.penalties = nn.ModuleList(penalties)

    @property
    def reduction(self) -> str:
        return self.loss.reduction

    def forward(self, logits: Array, labels: Array) -> Tensor:
        total = self.loss(logits, labels)
        for each in self.penalties:
            if isinstance(each, Penalty):
                total = total + penalty_of(each, logits, labels, self.loss.reduction, self.loss.ignore_index)
        return total

    def __add__(self, penalty: nn.Module) -> Sum:
        return Sum(self.loss, *self.penalties, penalty)

    def __getattr__(self, name: str) -> Any:
        if name in HOOKS:
            hooks = [getattr(part, name) for part in (self.loss, *self.penalties) if hasattr(part, name)]
            if hooks and name == "penalty" and self.reduction == "sum":
                return lambda model, inputs, labels: len(labels) * _call_all(hooks, model, inputs, labels)
            if hooks:
                return functools.partial(_call_all, hooks)
        return super().__getattr__(name)


def _call_all(hooks: list[Callable[..., Any]], *args: Any) -> Any:
    """Their sum, where they return something."""
    found = [value for value in (hook(*args) for hook in hooks) if value is not None]
    return sum(found[1:], found[0]) if found else None


def penalty_of(penalty: Penalty, logits: Array, labels: Array, reduction: str, ignore_index: int) -> Tensor:
    z, y, shape = as_rows(logits, labels)
    y = y.argmax(-1) if y.is_floating_point() else y
    y, used = usable(y, z, ignore_index)
    values = penalty.values(z, y, used).to(result_dtype(z))
    if values.ndim:
        kept = values if used is None else torch.where(used, values, 0.0)
        return reduced(kept, None if used is None else used.to(values.dtype), reduction, shape)
    if reduction == "sum":
        return values * (len(z) if used is None else used.sum())
    return values if reduction == "mean" else values.expand(shape)


def as_rows(logits: Array, labels: Array) -> tuple[Tensor, Tensor, torch.Size]:
    """((M, K) logits, (M,) classes or (M, K) probabilities, the shape of the per-sample losses)."""
    if not isinstance(logits, Tensor):
        logits = inputs.as_tensor(logits, "logits")
        logits = logits if logits.is_floating_point() else logits.double()  # a list of whole numbers
    if not isinstance(labels, Tensor):
        labels = inputs.as_tensor(labels, "labels").to(logits.device)
    if logits.ndim == 0 or not logits.is_floating_point():
        raise InputError(f"logits: expected floating-point (N, K, ...), got {logits.dtype} {tuple(logits.shape)}")
    if logits.ndim == 1:
        z, y, _ = as_rows(logits.unsqueeze(0), labels.unsqueeze(0))
        return z, y, torch.Size(())
    classes = logits.shape[1]
    shape = torch.Size((logits.shape[0], *logits.shape[2:]))
    z = logits if logits.ndim == 2 else logits.movedim(1, -1).reshape(-1, classes)
    if labels.shape == logits.shape and labels.is_floating_point():
        return z, labels if labels.ndim == 2 else labels.movedim(1, -1).reshape(-1, classes), shape
    if labels.is_floating_point():
        raise InputError(f"labels: {labels.dtype} of shape {tuple(labels.shape)}; classes are whole numbers (int64)")
    if labels.shape != shape:
        raise InputError(
            f"labels: shape {tuple(labels.shape)}, where logits of {tuple(logits.shape)} need {tuple(shape)}"
        )
    return z, labels.reshape(-1), shape


def usable(labels: Tensor, logits: Tensor, ignore_index: int) -> tuple[Tensor, Tensor | None]:
    """Labels within range, and which rows count: None for all. Out of range is an InputError in eager mode on the
    CPU; elsewhere looking would cost a wait, and the lookup itself asserts."""
    y = labels.long()
    if can_look(y):
        least, most = (int(end) for end in y.aminmax()) if len(y) else (0, 0)
        if least >= 0 and most < logits.shape[1] and not least <= ignore_index <= most:
            return y, None
        used = y != ignore_index
        out = used & ((y < 0) | (y >= logits.shape[1]))
        if bool(out.any()):
            row = int(torch.nonzero(out)[0])
            raise InputError(f"labels: row {row} is {int(y[row])}, outside 0 to {logits.shape[1] - 1}")
        return (y, None) if bool(used.all()) else (torch.where(used, y, 0), used)
    used = y != ignore_index
    return torch.where(used, y, 0), used


def result_dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def reduced(values: Tensor, weights: Tensor | None, reduction: str, shape: torch.Size) -> Tensor:
    """The (N,) values, weighted already, summed or averaged (over the sum of the weights), or in their shape."""
    if reduction == "none":
        return values.reshape(shape)
    if reduction == "sum":
        return values.sum()
    return values.mean() if weights is None else values.sum() / weights.sum()
