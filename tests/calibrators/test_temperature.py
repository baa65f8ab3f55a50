"""Temperature and focal temperature scaling: the optimum, the bounds, the papers' grids."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.optimize import minimize_scalar

import trueup
import trueup.example
from tests import cases, oracles
from trueup.calibrators import focal as focal_calibrator
from trueup.calibrators import grid, softplus, solve


def nll_at(logits, labels, temperature, gamma=0.0):
    log_probs = trueup.focal_map(torch.from_numpy(logits) / temperature, gamma)
    return -float(log_probs.gather(1, torch.from_numpy(labels)[:, None]).mean())


@given(cases.calibration_sets())
def test_temperature_is_the_optimum(data):
    found = trueup.Temperature().fit(*data)
    if found.fit_report.at_bound:
        assert found.temperature in (1e-6, 1e6)
        return
    best = minimize_scalar(
        lambda log_t: nll_at(*data, math.exp(log_t)), bounds=(-14, 14), method="bounded", options={"xatol": 1e-12}
    )
    assert found.fit_report.after <= best.fun + 1e-12
    assert nll_at(*data, found.temperature) <= best.fun + 1e-12


def test_temperature_is_known_where_the_labels_were_drawn_with_one():
    probs, labels = cases.drawn(200_000, 3, 0, temperature=2.5)
    assert trueup.Temperature().fit(np.log(probs), labels).temperature == pytest.approx(2.5, rel=0.01)


@pytest.mark.parametrize(
    ("name", "expected"), [("separable", 1e-6), ("anti-correlated", 1e6), ("constant", 1e6), ("tiny and right", 1e-6)]
)
def test_where_the_data_set_no_limit_the_bound_does(name, expected):
    eye = np.tile(np.eye(4) * 3, (5, 1))
    labels = np.tile(np.arange(4), 5)
    logits = {
        "separable": eye,
        "anti-correlated": -eye,
        "constant": np.ones((20, 4)),
        "tiny and right": eye * 1e-12 + np.random.default_rng(0).normal(0, 1e-12, eye.shape),
    }[name]
    made = trueup.Temperature().fit(logits, labels)
    assert made.temperature == pytest.approx(expected)
    assert made.fit_report.at_bound
    assert np.isfinite(made(logits)).all()


def test_random_labels_end_at_the_bound_or_far_out():
    rng = np.random.default_rng(0)
    made = trueup.Temperature().fit(rng.normal(0, 5, (2000, 10)), rng.integers(0, 10, 2000))
    assert made.temperature > 20
    assert made.fit_report.at_bound == (made.temperature == 1e6)


def test_a_large_problem_takes_few_passes_and_ends_at_the_same_optimum():
    """Above four million entries the rows are sampled first and the arithmetic is float32."""
    probs, labels = cases.drawn(45_000, 100, 0, temperature=1.7)
    logits = np.log(probs)
    large = trueup.Temperature().fit(logits.astype(np.float32), labels)
    best = minimize_scalar(
        lambda t: nll_at(logits, labels, t), bounds=(1, 3), method="bounded", options={"xatol": 1e-9}
    )
    assert nll_at(logits, labels, large.temperature) <= best.fun + 1e-10
    assert large.fit_report.iterations <= 4


@pytest.mark.parametrize(("temperature", "gamma", "nll", "adaptive", "ece", "confidence"), [
    (1, 1, 1.8506691858, 0.1881879780, 0.1871606721, 0.5967291160),
    (1, 3, 1.9836971817, 0.2019971345, 0.1970617908, 0.7232953501),
    (2, 1, 1.6870498601, 0.3469572352, 0.3477800797, 0.3512199203),
    (1.5, -0.5, 1.7246655693, 0.2901597375, 0.2903550747, 0.4090355996),
])  # fmt: skip
def test_golden_values_of_the_focal_temperature_map(temperature, gamma, nll, adaptive, ece, confidence):
    logits, labels = cases.golden()
    made = focal_calibrator.FocalTemperatureMap(10, temperature, gamma)
    probs = made(logits)
    assert trueup.nll(probs, labels) == pytest.approx(nll, abs=1e-10)
    assert trueup.adaptive_ece(probs, labels, edges="mukhoti2020") == pytest.approx(adaptive, abs=1e-10)
    assert trueup.ece(probs, labels) == pytest.approx(ece, abs=1e-10)
    assert probs.max(1).mean() == pytest.approx(confidence, abs=1e-10)


def test_golden_grid_searches():
    logits, labels = cases.golden()
    by_ece = trueup.Temperature(criterion="ece").fit(logits, labels)
    assert by_ece.temperature == pytest.approx(0.6)
    assert by_ece.fit_report.after == pytest.approx(0.1640248724, abs=1e-10)
    settings = trueup.FocalTemperature(criterion="mukhoti2020_adaptive_ece")
    made = settings.fit(logits, labels)
    assert (made.gamma, made.temperature) == pytest.approx((-0.75, 0.5))
    assert made.fit_report.after == pytest.approx(0.1444590476, abs=1e-10)
    # By NLL their grid ends at its edge, gamma 5, with 1.5896668105; the optimum lies beyond.
    assert nll_at(logits, labels, 2.15, 5) == pytest.approx(1.5896668105, abs=1e-10)
    assert trueup.FocalTemperature().fit(logits, labels).fit_report.after < 1.5896668105


def test_the_papers_grid_is_one_tenth_to_ten():
    assert grid.TEMPERATURES[0] == pytest.approx(0.1)
    assert grid.TEMPERATURES[-1] == pytest.approx(10)
    assert len(grid.TEMPERATURES) == 100
    np.testing.assert_allclose(grid.FOCAL_TEMPERATURES[[0, -1]], [0.05, 5.0])


@pytest.mark.parametrize("criterion", ["ece", "adaptive_ece", "brier", "mukhoti2020_adaptive_ece"])
def test_a_grid_search_finds_the_first_least_value(criterion):
    probs, labels = cases.drawn(300, 4, 3, temperature=1.6)
    logits = np.log(probs)
    made = trueup.Temperature(criterion=criterion).fit(logits, labels)
    metric = trueup.brier if criterion == "brier" else grid.TOP_LABEL_CRITERIA[criterion]
    values = [metric(trueup.score_logits(logits / t, labels)) for t in grid.TEMPERATURES]
    assert made.temperature == grid.TEMPERATURES[int(np.argmin(values))]
    assert {type(made.fit_report.before), type(made.fit_report.after)} == {float}
    assert made.fit_report.after == pytest.approx(min(values), abs=1e-12)
    assert made.fit_report.before == pytest.approx(values[9], abs=1e-12)


@pytest.mark.parametrize("criterion", ["ece", "adaptive_ece", "brier"])
def test_the_focal_grid_holds_the_criterion_of_every_point(criterion):
    probs, labels = cases.drawn(200, 4, 3, scale=6, temperature=1.6)
    logits = torch.from_numpy(np.log(probs))
    y = torch.from_numpy(labels)
    temperatures, gammas = np.array([0.3, 1.0, 2.5]), np.array([-1.0, -0.5, 0.0, 1.0, 5.0])
    table = grid._criterion_table(logits, y, criterion, temperatures, gammas, lambda _: None)
    metric = trueup.brier if criterion == "brier" else grid.TOP_LABEL_CRITERIA[criterion]
    for i, t in enumerate(temperatures):
        for j, g in enumerate(gammas):
            expected = metric(focal_calibrator.FocalTemperatureMap(4, t, g)(logits), y)
            assert table[i, j] == pytest.approx(expected, abs=1e-9)


def test_the_focal_grid_grows_until_the_best_is_inside():
    probs, labels = cases.drawn(500, 4, 0, scale=20, temperature=12)
    made = trueup.FocalTemperature(criterion="brier").fit(np.log(probs), labels)
    assert made.temperature > 5
    assert not made.fit_report.at_bound


def test_one_of_the_two_can_be_given():
    probs, labels = cases.drawn(800, 5, 0, temperature=2)
    logits = np.log(probs)
    for settings, kept in [
        (trueup.FocalTemperature(gamma=0.5), ("gamma", 0.5)),
        (trueup.FocalTemperature(temperature=1.5), ("temperature", 1.5)),
        (trueup.FocalTemperature(gamma=0.5, criterion="ece"), ("gamma", 0.5)),
        (trueup.FocalTemperature(gamma=-1.0), ("gamma", -1.0)),
    ]:
        made = settings.fit(logits, labels)
        assert getattr(made, kept[0]) == pytest.approx(kept[1])
        assert made.fit_report.after < made.fit_report.before
    one = trueup.FocalTemperature(gamma=0.5).fit(logits, labels)
    best = minimize_scalar(lambda t: nll_at(logits, labels, t, 0.5), bounds=(0.1, 10), method="bounded")
    assert one.fit_report.after <= best.fun + 1e-9
    assert trueup.FocalTemperature(gamma=0.0).fit(logits, labels).temperature == pytest.approx(
        trueup.Temperature().fit(logits, labels).temperature, rel=1e-4
    )


@pytest.mark.parametrize("family", [focal_calibrator.family, softplus.family])
@pytest.mark.parametrize("scale", [1.0, 8.0, 300.0])
def test_the_derivatives_of_the_families_are_those_of_their_values(family, scale):
    z = torch.from_numpy(np.random.default_rng(0).normal(0, scale, (40, 6))).log_softmax(1)
    points = {
        focal_calibrator.family: [[0.2, math.log1p(g)] for g in (-0.99, -0.5, 0.0, 0.7, 4.0)],
        softplus.family: [[0.1, 0.3, 0.5], [-0.5, -1.0, 5.0], [1.0, 2.0, -3.0], [0.3, -2.0, 12.0]],
    }[family]
    for point in points:
        x = np.array(point)
        _, slopes = family(x, z)
        for j, slope in enumerate(slopes):
            step = np.zeros(len(x))
            step[j] = 1e-6
            difference = (family(x + step, z)[0] - family(x - step, z)[0]) / 2e-6
            torch.testing.assert_close(slope, difference, rtol=2e-6, atol=2e-6)


def test_the_fast_family_is_the_focal_map():
    z = torch.from_numpy(np.random.default_rng(0).normal(0, 20, (100, 6)))
    for gamma in (-0.9, -0.3, 0.0, 1.0, 6.0):
        scores, _ = focal_calibrator.family(np.array([-0.4, math.log1p(gamma)]), z)
        expected = trueup.focal_map(z * math.exp(-0.4), gamma)
        torch.testing.assert_close(scores.log_softmax(1), expected, rtol=1e-10, atol=1e-10)


def test_the_softplus_map_rises_and_its_slope_falls():
    made = softplus.SoftplusMap(3, slope=0.5, rate=0.7, bend=4.0)
    x = torch.linspace(-30, -0.01, 500, dtype=torch.float64)
    z = torch.stack([x, torch.log1p(-x.exp()), torch.full_like(x, -1e3)], 1)  # log-probabilities with p_0 = exp(x)
    g = made.scores(z)[:, 0]
    slopes = torch.diff(g) / torch.diff(x)
    assert (slopes > 0).all()
    assert (torch.diff(slopes) < 1e-12).all()
    assert slopes[0] == pytest.approx(0.5 * 5.0, rel=1e-3)
    without_bend = softplus.SoftplusMap(3, slope=0.5, rate=1.0, bend=0.0)
    np.testing.assert_allclose(without_bend(z), torch.softmax(z * 0.5, 1), atol=1e-12)


def test_the_softplus_fit_ends_in_a_flat_valley():
    """On the example a and v rise together without a limit: the NLL falls by a tenth of a sample's on the way."""
    val = trueup.example.example_predictions()["val"]
    for settings in (trueup.Softplus(), trueup.Chain(trueup.Softplus(), trueup.Vector())):
        assert settings.fit(val.logits, val.labels).fit_report.converged
    report = trueup.Softplus().fit(val.logits, val.labels).fit_report
    assert report.iterations < 40
    assert report.after < 0.71224


