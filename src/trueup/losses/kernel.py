"""Cross-entropy and the focal losses of p_y in one fused pass on a GPU (Triton).

A program takes a row, or two programs a long one: the log-sum-exp of the other classes, the loss and its slope in the
odds against the label, and the gradient, written at once, where the logits were if the caller allows it. So a step
costs one reading of the logits from memory, one from the cache, and one writing.

The gradient is that of the reduced loss. What arrives from above in the backward pass, nearly always 1, is looked at
on the device: multiplying by 1 costs a launch, nothing more.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from trueup.inputs import Array, InputError

if TYPE_CHECKING:
    from trueup.losses.focal import Focal
    from trueup.losses.proper import CrossEntropy

MOST_CLASSES = 262_144
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@functools.cache
def _programs() -> Any:
    """The device code, or None where Triton is not installed; imported at first need, for it is slow to."""
    try:
        from trueup.losses import programs
    except ImportError:
        return None
    return programs


def serves(logits: Array, labels: Array) -> bool:
    """Whether the fused path is to be taken: on CUDA, in eager mode, where a gradient will be wanted."""
    return (
        isinstance(logits, Tensor)
        and isinstance(labels, Tensor)
        and logits.is_cuda
        and not torch.compiler.is_compiling()
        and logits.requires_grad
        and torch.is_grad_enabled()
        and not _transformed(logits)
        and refusal(logits, labels) is None
    )


def _transformed(x: Tensor) -> bool:
    """Whether torch.func or forward-mode differentiation is at work."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore[reportAttributeAccessIssue]
    return wrapped or torch.autograd.forward_ad.unpack_dual(x).tangent is not None


def refusal(logits: Tensor, labels: Tensor) -> str | None:
    """Why the kernel cannot serve, or None."""
    if _programs() is None:
        return "Triton is not installed"
    if logits.dtype not in DTYPES:
        return f"logits of {logits.dtype}; it takes float16, bfloat16 and float32"
    if logits.ndim != 2 or labels.ndim != 1 or labels.is_floating_point():
        return "it takes (N, K) logits and (N,) classes"
    if len(labels) != len(logits) or not 2 <= logits.shape[1] <= MOST_CLASSES:
        return f"{len(logits)} rows, {len(labels)} labels, {logits.shape[1]} classes; it takes 2 to {MOST_CLASSES}"
    return None if logits.stride(1) == 1 else "the classes of a row are not next to each other in memory"


def fused(loss: Focal | CrossEntropy, logits: Tensor, labels: Tensor) -> Tensor:
    """The reduced loss; an InputError where the kernel cannot serve."""
    why = refusal(logits, labels)
    if why:
        raise InputError(f"the fused kernel cannot serve: {why}")
    gamma = getattr(loss, "gamma", 0.0)
    bounds, gammas = _steps(gamma, logits.device)
    weight, labels = None if loss.weight is None else loss.weight.float(), labels.contiguous()
    if weight is not None and len(weight) != logits.shape[1]:
        raise InputError(f"weight: {len(weight)} weights for {logits.shape[1]} classes")
    sizes = configuration(logits.shape[1], logits.element_size())
    meeting = torch.empty(sizes["PARTS"] * len(labels), dtype=torch.int64, device=labels.device)
    divisor = _divisor(labels, weight, loss, logits.shape[1], meeting)
    detach, overwrite = getattr(loss, "detach_weight", False), loss.overwrite_logits
    settings = (loss.ignore_index, detach, overwrite, sizes)
    rows: Any = _Fused.apply(logits, labels, bounds, gammas, weight, divisor, meeting, settings)
    return rows if loss.reduction == "none" else rows.sum()


