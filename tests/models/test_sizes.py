"""Parameter counts, against the literature and against sums written from the papers' tables of layers."""

import pytest
import torch

from trueup import models


def conv(kernel, before, after):
    return kernel**2 * before * after


def norm(width):
    return 2 * width


def linear(before, after):
    return before * after + after


def residual(kind, depths, widths, stem, classes, projected, head_cells=1):
    """Stem, stages, head; ``kind`` is "basic" or "bottleneck"."""
    total, before = conv(3, 3, stem) + norm(stem), stem
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        after = width if kind == "basic" else 4 * width
        for place in range(depth):
            if kind == "basic":
                total += conv(3, before, width) + conv(3, width, width) + 2 * norm(width)
            else:
                total += conv(1, before, width) + conv(3, width, width) + conv(1, width, after)
                total += 2 * norm(width) + norm(after)
            if projected and place == 0 and (stage > 0 or before != after):
                total += conv(1, before, after) + norm(after)
            before = after
    return total + linear(before * head_cells, classes)


def dense(depths, growth, classes):
    width = 2 * growth
    total = conv(3, 3, width)
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            total += norm(width) + conv(1, width, 4 * growth) + norm(4 * growth) + conv(3, 4 * growth, growth)
            width += growth
        if stage < len(depths) - 1:
            total += norm(width) + conv(1, width, width // 2)
            width //= 2
    return total + norm(width) + linear(width, classes)


def transformer(width, depth, tokens, patch, classes):
    block = 2 * norm(width) + linear(width, 3 * width) + linear(width, width)
    block += linear(width, 4 * width) + linear(4 * width, width)
    embedding = linear(3 * patch**2, width) + width + tokens * width
    return embedding + depth * block + norm(width) + linear(width, classes)


def parameters(name, classes=10, input_shape=(3, 32, 32)):
    with torch.device("meta"):
        return sum(p.numel() for p in models.build(name, classes, input_shape).parameters())


PUBLISHED = {
    "resnet18": 11_173_962,  # kuangliu's net, 10 classes; likewise the next two
    "resnet34": 21_282_122,
    "resnet50": 23_520_842,
    "vgg16-bn": 14_728_266,
    "densenet121": 6_956_298,
    "resnet32": 464_154,  # He et al.: 0.46 M; option A
    "resnet110": 1_727_962,  # He et al.: 1.7 M; option A (with option B it would be 1 730 714)
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_count_is_the_published_one(name):
    assert parameters(name) == PUBLISHED[name]


BY_FORMULA = {
    "resnet18": lambda k: residual("basic", (2, 2, 2, 2), (64, 128, 256, 512), 64, k, True),
    "resnet34": lambda k: residual("basic", (3, 4, 6, 3), (64, 128, 256, 512), 64, k, True),
    "resnet50": lambda k: residual("bottleneck", (3, 4, 6, 3), (64, 128, 256, 512), 64, k, True),
    "resnet110-bottleneck": lambda k: residual("bottleneck", (3, 4, 26, 3), (64, 128, 256, 512), 64, k, True),
    "resnet50-tiny": lambda k: residual("bottleneck", (3, 4, 6, 3), (64, 128, 256, 512), 64, k, True, head_cells=4),
    "resnet32": lambda k: residual("basic", (5,) * 3, (16, 32, 64), 16, k, False),
    "resnet110": lambda k: residual("basic", (18,) * 3, (16, 32, 64), 16, k, False),
    "wrn26-10": lambda k: residual("basic", (4,) * 3, (160, 320, 640), 16, k, True),
    "densenet121": lambda k: dense((6, 12, 24, 16), 32, k),
    "vit-tiny": lambda k: transformer(192, 12, 65, 4, k),
}


@pytest.mark.parametrize("name", BY_FORMULA)
@pytest.mark.parametrize("classes", [10, 100])
def test_the_count_is_the_sum_over_the_layers(name, classes):
    side = 64 if name == "resnet50-tiny" else 32
    assert parameters(name, classes, (3, side, side)) == BY_FORMULA[name](classes)


def test_the_wide_net_has_the_size_of_the_paper():
    assert round(parameters("wrn26-10") / 1e6, 1) == 36.5  # Zagoruyko and Komodakis, table 4


def test_batch_normalisation_is_all_that_parts_the_two_vggs():
    assert parameters("vgg16-bn") - parameters("vgg16") == norm(2 * 64 + 2 * 128 + 3 * 256 + 6 * 512)


@pytest.mark.parametrize(("name", "layers"), [("resnet32", 32), ("resnet110", 110), ("resnet110-bottleneck", 110)])
def test_the_number_in_the_name_is_the_number_of_layers(name, layers):
    with torch.device("meta"):
        net = models.build(name, 10, (3, 32, 32))
    weights = [n for n, p in net.named_parameters() if p.ndim > 1 and "shortcut" not in n]
    assert len(weights) == layers
