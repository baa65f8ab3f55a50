"""Losses of one row of logits with as many digits as it takes: value, gradient and Hessian from the value alone.

A formula is written once, on ``Jet``s: numbers that carry their first and second derivatives by the logits, in mpmath.
1 - p is never formed: every probability comes from its log-odds, which are a log-sum-exp over the other classes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

import mpmath
from mpmath import mpf

DIGITS = 60


class Jet:
    """A number with its gradient and its Hessian by n variables."""

    def __init__(self, value, gradient, hessian):
        self.value, self.gradient, self.hessian = value, gradient, hessian

    @staticmethod
    def variables(values: Sequence[float]) -> list[Jet]:
        n = len(values)
        zero = [[mpf(0)] * n for _ in range(n)]
        return [Jet(mpf(v), [mpf(i == k) for k in range(n)], zero) for i, v in enumerate(values)]

    def constant(self, value) -> Jet:
        n = range(len(self.gradient))
        return Jet(mpf(value), [mpf(0) for _ in n], [[mpf(0) for _ in n] for _ in n])

    def detached(self) -> Jet:
        return self.constant(self.value)

    def of(self, value, slope, bend) -> Jet:
        """f of this number, by the value, the first and the second derivative of f."""
        d = self.gradient
        n = range(len(d))
        return Jet(
            value,
            [slope * d[i] for i in n],
            [[bend * d[i] * d[k] + slope * self.hessian[i][k] for k in n] for i in n],
        )

    def __add__(self, other) -> Jet:
        if not isinstance(other, Jet):
            other = self.constant(other)
        n = range(len(self.gradient))
        return Jet(
            self.value + other.value,
            [self.gradient[i] + other.gradient[i] for i in n],
            [[self.hessian[i][k] + other.hessian[i][k] for k in n] for i in n],
        )

    def __mul__(self, other) -> Jet:
        if not isinstance(other, Jet):
            return self.of(self.value * other, mpf(other), mpf(0))
        a, b, n = self.gradient, other.gradient, range(len(self.gradient))
        return Jet(
            self.value * other.value,
            [self.value * b[i] + a[i] * other.value for i in n],
            [
                [
                    self.value * other.hessian[i][k] + a[i] * b[k] + a[k] * b[i] + other.value * self.hessian[i][k]
                    for k in n
                ]
                for i in n
            ],
        )

    __rmul__ = __mul__

    def __neg__(self) -> Jet:
        return self * -1

    def __sub__(self, other) -> Jet:
        return self + (-other)

    def exp(self) -> Jet:
        value = mpmath.exp(self.value)
        return self.of(value, value, value)

    def log(self) -> Jet:
        return self.of(mpmath.log(self.value), 1 / self.value, -1 / self.value**2)

    def sqrt(self) -> Jet:
        root = mpmath.sqrt(self.value)
        return self.of(root, 1 / (2 * root), -1 / (4 * root**3))

    def softplus(self) -> Jet:
        """log(1 + e^x)"""
        p, q = 1 / (1 + mpmath.exp(self.value)), 1 / (1 + mpmath.exp(-self.value))
        return self.of(mpmath.log1p(mpmath.exp(self.value)), q, p * q)


def total(terms: Sequence[Jet]) -> Jet:
    return functools.reduce(operator.add, terms)


def log_sum_exp(terms: Sequence[Jet]) -> Jet:
    """Its Hessian as the sum of s_i s_j (t_i' - t_j')(t_i' - t_j')^T over pairs, which does not cancel."""
    top = max(t.value for t in terms)
    powers = [mpmath.exp(t.value - top) for t in terms]
    share = [power / sum(powers) for power in powers]
    mean = total([t * s for t, s in zip(terms, share, strict=True)])
    n = range(len(mean.gradient))
    hessian = [list(row) for row in mean.hessian]
    for i, a in enumerate(terms):
        for b, weight in zip(terms[:i], share[:i], strict=True):
            d = [x - y for x, y in zip(a.gradient, b.gradient, strict=True)]
            for j in n:
                for k in n:
                    hessian[j][k] += share[i] * weight * d[j] * d[k]
    return Jet(top + mpmath.log(sum(powers)), mean.gradient, hessian)


def odds_against(z: Sequence[Jet], k: int) -> Jet:
    """log((1 - p_k) / p_k)"""
    return log_sum_exp([x for i, x in enumerate(z) if i != k]) - z[k]


def log_prob(z: Sequence[Jet], k: int) -> Jet:
    return -odds_against(z, k).softplus()


def log_rest(z: Sequence[Jet], k: int) -> Jet:
    """log(1 - p_k)"""
    return -(-odds_against(z, k)).softplus()


Formula = Callable[[Sequence[Jet], int], Jet]


def cross_entropy(z, y) -> Jet:
    return -log_prob(z, y)


def focal(gamma: float, detach_weight: bool = False) -> Formula:
    def loss(z, y):
        factor = (log_rest(z, y) * gamma).exp()
        return -(factor.detached() if detach_weight else factor) * log_prob(z, y)

    return loss


def brier(z, y) -> Jet:
    rest = log_rest(z, y).exp()
    others = [log_prob(z, k).exp() for k in range(len(z)) if k != y]
    return total([rest * rest, *(p * p for p in others)])


def label_smoothing(eps: float) -> Formula:
    def loss(z, y):
        share = mpf(eps) / len(z)
        return -total([log_prob(z, k) * (share + (1 - mpf(eps)) * (k == y)) for k in range(len(z))])

    return loss


def dual_focal(gamma: float) -> Formula:
    def loss(z, y):
        below = [k for k in range(len(z)) if z[k].value < z[y].value]
        factor = log_rest(z, y).exp()
        if below:
            factor = factor + log_prob(z, max(below, key=lambda k: z[k].value)).exp()
        return -(factor.log() * gamma).exp() * log_prob(z, y)

    return loss


def entropy_penalty(alpha: float) -> Formula:
    def loss(z, y):
        return total([log_prob(z, k).exp() * log_prob(z, k) for k in range(len(z))]) * alpha

    return loss


def logit_norm(p: int, alpha: float) -> Formula:
    def loss(z, y):
        if p == 1:
            return total([x * int(mpmath.sign(x.value)) for x in z]) * alpha
        return total([x * x for x in z]).sqrt() * alpha

    return loss


def plus(*formulas: Formula) -> Formula:
    return lambda z, y: total([formula(z, y) for formula in formulas])


@functools.cache
def evaluated(formula: Formula, row: tuple[float, ...], label: int, digits: int = DIGITS):
    """(value, gradient, Hessian) of a row. ``digits`` above 60 where terms of the formula cancel."""
    with mpmath.workdps(digits):
        found = formula(Jet.variables(row), label)
        return found.value, found.gradient, found.hessian
