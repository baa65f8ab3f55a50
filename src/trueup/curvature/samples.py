"""The data of a curvature: batches that are read once a product, and what share each has in the whole loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from trueup.inputs import InputError


class Samples:
    """The batches with the share that each has in the whole loss; the same samples in every pass, or an InputError."""

    def __init__(self, data: Iterable[Any], loss: Any, like: Tensor, *, by_class: bool = True) -> None:
        """Without ``by_class`` the class weights of the loss play no part in the shares."""
        if isinstance(data, Iterator):
            raise InputError("data: an iterator can be read once, and every product reads all; pass a list of batches")
        if not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
            raise InputError(
                f"data: expected batches (inputs, labels), as in [(x, y), ...], got a {type(data).__name__}"
            )
        self.data, self.like = data, like
        loss = getattr(loss, "loss", loss)  # of a sum: the loss that has penalties
        weight = getattr(loss, "weight", None)
        self.weight = weight.double().cpu() if by_class and isinstance(weight, Tensor) else None
        self.ignore_index = getattr(loss, "ignore_index", -100)
        self.reduction = getattr(loss, "reduction", "mean")
        if self.reduction not in ("mean", "sum"):
            raise InputError(f"loss: its reduction is {self.reduction!r}; curvature needs 'mean' or 'sum'")
        self.mass, self.batches, self.seen = 0.0, 0, torch.zeros(3, dtype=torch.float64)
        for i, (inputs, labels) in enumerate(self._batches()):
            signature = _signature(inputs, labels)
            if not bool(torch.isfinite(signature).all()):
                raise InputError(
                    f"data: batch {i} (counted from 0) holds NaN or infinite values; leave those samples out"
                )
            self.mass += self._mass(labels)
            self.batches += 1
            self.seen += signature
        self.many = int(self.seen[0])
        if not self.many:
            raise InputError("data: it holds no samples")
        if not self.mass > 0:
            raise InputError("data: no sample of it counts; all are ignored, or of classes with weight 0")

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        seen = torch.zeros_like(self.seen)
        for inputs, labels in self._batches():
            seen += _signature(inputs, labels)
            share = 1.0 if self.reduction == "sum" else self._mass(labels) / self.mass
            if share > 0:
                dtype = self.like.dtype if inputs.is_floating_point() else inputs.dtype
                yield inputs.to(self.like.device, dtype), labels.to(self.like.device), share
        if not torch.allclose(seen, self.seen, rtol=1e-6, atol=1e-6):
            raise InputError("data: its samples are not the same in every pass (drawn or augmented anew?); fix them")

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.data:
            if not (isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(x, Tensor) for x in batch)):
                raise InputError("data: expected batches (inputs, labels) of tensors, as in [(x, y), ...]")
            if len(batch[0]):
                yield batch[0], batch[1]

    def used(self, labels: Tensor) -> Tensor | None:
        """Which labels are not ignored; None where they are probabilities, all of which count."""
        return None if labels.is_floating_point() else labels != self.ignore_index

    def _mass(self, labels: Tensor) -> float:
        """What the mean of a batch is divided by."""
        used = self.used(labels)
        if used is None:
            return float(len(labels))
        if self.weight is None:
            return float(used.sum())
        own = labels[used].cpu()
        if len(own) and int(own.max()) >= len(self.weight):
            raise InputError(
                f"loss: it has {len(self.weight)} class weights, and a label is {int(own.max())}; every class needs one"
            )
        return float(self.weight[own].sum())


def _signature(inputs: Tensor, labels: Tensor) -> Tensor:
    """Sums that do not depend on the order of the samples."""
    scale = inputs.double().abs().sum() / max(1, inputs.numel())
    return torch.tensor([len(inputs), float(scale) * len(inputs), float(labels.double().sum())], dtype=torch.float64)
