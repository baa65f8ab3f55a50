"""The focal map, its inverse and the minimiser of the focal risk: what the theorems say, and where the papers err."""

import itertools
import math

import numpy as np
import pytest
import torch

import trueup
from tests import cases
from trueup import focal, losses

GAMMAS = [-1.0, -0.9, -0.5, 0.0, 0.25, 1.0, 3.0, 10.0]
WORKED = {1: 0.77443, 2: 0.69421, 3: 0.64706, 4: 0.61742, 5: 0.59740, 7: 0.57236}


def dirichlet(n, classes, seed=0, concentration=1.0):
    return np.random.default_rng(seed).dirichlet(np.full(classes, concentration), n)


def risk(posterior, q, gamma):
    """Expected focal loss."""
    return -(posterior * (1 - q) ** gamma * np.log(q)).sum(-1)


@pytest.mark.parametrize("gamma", WORKED)
def test_the_worked_example_of_charoenphakdee2021(gamma):
    q = trueup.risk_minimiser([0.9, 0.1], gamma)
    assert q == pytest.approx([WORKED[gamma], 1 - WORKED[gamma]], abs=6e-6)
    assert np.exp(trueup.focal_map(np.log(q), gamma)) == pytest.approx([0.9, 0.1], abs=1e-12)


def test_the_erratum_of_the_worked_example():
    """It prints .78 for gamma = 1, which rounds from .77443 to .77; .65 and .60 for 3 and 5 are right."""
    for gamma, printed in ((3, 0.65), (5, 0.60)):
        assert round(trueup.risk_minimiser([0.9, 0.1], gamma)[0], 2) == printed
    assert round(trueup.risk_minimiser([0.9, 0.1], 1)[0], 2) == 0.77
    for q, gamma, psi in ((0.78, 1, 0.9051), (0.65, 3, 0.9041), (0.60, 5, 0.9053)):
        assert math.exp(trueup.focal_map([math.log(q), math.log(1 - q)], gamma)[0]) == pytest.approx(psi, abs=6e-5)


def test_the_example_of_three_classes():
    for gamma, q in (
        (1, (0.3181, 0.4567, 0.2251)),
        (3, (0.3281, 0.4070, 0.2650)),
        (5, (0.3301, 0.3846, 0.2854)),
    ):
        assert trueup.risk_minimiser([0.3, 0.5, 0.2], gamma) == pytest.approx(q, abs=6e-5)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("classes", [2, 3, 10, 100, 1000])
