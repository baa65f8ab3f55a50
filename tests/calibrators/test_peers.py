"""Calibrators against scikit-learn's and probmetrics', and against the facts about the ones that are wrong."""

import numpy as np
import pytest
import torch

import trueup
from tests import cases
from tests.conftest import LOGITS, SETS, needs_logits
from trueup.calibrators import auto


def real(name):
    return trueup.load(LOGITS / name / "val.npz"), trueup.load(LOGITS / name / "test.npz")


def test_isotonic_without_a_prior_is_scikit_learns():
    isotonic = pytest.importorskip("sklearn.isotonic")
    probs, labels = cases.drawn(800, 4, 0, temperature=2)
    probs[200:] = probs[:200].repeat(3, axis=0)  # many equal forecasts
    ours = trueup.Isotonic(prior=0).fit(np.log(probs), labels)(np.log(probs))
    columns = [
        isotonic.IsotonicRegression(out_of_bounds="clip").fit(p, labels == k).predict(p)
        for k, p in enumerate(torch.softmax(torch.from_numpy(np.log(probs)), 1).numpy().T)
    ]
    theirs = np.maximum(np.stack(columns, 1), 1e-12)
    np.testing.assert_allclose(ours, theirs / theirs.sum(1, keepdims=True), atol=1e-9)


@pytest.mark.filterwarnings("ignore:Number of classes:RuntimeWarning")
def test_scikit_learn_fails_where_a_class_has_no_calibration_labels_and_ours_does_not():
    calibration = pytest.importorskip("sklearn.calibration")
    linear_model = pytest.importorskip("sklearn.linear_model")
    frozen = pytest.importorskip("sklearn.frozen")
    from trueup.sklearn import CalibratedClassifier

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 4)), rng.integers(0, 3, 300)
    fitted = frozen.FrozenEstimator(linear_model.LogisticRegression().fit(x, y))
    some = y != 2
    with pytest.raises((IndexError, ValueError)):
        calibration.CalibratedClassifierCV(fitted, method="temperature", cv=2).fit(x[some], y[some]).predict_proba(x)
    ours = CalibratedClassifier(fitted, method="temperature").fit(x[some], y[some])
    assert ours.predict_proba(x).shape == (300, 3)


@needs_logits
@pytest.mark.parametrize("name", ["cifar10_resnet110_kull", "cifar100_resnet56_chenyaofo", "imdb_cleanlab_cv"])
def test_probmetrics_structured_scaling_agrees(name):
    """Vector scaling is their SVS, matrix scaling their SMS, up to the weight 1/(n+1) they give to uniform."""
    get_calibrator = pytest.importorskip("probmetrics.calibrators").get_calibrator
    val, test = real(name)
    p = val.probs.double()
    q = torch.softmax(test.logits.double(), 1)
    for ours, theirs in (("vector", "svs"), ("matrix", "sms")):
        fitted = get_calibrator(theirs).fit(p.numpy(), val.labels.numpy()).predict_proba(q.numpy())
        made = trueup.calibrator(ours).fit(val.logits, val.labels)(test.logits)
        assert trueup.nll(made, test.labels) == pytest.approx(trueup.nll(fitted, test.labels), abs=2e-4)


@needs_logits
def test_probmetrics_temperature_agrees():
    get_calibrator = pytest.importorskip("probmetrics.calibrators").get_calibrator
    val, test = real("cifar10_resnet110_kull")
    theirs = get_calibrator("temp-scaling").fit(val.probs.numpy(), val.labels.numpy())
    ours = trueup.Temperature().fit(val.logits, val.labels)
    p, q = ours(test.logits), theirs.predict_proba(test.probs.numpy())
    assert trueup.nll(p, test.labels) == pytest.approx(trueup.nll(q, test.labels), abs=1e-4)


@needs_logits
@pytest.mark.parametrize("name", SETS)
def test_shrunk_linear_maps_lose_at_most_half_a_point_of_accuracy(name):
    val, test = real(name)
    before = trueup.error(test.probs, test.labels)
    for method in ("bias-temperature", "vector", "matrix", "dirichlet"):
        made = trueup.calibrator(method).fit(val.logits, val.labels)
        assert trueup.error(made(test.logits), test.labels) <= before + 0.005


