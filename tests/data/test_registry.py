"""load: names, options and messages."""

import pytest
import torch

from trueup import InputError
from trueup.data import SOURCES, load
from trueup.data.registry import options_of


def test_options_come_from_the_name_or_as_arguments():
    one = load("gaussians:classes=4,dimension=3,train=20,val=10,test=30,separation=2,seed=5")
    other = load("gaussians", classes=4, dimension=3, train=20, val=10, test=30, separation=2.0, seed=5)
    mixed = load("gaussians: classes=4, dimension=3", train=20, val=10, test=30, separation=2, seed=5)
    assert one.checksum == other.checksum == mixed.checksum
    assert [len(one.train), len(one.val), len(one.test), one.classes, *one.input_shape] == [20, 10, 30, 4, 3]


def test_the_same_thing_said_twice_is_no_quarrel():
    assert load("digits:seed=3", seed=3).checksum == load("digits", seed=3).checksum == load("digits:seed=3").checksum


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_has_split_and_seed_and_says_so(name):
    assert list(options_of(name))[:2] == ["split", "seed"]
    assert SOURCES[name].__doc__
    with pytest.raises(InputError, match=f"{name} has no option 'colour'; known: split, seed"):
        load(name, colour=1)
    with pytest.raises(InputError, match="split: unknown 'odd'; known: seeded, mukhoti2020, wang2021"):
        SOURCES[name](split="odd")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cifar", {}, "unknown data set 'cifar'; known: digits, gaussians, cifar10, cifar100, fashion-mnist, cifar10h"),
        ("", {}, "unknown data set ''"),
        ("gaussians:clases=3", {}, "gaussians has no option 'clases'; known: split, seed, classes, dimension, train"),
        ("gaussians:classes", {}, "expected option=value after the colon, got 'classes'"),
        ("gaussians:", {}, "expected option=value"),
        ("gaussians:classes=3,", {}, "expected option=value"),
        ("gaussians:classes=three", {}, "classes is 'three'; expected a whole number"),
        ("gaussians:classes=", {}, "classes is ''; expected a whole number"),
        ("gaussians:separation=wide", {}, "separation is 'wide'; expected a number"),
        ("gaussians:classes=3,classes=4", {}, "classes is given twice"),
        ("gaussians:classes=3", {"classes": 4}, "classes: .*say different things"),
        ("digits:seed=3", {"seed": 4}, "seed: .*say different things"),
        ("gaussians:classes=1", {}, "classes: expected a whole number of at least 2, got 1"),
        ("gaussians:dimension=0", {}, "dimension: expected a whole number of at least 1"),
        ("gaussians:train=0", {}, "train: expected a whole number of at least 1"),
        ("gaussians:separation=-1", {}, "separation: expected a number of at least 0"),
        ("gaussians:separation=nan", {}, "separation: expected a number of at least 0"),
        ("gaussians", {"classes": 2.5}, "classes: expected a whole number"),
        ("cifar100:labels=medium", {}, "labels: expected fine or coarse, got 'medium'"),
        ("digits:seed=-1", {}, "seed: expected a whole number"),
    ],
)
def test_a_name_that_cannot_be_loaded_says_why(name, options, message):
    with pytest.raises(InputError, match=message):
        load(name, **options)


@pytest.mark.parametrize("name", ["digits", "gaussians:train=50,val=20,test=30"])
@pytest.mark.parametrize("split", ["seeded", "mukhoti2020", "wang2021"])
def test_sources_without_files_keep_the_contract(name, split):
    data, again = (load(name, split=split, seed=2) for _ in range(2))
    assert data.checksum == again.checksum
    assert data.name == name.partition(":")[0]
    for part in data.splits().values():
        assert part.inputs.is_contiguous()
        assert part.inputs.dtype == (torch.uint8 if data.mean else torch.float32)
