"""phi and what it is made of, each from 1 - v as it was given, never from 1 - exp(log v)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trueup import inputs
from trueup.inputs import Array, InputError


def phi(p: Array, gamma: float | Array) -> Array:
    """phi(p) = (1-p)^g - g p (1-p)^(g-1) log p: the gradient of focal loss over that of cross-entropy.

    From 1 at p = 0 it rises to its maximum, falls through 1 and ends at 0 (g > 0). mukhoti2020 calls it g(p, gamma).

    >>> import trueup
    >>> round(trueup.phi(0.5, 3), 4)
    0.3849
    """
    p_, g = numbers(p, "p"), numbers(checked_gamma(gamma), "gamma")
    p_ = p_.to(inputs.working_dtype(p_))
    if not bool(((p_ >= 0) & (p_ <= 1)).all()):
        raise InputError("p: a probability lies within 0 and 1")
    q, near = 1 - p_, p_ > 0.5
    gap = torch.where(
        near, q * loss_of_r(torch.where(near, q, 0.5)), 1 + torch.xlogy(p_, p_) / torch.where(near, 0.5, q)
    )
    at_one = torch.where(g > 0, 0.0, torch.where(g == 0, 1.0, torch.where(g == -1, 0.5, torch.inf)))
    inside = torch.where(q > 0, q, 0.5)
    result = torch.where(q > 0, inside.pow(g) * ((1 + g) - g * gap), at_one.to(q.dtype))
    result = torch.where((g == -1) & near, loss_of_r(torch.where(near, q, 0.5)), result)  # q^-1 times q s
    return returned(result, p, gamma)


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
    # in place of the largest, what is left where all others are masked: so low that gamma times it is still a number
    lowest = -(torch.finfo(log_v.dtype).max ** 0.75)
    log_q_top = _log_sum_exp(log_v.scatter(-1, top, lowest))
    log_v_top = torch.where(log_q_top < -1, torch.log1p(-log_q_top.exp()), log_v.gather(-1, top))
    log_v = log_v.scatter(-1, top, log_v_top)
    others = log_v.exp().scatter(-1, top, 0.0)
    log_q = torch.log1p(-others).scatter(-1, top, log_q_top)
    return Complements(log_v, log_q, others, top, log_q_top)


def _log_sum_exp(x: Tensor) -> Tensor:
    """Over the last dimension, which is kept. A server that runs an exported map may have one that underflows."""
    if not torch.compiler.is_exporting():
        return x.logsumexp(-1, keepdim=True)
    most = x.amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).min)
    return most + (x - most).exp().sum(-1, keepdim=True).log()


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


def checked_gamma(gamma: Any, name: str = "gamma") -> Any:
    """gamma, a number, a tensor or an array, unless an entry is below -1, where phi changes sign, or is no number."""
    if torch.compiler.is_compiling():
        return gamma
    values = inputs.as_tensor(gamma, name)
    if not bool(((values >= -1) & (values < torch.inf)).all()):
        worst = float(values[~((values >= -1) & (values < torch.inf))].reshape(-1)[0])
        raise InputError(f"{name}: {worst:g} is not valid; focal loss needs a finite gamma of at least -1")
    return gamma


def numbers(value: Array, name: str) -> Tensor:
    """``value`` as a floating-point tensor; a tensor keeps its graph."""
    x = value if isinstance(value, Tensor) else inputs.as_tensor(value, name)
    return x if x.dtype.is_floating_point else x.double()


def returned(result: Tensor, *given: Array) -> Array:
    """A float where only numbers were given, a tensor where one was, else the kind of the first array."""
    if any(isinstance(each, Tensor) for each in given):
        return result
    arrays = [each for each in given if np.ndim(each) > 0]
    return inputs.like(result, arrays[0]) if arrays else float(result)
