"""Splits, checksums, and the checks at the edge."""

import hashlib
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trueup import InputError
from trueup.data import SPLITS, Split, assemble, checksum, split_rows


def images(count=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (count, 3, 4, 4), generator=generator, dtype=torch.uint8)
    return Split(x, torch.arange(count) % 2)


def made(**changes):
    parts = {"train": images(), "val": images(3, 1), "test": images(4, 2), "class_names": ("a", "b")}
    return assemble("mine", **(parts | {"mean": (0.5,) * 3, "std": (0.2,) * 3} | changes))


@pytest.mark.parametrize("split", SPLITS)
@given(count=st.integers(2, 3000), seed=st.integers(0, 2**32 - 1))
def test_every_sample_is_in_exactly_one_split(split, count, seed):
    train, val = split_rows(count, split, seed)
    assert sorted([*train, *val]) == list(range(count))
    assert len(val) == max(1, round(count / 10))


def test_mukhoti2020_is_the_line_of_the_authors_code():
    state = np.random.get_state()
    try:
        np.random.seed(1)
        order = list(range(50_000))
        np.random.shuffle(order)
    finally:
        np.random.set_state(state)
    train, val = split_rows(50_000, "mukhoti2020", seed=7)
    assert val.tolist() == order[:5000]
    assert train.tolist() == order[5000:]


def test_wang2021_is_the_line_of_the_authors_code():
    order = np.random.RandomState(101).permutation(50_000)
    train, val = split_rows(50_000, "wang2021", seed=7)
    assert np.array_equal(train, order[:45_000])
    assert np.array_equal(val, order[45_000:])


def test_seeds_differ_and_repeat_and_leave_the_global_stream_alone():
    before = np.random.get_state()[1].copy()
    first, again, other = (split_rows(1000, "seeded", seed)[1] for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    split_rows(1000, "mukhoti2020")
    assert np.array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, "random"), "split: unknown 'random'; known: seeded, mukhoti2020, wang2021"),
        ((10, "seeded", -1), "seed: expected a whole number"),
        ((10, "seeded", 2**32), r"seed: .*below 2\*\*32"),
        ((10, "seeded", 1.5), "seed"),
        ((1, "seeded"), "at least two"),
    ],
)
def test_a_split_that_cannot_be_made_says_why(arguments, message):
    with pytest.raises(InputError, match=message):
        split_rows(*arguments)


def test_the_checksum_is_its_definition():
    data = made()
    digest = hashlib.sha256()
    for part in ("train", "val", "test"):
        split = getattr(data, part)
        for field in ("inputs", "labels"):
            tensor = getattr(split, field)
            digest.update(f"{part}.{field} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.numpy().tobytes())
    assert data.checksum == digest.hexdigest()


def test_the_checksum_sees_every_tensor_and_not_how_it_lies_in_memory():
    data = made()
    seen = {data.checksum}
    for part in ("train", "val", "test"):
        split = getattr(data, part)
        inputs = split.inputs.clone()
        inputs[-1, -1, -1, -1] ^= 1
        posteriors = torch.full((len(split), 2), 0.5, dtype=torch.float64)
        for changed in (
            replace(split, inputs=inputs),
            replace(split, labels=1 - split.labels),
            replace(split, posteriors=posteriors),
        ):
            seen.add(made(**{part: changed}).checksum)
    assert len(seen) == 10
    swapped = replace(data.train, inputs=data.train.inputs.to(memory_format=torch.channels_last))
    assert checksum(swapped, data.val, data.test) == data.checksum


def test_a_data_set_cannot_be_changed_and_prints_short():
    data = made()
    with pytest.raises(FrozenInstanceError):
        data.name = "other"
    with pytest.raises(FrozenInstanceError):
        data.train.labels = data.val.labels
    assert repr(data).startswith("Dataset(mine: 6 train, 3 val, 4 test of (3, 4, 4), 2 classes, ")
    assert repr(data.train) == "Split(6 of (3, 4, 4))"
    assert (data.classes, data.input_shape, len(data.val)) == (2, (3, 4, 4), 3)


TEXT = Split(torch.tensor([[0, 1, 2], [0, 0, 1]]).int(), torch.tensor([0, 1]))
TREE = Split(torch.tensor([[[0, 0], [1, 1], [2, 1]]] * 2).int(), torch.tensor([0, 1]))
VECTORS = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]])


def texts(split=TEXT, words=VECTORS):
    return assemble("texts", train=split, val=split, test=split, class_names=("a", "b"), words=words)


def test_the_checksum_sees_words_and_targets():
    plain = replace(TREE, targets=torch.zeros(2, 3).long())
    other = replace(TREE, targets=torch.tensor([[0, 2, -100]] * 2))
    found = {texts(split, words).checksum for split in (TEXT, TREE, plain, other) for words in (VECTORS, 2 * VECTORS)}
    assert len(found) == 8


FEATURES = Split(torch.zeros(2, 5), torch.tensor([0, 1]))
BAD = {
    "float images": (lambda: Split(torch.zeros(2, 3, 4, 4), torch.tensor([0, 1])), "inputs: expected uint8"),
    "double features": (lambda: Split(torch.zeros(2, 3).double(), torch.tensor([0, 1])), "inputs: .*float64"),
    "no sample": (lambda: Split(torch.zeros(0, 3), torch.zeros(0).long()), "empty"),
    "short labels": (lambda: Split(torch.zeros(2, 3), torch.tensor([0])), r"labels: .*\(2,\)"),
    "int32 labels": (lambda: Split(torch.zeros(2, 3), torch.tensor([0, 1]).int()), "labels: .*int32"),
    "short posteriors": (lambda: replace(FEATURES, posteriors=torch.ones(1, 2).double()), "posteriors"),
    "float32 posteriors": (lambda: replace(FEATURES, posteriors=torch.ones(2, 2)), "posteriors: .*float32"),
    "a label too large": (lambda: made(val=Split(images(2).inputs, torch.tensor([0, 2]))), "val labels: row 1 is 2"),
    "another shape": (lambda: made(test=FEATURES), r"test: inputs of \(5,\)"),
    "posteriors of three": (
        lambda: made(val=replace(images(2), posteriors=torch.ones(2, 3).double())),
        "val: posteriors of 3 classes, not 2",
    ),
    "texts without words": (lambda: texts(words=None), "words: texts need a vector for each token"),
    "images with words": (lambda: made(words=torch.zeros(3, 2)), "words: only texts have"),
    "a first vector": (lambda: texts(words=torch.ones(3, 2)), "the first of them zero"),
    "double vectors": (lambda: texts(words=torch.zeros(3, 2).double()), "words: expected float32"),
    "a token too large": (lambda: texts(words=torch.zeros(2, 2)), "train: tokens outside 0 to 1"),
    "long tokens": (lambda: Split(torch.zeros(2, 3).long(), torch.tensor([0, 1])), "inputs: .*int64"),
    "targets of documents": (lambda: replace(TEXT, targets=torch.zeros(2, 3).long()), "targets: expected int64"),
    "int32 targets": (lambda: replace(TREE, targets=torch.zeros(2, 3).int()), "targets: .*int32"),
    "a target too large": (lambda: texts(replace(TREE, targets=torch.full((2, 3), 3))), "train: targets above 2"),
    "a target too small": (lambda: texts(replace(TREE, targets=torch.full((2, 3), -1))), "train: targets below 0"),
    "one class": (lambda: made(class_names=("a",)), "at least two"),
    "no mean": (lambda: made(mean=()), "mean, std: expected 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_a_data_set_says_why(case):
    make, message = BAD[case]
    with pytest.raises(InputError, match=message):
        make()
