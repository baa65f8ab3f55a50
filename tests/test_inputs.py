"""Bad input is an InputError that names the argument and the row, in every metric and every calibrator."""

import re

import numpy as np
import pytest
import torch

import trueup
from tests import bad, cases
from trueup import inputs

CALIBRATORS = {
    name: trueup.FocalMap(2.0) if name == "focal-map" else made() for name, made in trueup.CALIBRATORS.items()
}


def refused(says: str):
    return pytest.raises(trueup.InputError, match=re.escape(says))


@pytest.mark.parametrize("name", trueup.METRICS)
@pytest.mark.parametrize("fault", bad.BAD_PROBS)
def test_metrics_refuse_bad_probabilities(name, fault):
    probs, says = bad.BAD_PROBS[fault]
    with refused(says):
        trueup.METRICS[name](probs, bad.LABELS[: len(probs)])


@pytest.mark.parametrize("name", trueup.METRICS)
@pytest.mark.parametrize("fault", bad.BAD_LABELS)
def test_metrics_refuse_bad_labels(name, fault):
    labels, says = bad.BAD_LABELS[fault]
    with refused(says):
        trueup.METRICS[name](bad.PROBS, labels)


@pytest.mark.parametrize("name", CALIBRATORS)
@pytest.mark.parametrize("fault", bad.BAD_LOGITS)
def test_calibrators_refuse_bad_logits(name, fault):
    logits, says = bad.BAD_LOGITS[fault]
    with refused(says):
        CALIBRATORS[name].fit(logits, bad.LABELS[: len(logits)])


@pytest.mark.parametrize("name", CALIBRATORS)
@pytest.mark.parametrize("fault", bad.BAD_LABELS)
def test_calibrators_refuse_bad_labels(name, fault):
    labels, says = bad.BAD_LABELS[fault]
    with refused(says):
        CALIBRATORS[name].fit(bad.LOGITS, labels)


@pytest.mark.parametrize("name", CALIBRATORS)
@pytest.mark.parametrize("fault", bad.BAD_LOGITS)
def test_maps_refuse_bad_logits(name, fault):
    logits, says = bad.BAD_LOGITS[fault]
    made = CALIBRATORS[name].fit(bad.LOGITS, bad.LABELS)
    with refused(says):
        made(logits)
    with refused("5 classes where 4 are expected"):
        made(np.hstack([bad.LOGITS, bad.LOGITS[:, :1]]))


@pytest.mark.parametrize("fault", bad.BAD_PROBS)
def test_meter_bootstrap_and_predictions_refuse_bad_probabilities(fault):
    probs, says = bad.BAD_PROBS[fault]
    labels = bad.LABELS[: len(probs)]
    meter = trueup.Meter(4)
    with refused(says):
        meter.update(probs, labels)
    assert meter.n == 0
    with refused(says):
        trueup.bootstrap(trueup.ece, probs, labels)
    with refused(says):
        trueup.under_calibration(trueup.ece, probs, labels)
    with refused(says):
        trueup.Predictions(probs=probs, labels=labels)


