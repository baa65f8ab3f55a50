"""Binary trees with a label at every node: read from brackets, packed into rows of numbers, and back.

A tree is packed level by level from the root, each level from left to right. In that order the parts of the k-th inner
node are nodes 2k + 1 and 2k + 2: which nodes are leaves says all about the shape, and no pointer has to be kept. For
many trees it says more: taken level by level over all of them, the parts of the k-th inner node of a level are nodes 2k
and 2k + 1 of the next. So a net can combine whole levels of a batch with no list of who belongs to whom.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from trueup.inputs import InputError

LABELS = ("0", "1", "2", "3", "4")
NOTHING = -100
"""The label past the end of a tree, which losses ignore."""

_PIECE = re.compile(r"[()]|[^ ()]+")
"""Split at ASCII spaces only: a word may hold a no-break one."""


class Leaf(NamedTuple):
    label: int
    word: str


class Node(NamedTuple):
    label: int
    left: Tree
    right: Tree


Tree: TypeAlias = Leaf | Node


class Packed(NamedTuple):
    """The nodes of a tree, level by level from the root."""

    words: list[str]
    """Empty for inner nodes."""
    depths: list[int]
    labels: list[int]


# ---------------------------------------------------------------------- brackets


def parse(text: str) -> Tree:
    """The tree of a text such as ``(3 (2 It) (4 works))``: a label, and a word or two trees, in brackets.

    >>> parse("(3 (2 It) (4 works))")
    Node(label=3, left=Leaf(label=2, word='It'), right=Leaf(label=4, word='works'))
    """
    open_brackets: list[list[str | Tree]] = []
    whole: Tree | None = None
    for piece in _PIECE.findall(text):
        if whole is not None:
            raise InputError(f"{piece!r} comes after the last bracket is closed")
        if piece == "(":
            open_brackets.append([])
        elif not open_brackets:
            raise InputError(f"{piece!r} is outside of all brackets")
        elif piece != ")":
            open_brackets[-1].append(piece)
        else:
            tree = _closed(open_brackets.pop())
            if open_brackets:
                open_brackets[-1].append(tree)
            else:
                whole = tree
    if whole is None:
        count = len(open_brackets)
        raise InputError(f"{count} bracket{'s' * (count > 1)} never closed" if count else "there is no tree")
    return whole


def _closed(content: list[str | Tree]) -> Tree:
    match content:
        case [str(label), *_] if label not in LABELS:
            raise InputError(f"the label {label!r} is not one of {', '.join(LABELS)}")
        case [str(label), str(word)]:
            return Leaf(int(label), word)
        case [str(label), Leaf() | Node() as left, Leaf() | Node() as right]:
            return Node(int(label), left, right)
    shown = " ".join(part if isinstance(part, str) else "(...)" for part in content)
    raise InputError(f"expected a label and a word, or a label and two trees, in brackets; got ({shown})")


def written(tree: Tree) -> str:
    """The text that :func:`parse` reads."""
    if isinstance(tree, Leaf):
        return f"({tree.label} {tree.word})"
    return f"({tree.label} {written(tree.left)} {written(tree.right)})"


# ---------------------------------------------------------------------- rows of numbers


def pack(tree: Tree) -> Packed:
    """The nodes of a tree, level by level.

    >>> pack(parse("(3 (2 It) (4 works))"))
    Packed(words=['', 'It', 'works'], depths=[0, 1, 1], labels=[3, 2, 4])
    """
    packed = Packed([], [], [])
    level, depth = [tree], 0
    while level:
        below: list[Tree] = []
        for node in level:
            leaf = isinstance(node, Leaf)
            packed.words.append(node.word if leaf else "")
            packed.labels.append(node.label)
            if not leaf:
                below += node[1:]
        packed.depths.extend([depth] * len(level))
        level, depth = below, depth + 1
    return packed


def unpack(packed: Packed) -> Tree:
    """The tree again: the parts of the k-th inner node are nodes 2k + 1 and 2k + 2."""
    built: list[Tree] = [Leaf(*each) for each in zip(packed.labels, packed.words, strict=True)]
    inner = [place for place, word in enumerate(packed.words) if not word]
    for k in reversed(range(len(inner))):
        built[inner[k]] = Node(packed.labels[inner[k]], built[2 * k + 1], built[2 * k + 2])
    return built[0]


def arrays(trees: Sequence[Packed], index: Mapping[str, int], nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (N, M, 2) int32, the word's number and the depth of each; labels (N, M) int64. M is ``nodes``.

    The word of an inner node is 0, and past the end of a tree the depth is -1.
    """
    packed = np.zeros((len(trees), nodes, 2), np.int32)
    labels = np.full((len(trees), nodes), NOTHING, np.int64)
    packed[:, :, 1] = -1
    for row, tree in enumerate(trees):
        size = len(tree.words)
        packed[row, :size, 0] = [index[word] if word else 0 for word in tree.words]
        packed[row, :size, 1] = tree.depths
        labels[row, :size] = tree.labels
    return packed, labels


def vocabulary(trees: Iterable[Packed]) -> list[str]:
    """The words of all leaves in the order of their first appearance."""
    return list(dict.fromkeys(word for tree in trees for word in tree.words if word))
