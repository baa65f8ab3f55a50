"""Digits, Gaussians and Fashion-MNIST."""

import gzip
import math

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits

from tests.data.layouts import idx, write_fashion
from trueup import InputError
from trueup.data import gaussians as module
from trueup.data import load

# ---------------------------------------------------------------------- digits


def test_digits_are_all_there_once():
    data, raw = load("digits"), load_digits()
    assert [len(split) for split in data.splits().values()] == [1078, 269, 450]
    found = torch.cat([split.inputs for split in data.splits().values()]).flatten(1)
    labels = torch.cat([split.labels for split in data.splits().values()])
    expected = np.rint(raw["data"] * 255 / 16)
    rows = sorted(map(tuple, np.column_stack([found.numpy(), labels.numpy()]).tolist()))
    assert rows == sorted(map(tuple, np.column_stack([expected, raw["target"]]).astype(int).tolist()))
    assert (found.min(), found.max()) == (0, 255)
    scaled = found.double() / 255
    assert data.mean[0] == pytest.approx(float(scaled.mean()), abs=1e-4)
    assert data.std[0] == pytest.approx(float(scaled.std()), abs=1e-4)


def test_digits_hold_out_the_same_share_of_every_class():
    data = load("digits", seed=4)
    total = sum(split.labels.bincount() for split in data.splits().values())
    for split, share in zip(data.splits().values(), (0.6, 0.15, 0.25), strict=True):
        assert (split.labels.bincount() - share * total).abs().max() <= 1


def test_the_seed_of_digits_moves_validation_and_leaves_the_test_set():
    first, other, papers = load("digits"), load("digits", seed=1), load("digits", split="mukhoti2020")
    assert torch.equal(first.test.inputs, other.test.inputs)
    assert torch.equal(first.test.inputs, papers.test.inputs)
    assert not torch.equal(first.val.inputs, other.val.inputs)
    assert len(papers.val) == 135


# ---------------------------------------------------------------------- Gaussians


def test_the_posterior_is_bayes_rule():
    data = load("gaussians:classes=4,dimension=3,test=200,separation=4,seed=3")
    streams = np.random.SeedSequence(3).spawn(4)
    means = module.class_means(4, 3, 4.0, np.random.RandomState(np.random.MT19937(streams[0])))
    x = data.test.inputs.double().numpy()
    density = np.stack([multivariate_normal(mean).pdf(x) for mean in means], 1)
    np.testing.assert_allclose(data.test.posteriors, density / density.sum(1, keepdims=True), rtol=1e-10, atol=1e-300)


def test_labels_follow_the_posterior():
    data = load("gaussians:classes=5,dimension=2,test=40000,separation=2")
    p, y = data.test.posteriors, data.test.labels
    for k in range(5):
        excess = (y == k).double() - p[:, k]
        assert abs(excess.sum()) <= 4 * (p[:, k] * (1 - p[:, k])).sum().sqrt()
        weighted = excess * data.test.inputs[:, 0].double()
        assert abs(weighted.sum()) <= 4 * weighted.square().sum().sqrt()


@pytest.mark.parametrize("separation", [0.5, 1.0, 3.0])
def test_two_classes_have_the_bayes_error_of_their_distance(separation):
    data = load("gaussians", classes=2, dimension=7, test=40_000, separation=separation)
    wrong = float((data.test.posteriors.argmax(1) != data.test.labels).double().mean())
    expected = float(ndtr(-separation / 2))
    assert abs(wrong - expected) <= 4 * math.sqrt(expected * (1 - expected) / 40_000)


def test_the_mean_squared_distance_of_the_means_is_the_separation():
    means = module.class_means(12, 4, 2.5, np.random.RandomState(0))
    squares = ((means[:, None] - means) ** 2).sum(2)
    assert math.sqrt(squares.sum() / (12 * 11)) == pytest.approx(2.5, rel=1e-12)


