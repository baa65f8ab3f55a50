"""The trace, the standard error that goes with it, and its parts by layer."""

import pytest
import torch

from tests.curvature.cases import FOCAL, NETS, SAMPLES, WIDE, Dense, case, with_spectrum, written_out
from trueup import losses, models
from trueup.curvature import curvature, exact, grams, layer_traces, layer_traces_of, trace, trace_of
from trueup.curvature.exact import bent_layers
from trueup.curvature.trace import PILOTS
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
        assert (net in ("relu-mlp", "cnn")) <= (found.stderr == 0 and found.products == 4)


BENT = {"mlp": ["0.weight", "0.bias"], "relu-mlp": [], "cnn": [], "tied": ["inner.weight"],
        "batch-norm": ["0.weight", "0.bias", "1.weight", "1.bias"]}  # fmt: skip


@pytest.mark.parametrize("net", NETS)
def test_in_which_parameters_the_logits_are_not_linear(net):
    model, data = case(net)
    assert bent_layers(curvature(model, losses.CrossEntropy(), data)) == BENT[net]
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("name", ["resnet18", "resnet32"])
def test_nets_of_relu_and_batch_norm_have_an_exact_trace(name):
    torch.manual_seed(0)
    model = models.build(name, 10, (3, 32, 32))
    first = [part for part, _ in model.named_parameters()][:2]
    made = curvature(model, losses.Focal(2), [(torch.randn(2, 3, 32, 32), torch.tensor([0, 7]))], parameters=first)
    assert bent_layers(made) == []


@pytest.mark.parametrize("matrix", ["hessian", "ggn", "fisher"])
@pytest.mark.parametrize(
    "loss",
    [losses.Focal(2, weight=[1.0, 0.5, 2.0, 3.0]), losses.Brier(reduction="sum"), losses.CrossEntropy(ignore_index=1)],
)
def test_the_exact_trace_is_that_of_any_loss_over_samples(loss, matrix):
    model, data = case("cnn")
    if matrix == "fisher":  # the mean of it is over all samples, whatever the loss makes of them
        loss = losses.CrossEntropy(reduction=loss.reduction)
    true = written_out(model, loss, data, matrix) * (SAMPLES if (matrix, loss.reduction) == ("fisher", "sum") else 1)
    found = trace(model, loss, data, matrix=matrix)
    assert found.stderr == 0
    assert found.value == pytest.approx(float(true.trace()), rel=1e-9)
    of_layers = layer_traces(model, loss, data, matrix=matrix)
    for name, part in curvature(model, loss, data).layers.items():
        assert of_layers.value[name] == pytest.approx(float(true.diagonal()[part].sum()), rel=1e-9, abs=1e-12)


def test_a_loss_that_couples_samples_is_probed():
    model, data = case("cnn")
    loss, whole = losses.parse("cross-entropy+mmce:2"), [tuple(torch.cat(parts) for parts in zip(*data, strict=True))]
    found = trace(model, loss, whole, relative=0.02, vectors_at_once=50)
    assert found.products > 4
    true = float(written_out(model, loss, whole).trace())
    assert found.value == pytest.approx(true, abs=4 * found.stderr + 1e-9)


def test_many_classes_are_probed(monkeypatch):
    monkeypatch.setattr(exact, "MOST_CLASSES", 3)
    model, data = case("wide-cnn")
    found = trace(model, losses.CrossEntropy(), data, relative=0.03, vectors_at_once=50)
    assert found.stderr > 0
    true = float(written_out(model, losses.CrossEntropy(), data).trace())
    assert found.value == pytest.approx(true, abs=4 * found.stderr)


def test_where_memory_is_short_fewer_samples_go_at_once(monkeypatch):
    model, data = case("cnn")
    expected, true, seen = trace(model, losses.CrossEntropy(), data).value, grams.Grams._of, []

    def scarce(self, inputs):
        seen.append(len(inputs))
        if len(inputs) > 5:
            raise torch.OutOfMemoryError("out of memory")
        return true(self, inputs)

    monkeypatch.setattr(grams.Grams, "_of", scarce)
    assert trace(model, losses.CrossEntropy(), data).value == pytest.approx(expected)
    assert max(seen) == 17
    assert max(seen[-3:]) <= 5  # it remembers


