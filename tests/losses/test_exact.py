"""Value, gradient and Hessian of every loss with a closed form against 60 digits, margins from -1e4 to 1e4."""

import math

import mpmath
import pytest
import torch

import trueup
from tests import exact
from trueup import focal, losses

GAMMAS = [-1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0]
MARGINS = [
    -1e4,
    -1e3,
    -100.0,
    -30.0,
    -5.0,
    -1.0,
    0.0,
    0.125,
    1.0,
    5.0,
    10.0,
    17.0,
    40.0,
    55.0,
    80.0,
    100.0,
    300.0,
    1e3,
    1e4,
]
OTHERS = [(0.0,), (0.0, 0.0, -2.5), (0.0, -46.0, 40.0), (0.0, -1000.0, -20.0)]
ROWS = [  # the label stands at the margin above the first of the others, in every position
    ((*others[:at], others[0] + margin, *others[at:]), at)
    for i, margin in enumerate(MARGINS)
    for j, others in enumerate(OTHERS)
    for at in [(i + j) % (len(others) + 1)]
]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}

FOCAL = {f"focal {g:g}": (losses.Focal(g), exact.focal(g)) for g in GAMMAS}
DETACHED = {
    f"detached {g:g}": (losses.Focal(g, detach_weight=True), exact.focal(g, detach_weight=True))
    for g in (-1.0, -0.5, 0.5, 3.0)
}
OTHER = {
    "cross-entropy": (losses.CrossEntropy(), exact.cross_entropy),
    "brier": (losses.Brier(), exact.brier),
    "label smoothing": (losses.LabelSmoothing(0.125), exact.label_smoothing(0.125)),
    "dual focal 0.5": (losses.DualFocal(0.5), exact.dual_focal(0.5)),
    "dual focal 5": (losses.DualFocal(5), exact.dual_focal(5)),
    "entropy": (losses.EntropyPenalty(0.25), exact.entropy_penalty(0.25)),
    "l1": (losses.LogitNorm(1, 0.5), exact.logit_norm(1, 0.5)),
    "l2": (losses.LogitNorm(2, 0.5), exact.logit_norm(2, 0.5)),
    "sum": (
        losses.Focal(3.0) + losses.EntropyPenalty(0.5) + losses.LogitNorm(2, 0.25),
        exact.plus(exact.focal(3.0), exact.entropy_penalty(0.5), exact.logit_norm(2, 0.25)),
    ),
}
CASES = FOCAL | DETACHED | OTHER


def tied_rival(row, label):
    below = sorted(x for x in row if x < row[label])
    return len(below) > 1 and below[-1] == below[-2]


KINKS = {
    "dual focal 0.5": tied_rival,
    "dual focal 5": tied_rival,
    "l1": lambda row, label: 0.0 in row,
    "l2": lambda row, label: not any(row),
    "sum": lambda row, label: not any(row),
}


def digits(name, row, label):
    """At gamma = -1 the factor and the logarithm cancel to the last power of q."""
    ahead = row[label] - max(x for k, x in enumerate(row) if k != label)
    return exact.DIGITS + (int(max(0.0, ahead) / math.log(10) * 1.1) if name == "focal -1" else 0)


def rows_of(name):
    return [(row, label) for row, label in ROWS if name not in KINKS or not KINKS[name](row, label)]


def derivatives(module, rows, dtype):
    """Of each row (value, gradient, differentiable gradient, Hessian), by backward and double backward."""
    found = {}
    for classes in {len(row) for row, _ in rows}:
        some = [(row, label) for row, label in rows if len(row) == classes]
        z = torch.tensor([row for row, _ in some], dtype=dtype, requires_grad=True)
        values = per_sample(module, z, torch.tensor([label for _, label in some]))
        (plain,) = torch.autograd.grad(values.sum(), z, retain_graph=True)
        (again,) = torch.autograd.grad(values.sum(), z, create_graph=True)
        second = [
            torch.autograd.grad(again[:, k].sum(), z, retain_graph=True)[0]
            if again.requires_grad
            else torch.zeros_like(z)
            for k in range(classes)
        ]
        each = values.tolist(), plain.tolist(), again.tolist(), torch.stack(second, 1).tolist()
        found.update(zip(some, zip(*each, strict=True), strict=True))
    return found


def per_sample(module, z, y):
    if isinstance(module, losses.Penalty):
        return module.values(z, y, None).to(z.dtype)
    getattr(module, "loss", module).reduction = "none"
    return module(z, y)


