"""Both ends of the spectrum, and its shape, against matrices written out."""

import pytest
import torch

from tests.curvature.cases import FOCAL, NETS, Dense, case, with_spectrum, written_out
from trueup import losses
from trueup.curvature import density_of, eigenvalues_of, spectral_density, top_eigenvalues
from trueup.inputs import InputError

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning"
)  # torch's own, at its first forward mode


@pytest.mark.parametrize(("net", "spec"), [("mlp", spec) for spec in FOCAL] + [(net, "focal:3") for net in NETS])
def test_both_ends_of_the_hessian(net, spec):
    model, data = case(net)
    data, loss = [tuple(torch.cat(parts) for parts in zip(*data, strict=True))], losses.parse(spec)
    true = torch.linalg.eigvalsh(written_out(model, loss, data))
    top = top_eigenvalues(model, loss, data, tolerance=1e-3)
    low = top_eigenvalues(model, loss, data, which="smallest", tolerance=1e-3)
    assert top.converged
    assert low.converged
    assert float(top.value[0]) == pytest.approx(float(true[-1]), rel=1e-3)
    assert float(low.value[0]) == pytest.approx(float(true[0]), rel=1e-3)
    assert top.lowest >= float(true[0]) - 1e-12


@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize(
    "spectrum",
    [[2.0**-i for i in range(120)], [-20, 5] + [0.1] * 100, [10, 9.9, 9, -9.5, -5] + [0.01 * i for i in range(200)]],
)
def test_k_of_them_with_vectors_and_true_residuals(spectrum, k, which):
    matrix = with_spectrum(spectrum)
    found = eigenvalues_of(matrix, k, which=which, tolerance=1e-6)
    key = {"largest": lambda v: -v, "smallest": lambda v: v, "magnitude": lambda v: -abs(v)}[which]
    true = torch.tensor(sorted(spectrum, key=key)[:k], dtype=torch.float64)
    torch.testing.assert_close(found.value, true, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(k, dtype=torch.float64))
    off = found.vectors @ matrix.entries - found.value.unsqueeze(1) * found.vectors
    torch.testing.assert_close(off.norm(dim=1), found.residual, rtol=1e-3, atol=1e-10)
    assert found.converged


@pytest.mark.parametrize("seed", range(5))
def test_close_eigenvalues_are_not_taken_for_one(seed):
    """A residual that is squared, or the change from step to step, would stop too early here."""
    matrix = with_spectrum([1.0, 0.97] + [0.1] * 5 + [0.001 * i for i in range(200)], seed)
    found = eigenvalues_of(matrix, tolerance=1e-3, seed=seed)
    assert float(found.value[0]) == pytest.approx(1, rel=1e-3)


def test_the_next_is_not_taken_for_the_largest():
    """With a residual of the tolerance alone, 10 of these 200 starts would end at 0.99."""
    generator = torch.Generator().manual_seed(3)
    values = torch.cat([torch.tensor([1.0, 0.99]), torch.rand(398, generator=generator) * 0.5 - 0.1]).double()
    matrix = Dense(torch.diag(values))
    matrix.rows = lambda vectors: vectors * values
    found = [eigenvalues_of(matrix, seed=seed) for seed in range(200)]
    assert all(each.converged and abs(float(each.value[0]) - 1) <= 1e-3 for each in found)
    assert sum(each.products for each in found) < 15 * len(found)


def test_the_smallest_of_a_singular_matrix_is_found_soon():
    model, data = case("cnn", dtype=torch.float32)
    found = top_eigenvalues(model, losses.CrossEntropy(), data, which="smallest", matrix="ggn")
    assert found.converged
    assert found.products < 200
    assert abs(float(found.value[0])) < 1e-6 * float(top_eigenvalues(model, losses.CrossEntropy(), data).value[0])


def test_an_eigenvalue_that_occurs_thrice_is_found_thrice():
    found = eigenvalues_of(with_spectrum([3.0, 3.0, 3.0, 1.0, 0.5] + [0.0] * 40), 4)
    torch.testing.assert_close(found.value, torch.tensor([3.0, 3.0, 3.0, 1.0], dtype=torch.float64), rtol=1e-3, atol=0)


def test_all_of_a_small_matrix_and_of_nothing():
    values = [3.0, 1.0, 0.0, -2.0, -2.0]
    torch.testing.assert_close(
        eigenvalues_of(with_spectrum(values), 5).value, torch.tensor(values, dtype=torch.float64)
    )
    nothing = eigenvalues_of(Dense(torch.zeros(6, 6, dtype=torch.float64)), 2)
    assert nothing.converged
    assert nothing.value.abs().max() == 0


