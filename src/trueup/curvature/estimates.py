"""What an estimate of curvature holds: the values, how far to trust them, and what they took."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Estimate:
    """What all have in common."""

    products: int
    """How many products of the matrix with a vector it took; each is a pass over all data. Of a trace without probes:
    the backward passes, one for each logit."""
    converged: bool
    """Whether the accuracy that was asked for is reached."""


@dataclass(frozen=True)
class Eigenvalues(Estimate):
    """k eigenvalues, the wanted end first. Within ``residual`` of each value there is an eigenvalue for certain.

    That none lies beyond them is likely, and not certain: see ``top_eigenvalues``.
    """

    value: Tensor
    """(k,) float64."""
    residual: Tensor
    """(k,) norms of A v - value v."""
    vectors: Tensor
    """(k, P) of norm one."""
    lowest: float
    """The least curvature met in any direction on the way: below 0, the surface bends down somewhere. No estimate of
    the smallest eigenvalue, which is at or below it: for that ask with ``which="smallest"``."""


@dataclass(frozen=True)
class Trace(Estimate):
    """The sum of all eigenvalues. It lies within two ``stderr`` in about 95 of 100 cases."""

    value: float
    stderr: float
    """0 where it is exact."""


@dataclass(frozen=True)
class LayerTraces(Estimate):
    """The trace of each parameter tensor's own block of the matrix; their sum is the trace of all."""

    value: dict[str, float]
    stderr: dict[str, float]


@dataclass(frozen=True)
class Density(Estimate):
    """How many eigenvalues lie where: a histogram with smooth bins, which integrates to the number of parameters."""

    grid: Tensor
    """(G,) places."""
    value: Tensor
    """(G,) eigenvalues per unit of curvature."""
    stderr: Tensor
    """(G,) from the differences between the probes."""
    nodes: Tensor
    """(probes, steps) where each probe sees eigenvalues."""
    weights: Tensor
    """(probes, steps) how many there; a row sums to the number of parameters."""
    width: float
    """The standard deviation of the bell curve that stands for one node."""
