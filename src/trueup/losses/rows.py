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
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function, forward_ad

from trueup.focal.odds import lowest, odds, wide_dtype
from trueup.inputs import working_dtype

BLOCK_ELEMENTS = 1 << 19

Passes = tuple[Tensor, ...]
"""(N,) values, (N, K) shares of the classes, and whatever (N,) numbers the pass back needs."""


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


@torch.no_grad()
def rivals(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) the class with the largest logit below that of the label; any class where none is below."""
    found = []
    for rows in [slice(None)] if wants_plain() or not len(logits) else _blocks(logits):
        leads = logits[rows].to(working_dtype(logits))
        behind = leads.gather(1, labels[rows].unsqueeze(1)) - leads
        found.append(F.threshold(behind, 0.0, torch.inf).min(1).indices)
    return torch.cat(found)


def wants_plain() -> bool:
    """Whether only plain operations will do: to be traced by ``torch.compile``, or under forward mode within forward
    mode, where a function with a derivative of its own would silently have none."""
    return torch.compiler.is_compiling() or in_nested_forward_mode()


def in_nested_forward_mode() -> bool:
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    levels = functorch.get_interpreter_stack() or ()
    return sum(level.key() == functorch.TransformType.Jvp for level in levels) > 1


def with_known_signature(forward: Callable[..., Any]) -> Callable[..., Any]:
    """``Function.apply`` reads the signature at every call, which costs as much as ten operations on a small batch."""
    forward.__signature__ = inspect.signature(forward)
    return forward


def differentiated_again() -> bool:
    """Whether somebody will take a derivative of the gradient that is being computed: by a graph, or forward mode."""
    return torch.is_grad_enabled() or forward_ad._current_level >= 0


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
        @with_known_signature
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
            if differentiated_again():
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


def shares_of_others(
    logits: Tensor, labels: Tensor, least: float = 1e-25, norms: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(u, shares, mass): the log-odds against the label, numbers in the ratio of the other classes' probabilities, 0 at
    the label, and their row sums.

    The shares are ``_powers``, and u the logarithm of their sum over the label's: nothing is lost, for 1 - p_y is
    summed and never subtracted. Where that sum or the label's is below ``least``, the others are taken relative to the
    largest of themselves instead. ``norms`` is filled with the rows' L2 norms of the shares.
    """
    dtype, index = working_dtype(logits), labels.unsqueeze(-1)
    wide = wide_dtype(logits)
    if logits.device.type != "cpu":  # to look at the numbers would be a wait, which a captured graph cannot have
        against, shares, mass = _behind(logits, index)
        if norms is not None:
            norms.copy_(torch.linalg.vector_norm(shares, dim=1))
        return against, shares, mass
    shares = torch.empty(logits.shape, dtype=dtype)
    own, mass = shares.new_empty((len(shares), 1)), shares.new_empty(len(shares))
    for rows in _blocks(logits):
        block = shares[rows]
        _powers(logits[rows].to(dtype), block)
        torch.gather(block, 1, index[rows], out=own[rows])
        torch.sum(block.scatter_(1, index[rows], 0.0), 1, out=mass[rows])
        if norms is not None:
            torch.linalg.vector_norm(block, dim=1, out=norms[rows])
    own = own.squeeze(1)
    against = mass.to(wide).log() - own.to(wide).log()
    lost = torch.minimum(own, mass) < least
    if bool(lost.any()):
        some = torch.nonzero(lost).squeeze(1)
        against[some], shares[some], found = _behind(logits[some], index[some])
        mass[some] = found.to(dtype)
        if norms is not None:
            norms[some] = torch.linalg.vector_norm(shares[some], dim=1)
    return against, shares, mass.to(wide)


def _powers(logits: Tensor, out: Tensor) -> None:
    """exp(logits), each row up to a factor: the softmax, one fused pass, but where a row is shorter than the widest
    register, and softmax takes its numbers one by one."""
    if logits.shape[1] < 16:
        torch.sub(logits, logits.amax(1, keepdim=True), out=out).exp_()
    else:
        torch.softmax(logits, 1, out=out)


