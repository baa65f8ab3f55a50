"""Intervals and the test of calibration: their definitions, and that they do what they promise on known populations."""

import numpy as np
import pytest
import torch

import trueup
from tests import cases
from trueup.metrics import fields, resample
from trueup.metrics.resample import CALIBRATION_ERRORS, MEANS, Resampler

ERRORS = {metric.__name__: metric for metric in CALIBRATION_ERRORS}


@pytest.mark.parametrize("name", trueup.METRICS)
@pytest.mark.parametrize("case", cases.PREDICTIONS)
def test_an_interval_contains_its_value(name, case):
    found = trueup.bootstrap(trueup.METRICS[name], *cases.PREDICTIONS[case](), resamples=100)
    assert found.low <= found.value <= found.high
    assert found.low >= 0


@pytest.mark.parametrize("metric", MEANS)
def test_the_interval_of_a_mean_has_the_width_that_statistics_gives_it(metric):
    scores = trueup.score(*cases.drawn(5000, 5, 0, temperature=2))
    found = trueup.bootstrap(metric, scores)
    error = MEANS[metric](scores).std() / np.sqrt(5000)
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)


@pytest.mark.parametrize("name", [name for name in ERRORS if name != "mce"])
def test_the_interval_narrows_with_the_number_of_samples(name):
    def width(n):
        found = trueup.bootstrap(ERRORS[name], *cases.drawn(n, 5, 1, temperature=2))
        return found.high - found.low

    assert width(8000) == pytest.approx(width(2000) / 2, rel=0.35)


@pytest.mark.parametrize("name", ERRORS)
def test_under_calibration_is_the_mean_over_drawn_labels(name):
    """The fast way, from sums of cells, against drawing labels and calling the metric."""
    probs, labels = cases.drawn(400, 6, 2)
    fast = trueup.under_calibration(ERRORS[name], probs, labels, resamples=2000)
    slow = Resampler(trueup.score(probs, labels), 200)
    values = np.array([slow._call(ERRORS[name], probs, y) for y in slow._drawn_labels()])
    assert fast.value == pytest.approx(values.mean(), abs=4 * values.std() / np.sqrt(200) + 0.02 * values.mean())
    assert fast.p == pytest.approx((values >= ERRORS[name](probs, labels)).mean(), abs=0.12)


def test_under_calibration_needs_no_labels():
    probs, _ = cases.drawn(400, 6, 2)
    assert trueup.under_calibration(trueup.ece, probs).p is None
    found = trueup.under_calibration(trueup.ece, probs).value
    assert 0 < found < 0.1
    tensor = torch.tensor(probs, requires_grad=True)
    assert trueup.under_calibration(trueup.ece, tensor).value == found
    assert trueup.under_calibration(trueup.ece, tensor.bfloat16()).value == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("name", [name for name in ERRORS if name != "mce"])
def test_a_calibrated_model_is_not_found_guilty_and_a_bad_one_is(name):
    assert trueup.under_calibration(ERRORS[name], *cases.drawn(3000, 10, 5)).p > 0.05
    bad = cases.drawn(3000, 10, 5, temperature=2)
    assert trueup.under_calibration(ERRORS[name], *bad).p == 1 / 1001
    assert trueup.bootstrap(ERRORS[name], *bad).low > 0


@pytest.mark.parametrize("name", ["ece", "adaptive_ece", "smooth_ece", "classwise_ece", "nll", "brier"])
def test_a_paired_interval_sees_what_two_single_ones_cannot(name):
    probs, labels = cases.drawn(4000, 5, 7, temperature=1.5)
    better = trueup.Temperature().fit(np.log(probs), labels)(np.log(probs))
    found = trueup.bootstrap(trueup.METRICS[name], probs, labels, better)
    assert found.value == pytest.approx(trueup.METRICS[name](probs, labels) - trueup.METRICS[name](better, labels))
    assert 0 < found.low <= found.value <= found.high
    same = trueup.bootstrap(trueup.METRICS[name], probs, labels, probs)
    assert same == pytest.approx((0, 0, 0))


