"""The samples on the device, and the batches cut from them there.

The plan of an epoch (the order of the samples, where each is cropped, whether it is mirrored) is drawn at once on the
CPU from (seed, epoch) and copied to the device: nothing about it has to be stored for a resumed run, it is the same on
every device, and a step needs no number from outside, so that a captured step can be replayed as it is.
"""

from __future__ import annotations

import hashlib

import torch
import torch.nn.functional as F
from torch import Tensor

from trueup.data import Dataset, Split
from trueup.data.trees import NOTHING
from trueup.inputs import InputError
from trueup.train.recipe import Recipe

PAD = 4
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def seed_of(seed: int, epoch: int, purpose: str) -> int:
    """A seed of its own for everything random in an epoch."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{epoch}/{purpose}".encode()).digest()[:8]) >> 1


class Normaliser:
    """(N, H, W, C) bytes -> (N, C, H, W) floats, (pixel / 255 - mean) / std, channels last in memory; features pass."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> None:
        center, width = (torch.tensor(values, dtype=torch.float64) for values in (mean, std))
        self.scale = (1 / (255 * width)).float().to(device)
        self.shift = (-center / width).float().to(device)

    def __call__(self, stored: Tensor) -> Tensor:
        if stored.dtype != torch.uint8:
            return stored
        return torch.addcmul(self.shift, stored.float(), self.scale).permute(0, 3, 1, 2)


def normalisers(recipe: Recipe, data: Dataset, device: torch.device) -> tuple[Normaliser, Normaliser]:
    """For train and val, and for test."""
    channels = len(data.mean)
    if recipe.normalisation == "none":
        plain = Normaliser((0.0,) * channels, (1.0,) * channels, device)
        return plain, plain
    if recipe.normalisation == "imagenet-test" and channels != len(IMAGENET[0]):
        raise InputError(f"normalisation: imagenet-test is for images of three channels; {data.name} has {channels}")
    usual = Normaliser(data.mean, data.std, device)
    return usual, Normaliser(*IMAGENET, device) if recipe.normalisation == "imagenet-test" else usual


def on_device(inputs: Tensor, device: torch.device, pad: int = 0) -> Tensor:
    """Images as bytes (N, H, W, C) with black pixels around them; features, tokens and trees as they are."""
    if inputs.dtype != torch.uint8:
        return inputs.to(device)
    return F.pad(inputs.to(device), (pad,) * 4).permute(0, 2, 3, 1).contiguous()


def crop_flip(images: Tensor, chosen: Tensor, top: Tensor, left: Tensor, mirror: Tensor, pad: int = PAD) -> Tensor:
    """The chosen ones of padded images (N, H + 2 pad, W + 2 pad, C), each cut at its own place: (B, H, W, C)."""
    height, width = images.shape[1] - 2 * pad, images.shape[2] - 2 * pad
    row = top[:, None] + torch.arange(height, device=images.device)
    column = torch.arange(width, device=images.device).expand(len(chosen), width)
    column = left[:, None] + torch.where(mirror[:, None], width - 1 - column, column)
    return images[chosen[:, None, None], row[:, :, None], column[:, None, :]]


class Batches:
    """The training samples in the order of an epoch, a batch at a call."""

    def __init__(self, split: Split, normaliser: Normaliser, recipe: Recipe, device: torch.device) -> None:
        self.augmented = recipe.augmentation == "crop-flip"
        if self.augmented and split.inputs.dtype != torch.uint8:
            raise InputError("augmentation: crop-flip is for images, and these are none")
        self.seed, self.normaliser = recipe.seed, normaliser
        self.inputs = on_device(split.inputs, device, PAD if self.augmented else 0)
        self.targets = (split.labels if split.targets is None else split.targets).to(device)
        many = len(split)
        self.order = torch.zeros(many, dtype=torch.int64, device=device)
        self.cuts = torch.zeros(3, many, dtype=torch.int64, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)

    def draw(self, epoch: int) -> None:
        """Makes the plan of an epoch and goes to its beginning."""
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch, "samples"))
        self.order.copy_(torch.randperm(len(self.order), generator=generator))
        if self.augmented:
            self.cuts[:2] = torch.randint(0, 2 * PAD + 1, (2, len(self.order)), generator=generator)
            self.cuts[2] = torch.randint(0, 2, (len(self.order),), generator=generator)
        self.position.zero_()

    def next(self, size: int) -> tuple[Tensor, Tensor]:
        """The inputs, ready for the net, and the labels of the next ``size`` samples; of trees, those of all nodes."""
        rows = self.position + torch.arange(size, device=self.order.device)
        self.position += size
        chosen = self.order[rows]
        if self.augmented:
            top, left, mirror = self.cuts[:, rows]
            stored = crop_flip(self.inputs, chosen, top, left, mirror.bool())
        else:
            stored = self.inputs[chosen]
        targets = self.targets[chosen]
        return self.normaliser(stored), targets if targets.ndim == 1 else targets[targets != NOTHING]
