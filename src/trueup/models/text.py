"""Nets that read words: text-cnn for documents. The trees have a file of their own.

Their word vectors are an ``nn.Embedding`` that starts from those of the data; whether it is trained, and how, is said
by the recipe.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trueup.inputs import InputError

WIDTH, KERNEL, POOL, DROPOUT = 128, 5, 5, 0.3
REACH = 1 + 3 * (KERNEL - 1) + 2 * (POOL - 1)
"""So many tokens decide each feature before the last pooling: 21."""
GROUP = 8
"""Documents of like length that a CPU takes at once."""


def text_cnn(classes: int, input_shape: tuple[int, ...], words: Tensor) -> nn.Module:
    """The "global pooling CNN" of mukhoti2020 for documents of L >= 21 tokens, padded in front.

    After the code they adapted (Kumar et al. 2018): three convolutions of 128 filters over 5 words, each with ReLU, the
    first two with max-pooling over 5 words at stride 1; the maximum over the document; a layer of 128, dropout 0.3, and
    the logits. PyTorch's default initialisation.
    """
    if len(input_shape) == 2:
        raise InputError(f"model 'text-cnn': reads documents, and these data are trees {input_shape}; tree-lstm does")
    if len(input_shape) != 1 or input_shape[0] < REACH:
        raise InputError(f"input_shape: text-cnn takes documents (L,) of at least {REACH} tokens, got {input_shape}")
    return TextCNN(classes, words)


class TextCNN(nn.Module):
    """(N, L) tokens in, (N, classes) logits out. Words are channels-last: the vectors are looked up and not copied."""

    def __init__(self, classes: int, words: Tensor) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(words.clone(), freeze=False, padding_idx=0)
        self.conv1 = nn.Conv2d(words.shape[1], WIDTH, (1, KERNEL))
        self.conv2 = nn.Conv2d(WIDTH, WIDTH, (1, KERNEL))
        self.conv3 = nn.Conv2d(WIDTH, WIDTH, (1, KERNEL))
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.fc = nn.Linear(WIDTH, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        in_groups = tokens.device.type == "cpu" and not torch.compiler.is_compiling()
        features = self.features_by_length(tokens) if in_groups else self.features(tokens)
        return self.fc(self.dropout(F.relu(self.hidden(features))))

    def features(self, tokens: Tensor) -> Tensor:
        """(N, 128), the maximum over each document."""
        x = self.words(tokens).unsqueeze(1).permute(0, 3, 1, 2)
        for layer in (self.conv1, self.conv2):
            x = F.max_pool2d(F.relu(layer(x)), (1, POOL), stride=1)
        return F.relu(self.conv3(x)).amax((2, 3))

    def features_by_length(self, tokens: Tensor) -> Tensor:
        """The same without most of the padding, which is most of the work: documents of like length go together.

        Padding alone gives the same features wherever it is. Each group keeps as much of it as one feature sees: these
        are then among the values whose maximum is taken wherever they were before.
        """
        length = tokens.shape[1]
        used = ((tokens != 0) * torch.arange(length, 0, -1)).amax(1)
        order = used.argsort()
        kept = [(rows, min(length, int(used[rows[-1]]) + REACH)) for rows in order.split(GROUP)]
        return torch.cat([self.features(tokens[rows, length - size :]) for rows, size in kept])[order.argsort()]
