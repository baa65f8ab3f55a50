"""Label smoothing, and the penalties that add to any loss: MMCE, entropy, the norm of the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trueup.inputs import InputError, can_look, working_dtype
from trueup.losses.base import Loss, Penalty
from trueup.losses.focal import focal_of_odds
from trueup.losses.rows import mean_leads, negative_entropies, odds_against


class LabelSmoothing(Loss):
    """Cross-entropy with the target (1 - eps) e_y + eps / K; a masked class (-inf) gets no share of eps.

    With z the logits it is CE + eps (z_y - mean z). Class weights multiply the terms of the target, as in PyTorch.
    Targets may be probabilities u: (1 - eps) u + eps / K.
    """

    def __init__(self, eps: float = 0.05, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 <= eps < 1:
            raise InputError(f"eps: expected a number from 0 up to, not including, 1, got {eps!r}")
        self.eps = float(eps)

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        u, leads = odds_against(logits, labels), mean_leads(logits, labels)
        # infinite over a label that is masked, where cross-entropy is: the two must not end as NaN
        return focal_of_odds(u, 0.0) - self.eps * leads.clamp(max=torch.finfo(leads.dtype).max)

    def weighted(self, values: Tensor, weights: Tensor, logits: Tensor) -> Tensor:
        log_p = logits.to(working_dtype(logits)).log_softmax(-1)
        possible = log_p != -torch.inf
        terms = -torch.where(possible, log_p, 0.0) / possible.sum(1, keepdim=True)
        assert self.weight is not None
        return weights * (values - self.eps * terms.sum(1)) + self.eps * (terms * self.weight.to(terms.dtype)).sum(1)

    def per_sample_soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        log_p = logits.to(working_dtype(logits)).log_softmax(-1)
        possible = log_p != -torch.inf
        smooth = (1 - self.eps) * targets + self.eps * possible.to(log_p.dtype) / possible.sum(1, keepdim=True)
        terms = -smooth * torch.where(possible | (targets > 0), log_p, 0.0)
        return (terms if weight is None else terms * weight).sum(-1)

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [f"eps={self.eps:g}", super().extra_repr()]))


def _amount(value: float, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InputError(f"{name}: expected a finite number of at least 0, got {value!r}")
    return float(value)


class MMCE(Penalty):
    """weight times the maximum mean calibration error of a batch (Kumar et al. 2018).

    ``MMCE^2 = (1/n^2) sum_ij (c_i - r_i)(c_j - r_j) exp(-|r_i - r_j| / 0.4)``, with r the confidence and c = 1 where
    the prediction is right. ``form="mukhoti2020"`` is what that paper's code trained with instead: right and wrong
    predictions apart, each sum of pairs divided by the number of its pairs twice, and 0 where all are right or all
    wrong.
    """

    width = 0.4

    def __init__(self, weight: float = 2.0, *, form: str = "paper") -> None:
        super().__init__()
        if form not in ("paper", "mukhoti2020"):
            raise InputError(f"form: {form!r} is neither 'paper' nor 'mukhoti2020'")
        self.weight = _amount(weight, "weight")
        self.form = form

    def values(self, logits: Tensor, labels: Tensor, used: Tensor | None) -> Tensor:
        confidence, predicted = logits.to(working_dtype(logits)).softmax(-1).max(-1)
        counts = torch.ones_like(confidence) if used is None else used.to(confidence.dtype)
        right = (predicted == labels).to(confidence.dtype) * counts
        kernel = (-(confidence.unsqueeze(1) - confidence).abs() / self.width).exp()
        below, above = right * (1 - confidence), (counts - right) * confidence
        if self.form == "paper":
            return self.weight * self._plain(below - above, counts.sum(), kernel)
        return self.weight * self._apart(below, above, right.sum(), (counts - right).sum(), kernel)

    @staticmethod
    def _plain(gap: Tensor, n: Tensor, kernel: Tensor) -> Tensor:
        squared = _pairs(gap, kernel, gap) / n.clamp(min=1) ** 2
        return squared.clamp(min=1e-20).sqrt()  # the root has no slope at 0

    @staticmethod
    def _apart(below: Tensor, above: Tensor, n_right: Tensor, n_wrong: Tensor, kernel: Tensor) -> Tensor:
        pairs = (
            _pairs(below, kernel, below) / n_right.clamp(min=1) ** 2 / (n_right**2 + 1e-5)
            + _pairs(above, kernel, above) / n_wrong.clamp(min=1) ** 2 / (n_wrong**2 + 1e-5)
            - 2 * _pairs(below, kernel, above) / (n_right * n_wrong).clamp(min=1) / (n_right * n_wrong + 1e-5)
        )
        both = (n_right > 0) & (n_wrong > 0)
        return torch.where(both, (pairs.clamp(min=0) + 1e-10).sqrt(), 0.0)

    def extra_repr(self) -> str:
        return f"{self.weight:g}" + ("" if self.form == "paper" else f", form={self.form!r}")


def _pairs(a: Tensor, kernel: Tensor, b: Tensor) -> Tensor:
    """a^T kernel b; a matrix product would be rounded to half precision by autocast."""
    return (a.unsqueeze(1) * kernel * b).sum()


class EntropyPenalty(Penalty):
    """-alpha H(p): rewards predictions that stay unsure (Pereyra et al. 2017)."""

    def __init__(self, alpha: float = 0.1) -> None:
        super().__init__()
        self.alpha = _amount(alpha, "alpha")

    def values(self, logits: Tensor, labels: Tensor, used: Tensor | None) -> Tensor:
        return self.alpha * negative_entropies(logits, labels)

    def extra_repr(self) -> str:
        return f"{self.alpha:g}"


class LogitNorm(Penalty):
    """alpha times the p-norm of the logits of each sample; masked classes (-inf) do not count."""

    def __init__(self, p: float = 1.0, alpha: float = 0.01) -> None:
        super().__init__()
        if isinstance(p, bool) or not isinstance(p, int | float) or not p >= 1:
            raise InputError(f"p: the norm needs a number of at least 1, got {p!r}")
        self.p, self.alpha = float(p), _amount(alpha, "alpha")

    def values(self, logits: Tensor, labels: Tensor, used: Tensor | None) -> Tensor:
        z = logits.to(working_dtype(logits))
        if can_look(z):  # most often no class is masked, and no row is zero
            norm = torch.linalg.vector_norm(z, ord=self.p, dim=-1)
            if bool(((norm > 0) & (norm < torch.inf)).all()):
                return self.alpha * norm
        z = z.masked_fill(z == -torch.inf, 0.0)
        zero = (z == 0).all(-1)  # where the norm has a kink, and its second derivative would be NaN
        norm = torch.linalg.vector_norm(z.masked_fill(zero.unsqueeze(-1), 1.0), ord=self.p, dim=-1)
        return self.alpha * norm.masked_fill(zero, 0.0)

    def extra_repr(self) -> str:
        return f"p={self.p:g}, alpha={self.alpha:g}"