def test_the_map_of_the_minimiser_is_the_posterior(gamma, classes):
    for concentration in (0.05, 1.0, 20.0):
        posterior = np.maximum(dirichlet(20, classes, classes, concentration), 1e-30)
        posterior /= posterior.sum(1, keepdims=True)
        q = trueup.inverse_focal_map(np.log(posterior), gamma)
        np.testing.assert_allclose(trueup.focal_map(q, gamma), np.log(posterior), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(np.exp(q).sum(1), 1, rtol=1e-12)


@pytest.mark.parametrize("gamma", [-0.5, 0.25, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("classes", [2, 5, 30])
def test_nothing_near_the_minimiser_has_a_lower_risk(gamma, classes):
    posterior = dirichlet(30, classes, 1) * 0.98 + 0.02 / classes
    q = trueup.risk_minimiser(posterior, gamma)
    rng = np.random.default_rng(2)
    for size in (1e-3, 1e-2, 0.1):
        moved = np.exp(np.log(q) + size * rng.standard_normal(q.shape))
        moved /= moved.sum(1, keepdims=True)
        assert (risk(posterior, moved, gamma) >= risk(posterior, q, gamma) - 1e-15).all()
    # the first-order condition: p_i phi(q_i) / q_i is the same for all
    condition = posterior * trueup.phi(q, gamma) / q
    np.testing.assert_allclose(condition, np.broadcast_to(condition[:, :1], condition.shape), rtol=1e-8)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_inverse_of_extreme_and_masked_posteriors(gamma):
    rows = [[0.0, -800.0, -1e4], [-1e-12, math.log(1e-12), -40.0], [math.log(0.5), math.log(0.5), -math.inf]]
    target = torch.tensor(rows, dtype=torch.float64).log_softmax(-1)
    q = trueup.inverse_focal_map(target, gamma)
    assert not q.isnan().any()
    assert torch.equal(q == -torch.inf, target == -torch.inf)
    back = trueup.focal_map(q, gamma)
    finite = target > -torch.inf
    torch.testing.assert_close(back[finite], target[finite], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gamma", [-0.7, 0.4, 3.0])
def test_the_inverse_is_differentiable_in_both_arguments(gamma):
    target = torch.from_numpy(np.log(dirichlet(3, 4, 5))).requires_grad_()
    g = torch.tensor(gamma, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(trueup.inverse_focal_map, (target, g))


def test_gamma_may_be_a_tensor_in_the_inverse_too():
    target = torch.from_numpy(np.log(dirichlet(4, 6, 3)))
    gammas = torch.tensor([-1.0, -0.5, 0.0, 4.0], dtype=torch.float64)
    together = trueup.inverse_focal_map(target, gammas[:, None])
    for i, gamma in enumerate(gammas.tolist()):
        torch.testing.assert_close(together[i], trueup.inverse_focal_map(target[i], gamma), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gamma", [-0.5, 1.0, 3.0])
def test_focal_loss_is_a_proper_loss_behind_the_map(gamma):
    """komisarenko2024: S(r, y) = FL(inverse(r), y) has its least expectation at r = P."""
    posterior = np.array([0.6, 0.3, 0.1])
    r = np.concatenate([posterior[None], dirichlet(400, 3, 4) * 0.99 + 0.01 / 3])
    r = np.concatenate([r, posterior + 1e-3 * (r[:200] - posterior)])
    expected = risk(posterior, np.exp(trueup.inverse_focal_map(np.log(r), gamma)), gamma)
    assert expected.argmin() == 0
    plain = risk(posterior, r, gamma)  # without the layer it is not proper
    assert plain.argmin() != 0
    logits = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    labels = torch.arange(50) % 3
    behind = trueup.inverse_focal_map(trueup.focal_map(logits, gamma), gamma)
    loss = losses.Focal(gamma, reduction="none")
    torch.testing.assert_close(loss(behind, labels), loss(logits, labels), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("gamma", [1e-4, 1e-2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 100.0, 1e3])
def test_in_a_binary_problem_the_map_lies_between_two_temperatures(gamma):
    low, high = trueup.temperature_bounds(gamma)
    assert low == pytest.approx(1 / (1 + gamma))
    assert high == pytest.approx(1 / (1 + gamma - math.log1p(gamma) / 2))
    s = torch.logspace(-6, 3, 2000, dtype=torch.float64)
    mapped = trueup.focal_map(torch.stack([s, torch.zeros_like(s)], 1), gamma)
    inverse = (mapped[:, 0] - mapped[:, 1]) / s  # the effective 1 / T
    assert inverse.max() <= 1 / low * (1 + 1e-9)
    assert inverse.min() >= 1 / high * (1 - 1e-9)
    middle = 1 + gamma - 2 * gamma * (math.log(2) - 0.5) / (1 + gamma * math.log(2))
    assert inverse[0].item() == pytest.approx(middle, rel=1e-6)
    tight = {0.5: 0.7372, 1.0: 0.5644, 2.0: 0.3737, 3.0: 0.2760, 5.0: 0.1796, 10.0: 0.0952}
    if gamma in tight:
        assert 1 / inverse.min().item() == pytest.approx(tight[gamma], abs=6e-5)


@pytest.mark.parametrize("gamma", [0.0, 1e-3, 0.1, 0.5, 0.999, 1.0, 2.0, 5.0, 10.0])
@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_entropy_bound_of_kimura2024_holds_for_every_gamma(gamma, classes):
    """Also below 1, where the printed proof (Bernoulli's inequality) does not."""
    generator = torch.Generator().manual_seed(classes)
    z = (
        torch.randn(2000, classes, dtype=torch.float64, generator=generator)
        * torch.rand(2000, 1, generator=generator)
        * 20
    )
    u = torch.from_numpy(dirichlet(2000, classes, 3, 0.3))
    u[::2] = torch.nn.functional.one_hot(torch.arange(1000) % classes, classes).double()
    loss = losses.Focal(gamma, reduction="none")(z, u)
    bound = focal.entropy_lower_bound(z, u, gamma)
    assert (loss >= bound - 1e-12).all()
    log_q = z.log_softmax(1)
    by_hand = -(u * log_q).sum(1) + gamma * (log_q.exp() * log_q).sum(1)
    torch.testing.assert_close(bound, by_hand)
    with_kl = (torch.special.xlogy(u, u) - u * log_q).sum(1) + torch.special.entr(u).sum(1)
    torch.testing.assert_close(bound, with_kl + gamma * (log_q.exp() * log_q).sum(1))


def test_the_entropy_bound_is_loose_and_takes_masked_classes():
    log_q = torch.full((1, 10), math.log(0.1 / 9), dtype=torch.float64)
    log_q[0, 0] = math.log(0.9)
    u = torch.nn.functional.one_hot(torch.tensor([0]), 10).double()
    assert focal.entropy_lower_bound(log_q, u, 3.0).item() == pytest.approx(-1.53, abs=5e-3)
    assert losses.Focal(3.0)(log_q, u).item() == pytest.approx(1e-4, abs=1e-5)
    masked = torch.tensor([[1.0, 2.0, -torch.inf]], requires_grad=True)
    bound = focal.entropy_lower_bound(masked, torch.tensor([[0.5, 0.5, 0.0]]), 2.0)
    bound.sum().backward()
    assert torch.isfinite(bound).all()
    assert torch.isfinite(masked.grad).all()


def test_scaling_logits_up_raises_the_top_probability():
    """lossfunctions, Theorem 1."""
    z = torch.randn(500, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    confidence = [(t * z).softmax(1).amax(1) for t in (0.2, 0.9, 1.0, 1.1, 3.0)]
    for less, more in itertools.pairwise(confidence):
        assert (more > less).all()


@pytest.mark.parametrize("gamma", [0.25, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("classes", [2, 3, 5, 20, 200])
def test_where_the_map_raises_confidence_and_where_it_lowers_it(gamma, classes):
    over, under = trueup.confidence_thresholds(gamma)
    v = np.concatenate([dirichlet(500, classes, 7, c) for c in (0.3, 1.0, 5.0, 100.0)])
    with np.errstate(divide="ignore"):
        mapped = np.exp(trueup.focal_map(np.log(np.maximum(v, 1e-300)), gamma)).max(1)
    top = v.max(1)
    assert (mapped[top >= under] > top[top >= under] - 1e-12).all()
    assert (mapped[top <= over] <= top[top <= over] + 1e-12).all()
    if classes <= 3:
        assert (mapped >= top - 1e-12).all()


@pytest.mark.parametrize(("gamma", "classes"), [(1, 8), (2, 10), (3, 12), (4, 14), (5, 16), (7, 20), (10, 25)])
def test_a_nearly_uniform_minimiser_is_over_confident_from_so_many_classes_on(gamma, classes):
    for k, lowers in ((classes - 1, False), (classes, True)):
        v = np.full(k, 1 / k)
        v[0] += 1e-4
        v[1:] -= 1e-4 / (k - 1)
        assert (np.exp(trueup.focal_map(np.log(v), gamma))[0] < v[0]) == lowers


def test_that_the_map_raises_confidence_for_any_gamma_is_false():
    """komisarenko2024 says so; it fails from four classes on."""
    for gamma, v in (
        (0.25, [0.3173, 0.3171, 0.3167, 0.0489]),
        (0.25, [0.3089, 0.3088, 0.3051, 0.0508, 0.0264]),
        (1.0, [0.1898, 0.1863, 0.1848, 0.1846, 0.1820, 0.0425, 0.0300]),
        (2.0, [0.1321, 0.1321, 0.1320, 0.1314, 0.1314, 0.1255, 0.0621, 0.0586, 0.0578, 0.0370]),
    ):
        assert sum(v) == pytest.approx(1)
        assert np.exp(trueup.focal_map(np.log(v), gamma)).max() < v[0] - 2e-5
    v = dirichlet(2000, 20, 11)  # of flat draws of 20 classes most lose confidence
    assert (np.exp(trueup.focal_map(np.log(v), 1.0)).max(1) < v.max(1)).mean() > 0.5


@pytest.mark.parametrize(("gamma", "q"), [(1, 0.75), (3, 0.634), (5, 0.5905)])
def test_the_detached_loss_has_another_fixed_point(gamma, q):
    """Wang et al. 2021: sigmoid(logit(.9) / (1 + gamma)), and Psi does not give .9 back."""
    logit = math.log(9) / (1 + gamma)
    assert 1 / (1 + math.exp(-logit)) == pytest.approx(q, abs=5e-4)
    z = torch.tensor([[logit, 0.0]], dtype=torch.float64)
    loss = losses.Focal(gamma, detach_weight=True)
    pull = sum(share * torch.func.grad(loss)(z, torch.tensor([label])) for label, share in ((0, 0.9), (1, 0.1)))
    assert pull.abs().max() < 1e-15
    assert abs(trueup.focal_map(z, gamma).exp()[0, 0] - 0.9) > 1e-3


def test_the_golden_losses():
    z, y = (torch.from_numpy(each) for each in cases.golden())
    for spec, value in {
        "cross-entropy": 1.8595474833,
        "brier": 0.6222151122,
        "focal:1": 1.6045452926,
        "focal:3": 1.3850772252,
        "focal:5": 1.2948923427,
        "flsd-53": 1.3521682162,
    }.items():
        assert losses.parse(spec)(z, y).item() == pytest.approx(value, abs=1e-10)
    assert losses.MMCE(1)(z, y).item() == pytest.approx(0.1559326477, abs=1e-10)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_first_of_classes_that_tie_stays_the_first(gamma, dtype):
    """Logits in half precision tie often: rounding must not let a later class win."""
    z = torch.randint(-6, 7, (2000, 5), generator=torch.Generator().manual_seed(0)).to(dtype) / 3
    found = trueup.focal_map(z, gamma)
    assert torch.equal(found.argmax(1), z.argmax(1))
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact = trueup.focal_map(z.double(), gamma)
    torch.testing.assert_close(found.double(), exact, rtol=2e-5, atol=2e-6)


def test_at_a_tie_the_derivative_is_that_of_the_formula():
    z = torch.tensor([[0.7, 0.7, -1.0], [0.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    for gamma in (-0.5, 1.0, 3.0):
        assert torch.autograd.gradcheck(lambda z, g=gamma: trueup.focal_map(z, g), z)


def test_half_precision_is_computed_in_float32():
    p = torch.tensor([0.1, 0.3, 0.6], dtype=torch.bfloat16)
    assert torch.equal(trueup.phi(p, 3), trueup.phi(p.float(), 3))
    assert trueup.risk_minimiser(p, 3).dtype == torch.float32


def test_the_inverse_refuses_logits():
    with pytest.raises(trueup.InputError, match=r"log_probs: .* row 1 .*log_softmax"):
        trueup.inverse_focal_map([[math.log(0.25), math.log(0.75)], [0.0, 0.0]], 2)
