"""The ends of the spectrum by block Lanczos, and its shape by stochastic Lanczos quadrature."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import pi, sqrt
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from trueup.curvature.estimates import Density, Eigenvalues
from trueup.curvature.krylov import Krylov, Symmetric, generator_on
from trueup.curvature.products import Options, made_curvature
from trueup.inputs import InputError, count, positive

ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "largest": lambda values: values,
    "smallest": lambda values: -values,
    "magnitude": torch.abs,
}
"""By what the wanted eigenvalues are the largest."""
SURE = 0.01
"""So much smaller than the tolerance a residual has to be. Of two eigenvalues of which the start has a random share of
each, a residual of r times their gap leaves the larger one unseen with a probability of 2 r / pi."""
LEAST = 1e-3
"""Eigenvalues below so much of the largest are told in units of that: a singular matrix has those that are 0."""


def top_eigenvalues(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    data: Iterable[Any],
    k: int = 1,
    *,
    which: str = "largest",
    tolerance: float = 1e-3,
    max_products: int = 500,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    **options: Unpack[Options],
) -> Eigenvalues:
    """The k largest eigenvalues of the Hessian, with vectors.

    ``which`` is "largest" (algebraic), "smallest" (negative curvature) or "magnitude". A residual bounds the distance
    to some eigenvalue, not to the largest: a random start that has little of the largest can take the next for it. So
    it goes on until the residual of each is below a hundredth of ``tolerance`` times its value, or times a thousandth
    of the largest value met where its own is less. A largest that is further than ``tolerance`` above the next is then
    missed in about 1 of 150 starts at worst, and in fewer the further it is; another ``seed`` is another start. For
    ``model``, ``loss``, ``data`` and ``options`` (another matrix, some of the parameters) see ``curvature``.
    """
    with made_curvature(model, loss, data, **options) as made:
        return eigenvalues_of(
            made, k, which=which, tolerance=tolerance, max_products=max_products, seed=seed, progress=progress
        )


def eigenvalues_of(
    matrix: Symmetric,
    k: int = 1,
    *,
    which: str = "largest",
    tolerance: float = 1e-3,
    max_products: int = 500,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Eigenvalues:
    """The same for any symmetric matrix. An eigenvalue that occurs more than min(k, 8) times may come less often."""
    if which not in ENDS:
        raise InputError(f"which: expected one of {', '.join(ENDS)}, got {which!r}")
    if count(k, "k") > matrix.size:
        raise InputError(f"k: {k} eigenvalues of a matrix of {matrix.size} parameters; there are no more than those")
    positive(tolerance, "tolerance")
    if count(max_products, "max_products") < k:
        raise InputError(f"max_products: {max_products} are too few for {k} eigenvalues")
    block = min(k, 8)
    space = Krylov(matrix, block, max(3 * k + 2 * block, 48), seed)
    lowest, first = torch.inf, None
    while True:
        space.grow()
        values, coordinates, residuals = space.ritz()
        lowest = min(lowest, float(values[0]))
        order = ENDS[which](values).argsort(descending=True)
        wanted = order[:k]
        scale = values[wanted].abs().clamp(min=LEAST * float(values.abs().max()))  # a value of 0 has no relative error
        worst = float((residuals[wanted] / scale).max()) if len(wanted) == k else torch.inf
        first = worst if first is None and worst < torch.inf else first
        converged = space.complete or worst <= SURE * tolerance
        if progress is not None and first:
            progress(1.0 if converged else _share(worst, first, SURE * tolerance))
        if converged or space.products + len(space.next) > max_products:
            break
        if space.full:
            space.restart(order[: k + (len(space.rows) - k) // 3])
    if len(wanted) < k:
        raise InputError(f"max_products: {max_products} are too few for {k} eigenvalues")
    vectors = coordinates[:, wanted].T @ space.rows[: space.size]
    return Eigenvalues(space.products, converged, values[wanted], residuals[wanted], vectors, lowest)


def _share(worst: float, first: float, tolerance: float) -> float:
    """How far the residual has come, in powers of ten."""
    whole = torch.tensor(first / tolerance).clamp(min=1 + 1e-9).log()
    return float(1 - (torch.tensor(max(worst, 1e-300) / tolerance).log() / whole).clamp(0, 1))


def spectral_density(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    data: Iterable[Any],
    *,
    steps: int = 40,
    probes: int = 8,
    width: float | None = None,
    points: int = 1000,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    **options: Unpack[Options],
) -> Density:
    """The density of all eigenvalues by stochastic Lanczos quadrature, from ``steps`` times ``probes`` products.

    A bell curve of standard deviation ``width`` (1 % of the spectrum's range without it) stands for each node.
    """
    with made_curvature(model, loss, data, **options) as made:
        return density_of(made, steps=steps, probes=probes, width=width, points=points, seed=seed, progress=progress)


def density_of(
    matrix: Symmetric,
    *,
    steps: int = 40,
    probes: int = 8,
    width: float | None = None,
    points: int = 1000,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Density:
    """The same for any symmetric matrix. It counts as converged when fewer steps would give the same but for 5 %."""
    steps = min(count(steps, "steps", 2), matrix.size)
    start = torch.randn(
        count(probes, "probes", 2), matrix.size, dtype=torch.float64, device=matrix.device,
        generator=generator_on(matrix.device, seed),
    )  # fmt: skip
    alphas, betas = _tridiagonals(matrix, start, steps, progress)
    nodes, weights = _quadrature(alphas, betas, matrix.size)
    low, high = float(nodes.min()), float(nodes.max())
    spread = max(high - low, 1e-12 * max(abs(low), abs(high), 1e-300))
    width = spread / 100 if width is None else positive(width, "width")
    grid = torch.linspace(low - 6 * width, high + 6 * width, count(points, "points", 2), dtype=torch.float64)
    each = _smooth(nodes, weights, grid.to(nodes.device), width)
    shorter = max(2, steps - max(1, steps // 5))
    before = _smooth(
        *_quadrature(alphas[:, :shorter], betas[:, : shorter - 1], matrix.size), grid.to(nodes.device), width
    )
    value = each.mean(0)
    change = float(torch.trapezoid((value - before.mean(0)).abs(), grid.to(nodes.device))) / matrix.size
    return Density(
        steps * len(start), change <= 0.05 or steps == matrix.size, grid, value.cpu(),
        (each.std(0) / sqrt(len(each))).cpu(), nodes, weights, width,
    )  # fmt: skip


def _tridiagonals(
    matrix: Symmetric, start: Tensor, steps: int, progress: Callable[[float], None] | None
) -> tuple[Tensor, Tensor]:
    """(m, steps) diagonals and (m, steps - 1) off-diagonals of one Lanczos run for each row of ``start``, side by side.

    Orthogonalised against all earlier vectors twice: without it the eigenvalues at the ends would come in copies.
    """
    many = len(start)
    alphas, betas = start.new_zeros(many, steps), start.new_zeros(many, steps - 1)
    basis = start.new_empty(many, steps, matrix.size)
    q = start / torch.linalg.vector_norm(start, dim=1, keepdim=True)
    scale = start.new_zeros(many)
    for step in range(steps):
        basis[:, step] = q
        moved = matrix.rows(q)
        alphas[:, step] = torch.linalg.vecdot(q, moved)
        scale = torch.maximum(scale, torch.linalg.vector_norm(moved, dim=1))
        so_far = basis[:, : step + 1]
        for _ in range(2):
            moved = moved - torch.einsum("msp,ms->mp", so_far, torch.einsum("msp,mp->ms", so_far, moved))
        if progress is not None:
            progress((step + 1) / steps)
        if step + 1 < steps:
            beta = torch.linalg.vector_norm(moved, dim=1)
            alive = beta > 1e-12 * scale  # 0: the probe has seen all it can, what follows has no weight
            betas[:, step] = torch.where(alive, beta, 0.0)
            q = torch.where(alive.unsqueeze(1), moved / beta.clamp(min=torch.finfo(beta.dtype).tiny).unsqueeze(1), 0.0)
    return alphas, betas


def _quadrature(alphas: Tensor, betas: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Gauss nodes and weights: the eigenvalues of the tridiagonals, and the squares of their vectors' first entries."""
    nodes, vectors = torch.linalg.eigh(
        torch.diag_embed(alphas) + torch.diag_embed(betas, 1) + torch.diag_embed(betas, -1)
    )
    return nodes, size * vectors[:, 0].square()


def _smooth(nodes: Tensor, weights: Tensor, grid: Tensor, width: float) -> Tensor:
    """(m, G) densities on the grid."""
    bells = (-0.5 * ((grid - nodes.unsqueeze(-1)) / width).square()).exp() / (width * sqrt(2 * pi))
    return torch.einsum("ms,msg->mg", weights, bells)
