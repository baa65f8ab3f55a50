"""The scikit-learn bridge: a classifier with calibrated probabilities around any other."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, indexable

from trueup.calibrators import Calibrator, calibrator
from trueup.inputs import InputError


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier whose ``predict_proba`` is calibrated.

    The calibration map is fitted to what ``estimator`` says of samples it was not trained on, in ``cv`` folds; then
    the estimator is fitted to all of them. A fitted estimator inside scikit-learn's ``FrozenEstimator`` is used as it
    is, and the map is fitted to the samples given to ``fit``.

    Parameters
    ----------
    estimator : classifier with ``predict_proba`` or ``decision_function``, default: logistic regression
    method : the name of a calibrator, as "auto" or "softplus+vector", or its settings, as ``trueup.Temperature()``
    cv : number of folds, or a splitter; samples that it never holds out, as the first of a ``TimeSeriesSplit``, have no
        part in the map

    Attributes
    ----------
    classes_ : the labels, in the order of the columns of ``predict_proba``
    estimator_ : the fitted estimator
    map_ : the fitted ``CalibrationMap``
    least_logit_ : what stands for a probability of zero, unless its row has a lower one
    """

    def __init__(self, estimator: Any = None, method: str | Calibrator = "auto", cv: Any = 5) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv

    def fit(self, X: Any, y: Any) -> CalibratedClassifier:
        settings = calibrator(self.method) if isinstance(self.method, str) else self.method
        if not isinstance(settings, Calibrator):
            raise InputError(f"method: expected a calibrator or its name, got {self.method!r}")
        X, y = indexable(X, y)
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        base: Any = LogisticRegression() if self.estimator is None else self.estimator
        frozen = isinstance(base, FrozenEstimator)
        if frozen:
            check_is_fitted(base)
        self.classes_ = np.asarray(base.classes_) if frozen else np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(f"y: {len(self.classes_)} class; calibration needs at least two classes")
        labels = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unknown = np.flatnonzero(self.classes_[labels] != y)
        if len(unknown):
            raise InputError(f"y: row {unknown[0]} is {y[unknown[0]]!r}, which the fitted estimator does not know")
        judged = np.full(len(labels), frozen)
        if frozen:
            self.estimator_ = base
            logits = self._logits(base, X)
        else:
            logits = np.full((len(labels), len(self.classes_)), -np.inf)
            for train, held_out in self._folds(labels).split(np.zeros(len(labels)), labels):
                fitted = self._clone(base).fit(_safe_indexing(X, train), y[train])
                logits[held_out], judged[held_out] = self._logits(fitted, _safe_indexing(X, held_out)), True
            self.estimator_ = self._clone(base).fit(X, y)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        # Half of the least probability that was ever given stands for none: a forest of fifty trees that says 0
        # means less than 1/50, not 1e-308.
        self.least_logit_ = float(logits[np.isfinite(logits)].min()) - np.log(2)
        self.map_ = settings.fit(self._floored(logits[judged]), labels[judged])
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """(samples, classes) calibrated probabilities."""
        check_is_fitted(self)
        return self.map_(self._floored(self._logits(self.estimator_, X)))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class after calibration."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]

    @staticmethod
    def _clone(estimator: Any) -> Any:
        return clone(estimator)

    def _folds(self, labels: np.ndarray) -> Any:
        if not isinstance(self.cv, int | np.integer):
            return check_cv(self.cv, labels, classifier=True)
        folds = int(self.cv)
        if folds < 2:
            raise InputError(f"cv: expected at least 2 folds, got {folds}")
        rarest = int(np.bincount(labels).min())
        if rarest < 2:  # a class with one sample cannot be in every fold, and need not be
            return KFold(min(folds, len(labels)))
        return StratifiedKFold(min(folds, rarest))

    def _logits(self, fitted: Any, X: Any) -> np.ndarray:
        """What an estimator says of X, a column for each class; -inf for a class that it never saw or rules out."""
        columns = np.searchsorted(self.classes_, fitted.classes_)
        said = "predict_proba"
        if hasattr(fitted, "predict_log_proba"):
            with np.errstate(divide="ignore"):
                known = fitted.predict_log_proba(X)
        elif hasattr(fitted, "predict_proba"):
            with np.errstate(divide="ignore"):
                known = np.log(fitted.predict_proba(X))
        else:
            said = "decision_function"
            known = np.asarray(fitted.decision_function(X), dtype=np.float64)
            known = np.stack([-known, known], 1) / 2 if known.ndim == 1 else known
            if len(columns) > 2 and getattr(_deciding(fitted), "decision_function_shape", "ovr") == "ovo":
                raise InputError("estimator: its decision_function has a column for each pair of classes; "
                                 'set decision_function_shape="ovr"')  # fmt: skip
        if len(columns) == 1:
            known = np.zeros((len(known), 1))  # an estimator that saw one class is sure of it
        if known.shape[1:] != columns.shape:
            raise InputError(
                f"estimator: the shape of its {said} is {known.shape}, and it knows {len(columns)} classes"
            )
        logits = np.full((len(known), len(self.classes_)), -np.inf)
        logits[:, columns] = known
        return logits

    def _floored(self, logits: np.ndarray) -> np.ndarray:
        """With a number for -inf, which is below all that are finite in its row."""
        ruled_out = np.isneginf(logits)
        lowest = np.where(ruled_out, np.inf, logits).min(1, keepdims=True)
        return np.where(ruled_out, np.minimum(lowest, self.least_logit_), logits)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(LogisticRegression() if self.estimator is None else self.estimator)
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.input_tags.allow_nan = inner.input_tags.allow_nan
        return tags


def _deciding(fitted: Any) -> Any:
    """The estimator that decides, within pipelines and searches."""
    while True:
        if hasattr(fitted, "best_estimator_"):
            fitted = fitted.best_estimator_
        elif hasattr(fitted, "steps"):
            fitted = fitted.steps[-1][1]
        else:
            return fitted
