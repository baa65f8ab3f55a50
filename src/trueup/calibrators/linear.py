"""Linear maps of log-probabilities: a bias, a scale a class, a whole matrix, each shrunk towards no change.

All work on x = log_softmax(z / T) with the T of temperature scaling, and give softmax(x + W x + b). A ridge pulls W and
b to zero; its strength follows the number of classes K and of samples n (Berta et al., 2026): K/n on what has K
entries, K(K-1)/n on the entries beside the diagonal. Without it, matrices lose many points of accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits
from torch import Tensor

from trueup import inputs
from trueup.calibrators import solve
from trueup.calibrators.base import CalibrationMap, Calibrator, FitReport, Progress, bounded, fold_of, nll_of, table
from trueup.calibrators.threads import each_block
from trueup.inputs import InputError, positive

_ELEMENTS, _PARTS = inputs.BLOCK_ELEMENTS, 16
"""Of a part of the rows at the least, and how many parts about: a gradient each, as large as a whole matrix."""
STRENGTHS = (0.25, 1.0, 4.0, 16.0, 64.0)
"""What ``strength="cv"`` chooses from."""


class LinearMap(CalibrationMap):
    """softmax(A x + b), x = log_softmax(z / T); A is a matrix (K, K), a diagonal (K,) or one number."""

    kind = "linear"
    weight: Tensor
    bias: Tensor

    def __init__(
        self, classes: int, temperature: float, weight: Any, bias: Any, fit_report: FitReport | None = None
    ) -> None:
        super().__init__(classes, fit_report)
        self.temperature = bounded(temperature, "temperature", solve.LOWEST, solve.HIGHEST)
        self.register_buffer("weight", table(weight, "weight"))
        self.register_buffer("bias", table(bias, "bias"))
        if self.weight.shape not in ((), (classes,), (classes, classes)) or self.bias.shape != (classes,):
            raise InputError(
                f"weight {tuple(self.weight.shape)} and bias {tuple(self.bias.shape)} for {classes} classes"
            )

    def scores(self, logits: Tensor) -> Tensor:
        x = (logits / self.temperature).log_softmax(-1)
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return (x @ weight.T if weight.ndim == 2 else x * weight) + bias

    def values(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "weight": self.weight, "bias": self.bias}


@dataclass(frozen=True)
class _Linear(Calibrator):
    """What the four have in common; each says the shape of its weight and what the ridge weighs."""

    strength: float | Literal["cv"] = 1.0
    """Multiplies the ridge; "cv" chooses among ``STRENGTHS`` by cross-validated NLL."""

    matrix: ClassVar[bool] = False
    shared_scale: ClassVar[bool] = False
    shrink_diagonal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.strength != "cv":
            positive(self.strength, "strength")

    @property
    def keeps_ranking(self) -> bool:
        return False

    def fit_checked(self, z: Tensor, y: Tensor, progress: Progress, near: CalibrationMap | None = None) -> LinearMap:
        if self.strength == "cv":
            return self._chosen(z, y, progress).fit_checked(z, y, progress, near)
        scale = solve.temperature_by_nll(z, y)
        problem = _Problem(self, z, y, scale.value)
        start = problem.packed(near) if isinstance(near, LinearMap) else problem.identity()
        unit = problem.natural_unit()

        def in_units(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = problem.value_and_gradient(x * unit)
            return value, gradient * unit

        options = {"maxcor": 20, "maxiter": 1000, "maxfun": 2000, "ftol": 1e-11, "gtol": 1e-6}
        limits = None
        if self.shared_scale:  # the temperature, which is divided by it, stays in its range
            ends = scale.value / np.array([solve.HIGHEST, solve.LOWEST]) - 1
            limits = [tuple(ends / unit[0]), *[(None, None)] * z.shape[1]]
        with threadpool_limits(1, user_api="blas"):  # SciPy's threads would wait for each other over short vectors
            found = minimize(in_units, start / unit, jac=True, method="L-BFGS-B", bounds=limits, options=options)
        weight, bias = problem.unpacked(found.x * unit)
        temperature = scale.value
        if self.shared_scale:  # one number for all classes is part of the temperature
            temperature = min(max(temperature / float(weight), solve.LOWEST), solve.HIGHEST)
            weight = torch.ones_like(weight)
        made = LinearMap(z.shape[1], temperature, weight, bias)
        made.fit_report = FitReport("nll", nll_of(z, y), nll_of(z, y, made), int(found.nit), bool(found.success))
        return made

    def _chosen(self, z: Tensor, y: Tensor, progress: Progress) -> _Linear:
        """These settings with the strength that has the least cross-validated NLL."""
        fold = fold_of(len(z), 5).to(z.device)
        losses, near = [], None
        for i, strength in enumerate(sorted(STRENGTHS, reverse=True)):
            settings, loss = replace(self, strength=strength), 0.0
            for k in range(5):
                near = settings.fit_checked(z[fold != k], y[fold != k], progress, near)
                loss += nll_of(z[fold == k], y[fold == k], near) * int((fold == k).sum())
            losses.append((loss, strength))
            progress((i + 1) / len(STRENGTHS))
        return replace(self, strength=min(losses)[1])


@dataclass(frozen=True)
class BiasTemperature(_Linear):
    """softmax(z / T + b): a temperature and a bias for each class (Alexandari et al., 2020), the bias shrunk to 0."""

    name: ClassVar[str] = "bias-temperature"
    shared_scale: ClassVar[bool] = True
    shrink_diagonal: ClassVar[bool] = False


@dataclass(frozen=True)
class Vector(_Linear):
    """A scale and a bias for each class, shrunk to 1 and 0: structured vector scaling."""

    name: ClassVar[str] = "vector"


@dataclass(frozen=True)
class Matrix(_Linear):
    """A matrix and a bias, shrunk to the identity and 0: structured matrix scaling."""

    name: ClassVar[str] = "matrix"
    matrix: ClassVar[bool] = True


@dataclass(frozen=True)
class Dirichlet(_Linear):
    """Dirichlet calibration (Kull et al., 2019): a matrix whose off-diagonal and a bias that are shrunk to 0.

    Twice the usual ridge: with the diagonal free, the usual one can cost half a point of accuracy at 100 classes.
    """

    strength: float | Literal["cv"] = 2.0

    name: ClassVar[str] = "dirichlet"
    matrix: ClassVar[bool] = True
    shrink_diagonal: ClassVar[bool] = False


class _Problem:
    """Mean NLL plus ridge, as a function of the packed (change of the weight, bias)."""

    def __init__(self, settings: _Linear, z: Tensor, y: Tensor, temperature: float) -> None:
        n, k = z.shape
        self.y, self.k, self.settings, self.temperature = y, k, settings, temperature
        self.x = solve.log_probs(z, temperature)
        strength = float(settings.strength)
        weight = torch.full((k, k) if settings.matrix else (k,), strength * k / n, dtype=torch.float64)
        if settings.matrix:
            weight *= k - 1
            weight.fill_diagonal_(strength * k / n * settings.shrink_diagonal)
        if settings.shared_scale:
            weight = torch.zeros(1, dtype=torch.float64)
        self.ridge = np.concatenate([weight.reshape(-1).numpy(), np.full(k, strength * k / n)])

    def identity(self) -> np.ndarray:
        return np.zeros(len(self.ridge))

    def packed(self, made: LinearMap) -> np.ndarray:
        if self.settings.shared_scale:
            return np.concatenate([[self.temperature / made.temperature - 1], made.bias.numpy()])
        change = made.weight - (torch.eye(self.k, dtype=torch.float64) if made.weight.ndim == 2 else 1.0)
        return torch.cat([change.reshape(-1), made.bias]).numpy()

    def unpacked(self, theta: np.ndarray) -> tuple[Tensor, Tensor]:
        weight, bias = self._split(theta)
        base = torch.eye(self.k, dtype=torch.float64) if weight.ndim == 2 else torch.ones((), dtype=torch.float64)
        return base + weight, bias

    def _split(self, theta: np.ndarray) -> tuple[Tensor, Tensor]:
        t = torch.from_numpy(theta)
        weight = t[: -self.k]
        if self.settings.matrix:
            weight = weight.view(self.k, self.k)
        return (weight[0] if self.settings.shared_scale else weight), t[-self.k :]

    def natural_unit(self) -> np.ndarray:
        """One over the root of each parameter's own curvature at no change, which L-BFGS then need not find out."""

        def term(_: slice, x: Tensor) -> tuple[float, Tensor, Tensor]:
            spread = x.exp()
            spread *= 1 - spread
            return 0.0, spread, x.square()

        _, by_weight, by_bias = self._sums(term)
        curvature = torch.cat([by_weight.reshape(-1), by_bias]).double().cpu().numpy() / len(self.x) + 2 * self.ridge
        return 1 / np.sqrt(np.maximum(curvature, 1e-8 * curvature.max()))

    def value_and_gradient(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        weight, bias = (part.to(self.x.device, self.x.dtype) for part in self._split(theta))

        def term(rows: slice, x: Tensor) -> tuple[float, Tensor, Tensor]:
            scores = x @ weight.T if weight.ndim == 2 else x * weight
            scores += x + bias
            own = self.y[rows, None]
            lse = scores.logsumexp(1, keepdim=True)
            value = float((lse - scores.gather(1, own)).sum(dtype=torch.float64))
            excess = scores.sub_(lse).exp_()
            excess.scatter_add_(1, own, -torch.ones_like(lse))  # probabilities less the one-hot label
            return value, excess, x

        total, by_weight, by_bias = self._sums(term)
        n = len(self.x)
        gradient = torch.cat([by_weight.reshape(-1), by_bias]).double().cpu().numpy() / n
        return total / n + float(self.ridge @ theta**2), gradient + 2 * self.ridge * theta

    def _sums(self, term: Callable[[slice, Tensor], tuple[float, Tensor, Tensor]]) -> tuple[float, Tensor, Tensor]:
        """Over all samples, of what ``term`` gives for a block, a value and u, v (n, K): the value, u v' (what the
        shape of the weight has of it), and u."""
        shape = self._split(self.ridge)[0].shape
        zeros = partial(torch.zeros, dtype=self.x.dtype, device=self.x.device)

        def of_part(part: slice, many: Tensor) -> tuple[float, Tensor, Tensor]:
            total, by_weight, by_bias = 0.0, zeros(shape), zeros(self.k)
            for rows, x in inputs.row_blocks(many):
                value, u, v = term(slice(part.start + rows.start, part.start + rows.stop), x)
                total += value
                by_bias += u.sum(0)
                if len(shape) == 2:
                    by_weight.addmm_(u.T, v)
                else:
                    summed = u.mul_(v).sum(0)
                    by_weight += summed if len(shape) == 1 else summed.sum()
            return total, by_weight, by_bias

        total, by_weight, by_bias = 0.0, zeros(shape), zeros(self.k)
        for value, of_weight, of_bias in each_block(of_part, self.x, max(_ELEMENTS, self.x.numel() // _PARTS)):
            total += value
            by_weight += of_weight
            by_bias += of_bias
        return total, by_weight, by_bias
