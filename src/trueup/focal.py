"""The mathematics of focal loss.

Focal loss is FL(p, y) = -(1 - p_y)^g log p_y; g = 0 is cross-entropy. Its gradient is phi(p_y) times that of
cross-entropy, with

    phi(v) = (1 - v)^g (1 + g r(v)),    r(v) = -v log v / (1 - v), from 0 at v = 0 to 1 at v = 1.

A network that minimises it does not report the posterior; the focal map Psi gives the posterior back
(charoenphakdee2021): Psi_i(v) = h(v_i) / sum_k h(v_k) with h(v) = v / phi(v). Valid for g >= -1.

Near v = 1 everything hangs on q = 1 - v, which is never taken as 1 - exp(log v): it is the mass of the other classes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from trueup import inputs
from trueup.inputs import Array, InputError


def focal_map(logits: Array, gamma: float | Tensor) -> Array:
    """Log-probabilities Psi_gamma(softmax(logits)) of (..., K) logits; ``gamma`` may be a tensor that broadcasts.

    Psi turns the softmax of a network that minimises focal loss into the posterior. It keeps the order of the
    classes for gamma >= 0, and the most probable class for gamma >= -1. -inf masks a class.

    >>> import torch, trueup
    >>> trueup.focal_map(torch.tensor([0.7744, 0.2256]).log(), 1.0).exp()  # the minimiser for the posterior .9, .1
    tensor([0.9000, 0.1000])
    """
    z = inputs.as_tensor(logits, "logits") if not isinstance(logits, Tensor) else logits
    if not z.dtype.is_floating_point:
        z = z.double()
    result = log_h(z, checked_gamma(gamma)).log_softmax(-1)
    return result if isinstance(logits, Tensor) else inputs.like(result, logits)


def log_h(logits: Tensor, gamma: float | Tensor) -> Tensor:
    """log h(v) = log v - g log(1 - v) - log(1 + g r(v)) of each class of v = softmax(logits), over (..., K)."""
    parts = complements(logits)
    r = -parts.others * parts.log_v.clamp(min=torch.finfo(logits.dtype).min) / (1 - parts.others)
    growth = torch.log1p(gamma * r).scatter(-1, parts.top, log_growth(parts.log_q_top, gamma))
    return parts.log_v - gamma * parts.log_q - growth


def log_growth(log_q: Tensor, gamma: float | Tensor) -> Tensor:
    """log(1 + g r(1 - q)), exact for every q, also where exp(log_q) underflows.

    1 + g r = (1 + g) - g (1 - r): at negative g both terms are positive, where the form on the left would cancel.
    """
    q = log_q.exp()
    s = loss_of_r(q)  # 1 - r = q s
    if isinstance(gamma, Tensor):
        g = torch.where(gamma < 0, gamma, -0.5)
        below_0 = torch.logaddexp(torch.log1p(g), torch.log(-g) + log_q + torch.log(s))
        return torch.where(gamma < 0, below_0, torch.log1p(gamma.clamp(min=0) * (1 - q * s)))
    if gamma >= 0:
        return torch.log1p(gamma * (1 - q * s))
    rest = math.log(-gamma) + log_q + torch.log(s)
    return rest if gamma == -1 else torch.logaddexp(rest, torch.full_like(rest, math.log1p(gamma)))


class Complements(NamedTuple):
    """v = softmax(logits) and 1 - v in logarithms, each exact to its own rounding."""

    log_v: Tensor
    """(..., K)"""
    log_q: Tensor
    """(..., K) log(1 - v)."""
    others: Tensor
    """(..., K) v, with 0 at the largest."""
    top: Tensor
    """(..., 1) the index of the largest."""
    log_q_top: Tensor
    """(..., 1) log(1 - v) of the largest."""


def complements(logits: Tensor) -> Complements:
    """Only the largest entry can be above one half: its complement is the mass of all the others.

    Elsewhere log(1 - v) = log1p(-v) loses nothing.
    """
    log_v = logits.log_softmax(-1)
    top = logits.argmax(-1, keepdim=True)
    log_q_top = log_v.scatter(-1, top, -torch.inf).logsumexp(-1, keepdim=True)
    log_v_top = torch.where(log_q_top < -1, torch.log1p(-log_q_top.exp()), log_v.gather(-1, top))
    log_v = log_v.scatter(-1, top, log_v_top)
    others = log_v.exp().scatter(-1, top, 0.0)
    log_q = torch.log1p(-others).scatter(-1, top, log_q_top)
    return Complements(log_v, log_q, others, top, log_q_top)


def loss_of_r(q: Tensor) -> Tensor:
    """(1 - r(1 - q)) / q, for q in [0, 1): from 1/2 at 0, without cancellation.

    With t = q / (2 - q), -log(1 - q) = 2 atanh(t) and r = (1 - t) atanh(t) / t; what is left after the leading
    terms is the tail of the series of atanh.
    """
    t = q / (2 - q)
    return (1 + t) * (1 - t * (1 - t) * _atanh_tail(t)) / 2


def slope_of_r(q: Tensor) -> Tensor:
    """r'(v) at v = 1 - q: -(log(1 - q) + q) / q^2, for q in [0, 1): from 1/2 at 0, without cancellation."""
    t = q / (2 - q)
    return (1 + t) * (1 + t * (1 + t) * _atanh_tail(t)) / 2


def _atanh_tail(t: Tensor) -> Tensor:
    """(atanh(t)/t - 1) / t^2 = 1/3 + t^2/5 + t^4/7 + ..., for t in [0, 1)."""
    near = t < (0.1 if t.dtype == torch.float64 else 0.25)
    square = torch.where(near, t, 0.0).square()
    series = square / 19 + 1 / 17
    for odd in range(15, 2, -2):
        series = torch.addcmul(torch.full_like(series, 1 / odd), series, square)
    far = torch.where(near, 0.5, t)
    return torch.where(near, series, (torch.atanh(far) / far - 1) / far**2)


def checked_gamma(gamma: float | Tensor, name: str = "gamma") -> float | Tensor:
    """gamma, a number or a tensor, unless an entry is below -1, where phi changes sign, or is no number."""
    values = gamma if isinstance(gamma, Tensor) else torch.tensor(float(gamma), dtype=torch.float64)
    if torch.compiler.is_compiling():
        return gamma
    if not bool(((values >= -1) & (values < torch.inf)).all()):
        worst = float(values[~((values >= -1) & (values < torch.inf))].reshape(-1)[0])
        raise InputError(f"{name}: {worst:g} is not valid; focal loss needs a finite gamma of at least -1")
    return gamma
