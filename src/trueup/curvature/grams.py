"""J J' of each sample: how the derivatives of its K logits in the weights go together, one parameter tensor at a time.

The plain way writes the (K, P) derivatives of a sample down. Where the net is made of the usual layers, K backward
passes to their outputs for all samples at once are enough: the derivative in a layer's weights follows from its input
and from the derivative in its output (that in a matrix is the outer product of the two). Whether that gives the same
is looked at on two samples, so that a weight which is used in another way too is not missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jacrev, vjp, vmap

from trueup.curvature.products import Problem, out_of_memory

BYTES_AT_ONCE = {"cpu": 2**25, "cuda": 2**35}
"""Of the derivatives of some samples: on a CPU what its cache can hold, on a GPU what keeps it busy."""


class Grams:
    """(N, ...) inputs -> (N, tensors, K, K); fewer samples at once where memory is short, which it remembers."""

    def __init__(self, problem: Problem, inputs: Tensor, classes: int) -> None:
        self.problem, self.classes = problem, classes
        self.at_once = BYTES_AT_ONCE.get(inputs.device.type, 2**28)
        self.layers = usual_layers(problem)
        if self.layers and not self._right_on(inputs[:2]):
            self.layers = {}

    def _right_on(self, some: Tensor) -> bool:
        """To 2 % of each, for convolutions in TF32 are no more exact than 0.1 %."""
        plain = plain_grams(self.problem, some)
        off = torch.linalg.vector_norm(self._of(some) - plain, dim=(2, 3))
        return bool((off <= 0.02 * torch.linalg.vector_norm(plain, dim=(2, 3)) + torch.finfo(off.dtype).tiny).all())

    def __call__(self, inputs: Tensor) -> Tensor:
        of_one = self._bytes_of_a_sample(inputs)
        while True:
            size = min(max(1, self.at_once // of_one), len(inputs))
            try:
                return torch.cat([self._of(some) for some in inputs.split(size)])
            except RuntimeError as error:
                if not out_of_memory(error) or size == 1:
                    raise
                self.at_once = size // 2 * of_one

    def _of(self, inputs: Tensor) -> Tensor:
        found = layer_grams(self.problem, self.layers, inputs, self.classes) if self.layers else {}
        others = {name: weight for name, weight in self.problem.weights.items() if name not in found}
        if others:
            rest = plain_grams(replace(self.problem, weights=others), inputs)
            found |= dict(zip(others, rest.unbind(1), strict=True))
        return torch.stack([found[name] for name in self.problem.weights], 1)

    def _bytes_of_a_sample(self, inputs: Tensor) -> int:
        """The derivatives in the outputs of all layers, and in the weights of the largest, or in all that are left."""
        plain = {name: weight.numel() for name, weight in self.problem.weights.items()}
        if not self.layers:
            return 4 * self.classes * sum(plain.values())
        outputs = output_shapes(self.problem, self.layers, inputs[:1])
        largest = 0
        for name, shape in outputs.items():
            weight = self.problem.weights.get(f"{name}.weight")
            if weight is not None:
                places = prod(shape) // len(weight)
                largest = max(largest, min(weight.numel(), self.classes * places**2))
            for own in ("weight", "bias"):
                plain.pop(f"{name}.{own}", 0)
        return 4 * self.classes * (sum(map(prod, outputs.values())) + largest + sum(plain.values()))


def plain_grams(problem: Problem, inputs: Tensor) -> Tensor:
    """(N, tensors, K, K) from the derivatives written out."""

    def of_sample(one: Tensor) -> Tensor:
        slopes: Any = jacrev(lambda weights: problem.logits(weights, one.unsqueeze(0))[0])(problem.weights)
        rows = [slopes[name].reshape(len(slopes[name]), -1) for name in problem.weights]
        return torch.stack([row @ row.T for row in rows])

    return vmap(of_sample, randomness="same")(inputs)


def usual_layers(problem: Problem) -> dict[str, nn.Module]:
    """Those of the model's layers whose derivatives are known here, and in whose weights they are wanted."""
    found = {}
    for name, module in problem.model.named_modules():
        wanted = any(f"{name}.{own}" in problem.weights for own in ("weight", "bias"))
        if name and wanted and type(module) in GRAMS and _plain_convolution(module):
            found[name] = module
    return found


def _plain_convolution(module: nn.Module) -> bool:
    return not isinstance(module, nn.Conv2d) or (
        module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    )