def test_more_steps_than_there_is_room_for():
    matrix = with_spectrum(torch.linspace(-1, 1, 400).tolist())
    found = eigenvalues_of(matrix, 3, tolerance=1e-6, max_products=2000)
    assert found.converged
    assert found.products == matrix.products > 60
    torch.testing.assert_close(found.value, torch.linalg.eigvalsh(matrix.entries).flip(0)[:3], rtol=1e-5, atol=0)


def test_what_did_not_converge_says_so():
    found = eigenvalues_of(with_spectrum(torch.linspace(-1, 1, 400).tolist()), tolerance=1e-9, max_products=5)
    assert not found.converged
    assert found.products == 5
    assert float(found.residual[0]) > 1e-3


def test_negative_curvature_is_reported():
    model, data = case("mlp")
    unsure = [(x, (y + 1) % 4) for x, y in data]  # labels that the net takes for impossible: focal loss bends down
    loss = losses.Focal(3)
    true = torch.linalg.eigvalsh(written_out(model, loss, unsure))
    assert float(true[0]) < 0
    assert top_eigenvalues(model, loss, unsure).lowest < 0
    found = top_eigenvalues(model, loss, unsure, which="smallest")
    assert float(found.value[0]) == pytest.approx(float(true[0]), rel=1e-3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"k": 76}, "76 eigenvalues of a matrix of 74 parameters"),
        ({"k": 0}, "k: expected a whole number"),
        ({"which": "LA"}, "which: expected one of largest, smallest, magnitude"),
        ({"tolerance": 0}, "tolerance: expected a number above 0"),
        ({"max_products": 0}, "max_products: expected a whole number"),
        ({"max_products": "5"}, "max_products: expected a whole number"),
        ({"seed": "a"}, "seed: expected a whole number"),
        ({"k": 9, "max_products": 8}, "max_products: 8 are too few"),
    ],
)
def test_bad_settings(options, says):
    model, data = case("mlp")
    with pytest.raises(InputError, match=says):
        top_eigenvalues(model, losses.CrossEntropy(), data, **options)


def test_progress_ends_at_one():
    seen = []
    eigenvalues_of(with_spectrum([0.7**i for i in range(100)]), tolerance=1e-6, progress=seen.append)
    assert seen[-1] == 1
    assert all(0 <= share <= 1 for share in seen)


@pytest.mark.parametrize("spec", FOCAL)
def test_the_density_integrates_to_the_number_of_parameters(spec):
    model, data = case("mlp")
    loss = losses.parse(spec)
    found = spectral_density(model, loss, data, steps=8, probes=4)
    size = sum(p.numel() for p in model.parameters())
    assert float(torch.trapezoid(found.value, found.grid)) == pytest.approx(size, rel=1e-6)
    assert found.products == 32
    torch.testing.assert_close(found.weights.sum(1), torch.full((4,), float(size), dtype=torch.float64))


def test_the_density_is_that_of_the_eigenvalues():
    values = torch.cat([torch.linspace(0, 1, 300), torch.tensor([3.0, -1.0])]).tolist()
    found = density_of(with_spectrum(values), steps=60, probes=40, width=0.05)
    true = torch.exp(-0.5 * ((found.grid - torch.tensor(values).unsqueeze(1)) / 0.05) ** 2).sum(0) / (0.05 * 2.506628)
    assert float(torch.trapezoid((found.value - true).abs(), found.grid)) < 0.05 * 302
    assert found.converged
    near = (found.value - true).abs() <= 3 * found.stderr + 2
    assert float(near.double().mean()) > 0.95
    assert not density_of(with_spectrum(values), steps=4, probes=4, width=0.02).converged


def test_the_density_of_few_eigenvalues_is_exact_and_has_no_ghosts():
    found = density_of(with_spectrum([5.0] + [1.0] * 30 + [0.0] * 69), steps=30, probes=6)
    for value, many in ((5.0, 1), (1.0, 30), (0.0, 69)):
        near = ((found.nodes - value).abs() < 1e-6) * found.weights
        assert float(near.sum(1).mean()) == pytest.approx(many, abs=max(1.5, 0.3 * many))
    assert float(found.weights.sum(1).std()) < 1e-9
