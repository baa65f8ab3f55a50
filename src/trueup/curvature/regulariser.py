"""Training against curvature: tau times an estimate of the trace, through which the gradient flows (kimura2024)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from trueup.curvature.modes import evaluating
from trueup.curvature.products import not_differentiable, out_of_memory, selected
from trueup.focal import bend_at, odds, slope_at
from trueup.inputs import InputError, count
from trueup.losses.base import reduced, usable
from trueup.losses.focal import Focal
from trueup.losses.proper import CrossEntropy

KINDS = ("hessian", "ggn")


class HessianTrace(nn.Module):
    """``CrossEntropy() + HessianTrace(0.01)``: a batch costs tau Tr(H) more, H the Hessian of the mean ``loss`` of it.

    Hutchinson's estimate z' H z with ``probes`` vectors z of random signs, drawn anew for each batch from torch's
    generator, as dropout is. The gradient flows through it. Measured on one CPU thread, a step of training takes 4 to 5
    times as long for small nets, 10 times for resnet32; with ``kind="ggn"`` 3 to 4 times for all of them.

    ``kind="ggn"`` takes J' H_z J for H instead, with the closed form of the logit Hessian: z' J' H_z J z needs one
    forward-mode pass and no second backward pass. Networks that are linear in each of their weights (ReLU,
    max-pooling, batch norm in eval mode) have Tr(H) = Tr(J' H_z J) exactly, and the estimate has less noise. Where the
    whole model is one linear layer both are the same, and the trace is exact, without a probe.

    ``loss`` is cross-entropy unless told, whatever loss the penalty is added to. Its GGN is never negative; focal loss
    bends down where p_y is small, so that a penalty on its own trace would reward being wrong there. Which labels are
    ignored its own ``loss`` says too: ``HessianTrace(0.01, loss=CrossEntropy(ignore_index=255))``.
    The network is in eval mode for it, as for ``trace``, and its buffers stay as they are.
    """

    def __init__(self, tau: float, *, loss: nn.Module | None = None, kind: str = "hessian", probes: int = 1) -> None:
        super().__init__()
        if isinstance(tau, bool) or not isinstance(tau, int | float) or not 0 <= tau < float("inf"):
            raise InputError(f"tau: expected a finite number of at least 0, got {tau!r}")
        if kind not in KINDS:
            raise InputError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
        self.tau, self.kind, self.probes = float(tau), kind, count(probes, "probes")
        self.loss = CrossEntropy() if loss is None else loss

    def penalty(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """tau times the estimate for one batch, with a gradient in the model's parameters; under no_grad without."""
        if not any(p.requires_grad for p in model.parameters()):
            raise InputError("model: it has no parameters that require gradients")
        if torch.is_inference_mode_enabled():
            raise InputError("penalty: inference mode allows no derivatives; call it outside, or under no_grad")
        try:
            with evaluating(model), torch.enable_grad():
                value = self.tau * self._estimate(model, inputs, labels)
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            raise InputError(f"penalty: model or loss: {not_differentiable(error)}") from error
        if value.device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere looking would cost a wait
            _require_finite(value, model)
        return value if torch.is_grad_enabled() else value.detach()

    def _estimate(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        layer = only_layer(model)
        if layer is not None:
            logits = model(inputs)
            if closed_form(self.loss, logits, labels):
                return linear_trace(layer, logits, inputs, labels, self.loss)
        estimate = hessian_form if self.kind == "hessian" else ggn_form
        return torch.stack([estimate(model, self.loss, inputs, labels) for _ in range(self.probes)]).mean()

    def extra_repr(self) -> str:
        return f"tau={self.tau:g}, kind={self.kind!r}, probes={self.probes}"


def _require_finite(value: Tensor, model: nn.Module) -> None:
    if not bool(torch.isfinite(value)):
        selected(model)  # says which parameter is not finite
        raise InputError(
            "penalty: it is not finite; the inputs hold NaN or infinite values, the logits have overflown, or the loss "
            "is not twice differentiable there"
        )


def hessian_form(model: nn.Module, loss: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    """z' H z for one z of random signs, differentiable."""
    weights = [p for p in model.parameters() if p.requires_grad]
    signs = [_signs_like(w) for w in weights]
    slopes = torch.autograd.grad(loss(model(inputs), labels), weights, create_graph=True, allow_unused=True)
    moved = torch.autograd.grad(_dot(slopes, signs), weights, create_graph=True, allow_unused=True)
    return _dot(moved, signs)


def _dot(some: Sequence[Tensor | None], others: Sequence[Tensor]) -> Tensor:
    return torch.stack([(a * b).sum() for a, b in zip(some, others, strict=True) if a is not None]).sum()


def ggn_form(model: nn.Module, loss: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    """(J z)' H_z (J z) for one z of random signs, differentiable."""
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    signs = {name: _signs_like(p) for name, p in weights.items()}
    logits, moved, *_ = jvp(lambda w: functional_call(model, w, (inputs,)), (weights,), (signs,))
    if closed_form(loss, logits, labels):
        own, used = usable(labels, logits, loss.ignore_index)
        return _over_samples(curved(logits, own, moved, gamma_of(loss)), used, loss.reduction)
    slope = torch.autograd.grad(loss(logits, labels), logits, create_graph=True)[0]
    bent = torch.autograd.grad((slope * moved).sum(), logits, create_graph=True)[0]
    return (bent * moved).sum()


def curved(logits: Tensor, labels: Tensor, moved: Tensor, gamma: float) -> Tensor:
    """(N,) d' H_z d of (N, K) directions d: FL''(u) (w . d)^2 + FL'(u) Var_s(d), s the softmax over the others."""
    u, s = odds(logits, labels)
    slope, bend = (f(u, gamma).to(logits.dtype) for f in (slope_at, bend_at))
    own = moved.gather(1, labels.unsqueeze(1))
    relative = moved - own
    mean = (s * relative).sum(1)
    return bend * mean.square() + slope * (s * (relative - mean.unsqueeze(1)).square()).sum(1)


def linear_trace(layer: nn.Linear, logits: Tensor, inputs: Tensor, labels: Tensor, loss: Any) -> Tensor:
    """Tr(H) of softmax regression, exactly: the trace of H_z times |x|^2 (and 1 for the bias), over the batch."""
    own, used = usable(labels, logits, loss.ignore_index)
    u, s = odds(logits, own)
    slope, bend = (f(u, gamma_of(loss)).to(logits.dtype) for f in (slope_at, bend_at))
    squares = s.square().sum(1)
    of_logits = bend * (squares + 1) + slope * (1 - squares)
    size = torch.zeros_like(of_logits)
    if layer.weight.requires_grad:
        size = size + inputs.flatten(1).square().sum(1)
    if layer.bias is not None and layer.bias.requires_grad:
        size = size + 1
    return _over_samples(of_logits * size, used, loss.reduction)


def _over_samples(values: Tensor, used: Tensor | None, reduction: str) -> Tensor:
    """The sum or the mean of (N,) values, of the used samples alone."""
    kept = values if used is None else torch.where(used, values, 0.0)
    return reduced(kept, None if used is None else used.to(values.dtype), reduction, values.shape)


def only_layer(model: nn.Module) -> nn.Linear | None:
    """The linear layer that a model is, but for a flattening before it."""
    if not all(map(_as_it_came, model.modules())):
        return None
    parts = list(model) if type(model) is nn.Sequential else [model]
    parts = [part for part in parts if type(part) not in (nn.Flatten, nn.Identity)]
    return parts[0] if len(parts) == 1 and type(parts[0]) is nn.Linear else None  # a subclass may do anything


def _as_it_came(module: nn.Module) -> bool:
    """Whether nothing was hung on a module that changes what it does, as weight norm does by a hook."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def closed_form(loss: nn.Module, logits: Tensor, labels: Tensor) -> bool:
    """Whether the logit Hessian of a loss is that of ``trueup.focal``: one gamma, every sample with the same weight and
    with one true class."""
    plain = type(loss) is CrossEntropy or (
        type(loss) is Focal and isinstance(loss.gamma, float) and not loss.detach_weight
    )
    of_classes = logits.ndim == 2 and not labels.is_floating_point()
    return plain and of_classes and loss.weight is None and loss.reduction in ("mean", "sum")


def gamma_of(loss: nn.Module) -> float:
    gamma = getattr(loss, "gamma", 0.0)
    return float(gamma)


def _signs_like(tensor: Tensor) -> Tensor:
    return torch.randint_like(tensor, 0, 2) * 2 - 1
