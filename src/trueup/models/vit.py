"""Vision transformer (Dosovitskiy et al., 2021) of the size that DeiT calls tiny, with patches of 4 x 4 pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trueup.models.shapes import square_image

PATCH = 4


def vit_tiny(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Width 192, 12 blocks, 3 heads, no dropout; 5.4 million parameters at 32 x 32 pixels.

    As DeiT has it, weights of linear layers, the class token and the positions come from a truncated N(0, 0.02^2) and
    biases are zero; the convolution that embeds the patches keeps PyTorch's default.
    """
    channels, side = square_image(
        "vit-tiny", input_shape, f"H = W = 32 (or another multiple of {PATCH})", lambda n: n > 0 and n % PATCH == 0
    )
    return VisionTransformer(192, 12, 3, (side // PATCH) ** 2, classes, channels)


class Attention(nn.Module):
    """softmax(Q K' / sqrt(d)) V over (N, T, width), in heads of d channels.

    Written out: the fused kernels behind ``scaled_dot_product_attention`` have no second derivative and no forward
    mode, which curvature needs, and 65 tokens are few.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        )  # each (N, heads, T, d)
        weights = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention, then two linear layers with GELU between them, each over a normalised input and added to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Patches as tokens, a class token before them; the logits are read from the class token."""

    def __init__(self, width: int, depth: int, heads: int, patches: int, classes: int, channels: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(channels, width, PATCH, PATCH)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + patches, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.fc = nn.Linear(width, classes)
        for weights in (self.class_token, self.positions):
            nn.init.trunc_normal_(weights, std=0.02)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).transpose(1, 2)  # (N, patches, width)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], 1) + self.positions
        return self.fc(self.norm(self.blocks(tokens)[:, 0]))
