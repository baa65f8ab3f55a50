"""Batches and losses that the tests of this folder share."""

from __future__ import annotations

import torch

from trueup import losses

EXAMPLES = losses.examples()
NORMS = ("+l1", "+l2")


def batch(n=7, classes=5, seed=0, dtype=torch.float64, scale=2.0):
    """Random logits, and labels of which some are the prediction and some are not."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, classes, generator=generator, dtype=torch.float64).mul(scale).to(dtype)
    y = torch.where(torch.arange(n) % 2 == 0, z.argmax(1), torch.randint(0, classes, (n,), generator=generator))
    return z, y


def gradient(loss, z, y):
    z = z.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(z, y), z)
    return found


def is_norm(spec: str) -> bool:
    return any(name in spec for name in NORMS)


def of_a_batch(spec: str) -> bool:
    """Whether the loss of a sample depends on the others."""
    return "mmce" in spec
