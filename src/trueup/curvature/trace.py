"""The trace: exactly where that is cheap, else by random probes after the largest eigenvalues have been taken out.

The Gauss-Newton part of the trace needs no probe (see ``exact``), and for nets of linear layers, ReLU, pooling and
batch norm that is all of it. What is left beside it, and any other matrix, is probed:

Hutchinson's estimate z' A z (z random signs) has the variance of twice the squared off-diagonal entries, most of which
come from few large eigenvalues. In a space V that holds those the trace is known exactly, and probes are needed for
the complement alone (Hutch++, Meyer et al. 2021). Two things differ from the usual Hutch++: V is a Krylov space, every
product of which is used, where a sketch needs two for each dimension; and both parts grow as they are needed. A probe
costs one product for good: z' A z is kept, and what V explains of it follows from V without a further product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import sqrt
from typing import Any, Unpack

import torch
from scipy.special import stdtrit
from torch import Tensor, nn

from trueup.curvature.estimates import LayerTraces, Trace
from trueup.curvature.exact import bent_layers, gauss_newton_traces
from trueup.curvature.krylov import Krylov, Symmetric, generator_on
from trueup.curvature.products import Curvature, Options, made_curvature, matrix_of
from trueup.inputs import InputError, count, positive

BLOCK = 4
PILOTS = 6
"""Probes that only decide how far the space grows and how many more are drawn. They are not in the estimate: a sample
that settles when to stop looks better than it is."""
LEAST_PROBES = 12
LARGEST_SPACE = 160
SPACE_OF_LAYERS = 24
WIDE_AT_ONCE = 16
"""So many probes are float64 at a time; kept, a sign takes one byte of the eight."""


def trace(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    data: Iterable[Any],
    *,
    relative: float = 0.01,
    stderr: float = 0.0,
    max_products: int = 2000,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    **options: Unpack[Options],
) -> Trace:
    """The trace of the Hessian, exact where nothing has to be probed.

    Else it stops when the standard error is at most ``relative`` times the trace, or at most ``stderr``. For ``model``,
    ``loss``, ``data`` and ``options`` (another matrix, some of the parameters) see ``curvature``.
    """
    settings: dict[str, Any] = {"relative": relative, "stderr": stderr, "max_products": max_products, "seed": seed}
    _check(relative, stderr)
    with made_curvature(model, loss, data, **options) as made:
        exact = gauss_newton_traces(made, progress)
        if exact is None:
            return trace_of(made, progress=progress, **settings)
        known, passes = sum(exact[0].values()), exact[1]
        bent = bent_layers(made) if made.matrix == "hessian" else []
        if not bent:
            return Trace(passes, True, known, 0.0)
        problem = replace(made.problem, weights={name: made.problem.weights[name] for name in bent})
        rest = matrix_of(problem, "rest", options.get("vectors_at_once"))
        found = trace_of(rest, known=known, progress=progress, **settings)
        return replace(found, products=found.products + passes)


def trace_of(
    matrix: Symmetric,
    *,
    relative: float = 0.01,
    stderr: float = 0.0,
    max_products: int = 2000,
    known: float = 0.0,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Trace:
    """The trace of any symmetric matrix by probes; ``known`` is added, and counts in what ``relative`` refers to."""
    _check(relative, stderr)
    count(max_products, "max_products", BLOCK + PILOTS + LEAST_PROBES)
    count(seed, "seed", 0)
    space, pilots, probes = Krylov(matrix, BLOCK, LARGEST_SPACE, seed), _Probes(matrix, seed + 1), None
    space.grow()
    variances: list[float] = []
    while not space.complete:
        inside = known + float(space.inner[: space.size, : space.size].trace())
        if probes is None and not pilots.many:
            pilots.draw(PILOTS)
        values = (probes or pilots).beyond(space)
        value, error = inside + float(values.mean()), standard_error(values)
        target = max(relative * abs(value), stderr)
        products = space.products + pilots.many + (probes.many if probes else 0)
        wanted = min(float(values.var()) / target**2, max_products) if target else float(max_products)
        if probes is not None and (error <= target or products >= max_products):
            return Trace(products, error <= target, value, error)
        if progress is not None:
            progress(min(1.0, products / min(max_products, products + wanted)))
        if probes is None:
            variances.append(float(values.var()))
            left = max_products - products - LEAST_PROBES
            worth = _gain(variances, space.size) * max(wanted, LEAST_PROBES)
            whole = matrix.size <= LARGEST_SPACE and matrix.size - space.size <= min(left, wanted)  # it is exact then
            if not space.full and (whole or len(space.next) <= min(left, worth)):
                space.grow()
                continue
            probes = _Probes(matrix, seed + 2)
        # somewhat more than the estimate of their number says, so that a second helping is rare
        more = max(1.1 * wanted + 2 - probes.many, 1.0 if probes.many else LEAST_PROBES)
        probes.draw(int(min(more, max_products - products)))
    return Trace(space.products + pilots.many, True, known + float(space.inner.trace()), 0.0)


def _gain(variances: list[float], size: int) -> float:
    """By what share another block is likely to lower the variance: between what the last two did, which few pilots say
    with much noise, and what eigenvalues that fall as 1 / rank would give."""
    usual = BLOCK / size
    if len(variances) < 2 or not variances[-1]:
        return usual
    steps = min(2, len(variances) - 1)
    return (usual + 1 - (variances[-1] / variances[-1 - steps]) ** (1 / steps)) / 2


def standard_error(values: Tensor) -> float:
    """Of the mean of (s,) values, widened by Student's factor: two of them hold in 95 of 100 cases for small s too."""
    s = len(values)
    return float(values.std()) / sqrt(s) * float(stdtrit(s - 1, 0.975)) / 1.96


