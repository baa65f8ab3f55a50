"""Beside curvlinops and SciPy, and where the usual shortcuts are wrong."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh

from tests.curvature.cases import case, with_spectrum, written_out
from trueup import losses
from trueup.curvature import curvature, eigenvalues_of, top_eigenvalues, trace

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.mark.parametrize(("kind", "operator"), [("hessian", "HessianLinearOperator"), ("ggn", "GGNLinearOperator")])
@pytest.mark.parametrize("net", ["mlp", "cnn"])
def test_curvlinops_has_the_same_products(net, kind, operator):
    curvlinops = pytest.importorskip("curvlinops")
    model, data = case(net)
    model.eval()
    theirs = getattr(curvlinops, operator)(
        model, torch.nn.CrossEntropyLoss(), list(model.parameters()), data, check_deterministic=False
    )
    ours = curvature(model, losses.CrossEntropy(), data, matrix=kind)
    v = torch.randn(ours.size, 3, dtype=torch.float64)
    torch.testing.assert_close(ours @ v, theirs @ v, rtol=1e-9, atol=1e-11)
    model.train()


def test_scipy_finds_the_same_eigenvalues():
    model, data = case("mlp")
    made = curvature(model, losses.Focal(1), data)
    operator = LinearOperator(
        (made.size, made.size), matvec=lambda v: (made @ torch.from_numpy(v.reshape(-1))).numpy(), dtype=np.float64
    )
    theirs = eigsh(operator, 3, which="LA", return_eigenvectors=False)[::-1]
    ours = top_eigenvalues(model, losses.Focal(1), data, 3, tolerance=1e-6)
    np.testing.assert_allclose(ours.value.numpy(), theirs, rtol=1e-6)


def power_iteration(matrix, steps, tolerance=1e-3):
    """The way of PyHessian and of hessian-eigenthings' default: it stops when the Rayleigh quotient hardly changes."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(1, matrix.size, generator=generator, dtype=torch.float64)
    value = None
    for _ in range(steps):
        v = v / v.norm()
        moved = matrix.rows(v)
        before, value = value, float((v * moved).sum())
        if before is not None and abs(value - before) / abs(value) < tolerance:
            break
        v = moved
    return value


def test_power_iteration_misses_the_largest_eigenvalue_beside_a_larger_negative_one():
    """hessian-eigenthings' default: its largest eigenvalue is the largest in magnitude, or a mixture of both."""
    matrix = with_spectrum([1.0, -1.02] + [0.1] * 50)
    assert abs(power_iteration(matrix, 100) - 1) > 0.4
    assert float(eigenvalues_of(matrix).value[0]) == pytest.approx(1, rel=1e-3)
    assert float(eigenvalues_of(matrix, which="smallest").value[0]) == pytest.approx(-1.02, rel=1e-3)


def test_a_change_that_is_small_is_no_convergence():
    """PyHessian's rule, a change of less than 0.1 %, is met 1.4 % too low here. A residual knows."""
    matrix = with_spectrum([1.03, *torch.linspace(0, 1, 600).tolist()])
    assert power_iteration(matrix, 100) < 1.02
    assert float(eigenvalues_of(matrix).value[0]) == pytest.approx(1.03, rel=1e-3)


def test_a_trace_that_stops_when_it_hardly_changes_stops_by_luck():
    """PyHessian's rule: stop when the mean of z' H z moved by less than 0.1 %. Ours states an error that holds."""
    matrix = with_spectrum([40.0, 30.0, 20.0] + [0.01] * 300)
    true, missed = 93.0, 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        drawn, mean = [], 0.0
        for _ in range(100):
            z = torch.randint(0, 2, (1, matrix.size), generator=generator).double() * 2 - 1
            drawn.append(float((z * matrix.rows(z)).sum()))
            before, mean = mean, sum(drawn) / len(drawn)
            if abs(mean - before) / (abs(before) + 1e-6) < 1e-3:
                break
        missed += abs(mean - true) > 0.05 * true
    assert missed > 15


def test_hutch_plus_plus_agrees():
    curvlinops = pytest.importorskip("curvlinops")
    model, data = case("mlp")
    dense = written_out(model, losses.CrossEntropy(), data)
    torch.manual_seed(0)
    theirs = torch.stack([curvlinops.hutchpp_trace(dense, 30) for _ in range(50)])
    ours = trace(model, losses.CrossEntropy(), data, relative=0.01, vectors_at_once=50)
    assert ours.value == pytest.approx(float(theirs.mean()), abs=4 * float(theirs.std()) / 50**0.5 + 4 * ours.stderr)
