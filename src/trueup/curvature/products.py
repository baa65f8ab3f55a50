"""Hessian, generalised Gauss-Newton and Fisher matrix of a loss over a data set, as products with vectors.

The matrices are symmetric and far too large to write down: P x P for P parameters. A product with m vectors goes
through the network in blocks of vectors (``torch.func.vmap``), batch after batch, and is summed in float64.

The model is looked at in eval mode: batch norms use their running statistics, dropout is off. It is left as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp, vmap

from trueup.curvature.modes import measuring
from trueup.curvature.samples import Samples
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
            sums, used = logits.logsumexp(1), self.samples.used(labels)
            if used is not None:
                sums = torch.where(used, sums, 0.0)
            if self.samples.reduction == "sum":
                return sums.sum()
            return sums.mean() if used is None else sums.sum() / used.sum()
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
    H_z the second derivative of the loss in them; the Fisher matrix is J' (diag p - p p') J, whatever the loss (of its
    settings ``ignore_index`` and ``reduction`` count, class weights do not).
    ``data`` is read once a product. A loss with ``reduction="mean"`` is averaged over all samples (with the weights it
    gives them), one with "sum" summed; a function without ``reduction`` has to be the mean over its batch.
    ``parameters`` names some of the model's; without it all that require gradients.

    Where the net or the loss couples the samples of a batch (batch norm without running statistics, MMCE), the loss is
    the mean of that of the batches as they are: cut otherwise they have another matrix.

    >>> from trueup.losses import CrossEntropy
    >>> batches = [(torch.randn(8, 2), torch.arange(8) % 3)]
    >>> curvature(torch.nn.Linear(2, 3), CrossEntropy(), batches).layers
    {'weight': slice(0, 6, None), 'bias': slice(6, 9, None)}
    """
    if matrix not in MATRICES:
        raise InputError(f"matrix: expected one of {', '.join(MATRICES)}, got {matrix!r}")
    if torch.is_inference_mode_enabled():
        raise InputError("curvature: inference mode allows no derivatives; call it outside, or under no_grad")
    if hasattr(loss, "penalty"):
        raise InputError(
            "loss: its penalty on the model is no function of logits and labels, and would be left out; "
            "pass the loss without it"
        )
    weights = selected(model, parameters)
    at_once = None if vectors_at_once is None else count(vectors_at_once, "vectors_at_once")
    samples = Samples(data, loss, next(iter(weights.values())), by_class=matrix != "fisher")
    problem = Problem(model, weights, loss, samples, matrix == "fisher")
    inputs, labels, _ = next(iter(samples))
    _try_out(problem, inputs, labels)
    return matrix_of(problem, matrix, at_once)


def _try_out(problem: Problem, inputs: Tensor, labels: Tensor) -> None:
    """A batch forward: what goes wrong there has nothing to do with derivatives, and is told as it is."""
    fails = f"model: it cannot take a batch of shape {tuple(inputs.shape)}"
    try:
        with measuring(problem.model), torch.no_grad():
            logits = problem.logits(problem.weights, inputs)
            _require_logits(logits, problem.fisher)
            fails = f"loss: it cannot take logits of shape {tuple(logits.shape)} with labels of shape "
            fails += f"{tuple(labels.shape)}"
            problem.loss(logits, labels)
            if _sums(problem, logits, labels):
                raise InputError(
                    "loss: it sums over a batch, and what has no reduction is averaged; divide by the number of samples"
                )
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if out_of_memory(error):
            raise InputError("data: too little memory for one batch; pass smaller batches") from None
        raise InputError(f"{fails} ({_first_line(error)})") from error


def _require_logits(logits: Any, fisher: bool) -> None:
    if not isinstance(logits, Tensor):
        raise InputError(
            f"model: it returns a {type(logits).__name__}, not a tensor of logits; wrap it in a module that takes "
            "them out"
        )
    if fisher and (logits.ndim < 2 or logits.shape[1] < 2):
        raise InputError(
            f"matrix: 'fisher' is that of a softmax over (N, K) logits, got {tuple(logits.shape)}; choose 'ggn'"
        )


def _sums(problem: Problem, logits: Tensor, labels: Tensor) -> bool:
    """Whether a loss that does not say so sums: for a batch it is the sum of that of its halves, as no mean is.

    With one batch alone the two are the same.
    """
    if problem.fisher or hasattr(problem.criterion, "reduction") or min(problem.samples.batches, len(labels)) < 2:
        return False
    half = len(labels) // 2
    whole = float(problem.loss(logits, labels))
    try:
        halves = [float(problem.loss(logits[rows], labels[rows])) for rows in (slice(half), slice(half, None))]
    except (RuntimeError, ValueError, TypeError, IndexError):  # it takes whole batches alone
        return False
    return whole != 0 and abs(sum(halves) - whole) <= 1e-3 * abs(whole)


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
                try:
                    at_once = _add_products(total, product, vectors, share, weights, layers, at_once)
                except InputError:
                    raise
                except (RuntimeError, ValueError, TypeError, IndexError) as error:
                    _try_out(problem, inputs, labels)
                    raise InputError(f"model or loss: {not_differentiable(error)}") from error
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
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected a torch.nn.Module, got a {type(model).__name__}")
    if isinstance(parameters, str):
        raise InputError(f"parameters: expected a list of names, as in [{parameters!r}]")
    known = dict(model.named_parameters())
    names = [name for name, p in known.items() if p.requires_grad] if parameters is None else list(parameters)
    if not names:
        where = "model: it has no parameters that require gradients"
        raise InputError(where if parameters is None else "parameters: the list is empty; leave it out for all")
    for name in names:
        if name not in known:
            raise InputError(f"parameters: the model has no {name!r}; it has {', '.join(known)}")
        if not bool(torch.isfinite(known[name]).all()):
            raise InputError(f"model: its parameter {name} holds NaN or infinite values")
    for name, tensor in [*known.items(), *model.named_buffers()]:  # an infinity in those can be a mask
        if bool(torch.isnan(tensor).any()):
            raise InputError(f"model: its {'parameter' if name in known else 'buffer'} {name} holds NaN")
    return {name: known[name].detach() for name in names}


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
                raise
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


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def not_differentiable(error: Exception) -> str:
    """What torch says, for a message."""
    told = _first_line(error)
    missing = re.search(r"forward AD with (\S+)", told)
    return f"no forward-mode derivative for {missing[1]}" if missing else f"cannot be differentiated twice ({told})"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
