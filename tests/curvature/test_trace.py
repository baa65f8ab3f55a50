"""The trace, the standard error that goes with it, and its parts by layer."""

import pytest
import torch

from tests.curvature.cases import FOCAL, NETS, Dense, case, with_spectrum, written_out
from trueup import losses
from trueup.curvature import curvature, layer_traces, trace, trace_of
from trueup.inputs import InputError

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning"
)  # torch's own, at its first forward mode

OUTLIERS = [50, 30, 20, 10, 8, 6, 5, 4, 3, 2] + [0.05 * (i % 10) / 10 for i in range(400)]


@pytest.mark.parametrize("net", NETS)
def test_the_trace_of_a_net(net):
    model, data = case(net)
    for spec in ("cross-entropy", "focal:3"):
        loss = losses.parse(spec)
        true = float(written_out(model, loss, data).trace())
        found = trace(model, loss, data, relative=0.02, max_products=400, vectors_at_once=100)
        assert found.converged
        assert found.stderr <= 0.02 * abs(found.value)
        assert found.value == pytest.approx(true, abs=4 * found.stderr + 1e-9 * abs(true))


def covered(matrix, relative, seeds=100):
    true, inside = float(matrix.entries.trace()), 0
    for seed in range(seeds):
        found = trace_of(matrix, relative=relative, seed=10 * seed)
        assert found.converged
        assert found.stderr > 0
        inside += abs(found.value - true) <= 2 * found.stderr
    return inside


@pytest.mark.parametrize(
    ("spectrum", "relative"),
    [
        (OUTLIERS, 0.01),
        (OUTLIERS, 0.05),
        ([1 / (i + 1) for i in range(250)], 0.02),
        ([(i % 100) / 100 for i in range(300)], 0.01),
        ([5.0, -3.0] + [0.1] * 150 + [-0.05] * 100, 0.1),
    ],
)
def test_two_standard_errors_hold_in_90_to_99_of_100(spectrum, relative):
    assert 90 <= covered(with_spectrum(spectrum), relative) <= 99


@pytest.mark.parametrize("spec", FOCAL)
def test_two_standard_errors_hold_for_hessians_of_nets(spec):
    model, data = case("mlp", seed=1)
    hessian = written_out(model, losses.parse(spec), data)
    padded = torch.block_diag(hessian, 0.01 * written_out(*case_of_relu(spec)))  # too large to be written out by it
    assert 90 <= covered(Dense(padded), 0.05) <= 99


def case_of_relu(spec):
    model, data = case("relu-mlp")
    return model, losses.parse(spec), data


def test_fewer_products_than_hutchinson_where_few_eigenvalues_stand_out():
    matrix = with_spectrum(OUTLIERS)
    off = matrix.entries - torch.diag(matrix.entries.diagonal())
    plain = 2 * float(off.square().sum()) / (0.01 * float(matrix.entries.trace())) ** 2
    assert trace_of(matrix, relative=0.01).products * 10 < plain


def test_it_is_exact_where_the_space_is_all():
    for size in (3, 12):
        matrix = with_spectrum(torch.linspace(-1, 2, size).tolist())
        found = trace_of(matrix, relative=1e-9)
        assert found.value == pytest.approx(float(matrix.entries.trace()), rel=1e-9)


def test_a_trace_of_zero_needs_an_absolute_error():
    matrix = with_spectrum([1.0, -1.0] * 100)
    assert not trace_of(matrix, relative=0.01, max_products=100).converged
    found = trace_of(matrix, relative=0, stderr=2.0)
    assert found.converged
    assert found.stderr <= 2
    assert abs(found.value) < 10


def test_what_it_took_is_told_and_the_seed_settles_it():
    matrix = with_spectrum(OUTLIERS)
    first, again, other = (trace_of(matrix, seed=seed) for seed in (3, 3, 4))
    assert first == again != other
    assert matrix.products == first.products + again.products + other.products
    short = trace_of(matrix, relative=1e-6, max_products=60)
    assert not short.converged
    assert short.products <= 60


@pytest.mark.parametrize("net", ["cnn", "batch-norm"])
def test_the_traces_of_the_layers(net):
    model, data = case(net)
    loss = losses.Focal(1)
    dense = written_out(model, loss, data)
    found = layer_traces(model, loss, data, relative=0.05, vectors_at_once=100)
    assert found.converged
    for name, part in curvature(model, loss, data).layers.items():
        true = float(dense.diagonal()[part].sum())
        assert found.value[name] == pytest.approx(true, abs=4 * found.stderr[name] + 1e-9)


def test_nets_that_are_linear_in_each_weight_have_the_trace_of_their_gauss_newton_matrix():
    for net, same in (("relu-mlp", True), ("cnn", True), ("mlp", False)):
        model, data = case(net)
        full, ggn = (float(written_out(model, losses.CrossEntropy(), data, m).trace()) for m in ("hessian", "ggn"))
        assert (full == pytest.approx(ggn, rel=1e-9)) == same


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"relative": 0}, "would never end"),
        ({"relative": -1}, "relative: expected a number of at least 0"),
        ({"max_products": 3}, "max_products: expected a whole number of at least"),
    ],
)
def test_bad_settings(options, says):
    with pytest.raises(InputError, match=says):
        trace_of(with_spectrum(OUTLIERS), **options)