@pytest.mark.parametrize("coordinates", [2, 3])
def test_a_step_is_to_the_minimum_of_the_model_within_the_box(coordinates):
    rng = np.random.default_rng(coordinates)
    sides = set()
    for _ in range(200):
        root, gradient = rng.normal(size=(coordinates, coordinates)), rng.normal(size=coordinates)
        curvature, lower, upper = root @ root.T, -rng.uniform(0, 2, coordinates), rng.uniform(0, 2, coordinates)
        step, promise = solve._Model(gradient, curvature, lower, upper).step(1.0)
        low, high = np.maximum(lower, -1), np.minimum(upper, 1)
        pull = gradient + curvature @ step
        assert promise == pytest.approx(-gradient @ step - step @ curvature @ step / 2)
        assert ((low <= step) & (step <= high)).all()
        # no slope inside, and at a side none that leads away from it
        assert np.where(step == low, np.minimum(pull, 0), np.where(step == high, np.maximum(pull, 0), pull)) == (
            pytest.approx(np.zeros(coordinates), abs=1e-8)
        )
        sides.add(int(((step == low) | (step == high)).sum()))
    assert sides == set(range(coordinates + 1))


def test_minimise_finds_the_minimum_of_a_curved_valley_within_bounds():
    def valley(x):
        a, b = x
        value = (1 - a) ** 2 + 10 * (b - a * a) ** 2
        gradient = np.array([-2 * (1 - a) - 40 * a * (b - a * a), 20 * (b - a * a)])
        curvature = np.array([[2 + 120 * a * a - 40 * b, -40 * a], [-40 * a, 20.0]])
        return value, gradient, curvature

    found = solve.minimise(valley, np.array([-1.0, 2.0]), np.array([-5.0, -5.0]), np.array([5.0, 5.0]))
    assert found.converged
    np.testing.assert_allclose(found.x, [1, 1], atol=1e-5)
    bounded = solve.minimise(valley, np.array([-1.0, 2.0]), np.array([-5.0, -5.0]), np.array([0.5, 5.0]))
    np.testing.assert_allclose(bounded.x, [0.5, 0.25], atol=1e-5)


def test_the_oracle_itself():
    """The slow loop, the focal map and the metric tell one story."""
    logits, labels = cases.golden()
    rows = slice(0, 50)
    assert oracles.nll_of_logits(logits[rows], labels[rows], 1.5, 2.0) == pytest.approx(
        nll_at(logits[rows], labels[rows], 1.5, 2.0), abs=1e-12
    )
