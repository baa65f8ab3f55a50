"""audit and compare from Python."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import trueup
from tests import cases
from trueup.example import example_predictions


def made(case="over-confident"):
    probs, labels = cases.PREDICTIONS[case]()
    return trueup.Predictions(probs=probs, labels=labels)


@pytest.mark.parametrize("case", cases.PREDICTIONS)
def test_every_case_can_be_audited_and_written_as_json(case):
    found = trueup.audit(made(case), resamples=50)
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["n"] == found.n
    assert str(found).count("\n") > 8
    assert found.verdict() in str(found).replace("\n", " ") or len(found.verdict()) > 100


def test_the_values_are_those_of_the_metrics():
    predictions = made()
    found = trueup.audit(predictions, resamples=50)
    for name, metric in trueup.METRICS.items():
        assert found.metrics[name].value == metric(predictions.probs, predictions.labels)
        expected = trueup.bootstrap(metric, predictions.probs, predictions.labels, resamples=50)
        assert (found.metrics[name].low, found.metrics[name].high) == expected[1:]


def test_the_verdict_tells_over_from_under_and_from_fine():
    assert trueup.audit(made("over-confident"), resamples=100).verdict().startswith("Over-confident")
    assert trueup.audit(made("under-confident"), resamples=100).verdict().startswith("Under-confident")
    assert trueup.audit(made("calibrated"), resamples=100).verdict().startswith("No miscalibration")
    half_and_half = np.concatenate([cases.constant(2000, 2, 0.9)[0], cases.constant(2000, 2, 0.6)[0]])
    labels = np.concatenate([np.where(np.arange(2000) < 1500, 0, 1), np.where(np.arange(2000) < 1500, 0, 1)])
    found = trueup.audit(trueup.Predictions(probs=half_and_half, labels=labels), resamples=100)
    assert found.verdict().startswith("Miscalibrated, neither")


def test_no_resamples_means_no_intervals():
    found = trueup.audit(made(), resamples=0)
    assert found.metrics["ece"].low is None
    assert "interval" not in str(found)


def test_too_few_resamples_for_a_p_value_give_no_verdict():
    few = trueup.audit(made("over-confident"), resamples=38).verdict()
    assert few == "No verdict: 38 resamples are too few for one; ask for 39 or more, or for none."
    assert trueup.audit(made("over-confident"), resamples=39).verdict().startswith("Over-confident")


@pytest.mark.parametrize("labels", [[2], [2, 2], [2, 2, 2], [2, 2, 2, 0], [2, 2, 2, 0, 0]])
def test_a_verdict_says_what_was_found_and_not_what_is_true(labels):
    """The predicted class could well be wrong as often, but not for the class that was all but ruled out."""
    probs = [[0.6, 0.3995, 0.0005]] * len(labels)
    found = trueup.audit(trueup.Predictions(probs=probs, labels=labels))
    assert found.metrics["ece"].p > 0.025 >= found.metrics["classwise_ece"].p
    assert re.fullmatch(
        r"ECE finds no miscalibration \([\d.]+ %, where a calibrated model would show [\d.]+ %\), "
        r"classwise ECE does: [\d.]+ %, where a calibrated model would show [\d.]+ %\.",
        found.verdict(),
    )


def test_both_tests_of_a_verdict_have_the_same_limit():
    found = trueup.audit(made("calibrated"), resamples=100)

    def told(**p):
        metrics = {name: replace(found.metrics[name], p=p.get(name, 0.5)) for name in found.metrics}
        return replace(found, metrics=metrics).verdict()

    assert told(ece=0.026, classwise_ece=0.026).startswith("No miscalibration")
    assert told(ece=0.026, classwise_ece=0.025).startswith("ECE finds no")
    assert not told(ece=0.025).startswith(("No", "ECE"))


def test_an_interval_that_ends_at_the_value_is_explained():
    explained = "An interval that ends at its value"
    for case in ("calibrated", "over-confident", "hundred classes"):
        found = trueup.audit(made(case), resamples=100)
        at_value = any(m.p is not None and m.low < m.value == m.high for m in found.metrics.values())
        assert (explained in str(found)) == at_value
    measure = replace(found.metrics["ece"], low=0.0, high=found.metrics["ece"].value)
    assert explained in str(replace(found, metrics={**found.metrics, "ece": measure}))


def test_a_new_metric_needs_an_entry_in_metrics_alone(monkeypatch):
    monkeypatch.setitem(trueup.METRICS, "mean_confidence", lambda probs, labels: float(probs.max(1).values.mean()))
    found = trueup.audit(made(), resamples=20)
    assert f"mean confidence {found.metrics['mean_confidence'].value:.4f}" in re.sub(r"\s+", " ", str(found))


@pytest.mark.parametrize("resamples", [0, 5])
def test_a_seed_is_a_whole_number_from_0_and_a_level_a_share(resamples):
    with pytest.raises(trueup.InputError, match="seed"):
        trueup.audit(made(), seed=-1, resamples=resamples)
    for level in (0, 1, 95, -1, float("nan"), "x"):
        with pytest.raises(trueup.InputError, match="level: expected a number between 0 and 1"):
            trueup.audit(made(), level=level, resamples=resamples)


def test_logits_are_audited_without_underflow():
    logits = np.random.default_rng(0).normal(0, 5e3, (300, 4))
    found = trueup.audit(trueup.Predictions(logits=logits, labels=np.arange(300) % 4), resamples=20)
    assert np.isfinite(found.metrics["nll"].value)
    assert np.isfinite(found.metrics["nll"].high)


def test_compare_fits_on_one_and_judges_on_the_other():
    both = example_predictions()
    found = trueup.compare(both["val"], both["test"], ["none", "temperature", trueup.Vector(strength=4.0)], resamples=0)
    assert [row.calibrator for row in found.rows] == ["none", "temperature", "vector"]
    fitted = trueup.Temperature().fit(both["val"].logits, both["val"].labels)
    assert found.rows[1].params == {"temperature": fitted.temperature}
    probs = fitted(both["test"].logits)
    assert found.rows[1].metrics["nll"].value == trueup.nll(probs, both["test"].labels)
    assert "temperature" in str(found)
    assert json.loads(json.dumps(found.to_list(), allow_nan=False))[0]["calibrator"] == "none"


def test_compare_refuses_what_does_not_belong_together():
    both = example_predictions()
    with pytest.raises(trueup.InputError, match="classes"):
        trueup.compare(both["val"], made())
    renamed = trueup.Predictions(logits=both["test"].logits, labels=both["test"].labels, class_names=list("abcde"))
    with pytest.raises(trueup.InputError, match="not those of val"):
        trueup.compare(both["val"], renamed)
    with pytest.raises(trueup.InputError, match="none is named"):
        trueup.compare(both["val"], both["test"], [])
