"""phi, its thresholds, what gamma means: the tables of the papers, each recomputed."""

import mpmath
import numpy as np
import pytest
import torch
from scipy import optimize, special

import trueup
from trueup import focal
from trueup.inputs import InputError

# gamma: tau_oc, p0, largest phi, phi(1/2)
TABLE = {
    0.1: (0.1928, 0.4814, None, None),
    0.5: (0.1613, 0.4215, None, None),
    1.0: (0.1353, 0.3679, 1.1353, 0.8466),
    2.0: (0.1041, 0.2976, 1.2246, 0.5966),
    3.0: (0.0855, 0.2526, 1.2923, 0.3849),
    4.0: (0.0730, 0.2207, 1.3472, 0.2358),
    5.0: (0.0639, 0.1968, 1.3936, 0.1396),
    7.0: (0.0515, 0.1629, 1.4693, 0.0457),
    10.0: (0.0403, 0.1308, None, None),
}
GAMMA_STAR = {
    0.01: 253.67,
    0.05: 37.845,
    0.10: 14.924,
    0.15: 8.032,
    0.19: 5.337,
    0.20: 4.851,
    0.25: 3.070,
    0.30: 1.957,
    0.40: 0.6805,
    0.45: 0.2927,
    0.49: 0.0525,
}


def exact_phi(p, gamma):
    """As printed, with digits enough."""
    with mpmath.workdps(120):
        v, g = mpmath.mpf(p), mpmath.mpf(gamma)
        if v == 0:
            return mpmath.mpf(1)
        return (1 - v) ** g - g * v * (1 - v) ** (g - 1) * mpmath.log(v)


def phi(v, g):
    return (1 - v) ** g * (1 - g * v * mpmath.log(v) / (1 - v))


@pytest.mark.parametrize("gamma", TABLE)
def test_the_table_of_phi(gamma):
    oc, p0, largest, half = TABLE[gamma]
    found = trueup.confidence_thresholds(gamma)
    assert found == pytest.approx((oc, p0), abs=6e-5)
    assert trueup.p0_of(gamma) == found[1]
    assert trueup.phi(found[1], gamma) == pytest.approx(1, abs=1e-13)
    near = trueup.phi(np.array([0.999, 1, 1.001]) * found[0], gamma)
    assert near[1] > max(near[0], near[2])
    if largest is not None:
        assert near[1] == pytest.approx(largest, abs=6e-5)
        assert trueup.phi(0.5, gamma) == pytest.approx(half, abs=6e-5)


def test_the_thresholds_in_closed_form_and_in_the_limit():
    assert trueup.confidence_thresholds(1.0) == pytest.approx((np.exp(-2), np.exp(-1)), rel=1e-12)
    oc, uc = trueup.confidence_thresholds(0.0)
    assert (oc, uc) == pytest.approx((0.2032, 0.5), abs=5e-5)
    near = trueup.confidence_thresholds(1e-7)
    assert near == pytest.approx((oc, uc), abs=1e-6)


@pytest.mark.parametrize("gamma", [-1.0, -0.999, -0.5, 0.0, 0.25, 1.0, 3.0, 10.0])
def test_phi_is_exact(gamma):
    ps = [0.0, 1e-300, 1e-12, 0.01, 0.2, 0.4999, 0.5, 0.5001, 0.7, 0.9, 0.999999, 1 - 1e-12, 1 - 2**-53]
    for p, found in zip(ps, trueup.phi(np.array(ps), gamma), strict=True):
        assert found == pytest.approx(float(exact_phi(p, gamma)), rel=2e-15 * 10), p
    at_one = {-1.0: 0.5, 0.0: 1.0}.get(gamma, 0.0 if gamma > 0 else np.inf)
    assert trueup.phi(1.0, gamma) == at_one


def test_phi_takes_every_kind_and_broadcasts():
    p, g = np.array([[0.1], [0.6]]), np.array([-1.0, 0.0, 2.0])
    table = trueup.phi(p, g)
    assert table.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        assert table[i, j] == pytest.approx(trueup.phi(float(p[i, 0]), float(g[j])), rel=1e-14)
    assert isinstance(trueup.phi(0.5, 3), float)
    assert isinstance(trueup.phi([0.5], 3), list)
    assert torch.autograd.gradcheck(
        trueup.phi,
        (
            torch.tensor([0.2, 0.6, 0.9], dtype=torch.float64, requires_grad=True),
            torch.tensor([-0.5, 0.5, 3.0], dtype=torch.float64, requires_grad=True),
        ),
    )


