"""Trees: brackets and back, packed and back, and what is no tree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup import InputError
from trueup.data import trees
from trueup.data.trees import Leaf, Node, Packed

WORDS = st.text(st.characters(blacklist_characters=" ()\n\r", blacklist_categories=("Cs",)), min_size=1, max_size=6)
LEAVES = st.builds(Leaf, st.integers(0, 4), WORDS)
TREES = st.recursive(LEAVES, lambda part: st.builds(Node, st.integers(0, 4), part, part), max_leaves=40)


@given(TREES)
def test_what_is_written_is_read(tree):
    text = trees.written(tree)
    assert trees.parse(text) == tree
    assert trees.parse(f"  {text.replace('(', '( ').replace(')', '  )')} ") == tree


@given(TREES)
def test_what_is_packed_is_unpacked(tree):
    packed = trees.pack(tree)
    assert trees.unpack(packed) == tree
    assert packed.depths == sorted(packed.depths)


def depths(tree, depth=0):
    return [depth] + ([] if isinstance(tree, Leaf) else depths(tree.left, depth + 1) + depths(tree.right, depth + 1))


@given(st.lists(TREES, min_size=1, max_size=6))
def test_the_parts_of_the_kth_inner_node_of_a_level_are_the_kth_pair_of_the_next(some):
    """Over all trees at once: what the net relies on."""
    packed = [trees.pack(tree) for tree in some]
    for tree, row in zip(some, packed, strict=True):
        assert sorted(depths(tree)) == row.depths
    for depth in range(max(max(row.depths) for row in packed)):
        level, below = ([n for row in some for n in at(row, d)] for d in (depth, depth + 1))
        parts = [part for node in level if isinstance(node, Node) for part in node[1:]]
        assert parts == below


def at(tree, depth):
    """The nodes of a depth from left to right."""
    if depth == 0:
        return [tree]
    return [] if isinstance(tree, Leaf) else at(tree.left, depth - 1) + at(tree.right, depth - 1)


@given(st.lists(TREES, min_size=1, max_size=5))
def test_arrays_hold_the_trees(some):
    packed = [trees.pack(tree) for tree in some]
    vocabulary = trees.vocabulary(packed)
    index = {word: number for number, word in enumerate(vocabulary, 1)}
    size = max(len(row.words) for row in packed) + 2
    nodes, labels = trees.arrays(packed, index, size)
    assert nodes.shape == (len(some), size, 2)
    assert len(vocabulary) == len(index)
    for i, tree in enumerate(some):
        used = nodes[i, :, 1] >= 0
        assert np.array_equal(used, labels[i] != trees.NOTHING)
        words = [vocabulary[w - 1] if w else "" for w in nodes[i, used, 0]]
        assert trees.unpack(Packed(words, nodes[i, used, 1].tolist(), labels[i, used].tolist())) == tree


def test_a_deep_tree_is_read_without_recursion():
    text = "(2 (1 a) " * 3000 + "(2 b)" + ")" * 3000
    packed = trees.pack(trees.parse(text))
    assert packed.depths[-1] == 3000
    assert len(packed.words) == 6001


def test_only_ascii_spaces_part_words():
    assert trees.parse("(3 (2 8\N{NO-BREAK SPACE}1/2) (2 x))").left.word == "8\N{NO-BREAK SPACE}1/2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no tree"),
        ("   ", "there is no tree"),
        ("(3 (2 It) (4 works)", "1 bracket never closed"),
        ("(3 (2 It", "2 brackets never closed"),
        ("(3 (2 It) (4 works)))", r"'\)' comes after the last bracket"),
        ("(2 a) (2 b)", r"'\(' comes after"),
        ("word", "'word' is outside of all brackets"),
        (")", "outside of all brackets"),
        ("(5 (2 It) (4 works))", "the label '5' is not one of 0, 1, 2, 3, 4"),
        ("(-1 word)", "the label '-1'"),
        ("(x word)", "the label 'x'"),
        ("(12 word)", "the label '12'"),
        ("(2)", r"got \(2\)"),
        ("()", r"got \(\)"),
        ("((2 a) (2 b))", r"got \(\(...\) \(...\)\)"),
        ("(2 a b)", r"got \(2 a b\)"),
        ("(2 (2 a))", r"got \(2 \(...\)\)"),
        ("(2 (2 a) b)", r"got \(2 \(...\) b\)"),
        ("(2 (2 a) (2 b) (2 c))", "two trees"),
    ],
)
def test_what_is_no_tree_says_why(text, message):
    with pytest.raises(InputError, match=message):
        trees.parse(text)
