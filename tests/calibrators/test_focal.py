"""Focal temperature scaling on real networks: never worse than a temperature, and the optimum of its two numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

import trueup
from tests import cases
from tests.conftest import LOGITS, SETS
from trueup.focal import log_h

RUNS = sorted((Path(__file__).parents[2] / "results").glob("*/runs/*/val.safetensors"))
NETWORKS = [LOGITS / name / "val.npz" for name in SETS] + RUNS


def loaded(path, rows=None):
    found = trueup.load(path)
    return found.logits[:rows].double(), found.labels[:rows]


def nll(z, y, temperature, gamma):
    return -float(log_h(z / temperature, gamma).log_softmax(1).gather(1, y[:, None]).mean())


def nll_on_a_grid(z, y, temperatures, gammas):
    """(temperatures, gammas) the NLL at every point, from the formulas: h(v) = v (1-v)^-g / (1 + g r(v)).

    1 - v of the largest is the mass of the others; what does not depend on gamma is computed once a temperature.
    """
    found, top, own = np.empty((len(temperatures), len(gammas))), z.argmax(1, keepdim=True), y[:, None]
    for i, t in enumerate(temperatures):
        log_v = (z / t).log_softmax(1)
        log_q_top = log_v.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
        log_q = torch.log1p(-log_v.exp().scatter(1, top, 0.0)).scatter(1, top, log_q_top)
        log_v.scatter_(1, top, torch.log1p(-log_q_top.exp()))
        r = (-log_v * (log_v - log_q).exp()).scatter(1, top, 1.0)
        q_top = log_q_top.exp()
        r.scatter_(1, top, torch.where(q_top > 1e-7, -(1 - q_top) * torch.log1p(-q_top) / q_top, 1 - q_top / 2))
        for j, g in enumerate(gammas):
            log_h = log_v - g * log_q - torch.log1p(g * r)
            found[i, j] = float((log_h.logsumexp(1) - log_h.gather(1, own)[:, 0]).mean())
    return found


def lowest_of_a_grid(z, y, points, rounds=1):
    """Temperatures from an eighth to eight times the plain one, 1 + gamma from a millionth to a hundred; every further
    round has as many points again, within the neighbours of the best."""
    plain = trueup.Temperature().fit(z, y).temperature
    temperatures, above = np.geomspace(plain / 8, 8 * plain, points), np.geomspace(1e-6, 100, points)
    lowest = np.inf
    for _ in range(rounds):
        values = nll_on_a_grid(z, y, temperatures, above - 1)
        lowest = min(lowest, values.min())
        best = np.unravel_index(values.argmin(), values.shape)
        temperatures, above = (
            np.geomspace(axis[max(at - 1, 0)], axis[min(at + 1, points - 1)], points)
            for axis, at in zip((temperatures, above), best, strict=True)
        )
    return lowest


def test_the_grid_is_of_the_map_itself():
    z = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul(8)
    z[:5] *= 60
    y = torch.arange(40) % 6
    temperatures, gammas = np.array([0.3, 1.0, 4.0]), np.array([-0.999, -0.4, 0.0, 2.0, 49.0])
    direct = [[nll(z, y, t, g) for g in gammas] for t in temperatures]
    np.testing.assert_allclose(nll_on_a_grid(z, y, temperatures, gammas), direct, rtol=1e-9)


@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.parent.name)
def test_by_nll_it_is_never_above_temperature_scaling(path):
    z, y = loaded(path)
    plain, focal = (settings().fit(z, y) for settings in (trueup.Temperature, trueup.FocalTemperature))
    assert focal.fit_report.converged
    assert focal.fit_report.after <= plain.fit_report.after + 1e-12
    found = nll(z, y, focal.temperature, focal.gamma)
    assert found == pytest.approx(focal.fit_report.after, rel=1e-6)  # at -1, from 1e-8 beside it


@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.parent.name)
def test_its_two_numbers_are_the_optimum_of_a_grid(path):
    z, y = loaded(path, rows=200)
    found = trueup.FocalTemperature().fit(z, y)
    assert found.fit_report.after <= lowest_of_a_grid(z, y, points=17, rounds=2) + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.parent.name)
def test_its_two_numbers_are_the_optimum_of_a_fine_grid_on_all_samples(path):
    z, y = loaded(path)
    found = trueup.FocalTemperature().fit(z, y).fit_report.after
    lowest = lowest_of_a_grid(z, y, points=33, rounds=2)
    assert found <= lowest + 1e-9
    assert lowest <= found + 1e-3  # the grid has been near; with two classes the valley is long and narrow


@pytest.mark.parametrize("gamma", [-1.0, -0.9, -0.5, 0.0, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_with_a_given_gamma_the_temperature_is_the_optimum(classes, gamma):
    """Two classes make the two parameters nearly one: the step must not leave along the one that is held."""
    probs, labels = cases.drawn(2000, classes, 1, temperature=1.7)
    z, y = torch.from_numpy(np.log(probs)), torch.from_numpy(labels)
    found = trueup.FocalTemperature(gamma=gamma).fit(z, y)
    best = minimize_scalar(lambda x: nll(z, y, np.exp(x), gamma), bounds=(-4, 6), method="bounded",
                           options={"xatol": 1e-10})  # fmt: skip
    assert found.fit_report.after <= best.fun + 1e-8
    assert found.gamma == gamma


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_with_a_given_temperature_gamma_is_the_optimum(temperature):
    probs, labels = cases.drawn(2000, 5, 2, temperature=1.3)
    z, y = torch.from_numpy(np.log(probs)), torch.from_numpy(labels)
    found = trueup.FocalTemperature(temperature=temperature).fit(z, y)
    grid = min(nll(z, y, temperature, g) for g in np.geomspace(1e-4, 101, 400) - 1)
    assert found.fit_report.after <= grid + 1e-9


@pytest.mark.parametrize("gamma", [-0.9, -0.3, 0.7, 3.0])
def test_classes_that_tie_at_the_top_keep_their_order(gamma):
    """Logits stored in half precision tie now and then; the first of equals stays the prediction."""
    z = torch.randn(2000, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul(3).round(decimals=1)
    made = trueup.calibrators.focal.FocalTemperatureMap(10, 1.37, gamma)
    assert torch.equal(torch.from_numpy(made(z).numpy().argmax(1)), torch.from_numpy(z.numpy().argmax(1)))