@pytest.mark.parametrize("name", [name for name in ERRORS if name != "mce"])
@pytest.mark.parametrize("temperature", [1, 2])
def test_nearly_the_same_predictions_have_nearly_the_same_error(name, temperature):
    """The difference of two errors is at most the norm of the difference of their fields: no noise of the one can make
    it wide, also where the interval of each begins at 0."""
    probs, labels = cases.drawn(3000, 10, 5, temperature=temperature)
    single = trueup.bootstrap(ERRORS[name], probs, labels, resamples=300)
    other = probs**1.0005 / (probs**1.0005).sum(1, keepdims=True)
    pair = trueup.bootstrap(ERRORS[name], probs, labels, other, resamples=300)
    assert pair.low <= pair.value <= pair.high
    assert pair.high - pair.low < 0.4 * (single.high - single.low)


def test_any_function_of_probabilities_and_labels_can_be_bootstrapped():
    def accuracy(probs, labels):
        return 1 - trueup.error(probs, labels)

    probs, labels = cases.drawn(1000, 4, 0)
    found, known = (trueup.bootstrap(m, probs, labels, resamples=400) for m in (accuracy, trueup.error))
    assert found.high - found.low == pytest.approx(known.high - known.low, rel=0.25)
    assert trueup.under_calibration(accuracy, probs, labels, resamples=50).value == pytest.approx(
        1 - trueup.under_calibration(trueup.error, probs, labels, resamples=50).value
    )


@pytest.mark.parametrize("classes", [2, 3, 8, 70])
def test_the_drawn_labels_are_those_of_a_search_in_each_row(classes):
    rng = np.random.default_rng(classes)
    rising = np.sort(rng.integers(0, 9, (40, classes)) / 10, axis=1)  # with ties
    row, bound = rng.integers(0, 40, 500), rng.integers(-1, 10, 500) / 10
    found = fields._at_most(rising, row, bound)
    assert found.tolist() == [np.searchsorted(rising[r], b, "right") for r, b in zip(row, bound, strict=True)]