@pytest.mark.parametrize("p0", GAMMA_STAR)
def test_the_table_of_gamma_star(p0):
    gamma = trueup.gamma_star(p0)
    assert gamma == pytest.approx(GAMMA_STAR[p0], rel=2e-4, abs=6e-5)
    assert trueup.phi(p0, gamma) == pytest.approx(1, abs=1e-12)
    assert trueup.p0_of(gamma) == pytest.approx(p0, rel=1e-10)
    root = optimize.brentq(lambda g: trueup.phi(p0, g) - 1, gamma * 0.9, gamma * 1.1, xtol=1e-12)
    assert gamma == pytest.approx(root, rel=1e-9)


def test_gamma_star_near_one_half_where_the_branches_of_w_meet():
    for distance in (1e-3, 1e-6, 1e-9, 1e-12):
        gamma = trueup.gamma_star(0.5 - distance)
        with mpmath.workdps(60):  # phi(p0) = 1 + gamma (log(1 - p0) + r) + ... = 1
            p = mpmath.mpf(0.5 - distance)
            true = mpmath.findroot(
                lambda g, p=p: (phi(p, g) - 1) / g, (gamma / 2, gamma * 2), solver="bisect", verify=False, maxsteps=150
            )
        assert gamma == pytest.approx(float(true), rel=1e-3)
    a, b = 0.75, 0.25 * np.log(0.25)
    printed = a / b + special.lambertw(-(a ** (1 - a / b) / b) * np.log(a), -1).real / np.log(a)
    assert trueup.gamma_star(0.25) == pytest.approx(printed, rel=1e-12)
    other = a / b + special.lambertw(-(a ** (1 - a / b) / b) * np.log(a), 0).real / np.log(a)
    assert other == pytest.approx(0, abs=1e-12)  # the erratum: W_0 yields 0, not a negative value


def test_what_gammas_the_numbers_of_the_papers_are():
    """gamma = 5 stands for p0 = .2 (4.85), gamma = 3 for .25 (3.07); no positive one for .5."""
    assert trueup.gamma_star([0.2, 0.25]) == pytest.approx([4.85, 3.07], abs=5e-3)
    assert trueup.phi([0.19, 0.2], 5) == pytest.approx([1.0278, 0.9869], abs=6e-5)
    assert trueup.phi(0.5, 7) == pytest.approx(0.046, abs=5e-4)
    p = np.linspace(0.5, 1, 501)
    for gamma in (1e-3, 0.5, 1, 5, 50):
        assert trueup.phi(p, gamma).max() < 1
    for p0 in (0.1, 0.2, 0.4):
        p = np.linspace(p0 + 1e-9, 1, 500)
        assert trueup.phi(p, trueup.gamma_star(p0)).max() <= 1
        assert trueup.phi(p, trueup.gamma_star(p0) * 1.5).max() <= 1


def test_gamma_star_of_small_probabilities():
    p0 = np.array([1e-8, 1e-6, 1e-4, 1e-3])
    gamma = trueup.gamma_star(p0)
    assert trueup.phi(p0, gamma) == pytest.approx(np.ones(4), abs=1e-7)
    assert trueup.p0_of(gamma) == pytest.approx(p0, rel=1e-6)


def test_at_one_half_gamma_star_is_0_as_its_inverse_says():
    """The double root at the end of the table: mukhoti2020's code gives 0 there, and the formula of W is NaN."""
    assert trueup.gamma_star(0.5) == 0
    assert trueup.p0_of(trueup.gamma_star(0.5)) == 0.5
    assert trueup.gamma_star([0.2, 0.5])[1] == 0


@pytest.mark.parametrize("p0", [0.5000001, 0.7, 1.0, 0.0, -0.1, float("nan")])
def test_where_no_gamma_is_the_answer(p0):
    with pytest.raises(InputError, match="p0: no positive gamma"):
        trueup.gamma_star(p0)


