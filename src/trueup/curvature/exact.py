"""The trace of the Gauss-Newton part without a probe, and in which parameters that is all.

The Hessian of a loss L of the logits z is H = J' H_z J + R: J the derivative of the logits in the weights, H_z the
second derivative of the loss in the logits, R the second derivatives of the logits, each times dL/dz. A loss that is a
sum over samples has a K x K block of H_z for each, hence

    Tr(J' H_z J) = sum over samples of <H_z, J J'>,

and the K x K matrices J J' cost one backward pass for each of the K logits (see ``grams``). Random probes have to
average out what the samples have to do with each other, which this never forms.

R has no trace where the logits are linear in each parameter tensor while the others rest. That is so for linear and
convolutional layers, ReLU, pooling, and batch norm in eval mode, in any order; GELU, tanh, attention and a tensor that
is used twice are not linear. It is looked at, not deduced from the names of the layers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from trueup.curvature.grams import Grams
from trueup.curvature.krylov import generator_on
from trueup.curvature.modes import measuring
from trueup.curvature.products import Curvature, Problem, finite, out_of_memory
from trueup.inputs import InputError

MOST_CLASSES = 40
"""With more, so many backward passes take longer than probes."""
LOOKED_AT = 64
"""So many samples settle in which parameters a net is linear: among their activations every piece is met."""


def gauss_newton_traces(
    made: Curvature, progress: Callable[[float], None] | None = None
) -> tuple[dict[str, float], int] | None:
    """Tr of each parameter tensor's block of J' H_z J, and the passes it took. For the Fisher matrix likewise.

    None where it cannot be had so: many classes, a loss or a net that couples samples, logits that are not (N, K), or a
    net that does not take samples one by one.
    """
    problem, done = made.problem, 0
    total = torch.zeros(len(problem.weights), dtype=torch.float64, device=made.device)
    grams, classes = None, 0
    with measuring(problem.model), torch.no_grad():
        for inputs, labels, share in problem.samples:
            try:
                logits = problem.logits(problem.weights, inputs)
                if logits.ndim != 2 or logits.shape[1] > MOST_CLASSES:
                    return None
                classes = logits.shape[1]
                bends = finite(_logit_hessians(problem, logits, labels))
                if not (_alone(problem, inputs, logits) and _apart(problem, logits, labels, bends)):
                    return None
                grams = grams or Grams(problem, inputs, classes)
                total += share * torch.einsum("ntij,nij->t", grams(inputs).double(), bends.double())
            except InputError:
                raise
            except (RuntimeError, ValueError, IndexError) as error:  # what is wrong the products tell
                if out_of_memory(error):
                    raise
                return None
            done += len(labels)
            if progress is not None:
                progress(min(1.0, done / problem.samples.many))
    return dict(zip(problem.weights, finite(total).tolist(), strict=True)), classes


def _logit_hessians(problem: Problem, logits: Tensor, labels: Tensor) -> Tensor:
    """(N, K, K) second derivatives of the loss of a batch in the logits of each sample."""
    slopes = grad(lambda z: problem.loss(z, labels))
    units = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
    units = units.unsqueeze(1).expand(-1, *logits.shape)
    return vmap(lambda unit: jvp(slopes, (logits,), (unit,))[1])(units).transpose(0, 1)


def _alone(problem: Problem, inputs: Tensor, logits: Tensor) -> bool:
    """Whether samples have the logits alone that they have in their batch: its statistics would couple them."""
    alone = torch.cat([problem.logits(problem.weights, one) for one in inputs[:2].split(1)])
    beside, least = logits[:2], max(1e-3, 8 * torch.finfo(logits.dtype).eps)
    return alone.shape == beside.shape and bool((alone - beside).norm() <= least * beside.norm())


def _apart(problem: Problem, logits: Tensor, labels: Tensor, bends: Tensor) -> bool:
    """Whether no sample's logits bend the loss of another: blocks alone give the product with a random direction."""
    generator = generator_on(logits.device, 0)
    moved = torch.randn(logits.shape, dtype=logits.dtype, device=logits.device, generator=generator)
    true = jvp(grad(lambda z: problem.loss(z, labels)), (logits,), (moved,))[1]
    return bool((true - torch.einsum("nij,nj->ni", bends, moved)).norm() <= 1e-4 * true.norm())


def bent_layers(made: Curvature) -> list[str]:
    """The parameter tensors in which the logits are not linear: some samples, a random direction of each tensor.

    Of a random sum of logits, the derivative in a tensor is differentiated once more in the same tensor: exactly 0
    where nothing but linear pieces are met.
    """
    problem, generator = made.problem, generator_on(made.device, 0)
    inputs = next(iter(problem.samples))[0][:LOOKED_AT]
    weights = {name: weight.clone().requires_grad_() for name, weight in problem.weights.items()}

    def drawn_like(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator)

    with measuring(problem.model), torch.enable_grad():
        logits = problem.logits(weights, inputs)
        total = (logits * drawn_like(logits)).sum()
        slopes = torch.autograd.grad(total, list(weights.values()), create_graph=True, allow_unused=True)
        return [
            name
            for (name, weight), slope in zip(weights.items(), slopes, strict=True)
            if slope is not None and slope.requires_grad and _bends(weight, slope, drawn_like(weight))
        ]


def _bends(weight: Tensor, slope: Tensor, direction: Tensor) -> bool:
    moved = (slope * direction).sum() * weight.detach().square().mean().sqrt().clamp(min=1e-3)
    try:
        (second,) = torch.autograd.grad(moved, weight, retain_graph=True, allow_unused=True)
    except RuntimeError as error:  # a step without a second derivative can be anything
        if out_of_memory(error):
            raise
        return True
    return second is not None and bool(second.norm() > 1e-6 * slope.norm())
