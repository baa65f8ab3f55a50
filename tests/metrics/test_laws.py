"""What holds for every metric, whatever the predictions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

import trueup
from tests import cases

CALIBRATION_ERRORS = [name for name in trueup.METRICS if name not in ("nll", "brier", "error")]


@pytest.mark.parametrize("name", trueup.METRICS)
@given(predictions=cases.predictions(least=2), seed=st.integers(0, 1000))
def test_the_order_of_the_samples_does_not_matter(name, predictions, seed):
    probs, labels = predictions
    order = np.random.default_rng(seed).permutation(len(labels))
    metric = trueup.METRICS[name]
    assert metric(probs[order], labels[order]) == pytest.approx(metric(probs, labels), abs=1e-7)


@pytest.mark.parametrize("name", trueup.METRICS)
@pytest.mark.parametrize("case", ["golden", "over-confident", "binary"])
def test_the_names_of_the_classes_do_not_matter(name, case):
    probs, labels = cases.PREDICTIONS[case]()
    names = np.random.default_rng(0).permutation(probs.shape[1])
    metric = trueup.METRICS[name]
    renamed = probs[:, np.argsort(names)]
    assert metric(renamed, names[labels]) == pytest.approx(metric(probs, labels), abs=1e-9)


@pytest.mark.parametrize("name", trueup.METRICS)
@given(cases.predictions())
def test_no_metric_is_negative_and_no_calibration_error_exceeds_one(name, predictions):
    value = trueup.METRICS[name](*predictions)
    assert value >= 0
    if name in CALIBRATION_ERRORS:
        assert value <= 1 + 1e-12


@given(cases.predictions())
def test_ece_is_at_most_mce(predictions):
    assert trueup.ece(*predictions) <= trueup.mce(*predictions) + 1e-12


@given(cases.predictions(), st.integers(1, 40))
def test_ece_is_at_least_the_gap_between_confidence_and_accuracy(predictions, bins):
    assert trueup.ece(*predictions, bins=bins) >= abs(trueup.overconfidence(*predictions)) - 1e-12
    assert trueup.adaptive_ece(*predictions, bins=bins) >= abs(trueup.overconfidence(*predictions)) - 1e-12


@given(cases.predictions(), st.integers(1, 40))
def test_the_bins_hold_every_sample(predictions, bins):
    scores = trueup.score(*predictions)
    counts, predicted, observed = trueup.metrics.bins.class_bins(scores, bins)
    assert (counts.sum(1) == len(scores)).all()
    assert observed.sum() == len(scores)
    assert predicted.sum() == pytest.approx(len(scores))
    residual, right = trueup.metrics.bins.equal_mass(scores, bins)
    assert residual.sum() == pytest.approx(scores.residual.sum(), abs=1e-9)
    assert right.sum() == pytest.approx(scores.correct.sum())


@pytest.mark.parametrize("name", ["nll", "brier"])
@given(seed=st.integers(0, 10_000))
def test_proper_scores_are_least_at_the_true_probabilities(name, seed):
    """Over all labels of a sample, weighted by their probability."""
    rng = np.random.default_rng(seed)
    truth, other = rng.dirichlet(np.ones(4), 2)

    def expected(forecast):
        return sum(truth[k] * trueup.METRICS[name](forecast[None], [k]) for k in range(4))

    assert expected(truth) <= expected(other) + 1e-12


@pytest.mark.parametrize("name", trueup.METRICS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, "bfloat16"])
def test_lower_precisions_agree_to_their_precision(name, dtype):
    probs, labels = cases.PREDICTIONS["over-confident"]()
    low = torch.from_numpy(probs).bfloat16() if dtype == "bfloat16" else probs.astype(dtype)
    exact = trueup.METRICS[name](probs, labels)
    tolerance = {"bfloat16": 0.02, np.float16: 0.005, np.float32: 1e-6}[dtype]
    if name == "mce" and dtype != np.float32:
        tolerance *= 10  # a bin of three samples gains or loses one
    assert trueup.METRICS[name](low, labels) == pytest.approx(exact, abs=tolerance)


@pytest.mark.parametrize("name", trueup.METRICS)
def test_any_kind_of_array_is_welcome(name):
    pandas = pytest.importorskip("pandas")
    probs, labels = cases.drawn(80, 3, 0)
    metric = trueup.METRICS[name]
    expected = metric(probs, labels)
    kinds = [
        (probs.tolist(), labels.tolist()),
        (torch.from_numpy(probs), torch.from_numpy(labels)),
        (torch.from_numpy(probs).requires_grad_(), torch.from_numpy(labels).to(torch.uint8)),
        (np.asfortranarray(probs), labels.astype(np.int32)),
        (np.repeat(probs, 2, axis=0)[::2], labels.astype(float)),
        (probs[::-1][::-1], labels[::-1][::-1]),
        (pandas.DataFrame(probs), pandas.Series(labels)),
        (probs.astype(">f8"), labels.astype(">i4")),
        (probs.astype(np.longdouble), labels),
    ]
    for p, y in kinds:
        assert metric(p, y) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", trueup.METRICS)
def test_scores_serve_in_place_of_probabilities_and_labels(name):
    probs, labels = cases.PREDICTIONS["golden"]()
    assert trueup.METRICS[name](trueup.score(probs, labels)) == trueup.METRICS[name](probs, labels)


@pytest.mark.parametrize("name", trueup.METRICS)
def test_wide_rows_take_the_other_path_to_the_same_value(name):
    probs, labels = cases.drawn(400, 80, 3)
    narrow = np.concatenate([probs[:, :20], probs[:, 20:]], axis=1)
    padded = torch.from_numpy(np.concatenate([narrow, np.zeros((400, 3))], axis=1))[:, :-3]  # rows not contiguous
    assert trueup.METRICS[name](padded, labels) == pytest.approx(trueup.METRICS[name](probs, labels), abs=1e-12)


def test_minus_zero_is_zero():
    probs = softmax(np.random.default_rng(0).normal(size=(50, 70)), axis=1)
    probs[3, 5] = -0.0
    probs[3] /= probs[3].sum()
    labels = np.arange(50)
    assert trueup.ece(probs, labels) == pytest.approx(trueup.ece(np.abs(probs), labels))
