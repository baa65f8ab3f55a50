"""Nets that couple samples, fused kernels, and what no second derivative can be had of."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.curvature.cases import written_out
from trueup import losses
from trueup.curvature import HessianTrace, curvature, layer_traces, top_eigenvalues, trace
from trueup.inputs import InputError

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning", "ignore:enable_nested_tensor", "ignore:`torch.nn.utils.weight_norm`"
)
CE = losses.CrossEntropy()


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Scaled(nn.Module):
    """With a number for a parameter."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(4, 3), nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.inner(x[:, 0]) * self.scale


class Read(nn.Module):
    """The mean over time of what a layer makes of a sequence, or its last."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.last = layer, nn.Linear(4, 3)

    def forward(self, x):
        made = self.layer(x)
        return self.last(made[0][:, -1] if isinstance(made, tuple) else made.mean(1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Linear(4, 12)

    def forward(self, x):
        q, k, v = (part.unsqueeze(1) for part in self.into(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).squeeze(1)


def residual():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.norm, self.last = nn.Conv1d(3, 3, 3, padding=1), nn.BatchNorm1d(3), nn.Linear(3, 3)

        def forward(self, x):
            return self.last(torch.relu(x + self.norm(self.one(x))).mean(2))

    return Residual()


def data(net):
    torch.manual_seed(1)
    x, y = torch.randn(8, 3, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    net.double().train()(x)  # running statistics are not 0 and 1
    return [(x, y)]


def stepwise(net, batches, matrix="hessian"):
    """The matrix without fused attention. The Hessian by backward twice: torch.func.hessian is wrong here."""
    (x, y), weights = batches[0], list(net.parameters())
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        if matrix == "hessian":
            slopes = torch.autograd.grad(CE(net.eval()(x), y), weights, create_graph=True)
            each = torch.cat([slope.reshape(-1) for slope in slopes])
            rows = [torch.autograd.grad(slope, weights, retain_graph=True, materialize_grads=True) for slope in each]
            found = torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])
        else:
            found = written_out(net, CE, batches, matrix)
    torch.backends.mha.set_fastpath_enabled(True)
    return found


COUPLED = {
    "mean": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 4), Centred(), nn.ReLU(), nn.Linear(4, 3)),
    "batch norm": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.ReLU(), nn.Linear(4, 3)
    ),
}


@pytest.mark.parametrize("name", COUPLED)
def test_a_net_that_couples_samples_is_probed_over_whole_batches(name):
    torch.manual_seed(0)
    net = COUPLED[name]()
    batches = data(net)
    true = stepwise(net, batches)
    found = trace(net, CE, batches, relative=0.01, vectors_at_once=50)
    assert found.products > 3
    assert found.value == pytest.approx(float(true.trace()), abs=4 * found.stderr + 1e-9)
    of_layers = layer_traces(net, CE, batches, relative=0.05, vectors_at_once=50)
    assert sum(of_layers.value.values()) == pytest.approx(found.value, rel=0.2)
    assert of_layers.products > 3


def test_a_parameter_that_is_a_number():
    net = Scaled()
    batches = data(net)
    found = trace(net, CE, batches)
    assert (found.products, found.stderr) == (3, 0)
    diagonal = stepwise(net, batches).diagonal()
    assert found.value == pytest.approx(float(diagonal.sum()), rel=1e-9)


KERNELS = {
    "attention": lambda: Read(Attention()),
    "encoder": lambda: Read(nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0, batch_first=True)),
    "lstm": lambda: Read(nn.LSTM(4, 4, batch_first=True)),
    "gru": lambda: Read(nn.GRU(4, 4, batch_first=True)),
    "residual": residual,
}


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
@pytest.mark.parametrize("name", KERNELS)
def test_fused_kernels_are_left_aside(name, matrix):
    torch.manual_seed(0)
    net = KERNELS[name]()
    batches = data(net)
    dense = stepwise(net, batches, matrix)
    net.float()  # in which torch has most of them
    batches = [(x.float(), y) for x, y in zip(*(part.split(5) for part in batches[0]), strict=True)]
    made = curvature(net, CE, batches, matrix=matrix)
    v = torch.randn(made.size, 2, dtype=torch.float64)
    assert float((made @ v - dense @ v).norm() / (dense @ v).norm()) < 1e-5
    penalty = HessianTrace(1.0, kind=matrix).penalty(net, *batches[0])
    penalty.backward()
    assert torch.isfinite(penalty)
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize("wrap", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
def test_weight_norm_is_refused_for_its_second_derivative_is_wrong(wrap):
    v, g, to = torch.randn(3, 4).double(), torch.rand(3, 1).double(), torch.randn(3, 4).double()
    theirs, true = (
        torch.autograd.functional.hessian(lambda w, f=f: (f(w, g) * to).tanh().sum(), v).reshape(12, 12)
        for f in (lambda v, g: torch._weight_norm(v, g, 0), lambda v, g: v * g / v.norm(dim=1, keepdim=True))
    )
    torch.testing.assert_close(true, true.T)
    assert float((theirs - theirs.T).norm()) > 0.1 * float(true.norm())
    net = nn.Sequential(nn.Flatten(), wrap(nn.Linear(12, 3)))
    batches = data(net)
    for estimate in (trace, top_eigenvalues):
        with pytest.raises(InputError, match="second derivative of torch's weight norm is wrong"):
            estimate(net, CE, batches)
    with pytest.raises(InputError, match="weight norm"):
        HessianTrace(1.0).penalty(net, *batches[0])


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags, self.last = nn.EmbeddingBag(5, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.bags(x))


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
def test_what_has_no_derivative_is_named(kind):
    net = Bags()
    batches = [(torch.randint(0, 5, (8, 4)), torch.arange(8) % 3)]
    with pytest.raises(InputError, match=r"model or loss: no forward-mode derivative for \S*embedding_bag"):
        curvature(net, CE, batches, matrix=kind) @ torch.ones(27)
    with pytest.raises(InputError, match=r"penalty: model or loss: (no forward-mode|cannot be differentiated twice)"):
        HessianTrace(1.0, kind=kind).penalty(net, *batches[0])
