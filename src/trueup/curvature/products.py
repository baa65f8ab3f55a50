"""Hessian, generalised Gauss-Newton and Fisher matrix of a loss over a data set, as products with vectors.

The matrices are symmetric and far too large to write down: P x P for P parameters. A product with m vectors goes
through the network in blocks of vectors (``torch.func.vmap``), batch after batch, and is summed in float64.

The model is looked at in eval mode: batch norms use their running statistics, dropout is off. It is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp, vmap

from trueup.inputs import InputError, count

Weights = dict[str, Tensor]
Product = Callable[[Callable[[Weights], Tensor], Callable[[Tensor], Tensor], Weights, Weights], Weights]
"""(weights -> logits, logits -> loss, weights, one vector in the shapes of the weights) -> the product."""

VECTORS_AT_ONCE = {"cpu": 4, "cuda": 16}
"""How many vectors go through the network together: more share its forward pass, and take more memory."""


class Options(TypedDict, total=False):
    """What ``curvature`` takes beside the model, the loss and the data; every estimate passes it on."""

    matrix: str
    parameters: Iterable[str] | None
    vectors_at_once: int | None


@dataclass(frozen=True)
class Problem:
    """The loss of a model over all samples, as a function of some of its weights."""

    model: nn.Module
    weights: Weights
    criterion: Callable[[Tensor, Tensor], Tensor]
    samples: Samples
    fisher: bool

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        return functional_call(self.model, weights, (inputs,))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Of a batch; for the Fisher matrix something that has its second derivative in the logits."""
        if self.fisher:  # diag p - p p' is that of log sum exp, whatever the label
            sums = logits.logsumexp(1)
            return sums.sum() if self.samples.reduction == "sum" else sums.mean()
        value = self.criterion(logits, labels)
        if value.ndim:
            raise InputError(f"loss: expected one number for a batch, got shape {tuple(value.shape)}")
        return value


@dataclass(frozen=True)
class Curvature:
    """A symmetric P x P matrix that is known by its products."""

    size: int
    """P, the number of parameters."""
    layers: dict[str, slice]
    """Which entries of a vector belong to which parameter tensor."""
    device: torch.device
    rows: Callable[[Tensor], Tensor]
    """(m, P) float64 vectors, one a row -> their (m, P) products in float64."""
    matrix: str
    problem: Problem
    """What it is the curvature of."""

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """The product with a vector (P,) or with the columns of (P, m), in float64."""
        if vectors.ndim not in (1, 2) or vectors.shape[0] != self.size:
            raise InputError(f"vectors: expected ({self.size},) or ({self.size}, m), got {tuple(vectors.shape)}")
        wide = vectors.to(self.device, torch.float64)
        return self.rows(wide.unsqueeze(0))[0] if wide.ndim == 1 else self.rows(wide.T).T


def curvature(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    data: Iterable[Any],
    *,
    matrix: str = "hessian",
    parameters: Iterable[str] | None = None,
    vectors_at_once: int | None = None,
) -> Curvature:
    """The ``hessian``, ``ggn`` or ``fisher`` matrix of ``loss`` over all batches (inputs, labels) of ``data``.

    H is the second derivative of the loss in the weights; the GGN is J' H_z J, with J the derivative of the logits and
    H_z the second derivative of the loss in them; the Fisher matrix is J' (diag p - p p') J, whatever the loss.
    ``data`` is read once a product. A loss with ``reduction="mean"`` is averaged over all samples (with the weights it
    gives them), one with "sum" summed. ``parameters`` names some of the model's; without it all that require gradients.

    >>> from trueup.losses import CrossEntropy
    >>> batches = [(torch.randn(8, 2), torch.arange(8) % 3)]
    >>> curvature(torch.nn.Linear(2, 3), CrossEntropy(), batches).layers
    {'weight': slice(0, 6, None), 'bias': slice(6, 9, None)}
    """
    if matrix not in MATRICES:
        raise InputError(f"matrix: expected one of {', '.join(MATRICES)}, got {matrix!r}")
    weights = selected(model, parameters)
    at_once = None if vectors_at_once is None else count(vectors_at_once, "vectors_at_once")
    samples = Samples(data, loss, next(iter(weights.values())))
    problem = Problem(model, weights, loss, samples, matrix == "fisher")
    _try_out(problem)
    return matrix_of(problem, matrix, at_once)


