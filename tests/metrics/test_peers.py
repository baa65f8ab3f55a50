"""Other libraries: the same number where they are right, and a named test where they are not."""

import math

import numpy as np
import pytest
import torch

import trueup
from tests import cases

torchmetrics = pytest.importorskip("torchmetrics.functional.classification")
sklearn_metrics = pytest.importorskip("sklearn.metrics")


@pytest.mark.parametrize("norm", ["l1", "max"])
def test_torchmetrics_agrees_on_a_thousand_samples(norm):
    probs, labels = cases.PREDICTIONS["golden"]()
    theirs = torchmetrics.multiclass_calibration_error(
        torch.from_numpy(probs), torch.from_numpy(labels), num_classes=10, n_bins=15, norm=norm
    )
    ours = trueup.ece(probs, labels) if norm == "l1" else trueup.mce(probs, labels)
    assert ours == pytest.approx(float(theirs), abs=1e-6)


def test_torchmetrics_loses_a_million_samples_in_float32():
    probs = torch.full((1_000_000, 2), 0.05)
    probs[:, 0] = 0.95
    labels = torch.zeros(1_000_000, dtype=torch.int64)
    labels[::20] = 1
    theirs = torchmetrics.multiclass_calibration_error(probs, labels, num_classes=2, n_bins=15)
    assert float(theirs) > 0.005
    assert trueup.ece(probs, labels) < 1e-7


def test_torchmetrics_takes_a_nan_for_a_sign_of_logits():
    probs, labels = (torch.from_numpy(part) for part in cases.drawn(100, 4, 0))
    probs[3] = torch.nan
    theirs = torchmetrics.multiclass_calibration_error(probs, labels, num_classes=4, n_bins=15)
    assert math.isfinite(float(theirs))
    with pytest.raises(trueup.InputError, match="row 3"):
        trueup.ece(probs, labels)


@pytest.mark.parametrize("case", ["golden", "over-confident", "binary", "hundred classes"])
def test_scikit_learn_agrees(case):
    probs, labels = cases.PREDICTIONS[case]()
    classes = range(probs.shape[1])
    assert trueup.nll(probs, labels) == pytest.approx(sklearn_metrics.log_loss(labels, probs, labels=classes))
    assert trueup.error(probs, labels) == pytest.approx(1 - sklearn_metrics.accuracy_score(labels, probs.argmax(1)))
    if probs.shape[1] == 2:
        theirs = sklearn_metrics.brier_score_loss(labels, probs[:, 1])
        assert trueup.brier(probs, labels) == pytest.approx(2 * theirs)


@pytest.mark.parametrize("width", [0.02, 0.05, 0.2])
def test_relplot_agrees_where_no_sample_is_at_the_boundary(width):
    relplot = pytest.importorskip("relplot")
    probs, labels = cases.drawn(3000, 4, 0, scale=1.0, temperature=2)
    scores = trueup.score(probs, labels)
    residual = trueup.metrics.smooth.on_grid(scores.confidence, scores.residual / len(scores), 4096)
    ours = np.abs(trueup.metrics.smooth.smooth_residual(residual, width)).sum()
    theirs = relplot.smECE_sigma(scores.confidence, scores.correct.astype(float), width)
    assert ours == pytest.approx(theirs, rel=5e-3)
    whole = relplot.smECE(scores.confidence, scores.correct.astype(float))
    assert trueup.smooth_ece(scores) == pytest.approx(whole, abs=1e-3)  # they stop the search at 2^-10


def test_relplot_counts_a_sample_at_one_half():
    """All confidences 1 or 1/2: the true smooth ECE is the gap, .25; theirs forgets half of the certain samples."""
    relplot = pytest.importorskip("relplot")
    confidence = np.repeat([1.0, 0.5], 500)
    correct = np.concatenate([np.tile([1.0, 0.0], 250), np.ones(250), np.zeros(250)])
    probs = np.stack([confidence, 1 - confidence], 1)
    labels = np.where(correct == 1, 0, 1)
    assert trueup.ece(probs, labels) == pytest.approx(0.25)
    assert trueup.smooth_ece(probs, labels) == pytest.approx(0.25, abs=1e-3)
    assert relplot.smECE(confidence, correct) < 0.2


def test_the_debiased_error_is_that_of_kumar_and_others():
    """Their code agrees where all bins can hold the same number: 1500 samples without ties."""
    calibration = pytest.importorskip("calibration")
    for temperature in (1.0, 1.5, 3.0):
        probs, labels = cases.drawn(1500, 6, 1, temperature=temperature)
        theirs = calibration.get_calibration_error(probs, labels, p=2, debias=True, mode="top-label")
        assert trueup.debiased_ece(probs, labels) == pytest.approx(theirs, abs=1e-9)


def test_nobody_else_minds_rows_that_do_not_sum_to_one():
    probs, labels = (torch.from_numpy(part) for part in cases.drawn(100, 4, 0))
    theirs = torchmetrics.multiclass_calibration_error(probs / 2, labels, num_classes=4, n_bins=15)
    assert math.isfinite(float(theirs))
    with pytest.raises(trueup.InputError, match=r"row 0 sums to 0\.5"):
        trueup.ece(probs / 2, labels)
