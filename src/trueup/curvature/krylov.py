"""Block Lanczos with full reorthogonalisation: the space in which eigenvalues are found, and a trace is exact.

SciPy's ``eigsh`` (ARPACK) multiplies with one vector at a time, and always with some twenty before it looks. Here a
block of vectors goes through the network at once, and every step can be the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from trueup.inputs import count


class Symmetric(Protocol):
    """What the estimators need of a matrix: ``trueup.curvature.Curvature``, or anything like it."""

    @property
    def size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def rows(self) -> Callable[[Tensor], Tensor]: ...


def generator_on(device: torch.device, seed: int) -> torch.Generator:
    count(seed, "seed", 0)
    return torch.Generator(device).manual_seed(seed)


class Krylov:
    """Orthonormal rows V of a block Krylov space of A, T = V A V', and the way on: A V' = V' T + next' coupling."""

    def __init__(self, matrix: Symmetric, block: int, capacity: int, seed: int) -> None:
        self.matrix, self.generator = matrix, generator_on(matrix.device, seed)
        capacity = min(capacity, matrix.size)
        self.rows = torch.empty(capacity, matrix.size, dtype=torch.float64, device=matrix.device)
        self.inner = torch.zeros(capacity, capacity, dtype=torch.float64, device=matrix.device)
        self.size, self.products = 0, 0
        start = torch.randn(min(block, matrix.size), matrix.size, **self._random())
        self.next = torch.linalg.qr(start.T).Q.T.contiguous()
        self.last = self.next[:0]
        self.coupling = self.inner[:0, :0]
        """(next, last block): what leads out of the space comes from the last block alone."""

    def _random(self) -> dict[str, Any]:
        return {"dtype": torch.float64, "device": self.matrix.device, "generator": self.generator}

    @property
    def full(self) -> bool:
        """Whether the next block has no place."""
        return self.size + len(self.next) > len(self.rows)

    @property
    def complete(self) -> bool:
        """Whether the space is the whole one, so that everything is exact."""
        return self.size == self.matrix.size

    def grow(self) -> None:
        """One block of products more."""
        block, begin = self.next, self.size
        moved = self.matrix.rows(block)
        self.products += len(block)
        self.size += len(block)
        self.rows[begin : self.size] = block
        basis = self.rows[: self.size]
        inner = basis @ moved.T
        moved = moved - inner.T @ basis
        again = basis @ moved.T  # once is not enough in floating point, twice is
        moved = moved - again.T @ basis
        inner = inner + again
        own = inner[begin:]
        inner[begin:] = (own + own.T) / 2
        self.inner[: self.size, begin : self.size] = inner
        self.inner[begin : self.size, : self.size] = inner.T
        self.last = block
        self.next, self.coupling = self._onward(moved, basis)

    def _onward(self, moved: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Orthonormal rows that span ``moved``, and its coordinates; what has no direction left is drawn anew."""
        room = self.matrix.size - len(basis)
        q, r = torch.linalg.qr(moved.T)
        scale = float(torch.linalg.matrix_norm(self.inner[: self.size, : self.size], 2))
        lost = r.diagonal().abs() <= 1e-12 * max(scale, torch.finfo(torch.float64).tiny)
        rows = q.T.contiguous()
        if bool(lost.any()):
            rows[lost] = torch.randn(int(lost.sum()), self.matrix.size, **self._random())
            r = r.clone()
            r[lost] = 0.0
            order = torch.cat([torch.nonzero(~lost).squeeze(1), torch.nonzero(lost).squeeze(1)])
            rows, r = rows[order], r[order]
            for _ in range(2):
                rows = rows - (rows @ basis.T) @ basis
                kept = torch.linalg.qr(rows.T)
                rows = (kept.Q * kept.R.diagonal().sign()).T.contiguous()
        return rows[:room], r[:room]

    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """(n,) rising Ritz values, (n, n) their coordinates as columns, (n,) the norms of their residuals."""
        values, coordinates = torch.linalg.eigh(self.inner[: self.size, : self.size])
        residuals = torch.linalg.vector_norm(self.coupling @ coordinates[self.size - len(self.last) :], dim=0)
        return values, coordinates, residuals

    def restart(self, keep: Tensor) -> None:
        """Goes on from the Ritz vectors at the indices ``keep``, which hold what is known of the wanted ends."""
        values, coordinates, _ = self.ritz()
        kept = coordinates[:, keep].T @ self.rows[: self.size]
        self.size = len(keep)
        self.rows[: self.size] = kept
        self.inner.zero_()
        self.inner[: self.size, : self.size] = torch.diag(values[keep])

    def exact_part(self, probes: Tensor) -> Tensor:
        """(s,) of z' A z, for (s, P) probes z, what lies not in the complement: z' A z less w' A w, w = z - V' V z."""
        inside = self.rows[: self.size] @ probes.T
        within = (inside * (self.inner[: self.size, : self.size] @ inside)).sum(0)
        across = ((self.next @ probes.T) * (self.coupling @ inside[self.size - len(self.last) :])).sum(0)
        return within + 2 * across
