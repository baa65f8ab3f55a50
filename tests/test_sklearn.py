"""The scikit-learn bridge."""

import numpy as np
import pytest

sklearn = pytest.importorskip("sklearn")

from sklearn.base import BaseEstimator, ClassifierMixin, clone  # noqa: E402
from sklearn.datasets import load_digits, make_classification  # noqa: E402
from sklearn.ensemble import RandomForestClassifier  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.frozen import FrozenEstimator  # noqa: E402
from sklearn.linear_model import LogisticRegression, RidgeClassifier  # noqa: E402
from sklearn.model_selection import GridSearchCV, KFold, train_test_split  # noqa: E402
from sklearn.naive_bayes import GaussianNB  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.svm import SVC  # noqa: E402
from sklearn.tree import DecisionTreeClassifier  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks  # noqa: E402

import trueup  # noqa: E402
from trueup.sklearn import CalibratedClassifier  # noqa: E402


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([CalibratedClassifier(method="temperature"), CalibratedClassifier(method="vector")])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_scikit_learns_own_checks_of_the_default():
    check_estimator(CalibratedClassifier())


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return train_test_split(x / 16, y, test_size=0.4, random_state=0)


@pytest.mark.parametrize(
    "base", [GaussianNB(var_smoothing=0.01), DecisionTreeClassifier(random_state=0), SVC(), RidgeClassifier()]
)
def test_it_calibrates_ten_classes(digits, base):
    x, x_test, y, y_test = digits
    made = CalibratedClassifier(base, method="temperature").fit(x, y)
    probs = made.predict_proba(x_test)
    plain = base.fit(x, y)
    assert made.score(x_test, y_test) == pytest.approx(plain.score(x_test, y_test), abs=0.02)
    if hasattr(plain, "predict_proba") and not isinstance(base, SVC):
        raw = np.maximum(plain.predict_proba(x_test), 1e-12)
        assert trueup.nll(probs, y_test) < trueup.nll(raw / raw.sum(1, keepdims=True), y_test)
    assert trueup.ece(probs, y_test) < 0.15


def test_the_default_is_auto_and_beats_the_forest_itself(digits):
    x, x_test, y, y_test = digits
    forest = RandomForestClassifier(50, random_state=0)
    made = CalibratedClassifier(forest).fit(x, y)
    assert "cross-validated" in made.map_.fit_report.note
    raw = forest.fit(x, y).predict_proba(x_test)
    assert trueup.ece(made.predict_proba(x_test), y_test) < trueup.ece(raw, y_test)


def test_labels_may_be_text_and_two_classes_are_enough():
    x, y = make_classification(300, random_state=0)
    names = np.array(["no", "yes"])[y]
    made = CalibratedClassifier(GaussianNB(), method="temperature").fit(x, names)
    assert list(made.classes_) == ["no", "yes"]
    assert set(made.predict(x)) == {"no", "yes"}
    np.testing.assert_allclose(made.predict_proba(x).sum(1), 1)


def test_a_fitted_estimator_can_be_frozen(digits):
    x, x_test, y, y_test = digits
    fitted = GaussianNB().fit(x[:500], y[:500])
    made = CalibratedClassifier(FrozenEstimator(fitted), method="temperature").fit(x[500:], y[500:])
    direct = trueup.Temperature().fit(fitted.predict_log_proba(x[500:]), y[500:])
    assert made.map_.temperature == pytest.approx(direct.temperature, rel=1e-3)
    assert made.score(x_test, y_test) == fitted.score(x_test, y_test)
    with pytest.raises(trueup.InputError, match="does not know"):
        CalibratedClassifier(FrozenEstimator(fitted), method="temperature").fit(x[500:], y[500:] + 1)


@pytest.mark.parametrize("classes", [3, 4])
@pytest.mark.parametrize("within", [lambda svc: svc, lambda svc: make_pipeline(StandardScaler(), svc)])
def test_columns_for_pairs_of_classes_are_refused(digits, classes, within):
    x, y = (part[digits[2] < classes] for part in (digits[0], digits[2]))
    with pytest.raises(trueup.InputError, match="each pair of classes; set decision_function_shape"):
        CalibratedClassifier(within(SVC(decision_function_shape="ovo")), method="temperature").fit(x, y)
    with pytest.raises(
        trueup.InputError, match=rf"the shape of its decision_function is \(\d+, 2\), and it knows {classes} classes"
    ):
        CalibratedClassifier(OneColumnTooFew(), method="temperature").fit(x, y)