@needs_logits
@pytest.mark.parametrize("name", SETS)
def test_focal_temperature_is_never_above_temperature_where_it_was_fitted(name):
    val, _ = real(name)
    plain, focal = (made.fit(val.logits, val.labels) for made in (trueup.Temperature(), trueup.FocalTemperature()))
    assert focal.fit_report.after <= plain.fit_report.after


@needs_logits
@pytest.mark.parametrize("name", [name for name in SETS if "cifar100" not in name])
def test_focal_temperature_is_the_optimum_of_a_fine_grid(name):
    val, _ = real(name)
    z, y = val.logits.double(), val.labels
    made = trueup.FocalTemperature().fit(z, y)
    around = [made.temperature * f for f in np.geomspace(0.6, 1.6, 21)]
    gammas = sorted({-1.0, *(-1 + np.geomspace(1e-4, 1, 12)), *np.linspace(0.1, 4, 8), made.gamma})
    own = y[:, None]
    best = min(-float(trueup.focal_map(z / t, float(g)).gather(1, own).mean()) for t in around for g in gammas)
    assert made.fit_report.after <= best + 1e-9


@needs_logits
def test_strength_can_be_chosen_by_cross_validation():
    val, test = real("cifar10_resnet50_flsd53_mukhoti")
    fixed, chosen = (trueup.Vector(strength=s).fit(val.logits, val.labels) for s in (1.0, "cv"))
    assert trueup.nll(chosen(test.logits), test.labels) <= trueup.nll(fixed(test.logits), test.labels) + 2e-3


@needs_logits
@pytest.mark.parametrize("name", ["cifar10_resnet110_kull", "cifar10_wideresnet_16_4_netcal"])
def test_auto_says_what_it_chose_and_why(name):
    val, test = real(name)
    made = trueup.Auto().fit(val.logits, val.labels)
    note = made.fit_report.note
    chosen = note.split(":")[0]
    assert chosen in auto.CANDIDATES
    assert "cross-validated NLL" in note
    again = trueup.calibrator(chosen).fit(val.logits, val.labels)
    torch.testing.assert_close(made(test.logits), again(test.logits), atol=1e-3, rtol=0)
    kept = trueup.Auto(keep_ranking=True).fit(val.logits, val.labels)
    assert trueup.error(kept(test.logits), test.labels) == pytest.approx(
        trueup.error(test.probs, test.labels), abs=1e-3
    )


def test_auto_fits_every_candidate_as_it_is_fitted_alone():
    logits, labels = cases.golden()
    z, y = torch.from_numpy(logits).double(), torch.from_numpy(labels)
    chosen, fitted = trueup.Auto().choose(z, y, progress=lambda _: None)
    assert trueup.Auto().fit(z, y).fit_report == fitted[chosen].fit_report
    for name in ("temperature", "focal-temperature", "softplus"):
        assert fitted[name].values() == trueup.CALIBRATORS[name]().fit(z, y).values()


def test_auto_prefers_the_simpler_of_equals():
    """Not always: a draw may well look as if it needed more."""

    def chosen(samples, seed, **options):
        probs, labels = cases.drawn(samples, 4, seed, **options)
        return trueup.Auto().fit(np.log(probs), labels).fit_report.note.split(":")[0]

    assert [chosen(3000, seed, temperature=2) for seed in range(5)].count("temperature") >= 4
    assert [chosen(1000, seed) for seed in range(5)].count("none") >= 3


def test_progress_rises_to_one():
    probs, labels = cases.drawn(200, 3, 0, temperature=2)
    for settings in (
        trueup.Auto(),
        trueup.Temperature(criterion="ece"),
        trueup.Isotonic(),
        trueup.Vector(strength="cv"),
    ):
        seen = []
        settings.fit(np.log(probs), labels, progress=seen.append)
        assert seen[-1] == pytest.approx(1)