def test_one_row_is_no_evidence_of_probabilities():
    made = trueup.Temperature().fit(bad.LOGITS, bad.LABELS)
    assert made(np.array([[0.0, 1.0, 0.0, 0.0]])).argmax() == 1
    with refused("these are probabilities"):
        made(bad.PROBS[:2])


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_labels_are_labels(dtype):
    labels = torch.from_numpy(bad.LABELS).to(dtype)
    assert trueup.ece(bad.PROBS, labels) == trueup.ece(bad.PROBS, bad.LABELS) == trueup.ece(bad.PROBS, labels.numpy())
    with refused("labels: row 0 is 65535, outside"):
        trueup.ece(bad.PROBS, torch.full((20,), 65535, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
def test_numbers_of_other_kinds_are_refused(dtype):
    with refused(f"expected numbers, got {str(dtype)[6:]}"):
        trueup.Predictions(logits=torch.zeros(20, 4).to(dtype), labels=bad.LABELS)


def test_an_input_error_is_a_value_error():
    assert issubclass(trueup.InputError, ValueError)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: trueup.ece(bad.PROBS, bad.LABELS, bins=0), "bins"),
        (lambda: trueup.ece(bad.PROBS, bad.LABELS, bins=2.5), "bins"),
        (lambda: trueup.ece(bad.PROBS), "labels: missing"),
        (lambda: trueup.adaptive_ece(bad.PROBS, bad.LABELS, edges="theirs"), "edges"),
        (lambda: trueup.debiased_ece(bad.PROBS, bad.LABELS, scheme="none"), "scheme"),
        (lambda: trueup.bootstrap(trueup.ece, bad.PROBS, bad.LABELS, resamples=0), "resamples"),
        (lambda: trueup.FocalMap(-2), "gamma"),
        (lambda: trueup.FocalMap(float("nan")), "gamma"),
        (lambda: trueup.FocalTemperature(gamma=-1.5), "gamma"),
        (lambda: trueup.FocalTemperature(temperature=0), "temperature"),
        (lambda: trueup.FocalTemperature(gamma=1, temperature=1), "nothing is left"),
        (lambda: trueup.Temperature(criterion="accuracy"), "criterion"),
        (lambda: trueup.Vector(strength=-1), "strength"),
        (lambda: trueup.Histogram(bins=0), "bins"),
        (lambda: trueup.Isotonic(prior=-1), "prior"),
        (lambda: trueup.Isotonic(prior="1"), "prior"),
        (lambda: trueup.Chain(), "Chain"),
        (lambda: trueup.Chain("softplus"), "Chain"),
        (lambda: trueup.Auto(folds=1), "folds"),
        (lambda: trueup.Auto(seed=-1), "seed"),
        (lambda: trueup.calibrator(None), "calibrator"),
        (lambda: trueup.Auto().fit(bad.LOGITS[:1], bad.LABELS[:1]), "auto"),
        (lambda: trueup.calibrator("tempurature"), "unknown calibrator 'tempurature'"),
        (lambda: trueup.calibrator("focal-map"), "training gamma"),
        (lambda: trueup.calibrator("temperature:2"), "no argument"),
        (lambda: trueup.calibrator("temperature:"), "no argument"),
        (lambda: trueup.Meter(1), "classes"),
        (lambda: trueup.focal_map(bad.LOGITS, -1.01), "gamma"),
    ],
)
def test_bad_settings_are_refused(call, says):
    with refused(says):
        call()


def test_rows_may_miss_one_by_what_their_dtype_explains():
    probs, labels = cases.drawn(200, 50, 0)
    for dtype in (torch.float16, torch.bfloat16):
        trueup.ece(torch.from_numpy(probs).to(dtype), labels)
    trueup.ece(probs * 1.0009, labels)
    with refused("sums to"):
        trueup.ece(probs * 1.0011, labels)


def test_logits_of_ten_thousand_are_no_trouble():
    logits = np.random.default_rng(0).choice([-1e4, 0.0, 1e4], (60, 4))
    labels = np.arange(60) % 4
    for settings in CALIBRATORS.values():
        probs = settings.fit(logits, labels)(logits)
        assert np.isfinite(probs).all()
        np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)


def test_a_masked_class_is_allowed_only_where_it_makes_sense():
    logits = torch.tensor([[1.0, -torch.inf, 2.0]])
    assert torch.isfinite(trueup.focal_map(logits, 1.0)[0, [0, 2]]).all()
    assert inputs.logits(logits, masked=True) is not None
    with refused("every class"):
        inputs.logits(torch.full((1, 3), -torch.inf), masked=True)


@pytest.mark.parametrize("name", [*trueup.METRICS, *CALIBRATORS])
def test_nothing_that_is_passed_in_is_changed(name):
    probs, labels = cases.drawn(60, 3, 0)
    logits = np.log(probs) * 2
    kept = [part.copy() for part in (probs, labels, logits)]
    if name in trueup.METRICS:
        trueup.bootstrap(trueup.METRICS[name], probs, labels, probs[::-1].copy(), resamples=5)
        trueup.METRICS[name](probs, labels)
    else:
        CALIBRATORS[name].fit(logits, labels)(logits)
    for before, after in zip(kept, (probs, labels, logits), strict=True):
        np.testing.assert_array_equal(before, after)