class OneColumnTooFew(RidgeClassifier):
    def decision_function(self, X):
        return super().decision_function(X)[:, :2]


class Given(ClassifierMixin, BaseEstimator):
    """Decision values, and those of an unseen class, from the samples themselves."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X):
        return X[:, 0] if len(self.classes_) == 2 else X


@pytest.mark.parametrize("method", ["none", "temperature", "vector"])
def test_decision_values_are_taken_as_they_are(method):
    """However far they lie beyond those of the fit, and a single one that is near 1."""
    d, y = np.linspace(-3, 3, 40)[:, None], np.arange(40) % 4 > np.arange(40) // 10
    made = CalibratedClassifier(Given(), method=method).fit(d, ~y)
    values = [-12.0, -9.0, -6.0, -3.0, 0.0, 1.0, 3.0, 6.0, 9.0]
    alone = np.array([made.predict_proba(np.array([[value]]))[0, 1] for value in values])
    assert (np.diff(alone) > 0).all()
    np.testing.assert_allclose(alone, made.predict_proba(np.array(values)[:, None])[:, 1])


def test_what_is_ruled_out_lies_below_what_is_not():
    made = CalibratedClassifier(Given(), method="none").fit(
        np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3
    )
    floored = made._floored(np.array([[0.0, -50.0, -np.inf], [0.0, -0.1, -np.inf], [-np.inf] * 3]))
    assert floored.tolist() == [[0, -50, -50], [0, -0.1, made.least_logit_], [made.least_logit_] * 3]


def test_it_works_in_a_pipeline_and_a_grid_search(digits):
    x, _, y, _ = digits
    search = GridSearchCV(
        make_pipeline(StandardScaler(), CalibratedClassifier(LogisticRegression(max_iter=200), cv=3)),
        {"calibratedclassifier__method": ["none", "temperature"]},
        scoring="neg_log_loss",
        cv=2,
    )
    search.fit(x[:400], y[:400])
    assert search.best_params_["calibratedclassifier__method"] in ("none", "temperature")


def test_settings_and_splitters_serve_too(digits):
    x, _, y, _ = digits
    made = CalibratedClassifier(GaussianNB(), method=trueup.FocalTemperature(), cv=KFold(3)).fit(x, y)
    assert made.map_.kind == "focal-temperature"


def test_samples_that_are_never_held_out_have_no_part_in_the_map(digits):
    x, y = digits[0][:600], digits[2][:600]
    train, held_out = np.arange(400), np.arange(400, 600)
    base = GaussianNB(var_smoothing=0.01)
    fitted = CalibratedClassifier(base, method="vector", cv=[(train, held_out)]).fit(x, y)
    alone = CalibratedClassifier(FrozenEstimator(clone(base).fit(x[train], y[train])), method="vector")
    alone.fit(x[held_out], y[held_out])
    logits = np.log(digits[1][:, :10] + 0.1)
    np.testing.assert_array_equal(fitted.map_(logits), alone.map_(logits))
    assert not np.array_equal(fitted.predict_proba(x), alone.predict_proba(x))  # its estimator saw all


def test_a_frozen_estimator_that_is_not_fitted_is_told(digits):
    with pytest.raises(NotFittedError):
        CalibratedClassifier(FrozenEstimator(GaussianNB())).fit(digits[0], digits[2])


def test_a_class_with_one_sample_is_no_error():
    x = np.random.default_rng(0).normal(size=(40, 3))
    y = np.array([0] * 20 + [1] * 19 + [2])
    made = CalibratedClassifier(GaussianNB(var_smoothing=0.1), method="temperature").fit(x, y)
    assert made.predict_proba(x).shape == (40, 3)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "magic"}, "unknown calibrator"),
        ({"method": 3}, "expected a calibrator"),
        ({"cv": 1}, "at least 2 folds"),
    ],
)
def test_bad_settings_are_refused(digits, settings, says):
    with pytest.raises(trueup.InputError, match=says):
        CalibratedClassifier(GaussianNB(), **settings).fit(digits[0], digits[2])
