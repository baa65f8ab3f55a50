"""J J' from the inputs and output slopes of layers, against the derivatives written out."""

import pytest
import torch
from torch import nn

from tests.curvature.cases import Tied
from trueup import losses, models
from trueup.curvature import curvature
from trueup.curvature.grams import Grams, plain_grams, usual_layers


class Tokens(nn.Module):
    """Few and many tokens, a parameter of its own, layer norm over all of them and over one."""

    def __init__(self, tokens):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(tokens, 4))
        self.wide, self.norm, self.last = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)
        self.after = nn.LayerNorm(3)

    def forward(self, x):
        x = x.repeat(1, len(self.scale), 1)[:, : len(self.scale)] * self.scale
        return self.after(self.last(torch.tanh(self.norm(self.wide(x)))).sum(1))


class ByHand(nn.Module):
    """A weight of a layer that is also used without it, which no hook sees."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)) + x @ self.one.weight)


def images(*layers):
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


CASES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), (5,)),
    "convolutions": (
        lambda: images(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, (3, 2), stride=2, dilation=(1, 2))),
        (2, 7, 8),
    ),
    "no bias": (lambda: images(nn.Conv2d(2, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU()), (2, 5, 5)),
    "groups": (lambda: images(nn.Conv2d(4, 4, 3, groups=2), nn.BatchNorm2d(4, affine=False)), (4, 5, 5)),
    "same padding": (lambda: images(nn.Conv2d(2, 3, 3, padding="same", padding_mode="reflect")), (2, 5, 5)),
    "batch norm of features": (lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), (5,)),
    "few tokens": (lambda: Tokens(1), (2, 4)),
    "many tokens": (lambda: Tokens(7), (2, 4)),
    "tied": (Tied, (5,)),
    "by hand": (ByHand, (5,)),
    "cnn": (lambda: models.build("cnn", 4, (1, 8, 8)), (1, 8, 8)),
    "bare": (lambda: nn.Linear(5, 3), (5,)),
}


def problem_of(name):
    torch.manual_seed(0)
    make, shape = CASES[name]
    model, inputs = make().double(), torch.randn(6, *shape, dtype=torch.float64)
    model(inputs)  # in train mode: shapes are settled, running statistics are not 0 and 1
    labels = torch.arange(6) % 3
    return curvature(model.eval(), losses.CrossEntropy(), [(inputs, labels)]).problem, inputs


@pytest.mark.parametrize("name", CASES)
def test_grams_are_those_of_the_derivatives(name):
    problem, inputs = problem_of(name)
    classes = 4 if name in ("tied", "cnn") else 3
    with torch.no_grad():
        made = Grams(problem, inputs, classes)
        torch.testing.assert_close(made(inputs), plain_grams(problem, inputs))
    assert not any(module._forward_hooks for module in problem.model.modules())


def test_which_layers_need_no_derivatives_written_out():
    for name, known in (("mlp", 2), ("convolutions", 3), ("groups", 1), ("same padding", 1), ("bare", 0)):
        assert len(usual_layers(problem_of(name)[0])) == known


def test_a_weight_that_is_used_by_hand_too_is_noticed():
    problem, inputs = problem_of("by hand")
    assert len(usual_layers(problem)) == 2
    with torch.no_grad():
        assert Grams(problem, inputs, 3).layers == {}


@pytest.mark.parametrize("name", ["convolutions", "many tokens"])
def test_fewer_samples_at_once_give_the_same(name):
    problem, inputs = problem_of(name)
    with torch.no_grad():
        made = Grams(problem, inputs, 3)
        whole, made.at_once = made(inputs), 1
        torch.testing.assert_close(made(inputs), whole)
