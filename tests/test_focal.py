"""The focal map: exact everywhere, against definitions, limits and 60 digits."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import trueup
from tests import oracles

GAMMAS = [-1, -0.999, -0.5, 0, 0.25, 0.5, 1, 2, 3, 5, 10]


def exact_focal_map(row, gamma):
    """Log-probabilities with 60 digits; 1 - v is the mass of the others."""
    with mpmath.workdps(60):
        z = [mpmath.mpf(float(x)) for x in row]
        powers = [mpmath.exp(x - max(z)) for x in z]
        g = mpmath.mpf(gamma)
        h = []
        for i, power in enumerate(powers):
            q = sum(powers[:i] + powers[i + 1 :]) / sum(powers)
            log_v = mpmath.log1p(-q) if q < 0.5 else z[i] - max(z) - mpmath.log(sum(powers))
            if q < mpmath.mpf(10) ** -6:
                one_minus_r = sum(q**k / (k * (k + 1)) for k in range(1, 20))
            else:
                one_minus_r = 1 + power / sum(powers) * log_v / q
            h.append(log_v - g * mpmath.log(q) - mpmath.log((1 + g) - g * one_minus_r))
        total = max(h) + mpmath.log(sum(mpmath.exp(x - max(h)) for x in h))
        return [x - total for x in h]


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-15), (torch.float32, 1e-6)])
def test_the_focal_map_is_exact_to_its_precision(gamma, dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    for scale in (0.1, 1, 10, 100, 1e3, 1e4):
        for classes in (2, 3, 7):
            z = (torch.randn(classes, generator=generator, dtype=torch.float64) * scale).to(dtype)
            g = float(torch.tensor(gamma, dtype=dtype))  # the gamma that this precision can hold
            found = trueup.focal_map(z, g).tolist()
            for ours, theirs in zip(found, exact_focal_map(z, g), strict=True):
                assert abs(ours - theirs) <= tolerance * max(1, abs(theirs), float(z.abs().max()))


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 0.5, 1.0, 3.0])
@given(row=st.lists(st.floats(-5, 5), min_size=2, max_size=6))
def test_the_focal_map_is_its_definition(gamma, row):
    np.testing.assert_allclose(np.exp(trueup.focal_map(row, gamma)), oracles.focal_map(row, gamma), atol=1e-12)


def test_gamma_zero_is_softmax():
    z = torch.randn(50, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
    torch.testing.assert_close(trueup.focal_map(z, 0.0), z.log_softmax(1))


@pytest.mark.parametrize("gamma", [-1.0, -0.7, 0.3, 2.0, 9.0])
def test_the_prediction_is_kept_and_for_positive_gamma_the_whole_ranking(gamma):
    z = torch.randn(2000, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 4
    mapped = trueup.focal_map(z, gamma)
    assert torch.equal(mapped.argmax(1), z.argmax(1))
    if gamma >= 0:
        assert torch.equal(mapped.argsort(1), z.argsort(1))


def test_gamma_may_be_a_tensor():
    z = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * 6
    gammas = torch.tensor([-1.0, -0.3, 0.0, 2.5], dtype=torch.float64)
    together = trueup.focal_map(z, gammas[:, None])
    for i, gamma in enumerate(gammas.tolist()):
        torch.testing.assert_close(together[i], trueup.focal_map(z[i], gamma), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("gamma", [-0.9, -0.4, 0.0, 0.4, 3.0])
def test_the_focal_map_is_differentiable(gamma):
    z = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 3
    g = torch.tensor(gamma, dtype=torch.float64)
    if gamma != 0:  # the two branches meet there
        assert torch.autograd.gradcheck(trueup.focal_map, (z.requires_grad_(), g.requires_grad_()))
    assert torch.autograd.gradcheck(lambda x: trueup.focal_map(x, gamma), z.requires_grad_())


@pytest.mark.parametrize("gamma", GAMMAS)
def test_a_class_that_is_the_only_possible_one_is_certain(gamma):
    z = torch.tensor([[5.0, -torch.inf, -torch.inf], [0.0, -1.0, -torch.inf]], requires_grad=True)
    found = trueup.focal_map(z, gamma)
    assert found[0].tolist() == [0, -torch.inf, -torch.inf]
    found.exp()[:, 0].sum().backward()
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize(
    ("row", "says"), [([0.0, np.nan], "row 1, class 1 is nan"), ([0.0, np.inf], "row 1, class 1 is inf"),
                      ([-np.inf, -np.inf], "row 1 is -inf in every class")],
)  # fmt: skip
def test_rows_that_are_no_logits_are_refused_where_looking_is_free(row, says):
    for function, name in ((trueup.focal_map, "logits"), (trueup.inverse_focal_map, "log_probs")):
        with pytest.raises(trueup.InputError, match=f"{name}: {says}"):
            function([[0.5, 0.5], row], 2)
    batched = torch.func.vmap(lambda z: trueup.focal_map(z, 2.0))(torch.tensor([[0.5, 0.5], row]))
    assert batched[0].exp().tolist() == [0.5, 0.5]
    with pytest.raises(trueup.InputError, match="posterior: row 1"):
        trueup.risk_minimiser([[0.5, 0.5], row], 2)


def test_a_posterior_may_miss_one_by_what_its_dtype_explains():
    posterior = torch.full((1000,), 1e-3, dtype=torch.bfloat16)
    assert torch.isfinite(trueup.risk_minimiser(posterior, 2)).all()


def test_a_series_comes_back_as_a_series():
    pandas = pytest.importorskip("pandas")
    given = pandas.Series([0.2, 0.8], index=["a", "b"], name="q")
    for found in (trueup.phi(given, 3), trueup.focal_map(given, 3), trueup.gamma_star(given / 2)):
        assert list(found.index) == ["a", "b"]
        assert found.name == "q"


@pytest.mark.parametrize("gamma", GAMMAS)
def test_saturated_and_masked_logits_have_finite_values_and_gradients(gamma):
    z = torch.tensor([[1e4, -1e4, 0.0], [800.0, 0.0, -800.0], [0.0, 0.0, 0.0]], requires_grad=True)
    out = trueup.focal_map(z, float(gamma))
    assert torch.isfinite(out).all()
    out.sum().backward()
    assert torch.isfinite(z.grad).all()
    masked = torch.tensor([[5.0, 5.0, -torch.inf], [50.0, 0.0, -torch.inf]], requires_grad=True)
    probs = trueup.focal_map(masked, float(gamma)).exp()
    assert torch.isfinite(probs).all()
    assert probs[:, 2].abs().max() == 0
    probs[:, 0].sum().backward()
    assert torch.isfinite(masked.grad).all()
