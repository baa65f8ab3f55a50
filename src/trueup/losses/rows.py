"""The one pass over the logits that the losses share, as fast as cross-entropy's, with exact gradients.

A loss of p_y alone is a function of u, the log-odds against the label (``trueup.focal.odds``), and du/dz is the
softmax over the other classes, less one at the label. So the work on (N, K) numbers is the same for cross-entropy and
the whole focal family: one pass to get u, one to spread the slope back. All the rest is N numbers, in float64.
The Brier score has a pass of its own, of the same form.

Eager PyTorch takes a path that works in blocks of rows which stay in the processor's cache. ``torch.compile`` gets the
plain formula, and whoever differentiates twice the plain gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from trueup.focal.odds import lowest, odds, wide_dtype
from trueup.inputs import working_dtype

BLOCK_ELEMENTS = 1 << 19

Passes = tuple[Tensor, ...]
"""(N,) values, (N, K) powers, and whatever (N,) numbers the pass back needs."""


def odds_against(logits: Tensor, labels: Tensor, steep: bool = False) -> Tensor:
    """(N,) float64 log-odds against the label of each row of (N, K) logits.

    ``steep`` for a loss whose slope over 1 - p_y grows as p_y reaches 1 (a gamma below 0): the gradient of a class that
    is hardly there is then still a number, and so its power has to be.
    """
    if wants_plain():
        return odds(logits.to(working_dtype(logits)), labels).against
    return _steep_odds_against(logits, labels) if steep else _odds_against(logits, labels)


def brier_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) float64 sums of squares (p_k - 1[k = y])^2 = q^2 (1 + sum s_j^2), q = 1 - p_y, s the others' softmax."""
    if wants_plain():
        u, others = odds(logits.to(working_dtype(logits)), labels)
        return torch.sigmoid(u).square() * (1 + others.square().sum(-1))
    return _brier_scores(logits, labels)


def negative_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) sums of p log p = sum p d - log S with d = z less the largest z and S the sum of exp d; no use of labels.

    Both terms are negative, and the gradient is p (d - sum p d): nothing cancels, neither near a one-hot p nor at ties.
    """
    if wants_plain():
        d, p, rest = _relative(logits.to(working_dtype(logits)))
        return (p * d).sum(-1) - torch.log1p(rest)
    return _negative_entropies(logits, labels)


def mean_leads(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) mean of z_k - z_y over the classes that are possible (z_k > -inf)."""
    if wants_plain():
        return _mean_leads_plain(logits.to(working_dtype(logits)), labels)[0]
    return _mean_leads(logits, labels)


def wants_plain() -> bool:
    """Whether only plain operations will do: to be traced by ``torch.compile``, or under forward mode within forward
    mode, where a function with a derivative of its own would silently have none."""
    return torch.compiler.is_compiling() or in_nested_forward_mode()


def in_nested_forward_mode() -> bool:
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    levels = functorch.get_interpreter_stack() or ()
    return sum(level.key() == functorch.TransformType.Jvp for level in levels) > 1


def row_function(
    forward: Callable[[Tensor, Tensor], Passes],
    back: Callable[..., Tensor],
    gradient: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Tensor], Tensor]:
    """A differentiable (logits, labels) -> (N,) values from a fast pass forth, a fast pass back, and a plain gradient.

    ``forward`` gives the values and what ``back(labels, grad, *rest)`` needs; ``gradient(logits, labels)`` is the
    (N, K) derivative of the values in differentiable operations.
    """

    class Rows(Function):
        @staticmethod
        def forward(logits: Tensor, labels: Tensor) -> Passes:
            return forward(logits, labels)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            logits, labels = inputs
            ctx.outputs = len(output)
            ctx.mark_non_differentiable(*output[1:])
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(logits, labels, *output[1:])
            ctx.save_for_forward(logits, labels)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            logits, labels, *rest = ctx.saved_tensors
            if grads[0] is None:
                return None, None
            if torch.is_grad_enabled():  # somebody will differentiate this again
                wide = logits.to(working_dtype(logits))
                return (gradient(wide, labels) * grads[0].to(wide.dtype).unsqueeze(-1)).to(logits.dtype), None
            return back(labels, grads[0], *rest).to(logits.dtype), None

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            logits, labels = ctx.saved_tensors
            wide = logits.to(working_dtype(logits))
            moved = (gradient(wide, labels) * tangents[0].to(wide.dtype)).sum(-1).to(wide_dtype(wide))
            return moved, *[None] * (ctx.outputs - 1)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
            """Rows are independent: a further dimension is only more rows."""
            size = info.batch_size
            z, y = (
                x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
                for x, dim in zip(args, in_dims, strict=True)
            )
            found: Any = Rows.apply(z.flatten(0, 1), y.flatten(0, 1))
            return tuple(x.unflatten(0, (size, -1)) for x in found), (0,) * len(found)

    def apply(logits: Tensor, labels: Tensor) -> Tensor:
        found: Any = Rows.apply(logits, labels)
        return found[0]

    return apply