def _try_out(problem: Problem) -> None:
    """One batch forward: what goes wrong there has nothing to do with derivatives, and is told as it is."""
    inputs, labels, _ = next(iter(problem.samples))
    fails = f"model: it cannot take a batch of shape {tuple(inputs.shape)}"
    try:
        with measuring(problem.model), torch.no_grad():
            logits = problem.logits(problem.weights, inputs)
            fails = f"loss: it cannot take logits of shape {tuple(logits.shape)} with labels of shape "
            fails += f"{tuple(labels.shape)}"
            problem.loss(logits, labels)
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if isinstance(error, RuntimeError) and out_of_memory(error):
            raise InputError("data: too little memory for one batch; pass smaller batches") from None
        raise InputError(f"{fails} ({_first_line(error)})") from error


def matrix_of(problem: Problem, matrix: str, vectors_at_once: int | None = None) -> Curvature:
    """One of ``PRODUCTS`` as a matrix."""
    weights = problem.weights
    layers, device = _layers(weights), next(iter(weights.values())).device
    at_once = vectors_at_once or VECTORS_AT_ONCE.get(device.type, 8)

    def rows(vectors: Tensor) -> Tensor:
        nonlocal at_once
        total = torch.zeros_like(vectors)
        with measuring(problem.model):
            for inputs, labels, share in problem.samples:
                product = _of_batch(PRODUCTS[matrix], problem, inputs, labels)
                at_once = _add_products(total, product, vectors, share, weights, layers, at_once)
        return finite(total)

    return Curvature(sum(w.numel() for w in weights.values()), layers, device, rows, matrix, problem)


def finite(derivatives: Tensor) -> Tensor:
    if not bool(torch.isfinite(derivatives).all()):
        raise InputError(
            "loss: a product with its second derivative is not finite; it is not twice differentiable at these "
            "weights and samples, or the logits have overflown"
        )
    return derivatives


@contextmanager
def made_curvature(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], data: Iterable[Any], **options: Unpack[Options]
) -> Iterator[Curvature]:
    """``curvature``, for an estimate within: the vectors that it keeps can be too many for the machine."""
    made = curvature(model, loss, data, **options)
    try:
        yield made
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise InputError(
            f"too little memory for some dozens of vectors of {made.size} numbers; "
            "choose fewer parameters, or a device with more"
        ) from None


def _hessian_product(
    network: Callable[[Weights], Tensor], loss: Callable[[Tensor], Tensor], weights: Weights, vector: Weights
) -> Weights:
    return jvp(grad(lambda w: loss(network(w))), (weights,), (vector,))[1]


def _ggn_product(
    network: Callable[[Weights], Tensor], loss: Callable[[Tensor], Tensor], weights: Weights, vector: Weights
) -> Weights:
    logits, moved, *_ = jvp(network, (weights,), (vector,))
    bent = jvp(grad(loss), (logits,), (moved,))[1]
    back: Any = vjp(network, weights)[1]
    return back(bent)[0]


def _rest_product(
    network: Callable[[Weights], Tensor], loss: Callable[[Tensor], Tensor], weights: Weights, vector: Weights
) -> Weights:
    """Of H - J' H_z J: the second derivatives of the logits, weighted with the slope of the loss in each."""
    slopes = grad(loss)(network(weights))
    return jvp(grad(lambda w: (slopes * network(w)).sum()), (weights,), (vector,))[1]


MATRICES = ("hessian", "ggn", "fisher")
PRODUCTS: dict[str, Product] = {
    "hessian": _hessian_product, "ggn": _ggn_product, "fisher": _ggn_product, "rest": _rest_product
}  # fmt: skip


def selected(model: nn.Module, parameters: Iterable[str] | None = None) -> Weights:
    """The named parameters, or all that require gradients; an InputError where there are none, or one is not finite."""
    known = dict(model.named_parameters())
    names = [name for name, p in known.items() if p.requires_grad] if parameters is None else list(parameters)
    if not names:
        raise InputError("model: it has no parameters that require gradients")
    for name in names:
        if name not in known:
            raise InputError(f"parameters: the model has no {name!r}; it has {', '.join(known)}")
        if not bool(torch.isfinite(known[name]).all()):
            raise InputError(f"model: its parameter {name} holds NaN or infinite values")
    return {name: known[name].detach() for name in names}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In eval mode within; every module is in its own mode again afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def measuring(model: nn.Module) -> Iterator[None]:
    """In eval mode, and convolutions on a GPU with all digits of float32: TF32, their usual way, has three."""
    convolution = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue]
    usual = convolution.fp32_precision
    convolution.fp32_precision = "ieee"
    try:
        with evaluating(model):
            yield
    finally:
        convolution.fp32_precision = usual