def layer_grams(problem: Problem, layers: dict[str, nn.Module], inputs: Tensor, classes: int) -> dict[str, Tensor]:
    """(N, K, K) for each weight and bias of the layers that are met once."""
    dtype = next(iter(problem.weights.values())).dtype
    shapes = output_shapes(problem, layers, inputs)
    zeros = {name: torch.zeros(shape, dtype=dtype, device=inputs.device) for name, shape in shapes.items()}

    def logits(added: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        entered: dict[str, Tensor] = {}

        def watch(name: str, into: Tensor, out: Tensor) -> Tensor:
            entered[name] = into
            return out + added[name] if name in added else out

        with _watched(layers, watch):
            return problem.logits(problem.weights, inputs), entered

    _, back, entered = vjp(logits, zeros, has_aux=True)  # pyright: ignore[reportAssignmentType]
    units = torch.eye(classes, dtype=dtype, device=inputs.device)
    slopes = vmap(lambda unit: back(unit.expand(len(inputs), -1))[0])(units)
    found = {}
    for name in shapes:
        made = GRAMS[type(layers[name])](layers[name], entered[name], slopes.pop(name))
        found |= {f"{name}.{own}": gram for own, gram in made.items() if f"{name}.{own}" in problem.weights}
    return found


def output_shapes(problem: Problem, layers: dict[str, nn.Module], inputs: Tensor) -> dict[str, torch.Size]:
    """Of the layers that are met once."""
    shapes: dict[str, list[torch.Size]] = {}

    def watch(name: str, into: Tensor, out: Tensor) -> Tensor:
        shapes.setdefault(name, []).append(out.shape)
        return out

    with _watched(layers, watch), torch.no_grad():
        problem.logits(problem.weights, inputs)
    return {name: met[0] for name, met in shapes.items() if len(met) == 1}


@contextmanager
def _watched(layers: dict[str, nn.Module], watch: Callable[[str, Tensor, Tensor], Tensor]) -> Iterator[None]:
    """Within, ``watch`` sees (name, input, output) of each layer, and gives what goes on as its output."""

    def hook(name: str) -> Callable[..., Tensor]:
        return lambda module, arguments, output: watch(name, arguments[0], output)

    handles = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# ---------------------------------------------------------------------- one layer: (N, ...) input, (K, N, ...) slopes


def _gram(rows: Tensor) -> Tensor:
    """(N, K, ...) derivatives -> (N, K, K)."""
    flat = rows.flatten(2)
    return flat @ flat.transpose(1, 2)


def _of_linear(layer: Any, entered: Tensor, slopes: Tensor) -> dict[str, Tensor]:
    many, samples, out = slopes.shape[0], slopes.shape[1], slopes.shape[-1]
    rows = slopes.reshape(many, samples, -1, out).transpose(0, 1)  # (N, K, T, out)
    return {"weight": _of_products(rows, entered.reshape(samples, -1, entered.shape[-1])), "bias": _gram(rows.sum(2))}


def _of_convolution(layer: Any, entered: Tensor, slopes: Tensor) -> dict[str, Tensor]:
    patches = F.unfold(entered, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # (N, C k k, T)
    rows = slopes.flatten(3).permute(1, 0, 3, 2)
    return {"weight": _of_products(rows, patches.transpose(1, 2)), "bias": _gram(rows.sum(2))}


def _of_products(rows: Tensor, entered: Tensor) -> Tensor:
    """Of a matrix that acts at T places: (N, K, T, out) slopes and (N, T, in) inputs -> (N, K, K).

    Its derivative is the sum over the places of outer products. The inner products of those are products of inner
    products: where the places are few, that is less work than the derivative itself.
    """
    n, k, t, out = rows.shape
    if k * t >= entered.shape[2]:
        return _gram((rows.transpose(2, 3).reshape(n, k * out, t) @ entered).reshape(n, k, -1))
    flat = rows.reshape(n, k * t, out)
    slopes = (flat @ flat.transpose(1, 2)).reshape(n, k, t, k, t)
    return torch.einsum("nktls,nts->nkl", slopes, entered @ entered.transpose(1, 2))


def _of_batch_norm(layer: Any, entered: Tensor, slopes: Tensor) -> dict[str, Tensor]:
    plain = F.batch_norm(entered, layer.running_mean, layer.running_var, eps=layer.eps)
    many, samples, channels = slopes.shape[:3]
    return _of_scales(plain.reshape(samples, channels, -1), slopes.reshape(many, samples, channels, -1), 3)


def _of_layer_norm(layer: Any, entered: Tensor, slopes: Tensor) -> dict[str, Tensor]:
    plain, many = F.layer_norm(entered, layer.normalized_shape, eps=layer.eps), len(slopes)
    samples, width = len(entered), prod(layer.normalized_shape)
    return _of_scales(plain.reshape(samples, -1, width), slopes.reshape(many, samples, -1, width), 2)


def _of_scales(plain: Tensor, slopes: Tensor, places: int) -> dict[str, Tensor]:
    """Of numbers that multiply the normalised input, and are added to it, the same at all ``places`` (a dimension)."""
    rows = slopes.transpose(0, 1)
    return {"weight": _gram((plain.unsqueeze(1) * rows).sum(places)), "bias": _gram(rows.sum(places))}


GRAMS: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], dict[str, Tensor]]] = {
    nn.Linear: _of_linear,
    nn.Conv2d: _of_convolution,
    nn.BatchNorm1d: _of_batch_norm,
    nn.BatchNorm2d: _of_batch_norm,
    nn.LayerNorm: _of_layer_norm,
}