def test_far_classes_have_finite_posteriors_and_no_separation_has_even_ones():
    far = load("gaussians", separation=1e4).test.posteriors
    assert torch.isfinite(far).all()
    torch.testing.assert_close(far.sum(1), torch.ones(len(far), dtype=torch.float64))
    even = load("gaussians:classes=4,separation=0").test.posteriors
    assert torch.equal(even, torch.full_like(even, 0.25))


def test_more_training_data_leave_the_test_set_as_it_is():
    few, many, other = load("gaussians", train=10), load("gaussians", train=5000), load("gaussians", seed=1)
    assert torch.equal(few.test.inputs, many.test.inputs)
    assert torch.equal(few.val.inputs, many.val.inputs)
    assert torch.equal(few.train.labels, many.train.labels[:10])
    assert not torch.equal(few.test.inputs, other.test.inputs)
    assert not torch.equal(few.val.inputs, few.test.inputs[:1000])


# ---------------------------------------------------------------------- Fashion-MNIST


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["fashion-mnist", "data/fashion-mnist", "FashionMNIST/raw", "."])
def test_fashion_mnist_is_what_the_files_hold(tmp_path, packed, folder):
    arrays = write_fashion(tmp_path / folder, packed=packed)
    data = load("fashion-mnist", tmp_path, split="mukhoti2020")
    order = np.arange(50)
    np.random.RandomState(1).shuffle(order)
    images, labels = arrays["train-images-idx3-ubyte"], arrays["train-labels-idx1-ubyte"]
    assert np.array_equal(data.val.inputs[:, 0], images[order[:5]])
    assert np.array_equal(data.train.labels, labels[order[5:]])
    assert np.array_equal(data.test.inputs[:, 0], arrays["t10k-images-idx3-ubyte"])
    assert np.array_equal(data.test.labels, arrays["t10k-labels-idx1-ubyte"])
    assert data.input_shape == (1, 28, 28)


IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
GOOD = idx(np.zeros((20, 28, 28)))
BAD_FILES = {
    "empty": (IMAGES, b"", "not an idx file"),
    "another magic": (IMAGES, b"\0\0\x0d\x03" + GOOD[4:], "begins 00 00 0d 03"),
    "labels for images": (IMAGES, idx(np.zeros(20)), "not an idx file of uint8 in 3 dimensions"),
    "a short header": (IMAGES, GOOD[:9], "not an idx file"),
    "truncated": (IMAGES, GOOD[:-1], "promises 15680 bytes, it holds 15679"),
    "too long": (IMAGES, GOOD + b"x", "it holds more"),
    "a huge header": (IMAGES, GOOD[:4] + b"\xff" * 12, "more than 1073741824 bytes"),
    "another size": (IMAGES, idx(np.zeros((20, 32, 32))), r"expected some of \(28, 28\)"),
    "no image": (IMAGES, idx(np.zeros((0, 28, 28))), "0 images"),
    "other labels": (LABELS, idx(np.zeros(19)), "19 labels for 20 images"),
    "a label of ten": (LABELS, idx(np.arange(20) % 11), "row 10 is 10, outside 0 to 9"),
}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_idx_file_is_named(tmp_path, case, packed):
    name, content, message = BAD_FILES[case]
    write_fashion(tmp_path, packed=packed)
    (tmp_path / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(InputError, match=f"{name}.*{message}"):
        load("fashion-mnist", tmp_path)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"no gzip", lambda b: b[:50] + bytes(50)])
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    write_fashion(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte.gz: .*(read|promises)"):
        load("fashion-mnist", tmp_path)


def test_fashion_mnist_that_is_not_there_says_where_it_looked(tmp_path):
    with pytest.raises(InputError, match=r"fashion-mnist: no idx files.*FashionMNIST/raw.*zalandoresearch"):
        load("fashion-mnist", tmp_path)
    with pytest.raises(InputError, match="TRUEUP_DATA"):
        load("fashion-mnist")
    write_fashion(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte: no such file, nor with .gz"):
        load("fashion-mnist", tmp_path)
