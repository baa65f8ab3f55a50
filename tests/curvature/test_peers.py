"""Beside curvlinops and SciPy, and where PyHessian and hessian-eigenthings are wrong: each of them is run."""

import copy

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh

from tests.curvature.cases import case, written_out
from trueup import losses
from trueup.curvature import curvature, spectral_density, top_eigenvalues, trace

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


# ---------------------------------------------------------------------- where others are wrong


def plain_loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("net", ["mlp", "cnn", "batch-norm"])
def test_hessian_eigenthings_stops_after_two_steps_far_too_low(net):
    """1.0.0a5: ``lanczos`` takes min(2 k, ...) steps unless told, so that the largest eigenvalue alone gets two."""
    theirs = pytest.importorskip("hessian_eigenthings")
    model, data = case(net)
    model = copy.deepcopy(model).eval()
    whole = [tuple(torch.cat(parts) for parts in zip(*data, strict=True))]
    true = float(torch.linalg.eigvalsh(written_out(model, losses.CrossEntropy(), whole))[-1])
    operator = theirs.HessianOperator(model, whole, plain_loss)
    found = [float(theirs.lanczos(operator, k=1, seed=seed).eigenvalues[0]) / true for seed in range(5)]
    assert max(found) < 0.9
    assert float(theirs.lanczos(operator, k=1, max_iter=40, seed=0).eigenvalues[0]) == pytest.approx(true, rel=1e-3)
    for seed in range(5):
        ours = top_eigenvalues(model, losses.CrossEntropy(), whole, seed=seed)
        assert float(ours.value[0]) == pytest.approx(true, rel=1e-3)


@pytest.mark.parametrize("net", ["mlp", "cnn"])
def test_hessian_eigenthings_gives_every_batch_the_same_weight(net):
    """The mean over batches of 17 and 13 samples is not the mean over 30: every sample of the smaller counts more."""
    theirs = pytest.importorskip("hessian_eigenthings")
    model, data = case(net)
    model = copy.deepcopy(model).eval()
    true = float(torch.linalg.eigvalsh(written_out(model, losses.CrossEntropy(), data))[-1])
    found = theirs.lanczos(theirs.HessianOperator(model, data, plain_loss), k=1, max_iter=40, seed=0)
    assert abs(float(found.eigenvalues[0]) / true - 1) > 0.05
    assert float(top_eigenvalues(model, losses.CrossEntropy(), data).value[0]) == pytest.approx(true, rel=1e-3)


def pyhessian(model, loss, inputs, labels):
    module = pytest.importorskip("pyhessian")
    return module.hessian(copy.deepcopy(model).eval(), loss, data=(inputs, labels), cuda=False)


@pytest.mark.parametrize("net", ["mlp", "cnn"])
def test_pyhessian_stops_its_trace_by_luck(net):
    """It stops when the mean of z' H z moved by less than 0.1 %, which it does now and then: half are 5 % off."""
    model, data = case(net)
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    true = float(written_out(model, losses.CrossEntropy(), data).trace())
    off = []
    for seed in range(20):
        torch.manual_seed(seed)
        off.append(abs(np.mean(pyhessian(model, torch.nn.CrossEntropyLoss(), x, y).trace()) / true - 1))
    assert np.mean(np.array(off) > 0.05) > 0.3
    ours = trace(model, losses.CrossEntropy(), data, relative=0.01)
    assert ours.value == pytest.approx(true, rel=0.04)


def test_pyhessian_stops_a_negative_trace_at_once_and_has_no_largest_eigenvalue():
    """Its rule divides by the trace, not by its size: below 0 two probes are always enough. Its "top eigenvalue" is the
    largest in magnitude, here the lowest."""
    model, data = case("mlp")
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    labels, loss = (y + 1) % 4, losses.Focal(3)  # labels that the net takes for impossible: focal loss bends down
    dense = written_out(model, loss, [(x, labels)])
    lowest, highest = (float(torch.linalg.eigvalsh(dense)[i]) for i in (0, -1))
    assert float(dense.trace()) < 0
    assert -lowest > highest > 0
    theirs = pyhessian(model, loss, x, labels)
    torch.manual_seed(0)
    assert len(theirs.trace()) == 2
    assert theirs.eigenvalues()[0][0] == pytest.approx(lowest, rel=0.01)
    ours = top_eigenvalues(model, loss, [(x, labels)])
    assert float(ours.value[0]) == pytest.approx(highest, rel=1e-3)
    assert ours.lowest < 0


def test_pyhessian_has_no_density_on_this_torch():
    model, data = case("mlp")
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    with pytest.raises((RuntimeError, AttributeError)):  # torch.eig is gone
        pyhessian(model, torch.nn.CrossEntropyLoss(), x, y).density(iter=5)
    assert spectral_density(model, losses.CrossEntropy(), data, steps=5, probes=2).products == 10


def test_hutch_plus_plus_agrees():
    curvlinops = pytest.importorskip("curvlinops")
    model, data = case("mlp")
    dense = written_out(model, losses.CrossEntropy(), data)
    torch.manual_seed(0)
    theirs = torch.stack([curvlinops.hutchpp_trace(dense, 30) for _ in range(50)])
    ours = trace(model, losses.CrossEntropy(), data, relative=0.01, vectors_at_once=50)
    assert ours.value == pytest.approx(float(theirs.mean()), abs=4 * float(theirs.std()) / 50**0.5 + 4 * ours.stderr)
