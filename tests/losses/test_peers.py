"""The authors' own formulas, where they are right, and what they do where they are not."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests import cases
from tests.losses.small import batch, gradient
from trueup import losses

close = torch.testing.assert_close


def authors_focal(gamma):
    """mukhoti2020: log_softmax, gather, 1 - exp."""

    def loss(z, y):
        log_p = F.log_softmax(z, 1).gather(1, y[:, None])[:, 0]
        return (-((1 - log_p.exp()) ** gamma) * log_p).mean()

    return loss


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 3.0, 5.0])
def test_focal_is_the_authors_where_theirs_is_right(gamma):
    z, y = batch(n=200, classes=10)
    ours = losses.Focal(gamma)
    close(ours(z, y), authors_focal(gamma)(z, y))
    close(gradient(ours, z, y), gradient(authors_focal(gamma), z, y))


def test_the_authors_gradient_is_nan_or_lost_where_ours_is_exact():
    z, y = torch.tensor([[40.0, 0.0, 0.0]]), torch.tensor([0])
    assert gradient(authors_focal(0.5), z, y).isnan().any()
    assert gradient(authors_focal(1.0), z, y).abs().max() == 0
    q = 2 * math.exp(-40)
    for gamma in (0.5, 0.25):
        close(gradient(losses.Focal(gamma), z, y)[0, 0].item(), -(1 + gamma) * q ** (1 + gamma), rtol=1e-5, atol=0)


def test_the_authors_flsd_has_one_gamma_a_sample():
    z, y = batch(n=300, classes=10)
    log_p = F.log_softmax(z, 1).gather(1, y[:, None])[:, 0]
    gamma = torch.tensor([5.0 if p < 0.2 else 3.0 for p in log_p.exp().tolist()])
    close(losses.parse("flsd-53")(z, y), (-((1 - log_p.exp()) ** gamma) * log_p).mean())


def test_brier_is_its_definition():
    z, y = batch(n=100)
    close(losses.Brier()(z, y), (z.softmax(1) - F.one_hot(y, 5)).square().sum(1).mean())


@pytest.mark.parametrize("gamma", [0.5, 1.0, 5.0])
def test_dual_focal_is_the_authors(gamma):
    """p_j: the largest probability strictly below p_y, 0 if there is none."""
    z, y = batch(n=200)
    p = z.softmax(1)
    own = p.gather(1, y[:, None])
    rival = torch.where(p < own, p, 0.0).amax(1)
    close(losses.DualFocal(gamma)(z, y), ((1 - own[:, 0] + rival) ** gamma * -own[:, 0].log()).mean())


def mmce_squared(confidence, right, width=0.4):
    """Loops over all pairs."""
    n = len(confidence)
    return sum(
        (right[i] - confidence[i]) * (right[j] - confidence[j]) * math.exp(-abs(confidence[i] - confidence[j]) / width)
        for i in range(n)
        for j in range(n)
    ) / (n * n)


def top(z, y):
    confidence, predicted = z.softmax(1).max(1)
    return confidence.tolist(), (predicted == y).double().tolist()


def test_mmce_is_its_definition():
    z, y = batch(n=40)
    assert losses.MMCE(3.0)(z, y).item() == pytest.approx(3 * math.sqrt(mmce_squared(*top(z, y))), rel=1e-10)
    golden, labels = (torch.from_numpy(each) for each in cases.golden())
    assert losses.MMCE(1.0)(golden, labels).item() ** 2 == pytest.approx(0.0243149906, abs=1e-10)


def authors_mmce(confidence, right, width=0.4):
    """mukhoti2020's code: a mean over pairs of right and wrong apart, over the number of those pairs once more."""
    n_right, n_wrong = sum(right), len(right) - sum(right)
    if n_right == 0 or n_wrong == 0:
        return 0.0
    total = 0.0
    for a, x in zip(confidence, right, strict=True):
        for b, w in zip(confidence, right, strict=True):
            k = math.exp(-abs(a - b) / width)
            if x and w:
                total += (1 - a) * (1 - b) * k / n_right**2 / (n_right**2 + 1e-5)
            elif not x and not w:
                total += a * b * k / n_wrong**2 / (n_wrong**2 + 1e-5)
            elif x:
                total -= 2 * (1 - a) * b * k / (n_right * n_wrong) / (n_right * n_wrong + 1e-5)
    return math.sqrt(max(total, 0) + 1e-10)


def test_the_other_form_of_mmce_is_what_its_docstring_says():
    z, y = batch(n=40)
    loss = losses.MMCE(1.0, form="mukhoti2020")
    assert loss(z, y).item() == pytest.approx(authors_mmce(*top(z, y)), rel=1e-9)
    assert loss(z, z.argmax(1)) == 0
    assert loss(z, z.argmin(1)) == 0
    assert losses.MMCE(1.0)(z, z.argmax(1)) > 0


@pytest.mark.parametrize("form", ["paper", "mukhoti2020"])
def test_mmce_of_certain_right_predictions_has_no_error_and_no_slope(form):
    z, y = torch.eye(4, dtype=torch.float64) * 1e3, torch.arange(4)
    loss = losses.MMCE(1.0, form=form)
    assert loss(z, y).item() == pytest.approx(0, abs=1e-9)
    assert torch.isfinite(gradient(loss, z, y)).all()


