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

_LEAST_LOG = float(np.log(np.finfo(np.float64).tiny))


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier whose ``predict_proba`` is calibrated.

    The calibration map is fitted to what ``estimator`` says of samples it was not trained on, in ``cv`` folds; then
    the estimator is fitted to all of them. A fitted estimator inside scikit-learn's ``FrozenEstimator`` is used as it
    is, and the map is fitted to the samples given to ``fit``.

    Parameters
    ----------
    estimator : classifier with ``predict_proba`` or ``decision_function``, default: logistic regression
    method : the name of a calibrator, as "auto" or "softplus+vector", or its settings, as ``trueup.Temperature()``
    cv : number of folds, or a splitter

    Attributes
    ----------
    classes_ : the labels, in the order of the columns of ``predict_proba``
    estimator_ : the fitted estimator
    map_ : the fitted ``CalibrationMap``
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
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y: {len(self.classes_)} class; calibration needs at least two classes")
        base = LogisticRegression() if self.estimator is None else self.estimator
        if isinstance(base, FrozenEstimator):
            self.estimator_ = base
            logits = self._logits(base, X)
        else:
            logits = np.full((len(labels), len(self.classes_)), np.nan)
            for train, held_out in self._folds(labels).split(np.zeros(len(labels)), labels):
                fitted = clone(base).fit(_safe_indexing(X, train), y[train])
                logits[held_out] = self._logits(fitted, _safe_indexing(X, held_out))
            self.estimator_ = clone(base).fit(X, y)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        self.map_ = settings.fit(logits, labels)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """(samples, classes) calibrated probabilities."""
        check_is_fitted(self)
        return self.map_(self._logits(self.estimator_, X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class after calibration."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]

    def _folds(self, labels: np.ndarray) -> Any:
        if not isinstance(self.cv, int | np.integer):
            return check_cv(self.cv, labels, classifier=True)
        if self.cv < 2:
            raise InputError(f"cv: expected at least 2 folds, got {self.cv}")
        rarest = int(np.bincount(labels).min())
        if rarest < 2:  # a class with one sample cannot be in every fold, and need not be
            return KFold(min(self.cv, len(labels)))
        return StratifiedKFold(min(self.cv, rarest))

    def _logits(self, fitted: Any, X: Any) -> np.ndarray:
        """What an estimator says of X, a column for each class; a class it never saw gets the least there is."""
        columns = np.searchsorted(self.classes_, fitted.classes_)
        if hasattr(fitted, "predict_proba"):
            known = np.log(np.maximum(fitted.predict_proba(X), np.finfo(np.float64).tiny))
        else:
            known = np.asarray(fitted.decision_function(X), dtype=np.float64)
            known = np.stack([np.zeros(len(known)), known], 1) if known.ndim == 1 else known
        if len(columns) == 1:
            known = known[:, :1] * 0.0  # an estimator that saw one class is sure of it
        logits = np.full((len(known), len(self.classes_)), min(_LEAST_LOG, float(known.min())))
        logits[:, columns] = known
        return logits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(LogisticRegression() if self.estimator is None else self.estimator)
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.input_tags.allow_nan = inner.input_tags.allow_nan
        return tags
