"""The solvers: sums over blocks of rows, Newton for the temperature, a structured quasi-Newton for few parameters.

No solver makes a copy of the logits. Large problems are first solved on a share of the rows, so that only a few
passes over all of them remain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trueup import inputs
from trueup.calibrators.threads import each_block, fill
from trueup.inputs import InputError

LOWEST, HIGHEST = 1e-6, 1e6
"""The range of every temperature."""

_WIDEST = 1e100  # of a row of logits
_EXACT_ELEMENTS = 1 << 22  # up to here every pass is in float64
_FAMILY_ELEMENTS = 1 << 17  # of a block: few enough for the dozen temporaries of a family to stay near the core
_LONGEST_STEP = 3.0  # of a logarithm: a factor of twenty
_SHARES = ((1 << 18, 1_500), (1 << 22, 10_000))
"""(elements, rows), the larger counts: enough to tell one valley from another, and to come close to its floor."""


@dataclass(frozen=True)
class Temperature:
    value: float
    nll: float
    iterations: int
    converged: bool
    at_bound: bool


def temperature_by_nll(z: Tensor, y: Tensor) -> Temperature:
    """The T in [1e-6, 1e6] with the least NLL of softmax(z / T).

    The NLL is convex in b = 1/T: with d = z - max z its slope is mean(E_b[d] - d_y) and its curvature the mean
    variance of d under softmax(b d). The slope at b = 0 needs no exponential, and at b -> inf it is -mean(d_y), so both
    ends of the range are known before the first step.
    """
    top, mean = _row_top_and_mean(z)
    spread = top.double() - mean
    if not float(spread.abs().max()) <= _WIDEST:
        row = int(spread.abs().argmax())
        raise InputError(f"logits: row {row} spans {float(spread[row]):.2g}, too far to be squared; are these logits?")
    own = z.gather(1, y[:, None])[:, 0].double() - top.double()
    mean_own = float(own.mean())
    if float((mean - top.double()).mean()) >= mean_own:  # labels no more likely than chance: the smaller b, the better
        return _end(z, top, mean_own, 1 / HIGHEST)
    if mean_own == 0.0:  # every label holds the maximum: the larger b, the better
        return _end(z, top, mean_own, 1 / LOWEST)
    dtype, b = _dtype(z), 1.0
    for step in _strides(z):
        some, some_top, some_own = z[::step], top[::step], float(own[::step].mean())
        if step > 1 and float((mean[::step] - some_top.double()).mean()) < some_own < 0.0:
            b, _, _ = _newton(partial(_nll_in_b, some, some_top, some_own, dtype), b, tolerance=1e-2)
    tolerance = 1e-5 if dtype == torch.float64 else 1e-3
    b, passes, value = _newton(partial(_nll_in_b, z, top, mean_own, dtype), b, tolerance)
    if not 1 / HIGHEST < b < 1 / LOWEST:
        return _end(z, top, mean_own, b)
    return Temperature(1 / b, value, passes, True, False)


def _strides(z: Tensor) -> list[int]:
    """Every which row the shares of a large problem take."""
    return [-(-len(z) // max(elements // z.shape[1], rows)) for elements, rows in _SHARES]


def _row_top_and_mean(z: Tensor) -> tuple[Tensor, Tensor]:
    parts = list(each_block(lambda _, block: (block.amax(1), block.mean(1).double()), z))
    top, mean = (torch.cat(part) for part in zip(*parts, strict=True))
    return top, mean


def _dtype(z: Tensor) -> torch.dtype:
    """float64 where that costs nothing to speak of.

    In a large problem the rounding of float32 terms, summed in float64, averages out far below what the data tell.
    """
    return torch.float64 if z.numel() <= _EXACT_ELEMENTS else inputs.working_dtype(z)


def log_probs(z: Tensor, temperature: float = 1.0) -> Tensor:
    """(N, K) log_softmax(z / T), for families that know the logits only through it: once, and not in every pass."""
    dtype = _dtype(z)
    return fill(torch.empty_like(z, dtype=dtype), lambda block: (block.to(dtype) / temperature).log_softmax(1), z)


def _end(z: Tensor, top: Tensor, mean_own: float, b: float) -> Temperature:
    return Temperature(1 / b, _nll_in_b(z, top, mean_own, torch.float64, b)[0], 1, True, True)


def _newton(
    evaluate: Callable[[float], tuple[float, float, float]], b: float, tolerance: float
) -> tuple[float, int, float]:
    """The root of the slope by Newton's method in b, kept within a bracket: b, the number of passes, the value there.

    Newton squares the error, and the value is flat at its minimum: a last step of 1e-3 leaves about 1e-6 of b, and
    1e-12 of the value, to gain.
    """
    least, most = 1 / HIGHEST, 1 / LOWEST
    low, high = 0.0, np.inf  # the slope is known to be negative at low and positive at high
    passes = 0
    while True:
        passes += 1
        value, slope, curvature = evaluate(b)
        low, high = (b, high) if slope < 0 else (low, b)
        # Beyond a factor of four the quadratic is not to be trusted, beyond the bracket it is wrong.
        step = -slope / curvature if curvature > 0 else -slope * np.inf
        proposed = min(max(b + step, b / 4, least), 4 * b, most) if slope else b
        if not low <= proposed <= high:
            proposed = (low * high) ** 0.5
        close = abs(proposed - b) <= tolerance * b and (proposed not in (least, most) or proposed == b)
        if close or passes == 200:
            return proposed, passes, value + slope * (proposed - b) / 2
        b = proposed


def _nll_in_b(z: Tensor, top: Tensor, mean_own: float, dtype: torch.dtype, b: float) -> tuple[float, float, float]:
    """Mean NLL of softmax(b z), its slope and its curvature in b."""
    ones = z.new_ones(z.shape[1], dtype=dtype)

    def sums(rows: slice, block: Tensor) -> Tensor:
        d = block.to(dtype) - top[rows, None].to(dtype)
        weighted = (d * b).exp_()
        s0 = torch.mv(weighted, ones).double()
        s1 = torch.mv(weighted.mul_(d), ones).double() / s0
        s2 = torch.mv(weighted.mul_(d), ones).double() / s0
        return torch.stack([s0.log().sum(), s1.sum(), (s2 - s1 * s1).sum()])

    total = torch.stack(list(each_block(sums, z))).sum(0)
    value, mean, variance = (total / len(z)).tolist()
    return value - b * mean_own, mean - mean_own, variance


Family = Callable[[np.ndarray, Tensor], tuple[Tensor, list[Tensor]]]
"""(parameters, block of logits) -> the new logits and their derivative by each parameter."""


@dataclass(frozen=True)
class Minimum:
    x: np.ndarray
    value: float
    iterations: int
    converged: bool


def family_by_nll(
    family: Family,
    z: Tensor,
    y: Tensor,
    starts: list[np.ndarray],
    lower: np.ndarray,
    upper: np.ndarray,
    tolerance: float = 1e-11,
) -> Minimum:
    """The parameters of a small family of maps with the least NLL, from the best of several starts.

    The starts compete on a share of the rows, the winner goes on with more, and last with all. What a share cannot
    tell apart from the first start is not followed: two samples' worth of NLL is noise.
    """
    for step in _strides(z) if len(starts) > 1 else ():
        evaluate = _nll_of_family(family, z[::step], y[::step], _dtype(z))
        best = min(
            (minimise(evaluate, x, lower, upper, tolerance=1e-6, limit=10) for x in starts), key=lambda m: m.value
        )
        if step == 1:
            return minimise_family(family, z, y, best.x, lower, upper, tolerance)
        if best.value > evaluate(np.clip(starts[0], lower, upper))[0] - 2 * step / len(z):
            break
        starts = [best.x]
    return minimise_family(family, z, y, starts[0], lower, upper, tolerance)


def minimise_family(
    family: Family,
    z: Tensor,
    y: Tensor,
    start: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    tolerance: float = 1e-11,
) -> Minimum:
    """The minimum of the NLL over all rows that descent from ``start`` reaches."""
    if _dtype(z) != torch.float64:
        tolerance = max(tolerance, 1e-8)
    return minimise(_nll_of_family(family, z, y, _dtype(z)), start, lower, upper, tolerance=tolerance)


def _nll_of_family(
    family: Family, z: Tensor, y: Tensor, dtype: torch.dtype
) -> Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]:
    """x -> the mean NLL, its gradient, and the Fisher information, the curvature the model itself expects."""

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        def sums(rows: slice, block: Tensor) -> tuple[float, np.ndarray, np.ndarray]:
            scores, slopes = family(x, block.to(dtype))
            own = y[rows, None]
            top = scores.amax(1, keepdim=True)
            own_score = scores.gather(1, own)
            probs = scores.sub_(top).exp_()
            mass = probs.sum(1, keepdim=True)
            value = float((mass.log() + (top - own_score)).sum(dtype=torch.float64))
            probs /= mass
            weighted = [slope * probs for slope in slopes]
            means = torch.stack([w.sum(1) for w in weighted]).double()
            at_label = torch.stack([slope.gather(1, own)[:, 0] for slope in slopes]).double()
            second = torch.stack([torch.linalg.vecdot(w, s) for w in weighted for s in slopes]).double().sum(1)
            fisher = second.view(len(x), len(x)) - means @ means.T
            return value, (means - at_label).sum(1).cpu().numpy(), fisher.cpu().numpy()

        values, gradients, fishers = zip(*each_block(sums, z, _FAMILY_ELEMENTS), strict=True)
        return sum(values) / len(z), np.sum(gradients, axis=0) / len(z), np.sum(fishers, axis=0) / len(z)

    return evaluate


def minimise(
    evaluate: Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]],
    start: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    limit: int = 100,
    tolerance: float = 1e-13,
) -> Minimum:
    """A minimum within bounds, by quadratic models that are trusted within a box.

    Their curvature is what ``evaluate`` gives, corrected by the last secant. Ends when the decrease that the model
    predicts is below ``tolerance``, which is also taken as the rounding of the values.
    """
    x = np.clip(np.asarray(start, float), lower, upper)
    value, gradient, curvature = evaluate(x)
    radius = 1.0
    for iteration in range(1, limit + 1):
        rounding = tolerance * max(1.0, abs(value))
        model = _Model(gradient, _positive(curvature), lower - x, upper - x)
        step, promised = model.step(_LONGEST_STEP)
        if promised <= rounding:
            return Minimum(x, value, iteration, True)
        step, promise = model.step(radius) if np.abs(step).max() > radius else (step, promised)
        new_value, new_gradient, new_curvature = evaluate(x + step)
        while new_value > value - 0.1 * promise + rounding:
            radius = float(np.abs(step).max()) / 4
            if radius < 1e-8:  # no descent: at an optimum up to rounding, or nowhere
                return Minimum(x, value, iteration, promised <= 1e-8 * max(1.0, abs(value)))
            step, promise = model.step(radius)
            new_value, new_gradient, new_curvature = evaluate(x + step)
        if new_value <= value - 0.5 * promise:
            radius = min(_LONGEST_STEP, max(radius, 2 * float(np.abs(step).max())))
        curvature = _with_secant(new_curvature, step, new_gradient - gradient)
        x, value, gradient = x + step, new_value, new_gradient
    return Minimum(x, value, limit, False)


class _Model(NamedTuple):
    """A quadratic model of a function around a point, within bounds relative to that point."""

    gradient: np.ndarray
    curvature: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    def step(self, size: float) -> tuple[np.ndarray, float]:
        """The step to the minimum of the model within a box of this size, and the decrease that it promises.

        The model is convex and has few coordinates, so that every way to hold some of them at a side of the box is
        tried, all at once: each row of a system says that there is no slope along a coordinate, or where it is held.
        """
        lower, upper = np.maximum(self.lower, -size), np.minimum(self.upper, size)
        held = _ways_to_hold(len(lower))
        free = (held == 0) & (lower < upper)
        side = np.where(held == 1, lower, upper)
        systems = np.where(free[:, :, None], self.curvature, np.eye(len(lower)))
        steps = np.linalg.solve(systems, np.where(free, -self.gradient, side)[:, :, None])[:, :, 0]
        steps = np.where(free, steps, side)  # exactly, whatever elimination made of it
        outside = ((steps < lower) | (steps > upper)).any(1)
        steps[outside] = 0.0
        changes = steps @ self.gradient + np.vecdot(steps @ self.curvature, steps) / 2
        best = int(np.where(outside, np.inf, changes).argmin())
        step = self._solved(side[best], free[best])
        return step, -float(self.gradient @ step + step @ self.curvature @ step / 2)

    def _solved(self, step: np.ndarray, free: np.ndarray) -> np.ndarray:
        """The step with its free coordinates where the model is least, the others being held."""
        pull = self.gradient + self.curvature @ np.where(free, 0.0, step)
        solved = step.copy()
        solved[free] = -np.linalg.solve(self.curvature[free][:, free], pull[free])
        return solved


@cache
def _ways_to_hold(coordinates: int) -> np.ndarray:
    """(ways, coordinates): 0 for a free one, 1 for one at its lower side, 2 for one at its upper."""
    return np.array(list(itertools.product((0, 1, 2), repeat=coordinates)))


def _with_secant(curvature: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """The BFGS update: the curvature that also explains the last change of the gradient."""
    along = curvature @ step
    if step @ change <= 1e-8 * (step @ along) or step @ along <= 0:
        return curvature
    return curvature - np.outer(along, along) / (step @ along) + np.outer(change, change) / (step @ change)


def _positive(curvature: np.ndarray) -> np.ndarray:
    """The matrix with every eigenvalue lifted to a small share of the largest."""
    values, vectors = np.linalg.eigh(curvature)
    return (vectors * np.maximum(values, max(1e-10 * values[-1], 1e-300))) @ vectors.T
