"""How a network is looked at: in eval mode, by steps that can be differentiated twice and in forward mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrizations
from torch.nn.utils.weight_norm import WeightNorm

from trueup.inputs import InputError


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In eval mode within, and without the fused kernels of attention and LSTM, which have no such derivatives.

    Every module is in its own mode again afterwards.
    """
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        _require_derivatives(module)
    model.eval()
    encoders = torch.backends.mha.get_fastpath_enabled()
    recurrent, fused = any(isinstance(module, nn.LSTM) for module, _ in modes), torch._C._get_mkldnn_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        if recurrent:
            torch._C._set_mkldnn_enabled(False)
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(encoders)
        if recurrent:
            torch._C._set_mkldnn_enabled(fused)
        for module, training in modes:
            module.training = training


def _require_derivatives(module: nn.Module) -> None:
    """torch's double backward of weight norm takes the norm for a constant: its Hessian is not even symmetric."""
    hooks = module._forward_pre_hooks.values()
    if isinstance(module, parametrizations._WeightNorm) or any(isinstance(hook, WeightNorm) for hook in hooks):
        raise InputError(
            "model: the second derivative of torch's weight norm is wrong; fold it into the weights first, with "
            "torch.nn.utils.parametrize.remove_parametrizations or remove_weight_norm"
        )


@contextmanager
def measuring(model: nn.Module) -> Iterator[None]:
    """In eval mode, and convolutions on a GPU with all digits of float32: TF32, their usual way, has three."""
    convolution = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue]
    usual = convolution.fp32_precision
    convolution.fp32_precision = "ieee"
    try:
        with evaluating(model):
            yield
    finally:
        convolution.fp32_precision = usual