def test_entropy_and_norm_are_their_definitions():
    z, y = batch(n=30)
    entropy = torch.distributions.Categorical(logits=z).entropy()
    close(losses.EntropyPenalty(0.3)(z, y), -0.3 * entropy.mean())
    close(losses.LogitNorm(1, 0.5)(z, y), 0.5 * z.abs().sum(1).mean())
    close(losses.LogitNorm(3, 0.5)(z, y), 0.5 * (z.abs() ** 3).sum(1).pow(1 / 3).mean())
    assert gradient(losses.LogitNorm(2), torch.zeros(2, 3), torch.tensor([0, 1])).abs().max() == 0


class Bins:
    """AdaFocal's update, written from the paper: gammas of equal-mass bins of the validation confidence."""

    def __init__(self, bins):
        self.gammas = [1.0] * bins

    def update(self, confidence, right):
        order = np.argsort(confidence, kind="stable")
        parts = np.array_split(order, len(self.gammas))
        assert len({len(part) for part in parts}) == 1
        for i, part in enumerate(parts):
            gap = confidence[part].mean() - right[part].mean()
            gamma = self.gammas[i]
            moved = gamma * math.exp(gap if gamma > 0 else -gap)
            if abs(moved) < 0.2:
                moved = -0.2 if gamma > 0 else 0.2
            self.gammas[i] = min(max(moved, -2.0), 20.0)
        return [confidence[part].max() for part in parts[:-1]], [confidence[part].min() for part in parts[1:]]


def test_adafocal_follows_the_calibration_of_its_bins():
    ada, bins = losses.AdaFocal(), Bins(15)
    turned = False
    for epoch in range(14):
        probs, labels = cases.drawn(1500, 10, epoch, temperature=0.3 if epoch < 8 else 4)
        confidence, right = probs.max(1), probs.argmax(1) == labels
        below, above = bins.update(confidence, right)
        ada.observe_validation(torch.from_numpy(probs), torch.from_numpy(labels))
        np.testing.assert_allclose(ada.gammas, bins.gammas, rtol=1e-10)
        assert (ada.bounds.numpy() >= below).all()
        assert (ada.bounds.numpy() <= above).all()
        turned |= bool((ada.gammas < 0).any())
    assert turned


def test_adafocal_stays_within_its_limits():
    ada = losses.AdaFocal(bins=3, rate=5.0)
    wrong = torch.full((30, 2), 0.01).index_fill(1, torch.tensor([0]), 0.99)
    for _ in range(20):
        ada.observe_validation(wrong, torch.ones(30, dtype=torch.long))
    assert ada.gammas.tolist() == [20.0] * 3
    for _ in range(60):
        ada.observe_validation(torch.tensor([[0.51, 0.49]]).repeat(30, 1), torch.zeros(30, dtype=torch.long))
    assert ada.gammas.tolist() == [-2.0] * 3


@pytest.fixture
def moved():
    ada = losses.AdaFocal(bins=4)
    ada.gammas.copy_(torch.tensor([-1.5, 2.0, -0.4, 5.0]))
    ada.bounds.copy_(torch.tensor([0.1, 0.3, 0.7]))
    return ada


def test_adafocal_is_focal_or_inverse_focal_by_bin(moved):
    z, y = batch(n=60)
    p = z.softmax(1)[torch.arange(60), y]
    each = [
        -((1 + x) ** 1.5) * math.log(x)
        if x < 0.1
        else -((1 - x) ** 2) * math.log(x)
        if x < 0.3
        else -((1 + x) ** 0.4) * math.log(x)
        if x < 0.7
        else -((1 - x) ** 5) * math.log(x)
        for x in p.tolist()
    ]
    moved.reduction = "none"
    close(moved(z, y), torch.tensor(each, dtype=torch.float64))


def test_adafocal_has_the_gradient_of_finite_differences(moved):
    z, y = batch(n=20)
    p = z.softmax(1)[torch.arange(20), y]
    assert ((p[:, None] - moved.bounds).abs() > 1e-3).all()  # away from where gamma jumps
    assert len(set(torch.bucketize(p, moved.bounds).tolist())) == 4
    assert torch.autograd.gradcheck(lambda x: moved(x, y), z.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda x: moved(x, y), z)


def test_adafocal_is_saved_with_the_model(moved):
    again = losses.AdaFocal(bins=4)
    again.load_state_dict(moved.state_dict())
    assert torch.equal(again.gammas, moved.gammas)
    assert torch.equal(again.bounds, moved.bounds)


@pytest.mark.parametrize("form", ["paper", "mukhoti2020"])
@pytest.mark.parametrize("seed", range(3))
def test_mmce_has_the_gradient_of_finite_differences(form, seed):
    z, y = batch(n=9, seed=seed)
    loss = losses.MMCE(2.0, form=form)
    assert torch.autograd.gradcheck(lambda x: loss(x, y), z.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda x: loss(x, y), z)
