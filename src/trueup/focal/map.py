"""The focal map Psi, its inverse, and the minimiser of the focal risk."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trueup import inputs
from trueup.focal.odds import wide_dtype
from trueup.focal.parts import Complements, checked_gamma, complements, log_growth, loss_of_r, numbers, slope_of_r
from trueup.inputs import Array, InputError


def focal_map(logits: Array, gamma: float | Tensor) -> Array:
    """Log-probabilities Psi_gamma(softmax(logits)) of (..., K) logits; ``gamma`` may be a tensor that broadcasts.

    Psi turns the softmax of a network that minimises focal loss into the posterior. It keeps the order of the
    classes for gamma >= 0, and the most probable class for gamma >= -1. -inf masks a class. Half-precision logits are
    computed in float32, and so is the result: rounded to half, two classes could tie that did not.

    >>> import torch, trueup
    >>> trueup.focal_map(torch.tensor([0.7744, 0.2256]).log(), 1.0).exp()  # the minimiser for the posterior .9, .1
    tensor([0.9000, 0.1000])
    """
    z = inputs.possible_rows(numbers(logits, "logits"), "logits")
    result = log_h(z.to(inputs.working_dtype(z)), checked_gamma(gamma)).log_softmax(-1)
    return result if isinstance(logits, Tensor) else inputs.like(result, logits)


def log_h(logits: Tensor, gamma: float | Tensor) -> Tensor:
    """log h(v) = log v - g log(1 - v) - log(1 + g r(v)) of each class of v = softmax(logits), over (..., K)."""
    return log_h_of(complements(logits), gamma)


def log_h_of(parts: Complements, gamma: float | Tensor) -> Tensor:
    """The same where the parts of v are known, which no gamma changes."""
    r = -parts.others * parts.log_v.clamp(min=torch.finfo(parts.log_v.dtype).min) / (1 - parts.others)
    growth = torch.log1p(gamma * r).scatter(-1, parts.top, log_growth(parts.log_q_top, gamma))
    scores = parts.log_v - gamma * parts.log_q - growth
    # classes that tie at the top are computed in two ways: rounding must not let a later one win
    own = scores.gather(-1, parts.top)
    lifted = own + (scores.detach().amax(-1, keepdim=True) - own.detach())
    return scores.scatter(-1, parts.top, lifted)


def inverse_focal_map(log_probs: Array, gamma: float | Tensor) -> Array:
    """The log-probabilities whose focal map is ``log_probs`` (..., K): what focal training makes of a posterior.

    Newton's method on log Psi in log-probabilities, in float64; its last step carries the derivative, in both
    arguments. A class of probability 0 (-inf) keeps it.
    """
    given = inputs.possible_rows(numbers(log_probs, "log_probs"), "log_probs")
    g = checked_gamma(gamma)
    if inputs.can_look(given):
        off = given.detach().to(wide_dtype(given)).logsumexp(-1).expm1().abs()
        if not float(off.max()) <= inputs.sum_tolerance(given):
            row = int(off.argmax())
            raise InputError(
                f"log_probs: the probabilities of row {row} do not sum to one; if these are logits, apply log_softmax"
            )
    result = _minimiser(given, g)
    return result if isinstance(log_probs, Tensor) else inputs.like(result, log_probs)


def risk_minimiser(posterior: Array, gamma: float | Tensor) -> Array:
    """The probabilities (..., K) that minimise the expected focal loss where the classes have these posteriors.

    >>> import trueup
    >>> [round(q, 4) for q in trueup.risk_minimiser([0.9, 0.1], 3)]
    [0.6471, 0.3529]
    """
    p = numbers(posterior, "posterior")
    if p.ndim == 0 or p.shape[-1] < 2:
        raise InputError("posterior: expected the probabilities of at least two classes in the last dimension")
    inputs.distributions(p.detach().reshape(-1, p.shape[-1]), "posterior")
    p = p.to(inputs.working_dtype(p))
    log_p = torch.where(p > 0, p.clamp(min=torch.finfo(p.dtype).tiny).log(), -torch.inf)
    result = _minimiser(log_p, checked_gamma(gamma)).exp()
    return result if isinstance(posterior, Tensor) else inputs.like(result, posterior)


def _minimiser(log_p: Tensor, gamma: float | Tensor) -> Tensor:
    """The inverse of the map at (..., K) log-probabilities that are known to be some, up to a constant in each row."""
    target = log_p.to(wide_dtype(log_p)).clamp(min=-1e6).log_softmax(-1)
    with torch.no_grad():
        x = _inverse(target, gamma)
    x = (x + _newton_step(x, target, gamma)).log_softmax(-1)
    return torch.where(log_p == -torch.inf, -torch.inf, x.to(inputs.working_dtype(log_p)))


def _inverse(target: Tensor, gamma: float | Tensor) -> Tensor:
    """Newton's method from the solution of the two-class problem, the largest class against all the others."""
    x, enough = _start(target, gamma), 1e-9  # of the last step: Newton squares it, and one more step follows
    for _ in range(500):
        step = _newton_step(x, target, gamma)
        x = (x + step.clamp(-1, 1)).log_softmax(-1)
        if bool((step.abs() <= enough * (1 + x.abs())).all()):
            break
    return x


