"""Corrupted images: seeded, graded, and nothing but images of the same shape."""

import pytest
import torch

from trueup.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from trueup.inputs import InputError


def pictures(count=8, channels=3, size=32):
    """Smooth pictures with an edge in them."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, channels, 4, 4, generator=generator)
    images = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    images[:, :, :, size // 2 :] *= 0.4
    return (images * 255).to(torch.uint8)


def change(images, kind, severity, seed=0):
    return float((corrupt(images, kind, severity, seed).float() - images.float()).pow(2).mean().sqrt())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_every_severity_changes_more_than_the_one_before(kind, channels):
    if kind == "jpeg":
        pytest.importorskip("PIL")
    images = pictures(channels=channels)
    before = images.clone()
    changes = [change(images, kind, severity) for severity in SEVERITIES]
    assert changes == sorted(changes)
    assert 0 < changes[0] < changes[-1] < 100
    assert torch.equal(images, before)
    made = corrupt(images, kind, 5)
    assert made.dtype == torch.uint8
    assert made.shape == images.shape


def test_the_seed_decides_the_noise_and_nothing_else():
    images = pictures()
    assert torch.equal(corrupt(images, "noise", 2, seed=3), corrupt(images, "noise", 2, seed=3))
    assert not torch.equal(corrupt(images, "noise", 2, seed=3), corrupt(images, "noise", 2, seed=4))
    assert torch.equal(corrupt(images, "blur", 2, seed=3), corrupt(images, "blur", 2, seed=4))


def test_the_noise_has_the_strength_that_it_should():
    grey = torch.full((50, 3, 32, 32), 128, dtype=torch.uint8)
    for severity, sigma in zip(SEVERITIES, CORRUPTIONS["noise"][1], strict=True):
        assert change(grey, "noise", severity) / 255 == pytest.approx(sigma, rel=0.02)


def test_what_each_kind_leaves_as_it_is():
    flat = torch.full((2, 3, 16, 16), 77, dtype=torch.uint8)
    for kind in ("blur", "contrast"):
        assert torch.equal(corrupt(flat, kind, 5), flat)
    images = pictures()
    mean = images.float().mean((2, 3))
    assert torch.allclose(corrupt(images, "contrast", 4).float().mean((2, 3)), mean, atol=0.6)
    assert torch.equal(corrupt(images, "brightness", 1).float().clamp(max=254) >= images.float().clamp(max=254),
                       torch.ones_like(images, dtype=torch.bool))  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((pictures(), "fog", 1), "unknown corruption 'fog'; known: noise, blur"),
        ((pictures(), "noise", 6), "severity: expected 1, 2, 3, 4 or 5, got 6"),
        ((pictures().float(), "noise", 1), "images: expected uint8"),
        ((pictures(channels=2), "noise", 1), "one or three channels"),
        ((pictures(), "noise", 1, -1), "seed"),
    ],
)
def test_what_cannot_be_corrupted_is_told(arguments, says):
    with pytest.raises(InputError, match=says):
        corrupt(*arguments)