def _behind(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As above, relative to the largest of the other classes."""
    wide = wide_dtype(logits)
    logits = logits.to(working_dtype(logits))
    rest = logits.scatter(1, index, -torch.inf)
    top = rest.amax(1).clamp(min=torch.finfo(rest.dtype).min)
    powers = (rest - top.unsqueeze(1)).exp_()
    mass = powers.sum(1).clamp(min=torch.finfo(rest.dtype).tiny).to(wide)
    margin = top.to(wide) - logits.gather(1, index).squeeze(1).to(wide)
    return (margin + mass.log()).clamp_(min=lowest(wide)), powers, mass


def _blocks(logits: Tensor) -> Iterator[slice]:
    size = max(1, BLOCK_ELEMENTS // logits.shape[1]) if logits.device.type == "cpu" else max(1, len(logits))
    return (slice(start, start + size) for start in range(0, len(logits), size))


def _odds_forward(logits: Tensor, labels: Tensor, least: float = 1e-25) -> Passes:
    return shares_of_others(logits, labels, least)


def _odds_back(labels: Tensor, grad: Tensor, shares: Tensor, mass: Tensor) -> Tensor:
    spread = shares * (grad / mass).to(shares.dtype).unsqueeze(-1)
    return spread.scatter_(-1, labels.unsqueeze(-1), -grad.to(shares.dtype).unsqueeze(-1))


def _odds_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    others = odds(logits, labels).others
    return others.scatter(-1, labels.unsqueeze(-1), -1.0)


def _brier_forward(logits: Tensor, labels: Tensor) -> Passes:
    """Besides the shares: what makes them p_j, p_y, 1 - p_y and sum_{j != y} p_j^2."""
    norms = torch.empty(len(logits), dtype=working_dtype(logits), device=logits.device)
    against, shares, mass = shares_of_others(logits, labels, norms=norms)
    own, rest = torch.sigmoid(-against), torch.sigmoid(against)
    inverse = rest / mass
    squares = (norms.to(mass.dtype) * inverse).square()
    return rest.square() + squares, shares, inverse, own, rest, squares


def _brier_back(labels: Tensor, grad: Tensor, shares: Tensor, *numbers: Tensor) -> Tensor:
    """2 p_k (p_k + p_y q - sum p_j^2) at the others, -2 p_y B at the label; in passes that stay in the cache."""
    inverse, own, rest, squares = numbers
    a = (2 * grad * inverse.square()).to(shares.dtype)
    b = (2 * grad * inverse * (own * rest - squares)).to(shares.dtype)
    spread = torch.empty_like(shares)
    for rows in _blocks(shares):
        torch.mul(shares[rows], a[rows, None], out=spread[rows]).add_(b[rows, None]).mul_(shares[rows])
    at_label = -2 * grad * own * (rest.square() + squares)
    spread.scatter_(-1, labels.unsqueeze(-1), at_label.to(shares.dtype).unsqueeze(-1))
    # p_k - sum p_j^2 cancels where one wrong class has nearly all: then by the row's sum, which is 0
    if spread.device.type != "cpu":
        return _summing_to_zero(spread, shares.argmax(-1, keepdim=True))
    sure = squares > 0.5
    if bool(sure.any()):
        some = torch.nonzero(sure).squeeze(1)
        spread[some] = _summing_to_zero(spread[some], shares[some].argmax(-1, keepdim=True))
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
    if logits.device.type != "cpu":
        return _entropy_passes(logits)[:4]
    d = torch.empty(logits.shape, dtype=working_dtype(logits))
    p, mean, rest = torch.empty_like(d), d.new_empty(len(d)), d.new_empty(len(d))
    for rows in _blocks(logits):
        block = logits[rows].to(d.dtype)
        torch.sub(block, block.amax(1, keepdim=True), out=d[rows])
        torch.softmax(block, 1, out=p[rows])
        torch.sum(p[rows] * d[rows], 1, out=mean[rows])
        first = p[rows].amax(1)
        lower = 1 - first
        if bool((first > 0.5).any()):  # then it is the sum of all others
            torch.where(first > 0.5, -F.threshold(-p[rows], -0.5, 0.0).sum(1), lower, out=lower)
        torch.div(lower, first, out=rest[rows])
    some = torch.nonzero(mean.isnan()).squeeze(1)
    if len(some):  # a class is masked, and has 0 times -inf
        _, p[some], d[some], mean[some], rest[some] = _entropy_passes(logits[some])
    return (mean - torch.log1p(rest)).to(wide_dtype(logits)), p, d, mean


def _entropy_passes(logits: Tensor) -> Passes:
    d, p, rest = _relative(logits.to(working_dtype(logits)))
    mean = (p * d).sum(-1)
    return (mean - torch.log1p(rest)).to(wide_dtype(logits)), p, d, mean, rest


def _entropy_back(labels: Tensor, grad: Tensor, p: Tensor, d: Tensor, mean: Tensor) -> Tensor:
    grad = grad.to(p.dtype)
    spread, shift = torch.empty_like(p), -grad * mean
    for rows in _blocks(p):
        torch.mul(d[rows], grad[rows, None], out=spread[rows]).add_(shift[rows, None]).mul_(p[rows])
    return spread


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