def test_a_seed_decides_everything():
    predictions = cases.drawn(500, 4, 0)
    first, again, other = (trueup.bootstrap(trueup.ece, *predictions, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_predictions_of_the_same_rows_share_the_draws_and_cannot_change_them():
    unit, extra = resample._drawn_rows(3000, 20, 0)
    assert resample._drawn_rows(3000, 20, 0)[1] is extra
    assert extra.shape == (20, 2000)
    assert (extra.sum(1) == 0).all()
    assert np.bincount(unit).tolist() == [2, 1] * 1000
    with pytest.raises(ValueError, match="read-only"):
        extra += 1
    assert not np.array_equal(resample._drawn_rows(3000, 20, 1)[1], extra)


def test_what_a_metric_is_on_the_samples_is_computed_once():
    calls = []

    def metric(probs, labels):
        calls.append(len(labels))
        return float(np.asarray(probs).max())

    s = trueup.metrics.score(*cases.drawn(50, 3, 0))
    resampler = Resampler(s, resamples=5)
    resampler.interval(metric)
    assert resampler.value(metric) == float(s.probs.max())
    assert len(calls) == 6


def test_a_pair_needs_the_same_rows_and_classes():
    probs, labels = cases.drawn(50, 4, 0)
    for other, says in (
        (trueup.score(probs[:49], labels[:49]), "other: 49 rows of 4 classes, where probs has 50 rows of 4"),
        (cases.drawn(50, 5, 0)[0], "other: 50 rows of 5 classes, where probs has 50 rows of 4"),
        (probs * 1.5, "other: row 0 sums to 1.5"),
    ):
        with pytest.raises(trueup.InputError, match=says):
            trueup.bootstrap(trueup.ece, probs, labels, other)


@pytest.mark.parametrize("metric", ["ece", trueup.confident_share, trueup.metrics.brier_decomposition, lambda *_: None])
def test_a_metric_is_a_function_that_gives_one_number(metric):
    probs, labels = cases.drawn(50, 4, 0)
    for call in (
        lambda: trueup.bootstrap(metric, probs, labels, resamples=5),
        lambda: trueup.bootstrap(metric, probs, labels, probs, resamples=5),
        lambda: trueup.under_calibration(metric, probs, labels, resamples=5),
        lambda: trueup.under_calibration(metric, probs, resamples=5),
    ):
        with pytest.raises(trueup.InputError, match="metric: expected"):
            call()


@pytest.mark.parametrize(
    "setting", [{"level": 95}, {"level": -1}, {"level": float("nan")}, {"level": "x"}, {"seed": -1}]
)
def test_settings_of_the_bootstrap_are_checked(setting):
    with pytest.raises(trueup.InputError, match=next(iter(setting))):
        trueup.bootstrap(trueup.ece, *cases.drawn(50, 4, 0), **setting)


@pytest.mark.parametrize("name", [*trueup.METRICS, "overconfidence"])
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("wrong", [0, 1, 2499, 2500])
def test_an_interval_ends_where_the_metric_does(name, classes, wrong):
    """2500 rows are resampled in 2000 groups, 500 of which hold two."""
    probs = np.full((2500, classes), 1e-6)
    probs[:, 0] = 1 - (classes - 1) * 1e-6
    found = trueup.bootstrap(getattr(trueup, name), probs, np.arange(2500) < wrong, resamples=60)
    low, high = {"nll": (0, np.inf), "brier": (0, 2), "overconfidence": (-1, 1)}.get(name, (0, 1))
    high = 2 / classes if name == "classwise_ece" else high
    assert low - 1e-12 <= found.low <= found.value <= found.high <= high + 1e-12


POPULATION = 4000


def softmaxes(*logits):
    return [np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in logits]


def true_error(metric, reported, posterior):
    """Of a finite population whose posterior is known."""
    rows = np.arange(POPULATION)
    top = reported.argmax(1)
    confidence = reported[rows, top]
    gap = confidence - posterior[rows, top]
    if metric is trueup.smooth_ece:
        on_grid = trueup.metrics.smooth.on_grid(confidence, gap / POPULATION, 4096)
        return float(trueup.metrics.smooth.smooth_ece_of(on_grid))
    if metric is trueup.adaptive_ece:
        index = np.argsort(np.argsort(confidence)) * 15 // POPULATION
    else:
        index = trueup.metrics.bins.equal_width(confidence, 15)
    return np.abs(np.bincount(index, gap, 15)).sum() / POPULATION


def samples(rng, posterior, n=1000):
    """Rows of the population, and labels of the known posterior."""
    rows = rng.integers(0, POPULATION, n)
    return rows, (rng.random((n, 1)) > posterior[rows].cumsum(1)).sum(1).clip(max=posterior.shape[1] - 1)


@pytest.mark.parametrize("temperature", [1.0, 1.1, 2.0])
@pytest.mark.parametrize("metric", [trueup.ece, trueup.smooth_ece, trueup.adaptive_ece])
def test_coverage(metric, temperature):
    """Out of 60 intervals of 95 %, at least 52 hold the true error; a percentile bootstrap holds 0 to 45 of them."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2.5, (POPULATION, 5))
    posterior, reported = softmaxes(logits / temperature, logits)
    truth = true_error(metric, reported, posterior)
    held = 0
    for repeat in range(60):
        rows, labels = samples(rng, posterior)
        found = trueup.bootstrap(metric, reported[rows], labels, resamples=200, seed=repeat)
        held += found.low <= truth + 1e-12 and truth <= found.high + 1e-12
    assert held >= 52


@pytest.mark.parametrize("pair", [(1, 1.001), (1, 1.02), (1.3, 1.31)])
@pytest.mark.parametrize("metric", [trueup.ece, trueup.smooth_ece, trueup.adaptive_ece])
def test_coverage_of_the_difference_of_nearly_the_same_predictions(metric, pair):
    """Out of 40 paired intervals of 95 %, at least 35 hold the true difference."""
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2.5, (POPULATION, 5))
    posterior, first, second = softmaxes(logits, *(logits / temperature for temperature in pair))
    truth = true_error(metric, first, posterior) - true_error(metric, second, posterior)
    held = 0
    for repeat in range(40):
        rows, labels = samples(rng, posterior)
        found = trueup.bootstrap(metric, first[rows], labels, second[rows], resamples=200, seed=repeat)
        held += found.low <= truth + 1e-12 and truth <= found.high + 1e-12
    assert held >= 35