class Samples:
    """The batches with the share that each has in the whole loss; the same samples in every pass, or an InputError."""

    def __init__(self, data: Iterable[Any], loss: Any, like: Tensor) -> None:
        if isinstance(data, Iterator):
            raise InputError("data: an iterator can be read once, and every product reads all; pass a list of batches")
        self.data, self.loss, self.like = data, loss, like
        self.reduction = getattr(loss, "reduction", "mean")
        if self.reduction not in ("mean", "sum"):
            raise InputError(f"loss: its reduction is {self.reduction!r}; curvature needs 'mean' or 'sum'")
        self.mass, self.seen = 0.0, torch.zeros(3, dtype=torch.float64)
        for i, (inputs, labels) in enumerate(self._batches()):
            signature = _signature(inputs, labels)
            if not bool(torch.isfinite(signature).all()):
                raise InputError(
                    f"data: batch {i} (counted from 0) holds NaN or infinite values; leave those samples out"
                )
            self.mass += self._mass(labels)
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

    def _mass(self, labels: Tensor) -> float:
        """What the mean of a batch is divided by."""
        if labels.is_floating_point():
            return float(len(labels))
        loss = getattr(self.loss, "loss", self.loss)  # of a sum: the loss that has penalties
        used = labels != getattr(loss, "ignore_index", -100)
        weight = getattr(loss, "weight", None)
        if not isinstance(weight, Tensor):
            return float(used.sum())
        return float(weight.double().cpu()[labels.cpu()[used.cpu()]].sum())


def _signature(inputs: Tensor, labels: Tensor) -> Tensor:
    """Sums that do not depend on the order of the samples."""
    scale = inputs.double().abs().sum() / max(1, inputs.numel())
    return torch.tensor([len(inputs), float(scale) * len(inputs), float(labels.double().sum())], dtype=torch.float64)


def _layers(weights: Weights) -> dict[str, slice]:
    found, start = {}, 0
    for name, tensor in weights.items():
        found[name] = slice(start, start + tensor.numel())
        start += tensor.numel()
    return found


def _of_batch(product: Product, problem: Problem, inputs: Tensor, labels: Tensor) -> Callable[[Weights], Weights]:
    def network(some: Weights) -> Tensor:
        return problem.logits(some, inputs)

    def loss(logits: Tensor) -> Tensor:
        return problem.loss(logits, labels)

    return lambda vector: product(network, loss, problem.weights, vector)


def _add_products(
    total: Tensor,
    product: Callable[[Weights], Weights],
    vectors: Tensor,
    share: float,
    weights: Weights,
    layers: dict[str, slice],
    at_once: int,
) -> int:
    """Adds share * product of every row; where memory is short, with fewer rows at once: how many is returned."""
    start = 0
    while start < len(vectors):
        some = slice(start, start + at_once)
        try:
            found = _rows_at_once(product, vectors[some], weights, layers)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise InputError(f"model or loss: cannot be differentiated twice ({_first_line(error)})") from error
            if at_once == 1:
                raise InputError("data: too little memory for one product with a batch; pass smaller batches") from None
            at_once = max(1, at_once // 2)
            continue
        total[some].add_(found, alpha=share)
        start = some.stop
    return at_once


def _rows_at_once(
    product: Callable[[Weights], Weights], vectors: Tensor, weights: Weights, layers: dict[str, slice]
) -> Tensor:
    shaped = {
        name: vectors[:, layers[name]].reshape(len(vectors), *tensor.shape).to(tensor.dtype)
        for name, tensor in weights.items()
    }
    with torch.no_grad():
        if len(vectors) == 1:
            found = {k: v.unsqueeze(0) for k, v in product({k: v[0] for k, v in shaped.items()}).items()}
        else:
            found = vmap(product, randomness="same")(shaped)
    return torch.cat([found[name].reshape(len(vectors), -1).double() for name in weights], 1)


def out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
