"""The focal family: fixed, sample-dependent and scheduled gamma, dual focal loss, AdaFocal."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from trueup import inputs
from trueup.focal import checked_gamma, loss_and_slope_at, loss_at, odds, slope_at
from trueup.inputs import Array, InputError, can_look, working_dtype
from trueup.losses import kernel
from trueup.losses.base import Loss
from trueup.losses.rows import differentiated_again, in_nested_forward_mode, odds_against, rivals, with_known_signature


class Gamma(nn.Module):
    """Which gamma a sample has: a table of steps, ``(below, gamma), ...``, that live in buffers."""

    bounds: Tensor
    gammas: Tensor

    def __init__(self, what: str, *steps: tuple[float, float]) -> None:
        super().__init__()
        if not steps or not all(isinstance(step, tuple | list) and len(step) == 2 for step in steps):
            raise InputError(f"{what}: expected pairs such as (0.2, 5), (1.0, 3), got {steps!r}")
        bounds = [float(bound) for bound, _ in steps]
        if not (bounds[0] > 0 and bounds[-1] == 1 and all(a < b for a, b in itertools.pairwise(bounds))):
            raise InputError(f"{what}: its bounds {bounds} must rise from above 0 to 1, so that they cover 0 to 1")
        for _, gamma in steps:
            checked_gamma(gamma)
        self.register_buffer("bounds", torch.tensor(bounds, dtype=torch.float64))
        self.register_buffer("gammas", torch.tensor([float(gamma) for _, gamma in steps], dtype=torch.float64))

    @abstractmethod
    def at(self, against: Tensor) -> Tensor:
        """gamma of samples with these log-odds against their labels, without a gradient."""

    def extra_repr(self) -> str:
        return ", ".join(f"({b:g}, {g:g})" for b, g in zip(self.bounds.tolist(), self.gammas.tolist(), strict=True))


class ByConfidence(Gamma):
    """gamma from the probability of the true class: ``ByConfidence((0.2, 5), (1.0, 3))`` is 5 below 0.2, else 3.

    That is FLSD-53 of mukhoti2020 with the threshold of its code and of its final text; the first version has 0.19.
    """

    def __init__(self, *steps: tuple[float, float]) -> None:
        super().__init__("ByConfidence", *steps)

    def at(self, against: Tensor) -> Tensor:
        """(N,) gamma of each sample, without a gradient."""
        p = torch.sigmoid(-against.detach())
        gamma = self.gammas[-1].expand_as(p)
        for bound, below in zip(reversed(self.bounds[:-1]), reversed(self.gammas[:-1]), strict=True):
            gamma = torch.where(p < bound, below, gamma)
        return gamma


class Scheduled(Gamma):
    """gamma from the progress of the training: ``Scheduled((2/7, 5), (5/7, 3), (1.0, 2))``.

    ``set_progress`` moves it; the present value is in the buffer ``gamma``, so that a captured graph sees it.
    """

    gamma: Tensor

    def __init__(self, *steps: tuple[float, float]) -> None:
        super().__init__("Scheduled", *steps)
        self.register_buffer("gamma", self.gammas[0].clone())

    def set_progress(self, fraction: float) -> None:
        """``fraction`` of the training is done, from 0 to 1."""
        if not (isinstance(fraction, int | float) and 0 <= fraction <= 1):
            raise InputError(f"fraction: {fraction!r} is not within 0 and 1")
        step = min(int((self.bounds <= fraction + 1e-12).sum()), len(self.bounds) - 1)
        self.gamma.copy_(self.gammas[step])

    def at(self, against: Tensor) -> Tensor:
        return self.gamma


class Focal(Loss):
    """Focal loss -(1 - p_y)^gamma log p_y; gamma = 0 is cross-entropy. Exact everywhere, for gamma >= -1.

    ``gamma`` is a number, ``ByConfidence(...)`` or ``Scheduled(...)``. Targets may be probabilities u:
    -sum_i u_i (1 - p_i)^gamma log p_i (for one gamma). ``detach_weight`` stops the gradient at (1 - p_y)^gamma, as
    Wang et al. 2021 trained: its minimiser is not that of focal loss, and the focal map does not mend it.
    ``overwrite_logits`` lets the fused kernel on CUDA write the gradient where the logits were: half the memory, and
    nobody may read those logits afterwards.

    >>> import torch, trueup
    >>> loss = trueup.Focal(3)
    >>> loss(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]))
    tensor(0.0023)
    """

    gamma: float | ByConfidence | Scheduled

    def __init__(
        self,
        gamma: float | ByConfidence | Scheduled,
        *,
        detach_weight: bool = False,
        overwrite_logits: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(gamma, bool) or not isinstance(gamma, int | float | ByConfidence | Scheduled):
            raise InputError(f"gamma: expected a number, ByConfidence(...) or Scheduled(...), got {gamma!r}")
        self.gamma = gamma if isinstance(gamma, Gamma) else float(checked_gamma(gamma))
        self.detach_weight = detach_weight
        self.overwrite_logits = overwrite_logits
        self._steep = (float(self.gamma.gammas.min()) if isinstance(self.gamma, Gamma) else self.gamma) < 0

    def set_progress(self, fraction: float) -> None:
        """``fraction`` of the training is done: moves a scheduled gamma, and no other."""
        if isinstance(self.gamma, Scheduled):
            self.gamma.set_progress(fraction)

    def forward(self, logits: Array, labels: Array) -> Tensor:
        if kernel.serves(logits, labels):
            return kernel.fused(self, logits, labels)
        return super().forward(logits, labels)

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        u = odds_against(logits, labels, self._steep)
        gamma = self.gamma.at(u) if isinstance(self.gamma, ByConfidence | Scheduled) else self.gamma
        return focal_of_odds(u, gamma, self.detach_weight)

    def per_sample_soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        if isinstance(self.gamma, ByConfidence):
            raise InputError("labels: a gamma by confidence needs one true class, not probabilities")
        gamma = self.gamma.gamma if isinstance(self.gamma, Scheduled) else self.gamma
        z = logits.to(working_dtype(logits))
        top = z.argmax(-1)
        log_p = z.log_softmax(-1).clamp(min=torch.finfo(z.dtype).min)
        # 1 - p loses digits at the largest p alone, which takes the way of a label
        factor = (gamma * torch.log1p(-log_p.exp().scatter(-1, top.unsqueeze(-1), 0.0))).exp()
        each = (factor.detach() if self.detach_weight else factor) * -log_p
        largest = focal_of_odds(odds(z, top).against, gamma, self.detach_weight).to(z.dtype)
        terms = torch.where(targets > 0, targets * each.scatter(-1, top.unsqueeze(-1), largest.unsqueeze(-1)), 0.0)
        return (terms if weight is None else terms * weight).sum(-1)

    def extra_repr(self) -> str:
        shown = [f"gamma={self.gamma:g}"] if isinstance(self.gamma, float) else []
        shown += ["detach_weight=True"] if self.detach_weight else []
        return ", ".join(filter(None, [*shown, super().extra_repr()]))


def focal_of_odds(against: Tensor, gamma: float | Tensor, detach_weight: bool = False) -> Tensor:
    """Focal loss of the log-odds against the label, with the closed-form slope as its derivative."""
    if torch.compiler.is_compiling():  # the same, in what it can trace: a value, and a slope times nothing
        u = against.detach()
        return loss_at(u, gamma) + _slope_of(u, gamma, detach_weight) * (against - u)
    if in_nested_forward_mode():
        return loss_at(against, gamma) if not detach_weight else _detached(against, gamma)
    found: Any = _FocalOfOdds.apply(against, gamma, detach_weight)
    return found[0]


def _detached(against: Tensor, gamma: float | Tensor) -> Tensor:
    return (gamma * F.logsigmoid(against)).exp().detach() * -F.logsigmoid(-against)


class _FocalOfOdds(Function):
    """Gives the losses, and their slopes for the way back."""

    generate_vmap_rule = True

    @staticmethod
    @with_known_signature
    def forward(against: Tensor, gamma: float | Tensor, detach_weight: bool) -> tuple[Tensor, Tensor]:
        if not detach_weight and _nowhere_negative(gamma):
            return loss_and_slope_at(against, gamma)
        return loss_at(against, gamma), _slope_of(against, gamma, detach_weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        against, gamma, ctx.detach_weight = inputs
        ctx.gamma = None if isinstance(gamma, Tensor) else gamma
        saved = (against, gamma) if isinstance(gamma, Tensor) else (against,)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1], *saved)
        ctx.save_for_forward(output[1], *saved)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if grads[0] is None:
            return None, None, None
        against, gamma, slope = _slope(ctx)
        by_gamma = None
        if isinstance(gamma, Tensor) and ctx.needs_input_grad[1]:
            by_gamma = (grads[0] * loss_at(against, gamma) * F.logsigmoid(against)).sum_to_size(gamma.shape)
        return grads[0] * slope, by_gamma, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        against, gamma, slope = _slope(ctx)
        moved = slope * tangents[0] if tangents[0] is not None else torch.zeros_like(slope)
        if isinstance(gamma, Tensor) and tangents[1] is not None:
            moved = moved + loss_at(against, gamma) * F.logsigmoid(against) * tangents[1]
        return moved, None


def _nowhere_negative(gamma: float | Tensor) -> bool:
    """Known to be: on a GPU, and where it is traced, a tensor is not looked at."""
    if not isinstance(gamma, Tensor):
        return gamma >= 0
    return can_look(gamma) and bool((gamma >= 0).all())


def _slope(ctx: Any) -> tuple[Tensor, float | Tensor, Tensor]:
    """The slope that is stored, or its formula for who will differentiate it again."""
    slope, against, *tensor = ctx.saved_tensors
    gamma = tensor[0] if tensor else ctx.gamma
    return against, gamma, _slope_of(against, gamma, ctx.detach_weight) if differentiated_again() else slope


def _slope_of(against: Tensor, gamma: float | Tensor, detach_weight: bool) -> Tensor:
    if not detach_weight:
        return slope_at(against, gamma)
    log_q = F.logsigmoid(against)
    return (gamma * log_q.detach() + log_q).exp()


class DualFocal(Loss):
    """-(1 - p_y + p_j)^gamma log p_y, p_j the largest probability below p_y, 0 if there is none (Tao et al. 2023)."""

    def __init__(self, gamma: float = 5.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0 <= gamma < float("inf"):
            raise InputError(f"gamma: dual focal loss needs a finite number of at least 0, got {gamma!r}")
        self.gamma = float(gamma)

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        # p_j = q s_j with s the softmax over the others: the loss is focal loss times (1 + s_j)^gamma
        u = odds_against(logits, labels)
        own, rival = (logits.gather(1, y.unsqueeze(1)).squeeze(1).to(u.dtype) for y in (labels, rivals(logits, labels)))
        share = torch.where(rival < own, (rival - own - u).clamp(max=0).exp(), 0.0)
        return focal_of_odds(u, self.gamma) * (1 + share).pow(self.gamma)

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [f"gamma={self.gamma:g}", super().extra_repr()]))


class AdaFocal(Loss):
    """Focal loss whose gamma follows the calibration of a validation set (Ghosh et al. 2022).

    Validation samples fall into bins of equal mass by confidence; after each epoch ``observe_validation`` multiplies
    the gamma of a bin by exp(rate * (confidence - accuracy)). Where ``|gamma|`` falls below 0.2 its sign turns; a
    negative gamma is the inverse focal loss ``-(1 + p)^|gamma| log p``, which raises confidence. A sample takes the
    gamma of the bin that its p_y falls into. Bounds and gammas are buffers: saved with the model.
    """

    bounds: Tensor
    gammas: Tensor

    def __init__(
        self,
        bins: int = 15,
        rate: float = 1.0,
        start: float = 1.0,
        lowest: float = -2.0,
        highest: float = 20.0,
        turn: float = 0.2,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not (isinstance(bins, int) and bins >= 1):
            raise InputError(f"bins: expected a whole number of at least 1, got {bins!r}")
        if not lowest <= start <= highest:
            raise InputError(f"start: {start!r} is not within {lowest} and {highest}")
        for name, value in (("rate", rate), ("turn", turn)):
            if not 0 <= value < float("inf"):
                raise InputError(f"{name}: {value!r} is not a finite number of at least 0")
        self.rate, self.lowest, self.highest, self.turn = float(rate), float(lowest), float(highest), float(turn)
        self.register_buffer("bounds", torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1].contiguous())
        self.register_buffer("gammas", torch.full((bins,), float(start), dtype=torch.float64))

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        u = odds_against(logits, labels)
        p = torch.sigmoid(-u)
        gamma = self.gammas[torch.bucketize(p.detach(), self.bounds)]
        inverse = (-gamma.clamp(max=0) * torch.log1p(p)).exp() * -F.logsigmoid(-u)
        return torch.where(gamma >= 0, focal_of_odds(u, gamma.clamp(min=0)), inverse)

    @torch.no_grad()
    def observe_validation(self, probs: Array, labels: Array) -> None:
        """Moves the gammas once, by (N, K) probabilities of the validation set and their labels."""
        p = inputs.probabilities(probs)
        y = inputs.labels(labels, p).to(self.gammas.device)
        confidence, predicted = p.to(self.gammas.device, torch.float64).max(1)
        right = (predicted == y).double()
        order = confidence.argsort(stable=True)
        edges = torch.linspace(0, len(order), len(self.gammas) + 1, dtype=torch.float64).round().long().tolist()
        for i in range(len(self.gammas)):
            members = order[edges[i] : edges[i + 1]]
            if i:
                self.bounds[i - 1] = confidence[order[min(edges[i], len(order) - 1)]]
            if len(members):
                gap = float((confidence[members] - right[members]).mean())
                self.gammas[i] = self._moved(float(self.gammas[i]), gap)

    def _moved(self, gamma: float, gap: float) -> float:
        grown = gamma * torch.exp(torch.tensor((1 if gamma > 0 else -1) * self.rate * gap, dtype=torch.float64)).item()
        if abs(grown) < self.turn:
            grown = -self.turn if gamma > 0 else self.turn
        return min(max(grown, self.lowest), self.highest)

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [f"bins={len(self.gammas)}, rate={self.rate:g}", super().extra_repr()]))
