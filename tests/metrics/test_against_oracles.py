"""Every metric against a slow loop written from its formula, and against values computed elsewhere."""

import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.special import softmax

import trueup
from tests import cases, oracles

ORACLES = {name: getattr(oracles, name) for name in trueup.METRICS if name != "smooth_ece"}
ROUNDING = dict.fromkeys(ORACLES, 1e-11) | {"debiased_ece": 1e-7}  # a root of what may cancel to rounding


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("case", cases.PREDICTIONS)
def test_metric_equals_its_formula(name, case):
    probs, labels = cases.PREDICTIONS[case]()
    assert trueup.METRICS[name](probs, labels) == pytest.approx(ORACLES[name](probs, labels), abs=ROUNDING[name])


@pytest.mark.parametrize("name", ORACLES)
@given(cases.predictions())
def test_metric_equals_its_formula_on_anything(name, predictions):
    assert trueup.METRICS[name](*predictions) == pytest.approx(ORACLES[name](*predictions), abs=ROUNDING[name])


@pytest.mark.parametrize("case", ["golden", "over-confident", "binary", "certain and half wrong", "constant"])
def test_smooth_ece_equals_its_formula(case):
    probs, labels = (part[:300] for part in cases.PREDICTIONS[case]())
    assert trueup.smooth_ece(probs, labels) == pytest.approx(oracles.smooth_ece(probs, labels), abs=2e-4)


GOLDEN = {
    "nll": 1.8595474833,
    "brier": 0.6222151122,
    "error": 0.3010,
    "ece": 0.1940770417,
    "mce": 0.4783881828,
    "classwise_ece": 0.0519123132,
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_values(name):
    probs, labels = cases.PREDICTIONS["golden"]()
    assert trueup.METRICS[name](probs, labels) == pytest.approx(GOLDEN[name], abs=1e-10)


def test_golden_adaptive_ece_with_the_edges_of_mukhoti2020():
    probs, labels = cases.PREDICTIONS["golden"]()
    assert trueup.adaptive_ece(probs, labels, edges="mukhoti2020") == pytest.approx(0.1931456177, abs=1e-10)


def test_edges_belong_to_the_bin_below_in_both_precisions():
    for dtype in (np.float32, np.float64):
        probs = np.array([[0.2, 0.2, 0.6], [0.4, 0.4, 0.2]], dtype)
        index = trueup.metrics.bins.equal_width(probs.ravel(), 15)
        assert index.tolist() == [2, 2, 8, 5, 5, 2]


@pytest.mark.parametrize("bins", [1, 2, 7, 10, 15, 16, 100])
def test_every_multiple_of_a_bin_width_is_an_upper_edge(bins):
    for dtype in (np.float32, np.float64):
        edges = (np.arange(bins + 1) / bins).astype(dtype)
        assert trueup.metrics.bins.equal_width(edges, bins).tolist() == [0, *range(bins)]
        above = np.nextafter(edges[1:-1], dtype(2))
        assert trueup.metrics.bins.equal_width(above, bins).tolist() == list(range(1, bins))


def test_a_million_calibrated_predictions_have_no_error():
    """Sums in float32 give .0084 here."""
    probs = torch.full((1_000_000, 2), 0.05)
    probs[:, 0] = 0.95
    labels = torch.zeros(1_000_000, dtype=torch.int64)
    labels[::20] = 1
    assert trueup.ece(probs, labels) < 1e-7


def test_certain_and_half_wrong_is_an_error_of_one_half():
    """The adaptive ECE of mukhoti2020's code is 0 here: all its edges collapse."""
    probs, labels = cases.one_hot(1000, 10, 0.5)
    assert trueup.adaptive_ece(probs, labels) == pytest.approx(0.5)
    assert trueup.adaptive_ece(probs, labels, edges="mukhoti2020") == 0
    assert trueup.ece(probs, labels) == trueup.mce(probs, labels) == pytest.approx(0.5)


def test_the_first_of_equal_probabilities_is_the_prediction():
    probs = [[0.4, 0.4, 0.2], [0.4, 0.4, 0.2]]
    assert trueup.error(probs, [0, 1]) == 0.5


def test_brier_decomposition_adds_up():
    probs, labels = cases.PREDICTIONS["over-confident"]()
    parts = trueup.brier_decomposition(probs, labels)
    assert parts.calibration + parts.refinement == pytest.approx(trueup.brier(probs, labels))
    expected = 0.0
    for k in range(10):
        number, gap = oracles.gaps([(p, int(y == k)) for p, y in zip(probs[:, k], labels, strict=True)], 15)
        expected += sum(g * g / n for n, g in zip(number, gap, strict=True) if n) / len(labels)
    assert parts.calibration == pytest.approx(expected)


def test_confident_share_and_its_accuracy():
    probs = np.array([[0.99, 0.01], [0.995, 0.005], [0.9, 0.1], [0.02, 0.98]])
    assert trueup.confident_share(probs, [0, 1, 0, 1]) == (0.5, 0.5)
    assert trueup.confident_share(probs.astype(np.float32), [0, 1, 0, 1]) == (0.5, 0.5)
    share, accuracy = trueup.confident_share(probs[2:], [0, 1])
    assert share == 0
    assert np.isnan(accuracy)


def test_outcomes_are_means_over_right_and_wrong():
    probs, labels = cases.PREDICTIONS["golden"]()
    found = trueup.outcomes(probs, labels)
    right = probs.argmax(1) == labels
    own = probs[np.arange(len(labels)), labels]
    entropy = -(probs * np.log(probs)).sum(1)
    for group, rows in ((found.correct, right), (found.wrong, ~right), (found.all, np.ones_like(right))):
        assert group == pytest.approx((rows.sum(), -np.log(own[rows]).mean(), entropy[rows].mean(), own[rows].mean()))


def test_logits_give_an_nll_that_does_not_underflow():
    logits = np.array([[1e4, -1e4], [0.0, 3.0]])
    scores = trueup.score_logits(logits, [1, 1])
    assert trueup.nll(scores) == pytest.approx((2e4 + np.log1p(np.exp(-3))) / 2)
    assert trueup.nll(softmax(logits, axis=1), [1, 1]) == np.inf
    for metric in trueup.METRICS.values():
        assert np.isfinite(metric(scores))