def _start(target: Tensor, gamma: float | Tensor) -> Tensor:
    """Where log h(v) - log(1 - v) of the largest class equals its log-odds in ``target``; the others in proportion."""
    parts = complements(target)
    log_odds = parts.log_v.gather(-1, parts.top) - parts.log_q_top

    def excess(log_q: Tensor) -> Tensor:
        log_v = torch.log1p(-log_q.exp())
        return log_v - (1 + gamma) * log_q - log_growth(log_q, gamma) - log_odds

    low, high = torch.full_like(log_odds, -1e7), torch.full_like(log_odds, math.log(0.999))
    for _ in range(60):
        middle = (low + high) / 2
        above = excess(middle) > 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    rest = target.scatter(-1, parts.top, -torch.inf) - parts.log_q_top
    return (rest + high).scatter(-1, parts.top, torch.log1p(-high.exp())).log_softmax(-1)


def _newton_step(x: Tensor, target: Tensor, gamma: float | Tensor) -> Tensor:
    """The step dx for which log Psi(x + dx) = target to first order, with sum v dx = 0 (v = exp x).

    With a_i = d log h / dx_i the conditions are a_j dx_j - a_t dx_t = D_j - D_t, t the largest class. The one sum
    M = sum_{j != t} v_j dx_j / q is solved for first, q = 1 - v_t, so that nothing is divided by a_t, which may
    be 0, nor by q, which may be as small as it likes.
    """
    parts = complements(x)
    residual = target - log_h(x, gamma)
    difference = residual - residual.gather(-1, parts.top)
    with torch.no_grad():
        q = parts.log_q_top.exp()
        slopes = _slopes(parts, gamma)
        weights = (parts.log_v.scatter(-1, parts.top, -torch.inf) - parts.log_q_top).exp()
        v_top = 1 - q
        s = loss_of_r(q)
        growth = (1 + gamma) - gamma * q * s
        # q a_t, with q / growth -> 1 / s where both vanish, at gamma = -1
        share = torch.where(growth > 0, q / growth, 1 / s)
        pull = (q + gamma * v_top * (1 - share * slope_of_r(q))) / v_top
    moved = (weights * difference / slopes).sum(-1, keepdim=True)
    moved = moved / (1 + pull * (weights / slopes).sum(-1, keepdim=True))
    return ((difference - pull * moved) / slopes).scatter(-1, parts.top, -moved * q / v_top)


def _slopes(parts: Complements, gamma: float | Tensor) -> Tensor:
    """d log h / d log v = 1 + g v/(1-v) - g v r'(v)/(1 + g r) of the classes below the largest (1 at that one)."""
    v, q = parts.others, 1 - parts.others
    log_v = parts.log_v.scatter(-1, parts.top, 0.0)
    r, slope = -v * log_v / q, -(log_v + q) / q.square()
    return 1 + gamma * v * (1 / q - slope / (1 + gamma * r))
