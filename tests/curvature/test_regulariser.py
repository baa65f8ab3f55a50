"""The penalty on the trace: its mean, its gradient, its hooks."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trueup
from tests.curvature.cases import case, written_out
from trueup import losses
from trueup.curvature import HessianTrace
from trueup.inputs import InputError

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning"
)  # torch's own, at its first forward mode


def batch(name):
    model, data = case(name)
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    return copy.deepcopy(model), x, y


@pytest.mark.parametrize("loss", [losses.CrossEntropy(), losses.Focal(2), losses.Brier()])
@pytest.mark.parametrize("kind", ["hessian", "ggn"])
def test_its_mean_is_the_trace(kind, loss):
    model, x, y = batch("mlp")
    true = float(written_out(model, loss, [(x, y)], kind).trace())
    torch.manual_seed(0)
    drawn = torch.stack([HessianTrace(2.0, kind=kind, loss=loss).penalty(model, x, y).detach() for _ in range(100)])
    assert float(drawn.mean()) / 2 == pytest.approx(true, abs=2 * float(drawn.std()) / 100**0.5)


@pytest.mark.parametrize("loss", [losses.CrossEntropy(), losses.Focal(2), losses.Brier()])
@pytest.mark.parametrize("kind", ["hessian", "ggn"])
@pytest.mark.parametrize("net", ["mlp", "batch-norm"])
def test_its_gradient_is_that_of_finite_differences(net, kind, loss):
    model, x, y = batch(net)
    penalty = HessianTrace(0.7, kind=kind, loss=loss)

    def value():
        torch.manual_seed(5)
        return penalty.penalty(model, x, y)

    value().backward()
    weight = next(p for name, p in model.named_parameters() if name.endswith("weight"))
    for place in ((0, 0), (3, 2)):
        found = float(weight.grad[place])
        with torch.no_grad():
            weight[place] += 1e-5
        high = float(value().detach())
        with torch.no_grad():
            weight[place] -= 2e-5
        low = float(value().detach())
        with torch.no_grad():
            weight[place] += 1e-5
        assert found == pytest.approx((high - low) / 2e-5, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("loss", [losses.CrossEntropy(), losses.Focal(3), losses.Focal(0.5, reduction="sum")])
@pytest.mark.parametrize("bias", [True, False])
def test_softmax_regression_is_exact_and_needs_no_probe(loss, bias):
    x, y = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) % 3
    model = nn.Sequential(nn.Flatten(), nn.Linear(5, 3, bias=bias).double())
    true = float(written_out(model, loss, [(x, y)]).trace())
    state = torch.random.get_rng_state()
    assert HessianTrace(1.0, loss=loss).penalty(model, x, y).item() == pytest.approx(true, rel=1e-9)
    assert torch.equal(state, torch.random.get_rng_state())


class Cosine(nn.Linear):
    def forward(self, x):
        return 5 * F.linear(F.normalize(x), F.normalize(self.weight))


class Thrice(nn.Sequential):
    def forward(self, x):
        return 3 * super().forward(x)


def hooked():
    net = nn.Linear(5, 4)
    net.register_forward_hook(lambda module, inputs, out: out.square())
    return net


@pytest.mark.parametrize("make", [lambda: Cosine(5, 4, bias=False), lambda: Thrice(nn.Linear(5, 4)), hooked])
def test_what_is_more_than_a_linear_layer_is_not_taken_for_one(make):
    torch.manual_seed(0)
    x, y, net = torch.randn(6, 5).double(), torch.arange(6) % 4, make().double()
    true = float(written_out(net, losses.CrossEntropy(), [(x, y)]).trace())
    drawn = torch.stack([HessianTrace(1.0).penalty(net, x, y).detach() for _ in range(100)])
    assert float(drawn.mean()) == pytest.approx(true, abs=3 * float(drawn.std()) / 100**0.5)
    assert float(drawn.std()) > 0


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
@pytest.mark.parametrize("net", [nn.Linear(5, 4), nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4))])
def test_labels_that_are_probabilities(net, kind):
    torch.manual_seed(0)
    net, x, y = net.double(), torch.randn(6, 5).double(), torch.randn(6, 4).double().softmax(1)
    true = float(written_out(net, losses.CrossEntropy(), [(x, y)]).trace())
    drawn = torch.stack([HessianTrace(1.0, kind=kind).penalty(net, x, y).detach() for _ in range(100)])
    assert float(drawn.mean()) == pytest.approx(true, abs=3 * float(drawn.std()) / 100**0.5)


@pytest.mark.parametrize("loss", [losses.CrossEntropy, losses.Brier])
@pytest.mark.parametrize("kind", ["hessian", "ggn"])
@pytest.mark.parametrize("net", ["mlp", "linear"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ignored_samples_do_not_count(net, kind, loss, reduction):
    model, x, y = batch("mlp")
    model = nn.Linear(5, 4).double() if net == "linear" else model
    keep = y != 2
    assert 0 < int(keep.sum()) < len(y)
    masked = torch.where(keep, y, 255)
    found = []
    for inputs, labels in ((x, masked), (x[keep], y[keep])):
        torch.manual_seed(3)
        penalty = HessianTrace(1.0, kind=kind, loss=loss(ignore_index=255, reduction=reduction))
        found.append(penalty.penalty(model, inputs, labels))
    torch.testing.assert_close(*found)


def test_a_label_that_is_ignored_by_the_other_loss_alone_is_told():
    model, x, y = batch("relu-mlp")
    both = losses.Focal(2, ignore_index=255) + HessianTrace(1.0)
    with pytest.raises(InputError, match=r"labels: row 0 is 255, outside 0 to 3"):
        both.penalty(model, x, torch.full_like(y, 255))


def test_more_probes_have_less_noise():
    model, x, y = batch("mlp")
    torch.manual_seed(0)
    one, six = (
        torch.stack([HessianTrace(1.0, probes=n).penalty(model, x, y).detach() for _ in range(40)]) for n in (1, 6)
    )
    assert float(six.std()) < 0.7 * float(one.std())


def test_the_model_stays_as_it_is():
    model, x, y = batch("batch-norm")
    model.train()
    before = copy.deepcopy(model.state_dict())
    HessianTrace(1.0).penalty(model, x, y)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_by_name_and_beside_any_loss():
    model, x, y = batch("mlp")
    loss = losses.parse("focal:3+hessian-trace:0.01+entropy:0.1")
    assert torch.equal(loss(model(x), y), (losses.Focal(3) + trueup.EntropyPenalty(0.1))(model(x), y))
    torch.manual_seed(1)
    found = loss.penalty(model, x, y)
    torch.manual_seed(1)
    assert torch.equal(found, HessianTrace(0.01).penalty(model, x, y))
    assert losses.parse("cross-entropy+ggn-trace:0.5").penalties[0].kind == "ggn"
    assert "tau=0.01" in repr(loss)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tau": -1}, "tau: expected a finite number of at least 0, got -1"),
        ({"tau": float("nan")}, "tau"),
        ({"tau": 1, "kind": "fisher"}, "kind: expected one of hessian, ggn"),
        ({"tau": 1, "probes": 0}, "probes: expected a whole number"),
    ],
)
def test_bad_settings(arguments, says):
    with pytest.raises(InputError, match=says):
        HessianTrace(**arguments)


def broken(net, fault):
    """A linear layer or an MLP that cannot be trained against its trace."""
    made = nn.Linear(5, 4) if net == "linear" else nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4))
    if fault == "frozen":
        return made.requires_grad_(False)
    with torch.no_grad():
        next(made.parameters())[0, 0] = torch.nan
    return made


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
@pytest.mark.parametrize("net", ["linear", "mlp"])
def test_a_model_that_cannot_be_used_is_told(net, kind):
    x, y = torch.randn(6, 5), torch.arange(6) % 4
    penalty = HessianTrace(1.0, kind=kind)
    with pytest.raises(InputError, match="model: it has no parameters that require gradients"):
        penalty.penalty(broken(net, "frozen"), x, y)
    with pytest.raises(InputError, match=r"model: its parameter (0\.)?weight holds NaN"):
        penalty.penalty(broken(net, "nan"), x, y)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))
    with pytest.raises(InputError, match="the inputs hold NaN"):
        penalty.penalty(model, x * torch.nan, y)
    with torch.inference_mode(), pytest.raises(InputError, match="inference mode allows no derivatives"):
        penalty.penalty(model, x, y)


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
def test_without_gradients_it_is_the_same_number(kind):
    model, x, y = batch("mlp")
    penalty, found = HessianTrace(1.0, kind=kind), []
    for wanted in (True, False):
        torch.manual_seed(4)
        with torch.set_grad_enabled(wanted):
            found.append(penalty.penalty(model, x, y))
    assert [value.requires_grad for value in found] == [True, False]
    assert float(found[0].detach()) == float(found[1])


def test_a_step_against_the_trace_lowers_it():
    model, x, y = batch("relu-mlp")
    model.eval()
    before = float(written_out(model, losses.CrossEntropy(), [(x, y)]).trace())
    optimiser = torch.optim.SGD(model.parameters(), 0.02)
    torch.manual_seed(0)
    for _ in range(30):
        optimiser.zero_grad()
        HessianTrace(1.0, kind="ggn", probes=4).penalty(model, x, y).backward()
        optimiser.step()
    assert float(written_out(model, losses.CrossEntropy(), [(x, y)]).trace()) < before