def powers_of_others(
    logits: Tensor, labels: Tensor, least: float = 1e-25, norms: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(top, e, m): the largest logit of each row, e = exp(z - top) with 0 at the label, and the row sums m of e.

    Where the label is so far ahead that m would be below ``least``, ``top`` is the largest of the others. ``norms`` is
    filled with the rows' L2 norms of e.
    """
    dtype, index = working_dtype(logits), labels.unsqueeze(-1)
    wide = wide_dtype(logits)
    if logits.device.type != "cpu":  # to look at the numbers would be a wait, which a captured graph cannot have
        top, powers, mass = _powers_behind(logits.to(dtype), index)
        if norms is not None:
            norms.copy_(torch.linalg.vector_norm(powers, dim=1))
        return top.to(wide), powers, mass.to(wide)
    powers = torch.empty(logits.shape, dtype=dtype, device=logits.device)
    top, mass = powers.new_empty(len(powers)), powers.new_empty(len(powers))
    for rows in _blocks(logits):
        block = logits[rows].to(dtype)
        torch.amax(block, 1, out=top[rows])
        torch.sub(block, top[rows, None], out=powers[rows])
        powers[rows].exp_().scatter_(1, index[rows], 0.0)
        torch.sum(powers[rows], 1, out=mass[rows])
        if norms is not None:
            torch.linalg.vector_norm(powers[rows], dim=1, out=norms[rows])
    lost = mass < least
    if bool(lost.any()):
        some = torch.nonzero(lost).squeeze(1)
        top[some], powers[some], mass[some] = _powers_behind(logits[some].to(dtype), index[some])
        if norms is not None:
            norms[some] = torch.linalg.vector_norm(powers[some], dim=1)
    return top.to(wide), powers, mass.to(wide)


def _powers_behind(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As above, ``top`` being the largest of the other classes."""
    rest = logits.scatter(1, index, -torch.inf)
    top = rest.amax(1).clamp(min=torch.finfo(rest.dtype).min)
    powers = (rest - top.unsqueeze(1)).exp_()
    return top, powers, powers.sum(1).clamp(min=torch.finfo(rest.dtype).tiny)


def _blocks(logits: Tensor) -> Iterator[slice]:
    size = max(1, BLOCK_ELEMENTS // logits.shape[1]) if logits.device.type == "cpu" else max(1, len(logits))
    return (slice(start, start + size) for start in range(0, len(logits), size))


def _margin(top: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    return top - logits.gather(1, labels.unsqueeze(1)).squeeze(1).to(top.dtype)


def _odds_forward(logits: Tensor, labels: Tensor, least: float = 1e-25) -> Passes:
    top, powers, mass = powers_of_others(logits, labels, least)
    against = (_margin(top, logits, labels) + mass.log()).clamp_(min=lowest(mass.dtype))
    return against, powers, mass


def _odds_back(labels: Tensor, grad: Tensor, powers: Tensor, mass: Tensor) -> Tensor:
    spread = powers * (grad / mass).to(powers.dtype).unsqueeze(-1)
    return spread.scatter_(-1, labels.unsqueeze(-1), -grad.to(powers.dtype).unsqueeze(-1))


def _odds_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    others = odds(logits, labels).others
    return others.scatter(-1, labels.unsqueeze(-1), -1.0)


def _brier_forward(logits: Tensor, labels: Tensor) -> Passes:
    """Besides the powers: 1/S, p_y, 1 - p_y and sum_{j != y} p_j^2, S the sum of all powers."""
    norms = torch.empty(len(logits), dtype=working_dtype(logits), device=logits.device)
    top, powers, mass = powers_of_others(logits, labels, norms=norms)
    against = (_margin(top, logits, labels) + mass.log()).clamp_(min=lowest(mass.dtype))
    own, rest = torch.sigmoid(-against), torch.sigmoid(against)
    inverse = rest / mass
    squares = (norms.to(mass.dtype) * inverse).square()
    return rest.square() + squares, powers, inverse, own, rest, squares


def _brier_back(labels: Tensor, grad: Tensor, powers: Tensor, *numbers: Tensor) -> Tensor:
    """2 p_k (p_k + p_y q - sum p_j^2) at the others, -2 p_y B at the label; in two passes that stay in the cache."""
    inverse, own, rest, squares = numbers
    a = (2 * grad * inverse.square()).to(powers.dtype)
    b = (2 * grad * inverse * (own * rest - squares)).to(powers.dtype)
    spread = torch.empty_like(powers)
    for rows in _blocks(powers):
        torch.addcmul(b[rows, None], powers[rows], a[rows, None], out=spread[rows])
        spread[rows].mul_(powers[rows])
    at_label = -2 * grad * own * (rest.square() + squares)
    spread.scatter_(-1, labels.unsqueeze(-1), at_label.to(powers.dtype).unsqueeze(-1))
    # p_k - sum p_j^2 cancels where one wrong class has nearly all: then by the row's sum, which is 0
    if spread.device.type != "cpu":
        return _summing_to_zero(spread, powers.argmax(-1, keepdim=True))
    sure = squares > 0.5
    if bool(sure.any()):
        some = torch.nonzero(sure).squeeze(1)
        spread[some] = _summing_to_zero(spread[some], powers[some].argmax(-1, keepdim=True))
    return spread


def _brier_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    u, others = odds(logits, labels)
    p, q = torch.sigmoid(-u).to(others.dtype).unsqueeze(-1), torch.sigmoid(u).to(others.dtype).unsqueeze(-1)
    v = q * others
    squares = v.square().sum(-1, keepdim=True)
    spread = (2 * v * (v + p * q - squares)).scatter(-1, labels.unsqueeze(-1), -2 * p * (q.square() + squares))
    return _summing_to_zero(spread, others.argmax(-1, keepdim=True))


def _summing_to_zero(gradient: Tensor, at: Tensor) -> Tensor:
    """(N, K) with the entry at ``at`` (N, 1) replaced by what makes the row sum to 0."""
    rest = gradient.scatter(-1, at, 0.0)
    return rest.scatter(-1, at, -rest.sum(-1, keepdim=True))


def _relative(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(d, p, S - 1): logits less the largest, its softmax and the sum of exp d over all but one of the largest."""
    top = logits.argmax(-1, keepdim=True)
    d = (logits - logits.gather(-1, top)).clamp(min=torch.finfo(logits.dtype).min).scatter(-1, top, 0.0)
    powers = d.exp()
    rest = powers.scatter(-1, top, 0.0).sum(-1)
    return d, powers / (1 + rest).unsqueeze(-1), rest


def _entropy_forward(logits: Tensor, labels: Tensor) -> Passes:
    d, p, rest = _relative(logits.to(working_dtype(logits)))
    mean = (p * d).sum(-1)
    return (mean - torch.log1p(rest)).to(wide_dtype(logits)), p, d, mean


def _entropy_back(labels: Tensor, grad: Tensor, p: Tensor, d: Tensor, mean: Tensor) -> Tensor:
    return (d - mean.unsqueeze(-1)) * p * grad.to(p.dtype).unsqueeze(-1)


def _entropy_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    d, p, _ = _relative(logits)
    return p * (d - (p * d).sum(-1, keepdim=True))


def _mean_leads_plain(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The means, which classes are possible, and how many."""
    possible = logits != -torch.inf
    leads = logits - logits.gather(-1, labels.unsqueeze(-1))
    many = possible.sum(-1).to(logits.dtype)
    return torch.where(possible, leads, 0.0).sum(-1) / many, possible, many


def _mean_leads_forward(logits: Tensor, labels: Tensor) -> Passes:
    """Besides the means which classes are possible, and how many."""
    dtype = working_dtype(logits)
    if logits.device.type == "cpu":
        own, sums = logits.gather(1, labels.unsqueeze(1)), torch.empty(len(logits), dtype=dtype)
        for rows in _blocks(logits):
            torch.sum(logits[rows].to(dtype) - own[rows].to(dtype), 1, out=sums[rows])
        if bool(torch.isfinite(sums).all()):
            many = torch.full_like(sums, logits.shape[1])
            return (sums / many).to(wide_dtype(logits)), torch.ones((1, 1), dtype=torch.bool).expand(logits.shape), many
    means, possible, many = _mean_leads_plain(logits.to(dtype), labels)
    return means.to(wide_dtype(logits)), possible, many


def _mean_leads_back(labels: Tensor, grad: Tensor, possible: Tensor, many: Tensor) -> Tensor:
    spread = (grad.to(many.dtype) / many).unsqueeze(-1) * possible
    return spread.scatter_add_(-1, labels.unsqueeze(-1), -grad.to(many.dtype).unsqueeze(-1))


def _mean_leads_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    possible = (logits != -torch.inf).to(logits.dtype)
    shares = possible / possible.sum(-1, keepdim=True)
    return shares.scatter_add(-1, labels.unsqueeze(-1), -torch.ones_like(shares[..., :1]))


_odds_against = row_function(_odds_forward, _odds_back, _odds_gradient)
_steep_odds_against = row_function(functools.partial(_odds_forward, least=0.1), _odds_back, _odds_gradient)
_brier_scores = row_function(_brier_forward, _brier_back, _brier_gradient)
_mean_leads = row_function(_mean_leads_forward, _mean_leads_back, _mean_leads_gradient)
_negative_entropies = row_function(_entropy_forward, _entropy_back, _entropy_gradient)
