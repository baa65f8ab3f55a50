"""The binary (constituency) Tree-LSTM of Tai et al. (2015), all trees of a batch at once, level by level.

Of a leaf with the vector x:             c = W x + b,   h = sigmoid(V x + d) tanh(c)
Of a node over (h, c) and (h', c'):      i, f, f', u = A h + B h' + e,
                                         c = sigmoid(i) tanh(u) + sigmoid(f) c + sigmoid(f') c',   h = tanh(c)

This is the form of the code that mukhoti2020 names: inner nodes have no output gate.

As :mod:`trueup.data.trees` orders nodes, the parts of the k-th inner node of a level are nodes 2k and 2k + 1 of the
level below, over all trees of a batch. So a level is one matrix product over the pairs of the level below, and a state
is read once. Nothing is done node by node.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trueup.inputs import InputError

WIDTH, DROPOUT = 150, 0.5


def tree_lstm(classes: int, input_shape: tuple[int, ...], words: Tensor) -> nn.Module:
    """A Tree-LSTM 150 wide with dropout 0.5 before its output, for trees (M, 2). PyTorch's default initialisation."""
    if len(input_shape) == 1:
        raise InputError(f"model 'tree-lstm': reads trees, and these data are documents {input_shape}; text-cnn does")
    if len(input_shape) != 2 or input_shape[1] != 2:
        raise InputError(f"input_shape: tree-lstm takes packed trees (M, 2), got {input_shape}")
    return TreeLSTM(classes, words)


class Levels(NamedTuple):
    """The nodes of a batch of trees, level by level from the roots."""

    order: Tensor
    """(n,) where each node is in the batch, flattened to (N M,)."""
    words: Tensor
    """(leaves,) of the leaves, in this order."""
    places: list[Tensor]
    """For each level where its nodes are among its leaves followed by its inner nodes."""
    leaves: list[int]
    """How many each level has; the rest of its nodes are inner ones, half as many as the next level has nodes."""


def levels_of(trees: Tensor) -> Levels:
    """The plan for a batch (N, M, 2) of packed trees."""
    words, depths = trees.flatten(0, 1).long().unbind(1)
    kept = (depths >= 0).nonzero().squeeze(1)
    depths, by_level = depths[kept].sort(stable=True)
    order = kept[by_level]
    words = words[order]
    is_leaf = words > 0
    sizes = torch.bincount(depths)
    leaves = torch.bincount(depths[is_leaf], minlength=len(sizes))
    first = sizes.cumsum(0) - sizes
    earlier = leaves.cumsum(0) - leaves
    rank = is_leaf.cumsum(0) - 1 - earlier[depths]  # among the leaves of its level, for a leaf
    here = torch.arange(len(words), device=words.device) - first[depths]
    place = torch.where(is_leaf, rank, leaves[depths] + here - rank - 1)
    counts, leaf_counts = torch.stack([sizes, leaves]).tolist()
    return Levels(order, words[is_leaf], list(place.split(counts)), leaf_counts)


class _OfTrees(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net: Any = net


class EveryNode(_OfTrees):
    """A net over trees as it is trained: its outputs are those of :meth:`TreeLSTM.of_nodes`."""

    def forward(self, trees: Tensor) -> Tensor:
        return self.net.of_nodes(trees)


class EveryOutput(_OfTrees):
    """The same net with all outputs of the roots: those of :meth:`TreeLSTM.of_roots`."""

    def forward(self, trees: Tensor) -> Tensor:
        return self.net.of_roots(trees)


class TreeLSTM(nn.Module):
    """(N, M, 2) packed trees in, (N, classes) logits of their roots out; :meth:`of_nodes` gives those of all nodes."""

    def __init__(self, classes: int, words: Tensor, width: int = WIDTH) -> None:
        super().__init__()
        self.classes, self.width = classes, width
        self.words = nn.Embedding.from_pretrained(words.clone(), freeze=False)
        self.leaf = nn.Linear(words.shape[1], 2 * width)
        self.pair = nn.Linear(2 * width, 4 * width)
        self.dropout = nn.Dropout(DROPOUT)
        self.fc = nn.Linear(width, classes + 1)

    def forward(self, trees: Tensor) -> Tensor:
        return self.of_roots(trees)[:, : self.classes]

    def of_roots(self, trees: Tensor) -> Tensor:
        """(N, classes + 1) with the last class of :meth:`of_nodes`, which is none that a whole tree is judged by."""
        roots = self.states(levels_of(trees))[0]
        return self.fc(self.dropout(roots[:, : self.width]))

    def of_nodes(self, trees: Tensor) -> Tensor:
        """(nodes, classes + 1) for every node of every tree, in the order of the batch without padding.

        The last class is for a part of a sentence that is of none of the others.
        """
        plan = levels_of(trees)
        hidden = torch.cat([state[:, : self.width] for state in self.states(plan)])
        return self.fc(self.dropout(hidden[plan.order.argsort()]))

    def states(self, plan: Levels) -> list[Tensor]:
        """(nodes, 2 width) for each level from the roots on: h and c of each node side by side."""
        below: Tensor | None = None
        found = []
        of_leaves = self.of_leaves(plan.words).split(plan.leaves)
        for leaves, place in zip(reversed(of_leaves), reversed(plan.places), strict=True):
            state = leaves if below is None else torch.cat([leaves, self.of_pairs(below)])
            below = state.index_select(0, place)
            found.append(below)
        return found[::-1]

    def of_leaves(self, words: Tensor) -> Tensor:
        """(leaves, 2 width)."""
        cell, gate = self._wide(self.leaf(self.words(words))).chunk(2, 1)
        return torch.cat([gate.sigmoid() * cell.tanh(), cell], 1)

    def of_pairs(self, below: Tensor) -> Tensor:
        """(n, 2 width) from the states (2n, 2 width) of the level below, pair by pair."""
        pairs = below.unflatten(0, (-1, 2))
        hidden, cells = pairs[..., : self.width], pairs[..., self.width :]
        gates = self._wide(self.pair(hidden.flatten(1)))
        i, left, right = gates[:, : 3 * self.width].sigmoid().chunk(3, 1)
        update = gates[:, 3 * self.width :].tanh()
        cell = i * update + left * cells[:, 0] + right * cells[:, 1]
        return torch.cat([cell.tanh(), cell], 1)

    def _wide(self, x: Tensor) -> Tensor:
        """In the precision of the weights: the cells add up over many levels, which autocast is not to round."""
        return x.to(self.leaf.weight.dtype)
