"""One step of training, plain or captured in a CUDA graph.

A graph replays the kernels of the step without Python: on a fast GPU small batches are bound by their launches. What
changes from step to step (the place in the epoch, the learning rate, what a loss schedules) lives in tensors on the
device, so that a replay sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from trueup.inputs import InputError
from trueup.models import EveryNode, word_vectors
from trueup.train.batches import Batches
from trueup.train.recipe import Recipe

WARM_UP = 3

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters, lr, recipe: torch.optim.SGD(
        parameters, lr, recipe.momentum, weight_decay=recipe.weight_decay, nesterov=recipe.nesterov, fused=True
    ),
    "adam": lambda parameters, lr, recipe: _adam(torch.optim.Adam, parameters, lr, recipe),
    "adamw": lambda parameters, lr, recipe: _adam(torch.optim.AdamW, parameters, lr, recipe),
    "adagrad": lambda parameters, lr, recipe: torch.optim.Adagrad(parameters, lr, weight_decay=recipe.weight_decay),
}
"""Fused, with the learning rate in a tensor that a replayed step reads anew; but for AdaGrad, which reads a number."""


def _adam(kind: Any, parameters: Any, lr: Tensor, recipe: Recipe) -> torch.optim.Optimizer:
    return kind(
        parameters, lr, (recipe.momentum, 0.999), weight_decay=recipe.weight_decay, fused=True, capturable=lr.is_cuda
    )


class State:
    """All that a step changes: the net, the optimiser, the loss's own values, as tensors that keep their places."""

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        recipe: Recipe,
        device: torch.device,
        *,
        every_node: bool = False,
    ) -> None:
        self.model, self.criterion = model, criterion
        self.trained = EveryNode(model) if every_node else model
        self.per_sample = recipe.reduction == "per-sample"
        vectors = [] if recipe.embedding_lr is None else word_vectors(model)
        for p in vectors:
            p.requires_grad_(recipe.embedding_lr != 0)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        others = [p for p in self.parameters if all(p is not v for v in vectors)]
        self.lr = torch.zeros((), device="cpu" if recipe.optimiser == "adagrad" else device)
        self.optimisers = [OPTIMISERS[recipe.optimiser](others, self.lr, recipe)]
        if vectors and recipe.embedding_lr:
            self.optimisers.append(torch.optim.SGD(vectors, recipe.embedding_lr, fused=True))
        self._begin_momenta_at_zero()

    def update(self) -> None:
        for optimiser in self.optimisers:
            optimiser.step()

    def clear_gradients(self) -> None:
        for p in self.parameters:
            p.grad = None

    def _begin_momenta_at_zero(self) -> None:
        """A first step would otherwise differ from all others, and a graph would replay it for ever."""
        for p in self.parameters:
            p.grad = torch.zeros_like(p)
        self.update()
        self.clear_gradients()
        for tensor in self._momenta().values():
            tensor.zero_()

    def _momenta(self) -> dict[str, Tensor]:
        state: dict[int, dict[str, Any]] = self.optimisers[0].state_dict()["state"]  # plain SGD has none
        return {f"optimiser.{i}.{k}": v for i, of in state.items() for k, v in of.items() if isinstance(v, Tensor)}

    def tensors(self) -> dict[str, Tensor]:
        """By name; the tensors themselves, not copies."""
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        found |= {f"loss.{name}": tensor for name, tensor in self.criterion.state_dict().items()}
        return found | self._momenta()

    def copy(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.tensors().items()}

    @torch.no_grad()
    def restore(self, saved: dict[str, Tensor]) -> None:
        """Takes over the values of the same names and shapes."""
        mine = self.tensors()
        strange = set(mine) ^ set(saved)
        strange |= {name for name in set(mine) & set(saved) if mine[name].shape != saved[name].shape}
        if strange:
            raise InputError(f"the saved state does not fit this net, optimiser and loss: {sorted(strange)[0]}")
        for name, tensor in mine.items():
            tensor.copy_(saved[name])


class GradientNorms:
    """The mean and the largest norm over the steps of an epoch, gathered on the device without a wait."""

    def __init__(self, device: torch.device) -> None:
        self.sum, self.largest, self.steps = (torch.zeros((), device=device) for _ in range(3))

    def add(self, norm: Tensor) -> None:
        self.sum += norm
        self.steps += 1
        torch.maximum(self.largest, norm, out=self.largest)

    def clear(self) -> None:
        for tensor in (self.sum, self.largest, self.steps):
            tensor.zero_()

    def summary(self) -> dict[str, float]:
        total, largest, steps = torch.stack([self.sum, self.largest, self.steps]).tolist()
        return {"mean": total / max(steps, 1), "max": largest}


def step(net: Any, size: int, state: State, batches: Batches, norms: GradientNorms, clip: float | None, autocast: Any):
    """The next ``size`` samples through ``net``, which is what is trained or its compiled form, and one update."""
    inputs, labels = batches.next(size)
    with autocast():
        logits = net(inputs)
    loss = state.criterion(logits.float(), labels)
    penalty: Any = getattr(state.criterion, "penalty", None)
    if penalty is not None:
        loss = loss + penalty(state.trained, inputs, labels)
    state.clear_gradients()
    (loss / size if state.per_sample else loss).backward()
    norm = get_total_norm([p.grad for p in state.parameters if p.grad is not None])
    if clip is not None:
        clip_grads_with_norm_(state.parameters, clip, norm)
    state.update()
    norms.add(norm)


def captured(one_step: Callable[[], None], state: State, batches: Batches) -> Callable[[], None]:
    """``one_step`` as a CUDA graph; the steps that warm it up leave no trace in the state.

    What is not in the state (the place in the epoch, the norms, the random generators) is set at the beginning of each
    epoch in any case.
    """
    before = state.copy()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            batches.position.zero_()
            one_step()
        state.clear_gradients()
        state.restore(before)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        one_step()
    state.clear_gradients()
    return graph.replay
