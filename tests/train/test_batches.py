"""The samples: normalised, cropped, mirrored, in an order of their own each epoch, and never the bottleneck."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.train.small import SMALL
from trueup import data as sources
from trueup.data import Dataset, Split
from trueup.inputs import InputError
from trueup.train import Recipe, fit
from trueup.train.batches import PAD, Batches, Normaliser, crop_flip, normalisers, on_device

CPU = torch.device("cpu")


def images(many=50, size=8, channels=3):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (many, channels, size, size), generator=generator, dtype=torch.uint8)
    return Split(pixels, torch.arange(many) % 10)


def test_crop_and_flip_are_those_of_a_slow_loop():
    split = images()
    rng = np.random.default_rng(0)
    chosen = torch.from_numpy(rng.permutation(len(split))[:20])
    top, left = (torch.from_numpy(rng.integers(0, 2 * PAD + 1, 20)) for _ in range(2))
    mirror = torch.from_numpy(rng.random(20) < 0.5)
    fast = crop_flip(on_device(split.inputs, CPU, PAD), chosen, top, left, mirror)
    for i in range(20):
        padded = np.pad(split.inputs[chosen[i]].numpy(), ((0, 0), (PAD, PAD), (PAD, PAD)))
        cut = padded[:, top[i] : top[i] + 8, left[i] : left[i] + 8]
        assert np.array_equal(fast[i].permute(2, 0, 1).numpy(), cut[:, :, ::-1] if mirror[i] else cut)


def test_normalising_is_division_by_255_then_the_channels_own_mean_and_deviation():
    split, mean, std = images(), (0.1, 0.5, 0.3), (0.2, 0.4, 0.9)
    fast = Normaliser(mean, std, CPU)(on_device(split.inputs, CPU))
    slow = (split.inputs.double() / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    torch.testing.assert_close(fast.double(), slow, atol=1e-6, rtol=1e-6)
    assert fast.is_contiguous(memory_format=torch.channels_last)


def test_normalisations_by_name():
    split = images()
    data = Dataset("x", split, split, split, tuple("0123456789"), "", (0.1,) * 3, (0.2,) * 3)
    stored = on_device(split.inputs, CPU)
    pixel = stored[0, 0, 0, 0].item() / 255

    def first(name):
        return [n(stored)[0, 0, 0, 0].item() for n in normalisers(Recipe(normalisation=name), data, CPU)]

    assert first("data") == pytest.approx([(pixel - 0.1) / 0.2] * 2)
    assert first("none") == pytest.approx([pixel] * 2)
    assert first("imagenet-test") == pytest.approx([(pixel - 0.1) / 0.2, (pixel - 0.485) / 0.229])


def test_what_is_for_images_is_refused_for_features():
    data = sources.load(SMALL.data)
    for settings in ({"augmentation": "crop-flip"}, {"normalisation": "imagenet-test"}):
        with pytest.raises(InputError, match="is for images"):
            fit(replace(SMALL, **settings), data, device="cpu")


def test_an_epoch_has_every_sample_once_and_no_two_epochs_are_alike():
    split = images()
    recipe = Recipe(augmentation="crop-flip", seed=3)
    batches = Batches(split, Normaliser((0.0,) * 3, (1.0,) * 3, CPU), recipe, CPU)
    orders = []
    for epoch in (0, 1, 0):
        batches.draw(epoch)
        pairs = [batches.next(size) for size in (20, 20, 10)]
        orders.append(torch.cat([inputs.flatten(1) for inputs, _ in pairs]))
        assert sorted(torch.cat([labels for _, labels in pairs]).tolist()) == sorted(split.labels.tolist())
        assert int(batches.position) == len(split)
    assert torch.equal(orders[0], orders[2])
    assert not torch.equal(orders[0], orders[1])


def test_cuts_reach_every_place_and_half_are_mirrored():
    split = images(many=5000, size=1, channels=1)
    batches = Batches(split, Normaliser((0.0,), (1.0,), CPU), Recipe(augmentation="crop-flip"), CPU)
    batches.draw(0)
    for offsets in batches.cuts[:2]:
        counts = torch.bincount(offsets, minlength=2 * PAD + 1)
        assert len(counts) == 2 * PAD + 1
        assert counts.min() > 5000 / 9 * 0.8
    assert 0.45 < batches.cuts[2].double().mean() < 0.55


def test_the_data_path_is_not_the_bottleneck():
    recipe = replace(SMALL, data="digits", model="cnn", loss="cross-entropy", epochs=3, batch=64)
    data = sources.load("digits")
    seconds = min(entry["seconds"] for entry in fit(recipe, data, device="cpu").history)
    batches = Batches(data.train, normalisers(recipe, data, CPU)[0], recipe, CPU)

    def one_epoch():
        begin = time.perf_counter()
        batches.draw(0)
        for _ in range(len(data.train) // 64):
            batches.next(64)
        return time.perf_counter() - begin

    share = min(one_epoch() for _ in range(3)) / seconds
    print(f"data path: {100 * share:.1f} % of an epoch")
    assert share < 0.25
