"""Focal loss as a function of the odds against the label: value, slope, curvature, and those of the logits."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trueup.focal.parts import loss_of_r, slope_of_r


class Odds(NamedTuple):
    """Where a label stands against the other classes; every loss of p_y alone is a function of ``against``."""

    against: Tensor
    """(...,) u = log((1 - p_y) / p_y), so that p_y = sigmoid(-u) and 1 - p_y = sigmoid(u), both exact."""
    others: Tensor
    """(..., K) the softmax over the other classes, 0 at the label: du/dz = others - e_y."""


def odds(logits: Tensor, labels: Tensor) -> Odds:
    """u is the log-sum-exp of the other classes less the label's own logit: no 1 - p, hence nothing to cancel.

    Where all others are masked u is the lowest finite number, and ``others`` is 0. Differentiable to any order.
    """
    index = labels.unsqueeze(-1)
    rest = logits.scatter(-1, index, -torch.inf)
    first = rest.argmax(-1, keepdim=True)
    top = rest.gather(-1, first).clamp(min=torch.finfo(logits.dtype).min)
    mass = _mass((rest - top.detach()).exp())
    # 1 at the largest, whatever it is: so its derivative is the sum of the others', not 1 less nearly 1
    powers = (rest - top).exp().scatter(-1, first, (rest.gather(-1, first) > -torch.inf).to(logits.dtype))
    wide = wide_dtype(logits)
    margin = top.detach().to(wide) - logits.gather(-1, index).to(wide)
    against = (margin + mass.to(wide).log()).squeeze(-1)
    return Odds(against.clamp(min=lowest(wide)), powers / _mass(powers))


def _mass(powers: Tensor) -> Tensor:
    return powers.sum(-1, keepdim=True).clamp(min=torch.finfo(powers.dtype).tiny)


def lowest(dtype: torch.dtype) -> float:
    """The log-odds against a label that stands alone: so low that a product with gamma is still a number."""
    return torch.finfo(dtype).min / 1e6


def wide_dtype(x: Tensor) -> torch.dtype:
    """float64 where the device has it: for the few numbers a row that everything else hangs on."""
    return x.dtype if x.device.type == "mps" else torch.float64


def loss_at(against: Tensor, gamma: float | Tensor) -> Tensor:
    """Focal loss as a function of u: (1-p)^(g+1) times -log p / (1-p), which does not vanish with 1 - p."""
    log_q = F.logsigmoid(against)
    p, q, c = torch.sigmoid(-against), log_q.exp(), -F.logsigmoid(-against)
    near = against < 0
    ratio = torch.where(near, (1 - _gap(against)) / p, c / torch.where(near, 1.0, q))
    return ((gamma + 1) * log_q).exp() * ratio


def slope_at(against: Tensor, gamma: float | Tensor) -> Tensor:
    """dFL/du = (1-p) phi(p) = (1-p)^(g+1) (1 + g r). All terms are positive where g is negative."""
    return ((gamma + 1) * F.logsigmoid(against)).exp() * ((1 + gamma) - gamma * _gap(against))


def loss_and_slope_at(against: Tensor, gamma: float | Tensor) -> tuple[Tensor, Tensor]:
    """``loss_at`` and ``slope_at`` where no gamma is negative, in a third of their operations; to be read, not derived.

    -log p over 1 - p is as exact as both, though its derivative would cancel; and 1 + g r is a sum of what is positive.
    """
    log_p, log_q = F.logsigmoid(-against), F.logsigmoid(against)
    least = math.log(torch.finfo(against.dtype).tiny)
    ratio = F.logsigmoid(-against.clamp(min=least)) / log_q.clamp(min=least).exp().neg_()
    power = ((gamma + 1) * log_q).exp()
    return power * ratio, power * (1 + gamma * ratio * log_p.exp())


def bend_at(against: Tensor, gamma: float | Tensor) -> Tensor:
    """d^2 FL/du^2 = (1-p)^(g+1) p ((g+1)(1 + g r) - g (1-p) r'(p)). Negative at small p where g is positive."""
    p, q = torch.sigmoid(-against), torch.sigmoid(against)
    near = against < 0
    direct = (-F.logsigmoid(-against) - q) / torch.where(near, 1.0, q).square()
    slope = torch.where(near, slope_of_r(torch.where(near, q, 0.5)), direct)
    growth = (1 + gamma) - gamma * _gap(against)
    return ((gamma + 1) * F.logsigmoid(against)).exp() * p * ((1 + gamma) * growth - gamma * q * slope)


def _gap(against: Tensor) -> Tensor:
    """1 - r(p) at u, from 1 at p = 0 down to 0 at p = 1, without cancellation."""
    q, p = torch.sigmoid(against), torch.sigmoid(-against)
    near = against < 0
    direct = 1 + p * F.logsigmoid(-against) / torch.where(near, 1.0, q)
    q = torch.where(near, q, 0.5)
    return torch.where(near, q * loss_of_r(q), direct)


def logit_gradient(logits: Tensor, labels: Tensor, gamma: float | Tensor) -> Tensor:
    """(..., K) gradient phi(p_y) (p - e_y) of each row's focal loss, every entry exact to rounding."""
    u, others = odds(logits, labels)
    slope = slope_at(u, gamma).to(logits.dtype).unsqueeze(-1)
    return (slope * others).scatter(-1, labels.unsqueeze(-1), -slope)


def logit_hessian(logits: Tensor, labels: Tensor, gamma: float | Tensor) -> Tensor:
    """(..., K, K) Hessian of each row's focal loss: phi (diag p - p p^T) - p_y phi'(p_y) (e_y - p)(e_y - p)^T.

    Written in u: FL''(u) w w^T + FL'(u) (diag s - s s^T) with s the softmax over the others and w = s - e_y.
    """
    u, s = odds(logits, labels)
    slope, bend = (f(u, gamma).to(logits.dtype)[..., None, None] for f in (slope_at, bend_at))
    w = s.scatter(-1, labels.unsqueeze(-1), -1.0)
    first = s.argmax(-1, keepdim=True)
    rest = (1 - s).scatter(-1, first, s.scatter(-1, first, 0.0).sum(-1, keepdim=True))  # 1 - s, exact where s is near 1
    diagonal = torch.eye(s.shape[-1], dtype=torch.bool, device=s.device)
    spread = torch.where(diagonal, (s * rest).unsqueeze(-1), -s.unsqueeze(-1) * s.unsqueeze(-2))
    return bend * w.unsqueeze(-1) * w.unsqueeze(-2) + slope * spread


def entropy_lower_bound(logits: Tensor, targets: Tensor, gamma: float | Tensor) -> Tensor:
    """(...,) CE(u, q) - g H(q), which focal loss with targets u never falls below (kimura2024, Lemma 1).

    The proofs in print use Bernoulli's inequality, which needs g >= 1; the bound holds for every g >= 0.
    """
    log_q = logits.log_softmax(-1)
    finite = log_q.masked_fill(log_q == -torch.inf, 0.0)
    cross_entropy = -torch.where(targets > 0, targets * log_q, 0.0).sum(-1)
    return cross_entropy + gamma * (log_q.exp() * finite).sum(-1)