def covered(matrix, relative, known=0.0, seeds=100, first=0):
    true, inside = known + float(matrix.entries.trace()), 0
    for seed in range(first, first + seeds):
        found = trace_of(matrix, relative=relative, known=known, seed=10 * seed)
        assert found.converged
        assert found.stderr > 0
        inside += abs(found.value - true) <= 2 * found.stderr
    return inside


SPECTRA = {
    "outliers": (OUTLIERS, 0.01),
    "outliers, roughly": (OUTLIERS, 0.05),
    "slow decay": ([1 / (i + 1) for i in range(250)], 0.02),
    "flat": ([(i % 100) / 100 for i in range(300)], 0.01),
    "both signs": ([5.0, -3.0] + [0.1] * 150 + [-0.05] * 100, 0.1),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_two_standard_errors_hold_in_90_to_99_of_100(name):
    spectrum, relative = SPECTRA[name]
    assert 90 <= covered(with_spectrum(spectrum), relative) <= 99


def hessian_and_rest(net, spec):
    """The Hessian, and as ``trace`` has it: the trace of its Gauss-Newton part, and the rest in the bent tensors."""
    model, data = case(net, seed=1)
    loss = losses.parse(spec)
    hessian, ggn = (written_out(model, loss, data, matrix) for matrix in ("hessian", "ggn"))
    made = curvature(model, loss, data)
    rows = torch.cat([torch.arange(made.size)[made.layers[name]] for name in bent_layers(made) or made.layers])
    return Dense(hessian), Dense((hessian - ggn)[rows][:, rows]), float(ggn.trace())


@pytest.mark.parametrize("spec", FOCAL)
def test_two_standard_errors_hold_for_the_hessian_of_a_net(spec):
    hessian, rest, known = hessian_and_rest("wide-mlp", spec)
    assert 90 <= covered(hessian, 0.05) <= 99
    assert 90 <= covered(rest, 0.02, known) <= 99


@pytest.mark.slow
@pytest.mark.parametrize("spec", FOCAL)
@pytest.mark.parametrize("net", WIDE)
def test_two_standard_errors_hold_for_hessians_of_nets(net, spec):
    hessian, rest, known = hessian_and_rest(net, spec)
    assert 93 <= covered(hessian, 0.05, seeds=1000, first=1000) / 10 <= 97.5
    if net != "wide-cnn":
        assert 93 <= covered(rest, 0.02, known, seeds=1000, first=1000) / 10 <= 97.5


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECTRA)
def test_two_standard_errors_hold_with_other_seeds(name):
    spectrum, relative = SPECTRA[name]
    assert 93 <= covered(with_spectrum(spectrum), relative, seeds=1000, first=1000) / 10 <= 97.5


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


def test_a_small_matrix_takes_no_more_products_than_it_has_rows():
    for size in (48, 120, 160):
        matrix = with_spectrum(torch.linspace(-1, 1.1, size).tolist())
        found = trace_of(matrix, relative=0.01)
        assert found.products <= size + PILOTS
        assert found.stderr == 0
        assert found.value == pytest.approx(float(matrix.entries.trace()), rel=1e-9)


def test_the_layers_of_a_small_net_are_exact():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3, bias=False))
    data = [(torch.randn(9, 2), torch.arange(9) % 3)]
    made = curvature(model, losses.CrossEntropy(), data)
    found = layer_traces_of(made)
    entries = made @ torch.eye(made.size)
    assert found.products <= made.size == 30
    for name, part in made.layers.items():
        assert found.value[name] == pytest.approx(float(entries[part, part].trace()), rel=1e-4)
        assert found.stderr[name] == 0


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


@pytest.mark.parametrize("many", [5, -5])
def test_layers_need_more_than_a_few_products(many):
    model, data = case("mlp")
    with pytest.raises(InputError, match="max_products: expected a whole number of at least 36"):
        layer_traces(model, losses.CrossEntropy(), data, max_products=many)


@pytest.mark.parametrize("net", ["cnn", "batch-norm"])
def test_the_traces_of_the_layers(net):
    model, data = case(net)
    loss = losses.Focal(1)
    dense = written_out(model, loss, data)
    found = layer_traces(model, loss, data, relative=0.05, vectors_at_once=100)
    assert found.converged
    assert (net == "cnn") == (max(found.stderr.values()) == 0)
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