def _steps(gamma: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """gamma as a table of steps; a scheduled one is its buffer, so that a captured graph sees it move."""
    if isinstance(gamma, float):
        return _constant(gamma, device)
    if hasattr(gamma, "gamma"):
        return gamma.bounds, gamma.gamma.reshape(1)
    return gamma.bounds, gamma.gammas


@functools.lru_cache(maxsize=64)
def _constant(gamma: float, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.ones(1, dtype=torch.float64, device=device), torch.full(
        (1,), gamma, dtype=torch.float64, device=device
    )


def _divisor(
    labels: Tensor, weight: Tensor | None, loss: Focal | CrossEntropy, classes: int, meeting: Tensor
) -> Tensor | None:
    """What every row's loss is divided by: the number of rows that count, or the sum of their weights, for the mean.

    On the way a label out of range is found, by an assertion on the device, and the programs' meeting place is cleared.
    """
    count = torch.empty((), dtype=torch.int32, device=labels.device)
    sizes = {"PARTS": len(meeting) // max(len(labels), 1), "BLOCK": 4096, "num_warps": 32, "debug": True}
    _programs().survey[(1,)](labels, count, meeting, len(labels), classes, loss.ignore_index, **sizes)
    if loss.reduction != "mean":
        return None
    if weight is None:
        return count
    used = labels != loss.ignore_index
    return (weight[torch.where(used, labels, 0)] * used).sum()


class _Fused(Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        bounds: Tensor,
        gammas: Tensor,
        weight: Tensor | None,
        divisor: Tensor | None,
        meeting: Tensor,
        settings: tuple[int, bool, bool, dict[str, int]],
    ) -> Tensor:
        ignore_index, detach, overwrite, sizes = settings
        data = logits.detach()
        grad = data if overwrite else torch.empty_like(data, memory_format=torch.contiguous_format)
        losses = torch.empty(len(data), dtype=torch.float32, device=data.device)
        launch(data, grad, labels, losses, bounds, gammas, weight, divisor, meeting, ignore_index, detach, sizes)
        if overwrite:  # whoever saved the logits for a backward pass of its own is told, not given wrong numbers
            torch.autograd.graph.increment_version(logits)
        ctx.grad, ctx.overwrite = grad, overwrite
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise InputError(
                "the fused kernel has no second derivative; for double backward use the loss on "
                "logits.double(), or inside torch.func or torch.compile"
            )
        if ctx.grad is None:
            raise InputError("the fused kernel's gradient was already handed out; call the loss once for each backward")
        grad, ctx.grad = ctx.grad, None
        rescale(grad, grads[0])
        return grad, None, None, None, None, None, None, None


def configuration(classes: int, width: int) -> dict[str, int]:
    """Sizes of a program for rows of so many classes of so many bytes each; measured on an H200.

    A thread takes 16 bytes at a time. Few programs at once for long rows: what they have read has to stay in the cache
    until it is read again. Two to a row from 65 536 classes on, so that one may write while another reads.
    """
    each = 16 // width
    if classes >= 65_536:
        return {"R": 16, "C": 128 * each, "STAGES": 3, "num_warps": 4, "PARTS": 2}
    if classes >= 8192:
        return {"R": 16, "C": 64 * each, "STAGES": 3, "num_warps": 2, "PARTS": 1}
    warps = next(warps for warps in (4, 2, 1) if warps == 1 or warps * 32 * each <= classes)
    columns = min(1 << (classes - 1).bit_length(), warps * 32 * each)
    rows = next(rows for rows in (8, 4, 2, 1) if rows == 1 or rows * columns <= classes)
    return {"R": rows, "C": columns, "STAGES": 2, "num_warps": warps, "PARTS": 1}


def launch(
    logits: Tensor,
    grad: Tensor,
    labels: Tensor,
    losses: Tensor,
    bounds: Tensor,
    gammas: Tensor,
    weight: Tensor | None,
    divisor: Tensor | None,
    meeting: Tensor,
    ignore_index: int,
    detach: bool,
    sizes: dict[str, int],
    phase: int = 0,
) -> None:
    """Fills ``losses`` and ``grad`` (which may be the logits themselves); ``phase`` as in ``programs``."""
    if not len(logits):
        return
    _programs().focal_rows[(len(logits) * sizes["PARTS"],)](
        logits,
        grad,
        labels,
        losses,
        bounds,
        gammas,
        weight,
        divisor,
        meeting,
        logits.stride(0),
        grad.stride(0),
        logits.shape[1],
        ignore_index,
        STEPS=len(gammas),
        WEIGHTED=weight is not None,
        DIVIDED=divisor is not None,
        DETACH=detach,
        WIDE=logits.dtype == torch.float32,
        EVEN=logits.shape[1] % (sizes["R"] * sizes["C"]) == 0,
        PHASE=phase,
        enable_fp_fusion=True,
        **sizes,
    )


def rescale(grad: Tensor, above: Tensor) -> None:
    """Multiplies the rows of ``grad`` by ``above``, one number or one a row, in place; by 1 at no cost."""
    above = above.float()
    each = 0 if above.numel() == 1 or above.stride(0) == 0 else above.stride(0)
    if len(grad):
        programs = min(len(grad), 1024)
        _programs().rescale[(programs,)](grad, above, grad.stride(0), each, *grad.shape, BLOCK=4096, num_warps=4)
