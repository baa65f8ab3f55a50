"""Corrupted images: what a network meets when the world is not as its training set was.

Five kinds, five severities each, after the strengths that Hendrycks & Dietterich (2019) chose for CIFAR-10-C. The code
is our own, and so are the pixels: figures are not to be put beside those of CIFAR-10-C. A seed gives the same images.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trueup.inputs import InputError, count

SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(images: Tensor, kind: str, severity: int, seed: int = 0) -> Tensor:
    """The uint8 images (N, C, H, W), corrupted; ``kind`` is one of ``CORRUPTIONS``, ``severity`` 1 to 5.

    >>> import torch
    >>> grey = torch.full((2, 3, 8, 8), 128, dtype=torch.uint8)
    >>> int(corrupt(grey, "brightness", 3)[0, 0, 0, 0])
    166
    """
    if kind not in CORRUPTIONS:
        raise InputError(f"kind: unknown corruption {kind!r}; known: {', '.join(CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise InputError(f"severity: expected 1, 2, 3, 4 or 5, got {severity!r}")
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        shape = f"{images.dtype} {tuple(images.shape)}"
        raise InputError(f"images: expected uint8 (N, C, H, W) of one or three channels, got {shape}")
    apply, strengths = CORRUPTIONS[kind]
    return apply(images, strengths[severity - 1], count(seed, "seed", least=0))


def _noise(images: Tensor, sigma: float, seed: int) -> Tensor:
    """Each pixel moves by a Gaussian. NumPy's legacy stream is frozen: the same noise with every version."""
    rng = np.random.RandomState(seed)
    out = torch.empty_like(images)
    for rows in torch.arange(len(images)).split(1000):
        noise = torch.from_numpy(rng.standard_normal((len(rows), *images.shape[1:]))).float()
        out[rows] = _bytes(images[rows].float() / 255 + sigma * noise.to(images.device))
    return out


def _blur(images: Tensor, sigma: float, seed: int) -> Tensor:
    """A Gaussian over the pixels, first along the rows, then along the columns; the edges are mirrored."""
    radius = max(1, int(4 * sigma + 0.5))
    weights = torch.exp(-(torch.arange(-radius, radius + 1, device=images.device) ** 2) / (2 * sigma**2))
    channels = images.shape[1]
    kernel = (weights / weights.sum()).float().expand(channels, 1, 1, -1)
    x = F.pad(images.float() / 255, (radius,) * 4, mode="reflect")
    x = F.conv2d(F.conv2d(x, kernel, groups=channels), kernel.transpose(2, 3), groups=channels)
    return _bytes(x)


def _contrast(images: Tensor, kept: float, seed: int) -> Tensor:
    """Every pixel moves towards the mean of its image and channel."""
    x = images.float() / 255
    mean = x.mean((2, 3), keepdim=True)
    return _bytes(mean + kept * (x - mean))


def _brightness(images: Tensor, added: float, seed: int) -> Tensor:
    return _bytes(images.float() / 255 + added)


def _jpeg(images: Tensor, quality: float, seed: int) -> Tensor:
    """Written as JPEG and read again, one by one."""
    from PIL import Image

    found = []
    for image in images.cpu().permute(0, 2, 3, 1).numpy():
        file = io.BytesIO()
        Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, "JPEG", quality=int(quality))
        read = np.asarray(Image.open(file))
        found.append(read[:, :, None] if read.ndim == 2 else read)
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).contiguous().to(images.device)


def _bytes(x: Tensor) -> Tensor:
    return (x.clamp(0, 1) * 255).round().to(torch.uint8)


CORRUPTIONS: dict[str, tuple[Callable[[Tensor, float, int], Tensor], tuple[float, ...]]] = {
    "noise": (_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "blur": (_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "jpeg": (_jpeg, (80, 65, 58, 50, 40)),
}
"""By name: what it does, and how strongly at each severity (standard deviation in units of the whole range, that of the
blur in pixels, the share of the contrast that is kept, what is added, JPEG's quality)."""