def check(found, true, scale, dtype, what):
    """Within the tolerance of ``scale``, or of the smallest number there is."""
    tiny, largest = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    assert math.isfinite(found), what
    if abs(true) < largest:
        assert abs(found - true) <= TOLERANCE[dtype] * scale + tiny, (*what, found, mpmath.nstr(true, 17))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_value_gradient_and_hessian(name, dtype):
    module, formula = CASES[name]
    found = derivatives(module, rows_of(name), dtype)
    for (row, label), (ours, plain, again, second) in found.items():
        value, gradient, hessian = exact.evaluated(formula, row, label, digits(name, row, label))
        check(ours, value, abs(value), dtype, (name, row, label, "value"))
        largest = max(abs(x) for x in gradient)
        for k, true in enumerate(gradient):
            scale = abs(true) if name in FOCAL or name in DETACHED or name == "cross-entropy" else largest
            check(plain[k], true, scale, dtype, (name, row, label, "gradient", k))
            check(again[k], true, scale, dtype, (name, row, label, "gradient, differentiable", k))
        largest = max(abs(x) for line in hessian for x in line)
        for i, line in enumerate(hessian):
            for k, true in enumerate(line):
                check(second[i][k], true, largest, dtype, (name, row, label, "hessian", i, k))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_closed_forms(gamma, dtype):
    """focal.logit_gradient and focal.logit_hessian."""
    formula = FOCAL[f"focal {gamma:g}"][1]
    for row, label in ROWS:
        _, gradient, hessian = exact.evaluated(formula, row, label, digits(f"focal {gamma:g}", row, label))
        z, y = torch.tensor(row, dtype=dtype), torch.tensor(label)
        first, second = (f(z, y, gamma).tolist() for f in (focal.logit_gradient, focal.logit_hessian))
        largest = max(abs(x) for line in hessian for x in line)
        for i in range(len(row)):
            check(first[i], gradient[i], abs(gradient[i]), dtype, (row, label, "gradient", i))
            for k in range(len(row)):
                check(second[i][k], hessian[i][k], largest, dtype, (row, label, "hessian", i, k))


@pytest.mark.parametrize("name", ["focal -1", "focal 0.25", "focal 5", "brier", "dual focal 5", "entropy", "l2"])
def test_the_oracle_is_differentiated_rightly(name):
    """By mpmath's own differences, of the plain formula in p where there is one."""
    formula, row, label = CASES[name][1], (0.5, -1.25, 2.0), 2
    _, gradient, hessian = exact.evaluated(formula, row, label)
    with mpmath.workdps(40):

        def value(*z):
            return formula(exact.Jet.variables(z), label).value

        for i in range(3):
            order = [int(k == i) for k in range(3)]
            assert abs(mpmath.diff(value, row, tuple(order)) - gradient[i]) < 1e-12
            for k in range(3):
                both = tuple(int(j == i) + int(j == k) for j in range(3))
                assert abs(mpmath.diff(value, row, both) - hessian[i][k]) < 1e-12


@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_oracle_is_the_plain_formula_where_that_is_right(gamma):
    row, label = (0.5, -1.25, 2.0), 1
    with mpmath.workdps(40):
        p = mpmath.exp(row[label]) / sum(mpmath.exp(x) for x in row)
        phi = (1 - p) ** gamma - gamma * p * (1 - p) ** (gamma - 1) * mpmath.log(p)
        value, gradient, _ = exact.evaluated(exact.focal(gamma), row, label)
        assert abs(value + (1 - p) ** gamma * mpmath.log(p)) < 1e-30
        assert abs(gradient[label] - phi * (p - 1)) < 1e-30
        assert abs(trueup.phi(float(p), gamma) - phi) < 1e-15


def loop_in_odds(values, gammas, f):
    for u in values:
        for gamma in gammas:
            jet = f(gamma)([exact.Jet(mpmath.mpf(u), [mpmath.mpf(1)], [[mpmath.mpf(0)]])])
            yield u, gamma, jet


def focal_in_odds(gamma):
    def loss(args):
        (u,) = args
        return (-(-u).softplus() * gamma).exp() * u.softplus()

    return loss


def test_loss_slope_and_bend_in_the_odds():
    """Relative exactness of all three, wherever they are numbers; vectorised over gamma."""
    us = [-700.0, -300.0, -100.0, -37.0, -10.0, -2.2, -1.0, -0.01, 0.0, 0.01, 1.0, 3.0, 20.0, 40.0, 500.0]
    gammas = torch.tensor(GAMMAS, dtype=torch.float64)
    u = torch.tensor(us, dtype=torch.float64)[:, None]
    found = [f(u, gammas) for f in (focal.loss_at, focal.slope_at, focal.bend_at)]
    with mpmath.workdps(700):
        for x, gamma, jet in loop_in_odds(us, GAMMAS, focal_in_odds):
            i, k = us.index(x), GAMMAS.index(gamma)
            for name, ours, true in zip(
                ("value", "slope", "bend"), found, (jet.value, jet.gradient[0], jet.hessian[0][0]), strict=True
            ):
                # the bend passes through 0: relative to the slope there
                scale = abs(true) if name != "bend" or x < 0 else max(abs(true), jet.gradient[0] * math.exp(-x))
                check(ours[i, k].item(), true, scale, torch.float64, (name, x, gamma))
