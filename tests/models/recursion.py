"""The Tree-LSTM as its formulas read: a node at a time, by recursion. The slow reference of tests and benchmarks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def nested(tree: Tensor) -> Any:
    """A packed tree (M, 2) as (place, word) for a leaf and (place, left, right) for a node."""
    words = [word for word, depth in tree.tolist() if depth >= 0]
    built: list[Any] = list(enumerate(words))
    inner = [place for place, word in enumerate(words) if word == 0]
    for k in reversed(range(len(inner))):
        built[inner[k]] = (inner[k], built[2 * k + 1], built[2 * k + 2])
    return built[0]


def words_of(tree: Any) -> list[int]:
    return [tree[1]] if len(tree) == 2 else words_of(tree[1]) + words_of(tree[2])


def recursive(net: Any, tree: Any, vectors: list[Tensor], logits: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
    """(h, c) of a nested tree, whose leaves take the last of ``vectors``; ``logits`` gets each node's by its place."""
    if len(tree) == 2:
        c, o = net.leaf(vectors.pop()).chunk(2)
        h = torch.sigmoid(o) * torch.tanh(c)
    else:
        h_left, c_left = recursive(net, tree[1], vectors, logits)
        h_right, c_right = recursive(net, tree[2], vectors, logits)
        i, f_left, f_right, u = net.pair(torch.cat([h_left, h_right])).chunk(4)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f_left) * c_left + torch.sigmoid(f_right) * c_right
        h = torch.tanh(c)
    logits[tree[0]] = net.fc(net.dropout(h))
    return h, c


def node_logits(net: Any, trees: list[Any]) -> Tensor:
    """(nodes, classes + 1) of nested trees, each in the order of packing. The words of all are looked up at once."""
    device = net.words.weight.device
    words = [word for tree in trees for word in words_of(tree)]
    vectors = list(net.words(torch.tensor(words, device=device)).unbind())[::-1]
    found: list[Tensor] = []
    for tree in trees:
        logits: dict[int, Tensor] = {}
        recursive(net, tree, vectors, logits)
        found += [logits[place] for place in sorted(logits)]
    return torch.stack(found)
