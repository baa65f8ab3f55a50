"""Products against the matrices written out, and what stays as it was."""

import copy

import pytest
import torch
from torch import nn

from tests.curvature.cases import NETS, case, written_out
from trueup import losses
from trueup.curvature import HessianTrace, curvature, layer_traces, spectral_density, top_eigenvalues, trace
from trueup.inputs import InputError

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning"
)  # torch's own, at its first forward mode


def columns(model, spec, data, matrix="hessian"):
    made = curvature(model, losses.parse(spec), data, matrix=matrix, vectors_at_once=200)
    return made @ torch.eye(made.size)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("spec", ["cross-entropy", "focal:0.5", "focal:3"])
def test_products_are_those_of_the_hessian(net, spec):
    model, data = case(net)
    dense = written_out(model, losses.parse(spec), data)
    torch.testing.assert_close(columns(model, spec, data), dense, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("spec", [spec for spec in losses.examples() if "mmce" not in spec and "trace" not in spec])
def test_of_every_loss_that_is_a_mean_over_samples(spec):
    model, data = case("mlp")
    dense = written_out(model, losses.parse(spec), data)
    torch.testing.assert_close(columns(model, spec, data), dense, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("matrix", ["ggn", "fisher"])
@pytest.mark.parametrize(("net", "spec"), [("mlp", "focal:3"), ("cnn", "cross-entropy"), ("batch-norm", "brier")])
def test_gauss_newton_and_fisher(net, spec, matrix):
    model, data = case(net)
    dense = written_out(model, losses.parse(spec), data, matrix)
    torch.testing.assert_close(columns(model, spec, data, matrix), dense, rtol=1e-9, atol=1e-11)


def test_fisher_and_gauss_newton_are_one_for_cross_entropy():
    model, data = case("mlp")
    fisher, ggn = (columns(model, "cross-entropy", data, matrix) for matrix in ("fisher", "ggn"))
    torch.testing.assert_close(fisher, ggn, rtol=1e-9, atol=1e-12)


def test_how_samples_are_cut_into_batches_and_how_many_vectors_go_at_once_does_not_matter():
    model, data = case("cnn")
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    v = torch.randn(sum(p.numel() for p in model.parameters()), 3, dtype=torch.float64)
    for loss in (
        losses.Focal(2, weight=[1.0, 0.5, 2.0, 3.0]),
        losses.Focal(2, ignore_index=1),
        losses.Focal(2, reduction="sum"),
    ):
        whole = curvature(model, loss, [(x, y)], vectors_at_once=1) @ v
        for size in (7, 29):
            cut = curvature(model, loss, list(zip(x.split(size), y.split(size), strict=True)), vectors_at_once=2)
            torch.testing.assert_close(cut @ v, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "loss", [losses.CrossEntropy(weight=[1.0, 0.5, 2.0, 3.0]), losses.CrossEntropy(ignore_index=1)]
)
def test_how_samples_are_cut_does_not_matter_for_the_fisher_matrix(loss):
    model, data = case("mlp")
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    keep = y != loss.ignore_index
    true = written_out(model, CE, [(x[keep], y[keep])], "fisher")
    for size in (30, 7):
        cut = list(zip(x.split(size), y.split(size), strict=True))
        made = curvature(model, loss, cut, matrix="fisher", vectors_at_once=50)
        torch.testing.assert_close(made @ torch.eye(made.size), true, rtol=1e-9, atol=1e-11)


def test_float32_agrees_with_float64():
    model, data = case("cnn")
    single = copy.deepcopy(model).float()
    v = torch.randn(sum(p.numel() for p in model.parameters()), 3, dtype=torch.float64)
    wide, narrow = (curvature(net, losses.Focal(3), data) @ v for net in (model, single))
    assert narrow.dtype == torch.float64
    assert float((wide - narrow).norm() / wide.norm()) < 1e-5


def test_the_model_and_the_generator_are_left_as_they_were():
    model = copy.deepcopy(case("batch-norm")[0]).train()
    model[1].eval()
    data = case("batch-norm")[1]
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    curvature(model, losses.CrossEntropy(), data) @ torch.ones(sum(p.numel() for p in model.parameters()))
    assert [module.training for module in model.modules()] == [True, True, False, True, True]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.equal(state, torch.random.get_rng_state())


def test_some_parameters_give_their_block():
    model, data = case("mlp")
    dense = written_out(model, losses.CrossEntropy(), data)
    found = curvature(model, losses.CrossEntropy(), data, parameters=["2.weight"])
    assert found.layers == {"2.weight": slice(0, 28)}
    torch.testing.assert_close(found @ torch.eye(28), dense[42:70, 42:70], rtol=1e-9, atol=1e-12)
    frozen = copy.deepcopy(model)
    for name, p in frozen.named_parameters():
        p.requires_grad_(name == "2.weight")
    assert curvature(frozen, losses.CrossEntropy(), data).layers == found.layers


class Once(torch.autograd.Function):
    @staticmethod
    def forward(z):
        return z.square().sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError("no derivative here")


def norm(logits, labels):
    return (logits * 0).square().sum().sqrt()


def frozen():
    net = nn.Linear(5, 4)
    return net.requires_grad_(False)


def nan():
    net = nn.Linear(5, 4)
    net.bias.data[2] = torch.nan
    return net


def frozen_nan():
    net = nn.Linear(5, 4)
    net.weight.requires_grad_(False)[0, 0] = torch.nan
    return net


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


BATCH = [(torch.zeros(3, 5), torch.tensor([0, 1, 2]))]
CE = losses.CrossEntropy()


class Anew:
    def __iter__(self):
        yield torch.randn(3, 5), torch.tensor([0, 1, 2])


BAD = [
    (frozen(), CE, BATCH, "no parameters that require gradients"),
    (nan(), CE, BATCH, "parameter bias holds NaN"),
    (nn.Linear(5, 4), CE, [*BATCH, (torch.full((3, 5), torch.nan), BATCH[0][1])], r"data: batch 1 .* holds NaN"),
    (
        nn.Linear(5, 4),
        CE,
        [(torch.zeros(3, 2), BATCH[0][1])],
        r"model: it cannot take a batch of shape \(3, 2\) \(mat1",
    ),
    (
        nn.Linear(5, 4),
        nn.CrossEntropyLoss(),
        [(torch.zeros(3, 5), torch.full((3,), 9))],
        r"loss: it cannot take logits",
    ),
    (nn.Linear(5, 4), CE, [(torch.zeros(3, 5), torch.full((3,), 9))], r"labels: row 0 is 9"),
    (nn.Linear(5, 4), CE, [], "no samples"),
    (nn.Linear(5, 4), CE, iter(BATCH), "an iterator can be read once"),
    (nn.Linear(5, 4), CE, (x for x in BATCH), "an iterator can be read once"),
    (nn.Linear(5, 4), CE, BATCH[0], r"expected batches \(inputs, labels\)"),
    (nn.Linear(5, 4), CE, Anew(), "not the same in every pass"),
    (nn.Linear(5, 4), losses.CrossEntropy(reduction="none"), BATCH, "its reduction is 'none'"),
    (
        nn.Linear(5, 4),
        losses.CrossEntropy(ignore_index=0),
        [(BATCH[0][0], torch.zeros(3).long())],
        "all are ignored",
    ),
    (nn.Linear(5, 4), lambda z, y: z.sum(1), BATCH, "expected one number"),
    (nn.Linear(5, 4), norm, BATCH, "not twice differentiable"),
    (nn.Linear(5, 4), CE, None, "data: expected batches .* got a NoneType"),
    (nn.Linear(5, 4), CE, [*BATCH, (torch.zeros(3, 2), BATCH[0][1])], r"cannot take a batch of shape \(3, 2\)"),
    (nn.Linear(5, 4), losses.CrossEntropy(weight=[1.0, 2.0]), BATCH, "2 class weights, and a label is 2"),
    (nn.Linear(5, 4), CE + HessianTrace(0.1), BATCH, "its penalty on the model"),
    (nn.Linear(5, 4), lambda z, y: nn.functional.cross_entropy(z, y, reduction="sum"), BATCH * 2, "it sums over"),
    (Pair(5, 4), CE, BATCH, "model: it returns a tuple"),
    (frozen_nan(), CE, BATCH, "parameter weight holds NaN"),
    (nn.Linear(5, 4), lambda z, y: Once.apply(z), BATCH, "no derivative here|cannot be differentiated twice"),
]


@pytest.mark.parametrize(("model", "loss", "data", "says"), BAD)
def test_what_cannot_be_used_is_told(model, loss, data, says):
    with pytest.raises((InputError, NotImplementedError), match=says):
        curvature(model, loss, data) @ torch.ones(sum(p.numel() for p in model.parameters()))


@pytest.mark.parametrize("estimate", [top_eigenvalues, trace, layer_traces, spectral_density])
def test_every_estimate_tells_it(estimate):
    for model, loss, data, says in BAD:
        if says != "an iterator can be read once":  # which the one before may have read
            with pytest.raises((InputError, NotImplementedError), match=says):
                estimate(model, loss, data)


@pytest.mark.parametrize(
    ("estimate", "place"),
    [(top_eigenvalues, "krylov.Krylov.grow"), (spectral_density, "spectrum._tridiagonals"),
     (trace, "grams.plain_grams"), (layer_traces, "grams.plain_grams")],
)  # fmt: skip
def test_too_little_memory_for_an_estimate_is_told(estimate, place, monkeypatch):
    def scarce(*_, **__):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(f"trueup.curvature.{place}", scarce)
    with pytest.raises(InputError, match="too little memory for some dozens of vectors of 24 numbers"):
        estimate(nn.Linear(5, 4), CE, BATCH)


def test_names_and_shapes_are_checked():
    net = nn.Linear(5, 4)
    with pytest.raises(InputError, match=r"the model has no 'head'; it has weight, bias"):
        curvature(net, CE, BATCH, parameters=["head"])
    for named, says in (
        ([], "parameters: the list is empty"),
        ("weight", r"expected a list of names, as in \['weight'\]"),
    ):
        with pytest.raises(InputError, match=says):
            curvature(net, CE, BATCH, parameters=named)
    with pytest.raises(InputError, match=r"model: expected a torch\.nn\.Module, got a function"):
        curvature(lambda x: x, CE, BATCH)
    with pytest.raises(InputError, match=r"'fisher' is that of a softmax over \(N, K\) logits, got \(3, 1\)"):
        curvature(nn.Linear(5, 1), lambda z, y: z.mean(), BATCH, matrix="fisher")
    with torch.inference_mode(), pytest.raises(InputError, match="inference mode allows no derivatives"):
        curvature(net, CE, BATCH)
    with pytest.raises(InputError, match="matrix: expected one of hessian, ggn, fisher"):
        curvature(net, CE, BATCH, matrix="kfac")
    with pytest.raises(InputError, match=r"expected \(24,\) or \(24, m\)"):
        curvature(net, CE, BATCH) @ torch.ones(23)


def test_where_memory_is_short_fewer_vectors_go_at_once(monkeypatch):
    model, data = case("mlp")
    from trueup.curvature import products

    true, seen = products._rows_at_once, []

    def scarce(product, vectors, weights, layers):
        seen.append(len(vectors))
        if len(vectors) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return true(product, vectors, weights, layers)

    made = curvature(model, CE, data, vectors_at_once=8)
    v = torch.randn(made.size, 5, dtype=torch.float64)
    expected = made @ v
    monkeypatch.setattr(products, "_rows_at_once", scarce)
    torch.testing.assert_close(made @ v, expected)
    assert seen == [5, 4, 2, 2, 1, 2, 2, 1]  # it remembers
    monkeypatch.setattr(products, "_rows_at_once", lambda *_: scarce(None, [0] * 9, None, None))
    with pytest.raises(InputError, match="pass smaller batches"):
        made @ v