@pytest.mark.parametrize("gamma", [-1.01, float("nan"), float("inf"), -5.0])
def test_a_gamma_that_is_not_valid_is_named(gamma):
    z, y = torch.zeros(1, 2), torch.tensor([0])
    for call in (
        lambda: trueup.phi(0.5, gamma),
        lambda: trueup.focal_map([[0.0, 1.0]], gamma),
        lambda: trueup.inverse_focal_map([[-0.5, -1.0]], gamma),
        lambda: trueup.risk_minimiser([0.5, 0.5], gamma),
        lambda: trueup.p0_of(gamma),
        lambda: trueup.temperature_bounds(gamma),
        lambda: trueup.Focal(gamma)(z, y),
    ):
        with pytest.raises(InputError, match="gamma"):
            call()


def test_a_probability_that_is_none_is_refused():
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="p: a probability"):
            trueup.phi(p, 2)
    for posterior in ([0.5, 0.6], [-0.1, 1.1], [1.0], 0.5, [float("nan"), 0.5]):
        with pytest.raises(InputError, match="posterior"):
            trueup.risk_minimiser(posterior, 2)


# gamma: where focal curvature is above that of cross-entropy, below which p it is negative, the largest and where,
# and its ratio to cross-entropy at p = .9
CURVATURE = {
    0.5: (0.134, 0.771, 0.018, 0.325, 0.470, 0.691),
    1.0: (0.116, 0.715, 0.043, 0.390, 0.427, 0.384),
    2.0: (0.093, 0.627, 0.058, 0.496, 0.354, 0.086),
    3.0: (0.078, 0.562, 0.058, 0.578, 0.300, 0.015),
    5.0: (0.060, 0.470, 0.050, 0.701, 0.231, 3e-4),
    7.0: (0.049, 0.407, 0.043, 0.791, 0.188, 0.0),
}


@pytest.mark.parametrize("gamma", CURVATURE)
def test_focal_loss_lowers_curvature_only_where_the_fit_is_good(gamma):
    low, high, negative, largest, where, at_9 = CURVATURE[gamma]
    p = torch.arange(1, 100_000, dtype=torch.float64) / 100_000
    bend = focal.bend_at(torch.logit(p).neg(), gamma)
    above = p[bend > p * (1 - p)]
    assert (above.min().item(), above.max().item()) == pytest.approx((low, high), abs=6e-4)
    assert p[bend < 0].max().item() == pytest.approx(negative, abs=6e-4)
    assert (bend.max().item(), p[bend.argmax()].item()) == pytest.approx((largest, where), abs=6e-4)
    assert (bend / (p * (1 - p)))[89_999].item() == pytest.approx(at_9, abs=6e-4)


def test_the_slope_of_phi_is_the_printed_one():
    """p phi'(p) = phi - FL''(u) / (p (1-p)) ... by the Hessian: H_yy = phi p q - p phi' q^2."""
    for gamma in (-0.5, 0.5, 1.0, 3.0):
        p = torch.tensor([0.01, 0.1, 0.3, 0.6, 0.9], dtype=torch.float64)
        q = 1 - p
        printed = gamma * q ** (gamma - 2) * (-2 * q - q * p.log() + (gamma - 1) * p * p.log())
        by_bend = (trueup.phi(p, gamma) * p * q - focal.bend_at(torch.logit(p).neg(), gamma)) / (p * q**2)
        torch.testing.assert_close(by_bend, printed, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("text", ["3", "x", None])
def test_a_gamma_that_is_no_number_is_named(text):
    for call in (
        lambda: trueup.phi(0.5, text),
        lambda: trueup.focal_map([[0.0, 1.0]], text),
        lambda: trueup.p0_of(text),
        lambda: trueup.temperature_bounds(text),
        lambda: trueup.FocalMap(text),
        lambda: trueup.Focal(trueup.ByConfidence((0.2, 5), (1.0, text))),
    ):
        with pytest.raises(InputError, match="gamma"):
            call()
    with pytest.raises(InputError, match="p0"):
        trueup.gamma_star(text)