class _Probes:
    """Vectors z of random signs, and z' A z of each."""

    def __init__(self, matrix: Symmetric, seed: int) -> None:
        self.matrix, self.generator = matrix, generator_on(matrix.device, seed)
        self.signs = torch.empty(0, matrix.size, dtype=torch.int8, device=matrix.device)
        self.values = torch.empty(0, dtype=torch.float64, device=matrix.device)

    @property
    def many(self) -> int:
        return len(self.signs)

    def beyond(self, space: Krylov) -> Tensor:
        """(s,) w' A w of the parts w of the probes that lie outside of the space."""
        inside = [space.exact_part(some.double()) for some in self.signs.split(WIDE_AT_ONCE)]
        return self.values - torch.cat(inside)

    def draw(self, many: int) -> None:
        for first in range(0, many, WIDE_AT_ONCE):
            signs = random_signs(min(WIDE_AT_ONCE, many - first), self.matrix, self.generator)
            wide = signs.double()
            self.values = torch.cat([self.values, torch.linalg.vecdot(wide, self.matrix.rows(wide))])
            self.signs = torch.cat([self.signs, signs])


def random_signs(many: int, matrix: Symmetric, generator: torch.Generator) -> Tensor:
    bits = torch.randint(0, 2, (many, matrix.size), dtype=torch.int8, device=matrix.device, generator=generator)
    return bits * 2 - 1


def layer_traces(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    data: Iterable[Any],
    *,
    relative: float = 0.02,
    max_products: int = 2000,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    **options: Unpack[Options],
) -> LayerTraces:
    """The trace of each parameter tensor's block, exact where ``trace`` is.

    Else it stops when every standard error is ``relative`` of their sum.
    """
    with made_curvature(model, loss, data, **options) as made:
        exact = None if made.matrix == "hessian" and bent_layers(made) else gauss_newton_traces(made, progress)
        if exact is not None:
            return LayerTraces(exact[1], True, exact[0], dict.fromkeys(exact[0], 0.0))
        return layer_traces_of(made, relative=relative, max_products=max_products, seed=seed, progress=progress)


def layer_traces_of(
    matrix: Curvature,
    *,
    relative: float = 0.02,
    max_products: int = 2000,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> LayerTraces:
    """The same for a matrix whose layers are known. A product serves all of them: z_l' (A z)_l estimates each."""
    positive(relative, "relative")
    count(max_products, "max_products", SPACE_OF_LAYERS + LEAST_PROBES)
    whole = matrix.size <= SPACE_OF_LAYERS + LEAST_PROBES  # then probes would cost no less, and are not exact
    space = Krylov(matrix, BLOCK, matrix.size if whole else SPACE_OF_LAYERS, count(seed, "seed", 0) + 1)
    while not space.full and not space.complete:
        space.grow()
    basis = space.rows[: space.size]
    moved = space.inner[: space.size, : space.size] @ basis  # rows of A V', but for what leads out of the space
    moved[space.size - len(space.last) :] += space.coupling.T @ space.next
    # what V explains of a diagonal block: of V'V A + A V'V - V'V A V'V
    known = 2 * (basis * moved).sum(0) - (basis * (space.inner[: space.size, : space.size] @ basis)).sum(0)
    exact = torch.stack([known[part].sum() for part in matrix.layers.values()])
    generator, found, products = generator_on(matrix.device, seed), exact.new_empty(0, len(exact)), space.products
    error, value = torch.zeros_like(exact), exact
    while not space.complete:
        more = LEAST_PROBES if not len(found) else min(16, max(1, max_products - products))
        signs = random_signs(more, matrix, generator).double()
        beyond = signs - (signs @ basis.T) @ basis
        across = matrix.rows(beyond)
        across = across - (across @ basis.T) @ basis
        products += more
        each = torch.stack([(signs * across)[:, part].sum(1) for part in matrix.layers.values()], 1)
        found = torch.cat([found, each])
        value = exact + found.mean(0)
        error = torch.tensor([standard_error(column) for column in found.T], dtype=torch.float64)
        target = relative * float(value.sum().abs())
        if progress is not None:
            progress(min(1.0, (target / max(float(error.max()), 1e-300)) ** 2))
        if float(error.max()) <= target or products >= max_products:
            break
    converged = space.complete or float(error.max()) <= relative * float(value.sum().abs())
    names = list(matrix.layers)
    return LayerTraces(
        products,
        converged,
        dict(zip(names, value.tolist(), strict=True)),
        dict(zip(names, error.tolist(), strict=True)),
    )


def _check(relative: float, stderr: float) -> None:
    for name, number in (("relative", relative), ("stderr", stderr)):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < float("inf"):
            raise InputError(f"{name}: expected a number of at least 0, got {number!r}")
    if not relative and not stderr:
        raise InputError("relative: with 0 for it and for stderr the estimate would never end; set one above 0")
