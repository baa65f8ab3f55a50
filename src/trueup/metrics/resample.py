"""Honest intervals, and what perfect calibration would show.

The plug-in estimate of a calibration error is too large: noise makes gaps where there are none. A percentile bootstrap
adds the noise once more and near calibration does not even contain its own estimate. Here the interval asks instead:
which true errors would show the observed value? The true field of gaps is unknown; we take the observed one with
every gap moved towards zero (or away from it) by the same multiple of its own standard error, add resampled noise, and
keep those multiples under which the observed value is not extreme. A gap lost in noise then counts as none, a clear
gap as itself. Where a calibrated model would show the observed value often enough, the interval begins at 0; it always
contains the value itself. The interval of a difference of two calibration errors is put together from the intervals of
the two and the correlation of their errors. benchmarks/coverage.py measures what this is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from trueup import inputs
from trueup.inputs import Array, InputError, count
from trueup.metrics import fields
from trueup.metrics.binned import adaptive_ece, classwise_ece, debiased_ece, ece, mce
from trueup.metrics.inversion import Inversion
from trueup.metrics.scores import Scores, brier, error, nll, overconfidence, score
from trueup.metrics.smooth import smooth_ece, smooth_ece_of

MEANS: dict[Callable[..., float], Callable[[Scores], np.ndarray]] = {
    nll: lambda s: -s.log_true,
    brier: lambda s: s.brier,
    error: lambda s: ~s.correct,
    overconfidence: lambda s: s.residual,
}
"""Metrics that are means of a per-sample value."""
TOP_LABEL_ERRORS = (ece, adaptive_ece, mce, debiased_ece, smooth_ece)
CALIBRATION_ERRORS = (*TOP_LABEL_ERRORS, classwise_ece)

Answer = TypeVar("Answer")

_UNITS = 2000
"""Rows are resampled in at most this many random groups: their sums have the moments of the rows' own."""


class Interval(NamedTuple):
    value: float
    low: float
    high: float


class UnderCalibration(NamedTuple):
    value: float
    """The mean of the metric over labels drawn from the probabilities themselves."""
    p: float | None
    """How often such labels give at least the observed value; None where no labels were given."""


def bootstrap(
    metric: Callable[..., float],
    probs: Array | Scores,
    labels: Array | None = None,
    other: Array | Scores | None = None,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    bins: int = 15,
) -> Interval:
    """The metric with a bias-corrected interval; with ``other``, of metric(probs) - metric(other), rows paired.

    Any function of (probs, labels) will do; those of this package are computed from sums, all resamples at once.
    """
    inputs.between_0_and_1(level, "level")
    first = Resampler(score(probs, labels), resamples, seed, bins)
    if other is None:
        return first.interval(metric, level)
    shape, theirs = first.scores.probs.shape, _probs_of(other, "other").shape
    if theirs != shape:
        told = "{} rows of {} classes".format
        raise InputError(f"other: {told(*theirs)}, where probs has {told(*shape)}; a pair needs the same of both")
    return first.difference(Resampler(score(other, first.scores.labels, "other"), resamples, seed, bins), metric, level)


def under_calibration(
    metric: Callable[..., float],
    probs: Array | Scores,
    labels: Array | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
    bins: int = 15,
) -> UnderCalibration:
    """What a perfectly calibrated model with these probabilities would show, and, with labels, the p-value."""
    if labels is None and not isinstance(probs, Scores):
        p = inputs.matrix(probs, "probs")
        placeholder = Resampler(score(p, p.new_zeros(len(p), dtype=torch.int64)), resamples, seed, bins)
        return UnderCalibration(float(placeholder.calibrated(metric).mean()), None)
    return Resampler(score(probs, labels), resamples, seed, bins).test(metric)


def _probs_of(probs: Array | Scores, name: str) -> torch.Tensor:
    return probs.probs if isinstance(probs, Scores) else inputs.matrix(probs, name)


def _once(method: Callable[[Resampler, Callable[..., float]], Answer]) -> Callable[..., Answer]:
    """What a method of a resampler answers about a metric is kept with it: one answer is part of several others."""

    @wraps(method)
    def kept(self: Resampler, metric: Callable[..., float]) -> Answer:
        key = (method.__name__, metric)
        if key not in self._answers:
            self._answers[key] = method(self, metric)
        return self._answers[key]

    return kept


@dataclass(frozen=True)
class Resampler:
    """The resamples of one set of predictions, shared by all metrics that ask for them."""

    scores: Scores
    resamples: int = 1000
    seed: int = 0
    bins: int = 15

    def __post_init__(self) -> None:
        count(self.resamples, "resamples")
        count(self.seed, "seed", least=0)
        count(self.bins, "bins")

    @cached_property
    def _answers(self) -> dict[tuple[str, Callable[..., float]], Any]:
        """Of the methods that are computed ``_once``."""
        return {}

    # ------------------------------------------------------------------ resampling rows

    def _noise(self, index: np.ndarray, weight: np.ndarray, size: int) -> np.ndarray:
        """(resamples, size): what resampling adds to the sums of ``weight`` by ``index``, divided by n."""
        unit, extra = _drawn_rows(len(self.scores), self.resamples, self.seed)
        units = extra.shape[1]
        sums = np.bincount(unit * size + index, weight, units * size).reshape(units, size)
        return extra @ sums / len(self.scores)

    # ------------------------------------------------------------------ the predicted class

    @cached_property
    def _cells(self) -> fields.Cells:
        return fields.cells_of(self.scores, self.bins)

    @cached_property
    def _cell(self) -> np.ndarray:
        """(N,) the cell of each sample."""
        return self._cells.holding(self.scores.confidence)

    @cached_property
    def _cell_sums(self) -> np.ndarray:
        return np.bincount(self._cell, self.scores.residual) / len(self.scores)

    @cached_property
    def _cell_noise(self) -> np.ndarray:
        return self._noise(self._cell, self.scores.residual, len(self._cells.count))

    @cached_property
    def _calibrated_cell_sums(self) -> np.ndarray:
        """(resamples, cells) with outcomes drawn from the confidences, which hardly vary within a cell."""
        cells = self._cells
        wins = _rng(self.seed, "outcomes").binomial(
            cells.count, np.clip(cells.mean, 0, 1), (self.resamples, len(cells.count))
        )
        return (cells.confidence - wins) / len(self.scores)

    @_once
    def _field(self, metric: Callable[..., float]) -> fields.Field:
        return fields.top_label_field(metric.__name__, self.scores, self._cells, self.bins, self.value(metric))

    # ------------------------------------------------------------------ all classes

    @cached_property
    def _class_field(self) -> fields.ClassField:
        return fields.class_field(self.scores, self.bins)

    @cached_property
    def _calibrated_class_sums(self) -> np.ndarray:
        """(resamples, K * bins): forecast less observed, with labels drawn from the probabilities."""
        return fields.drawn_class_sums(self._class_field, self.scores, self.resamples, _rng(self.seed, "labels"))

    @cached_property
    def _class_noise(self) -> tuple[np.ndarray, np.ndarray]:
        """(resamples, K * bins) noise of the classwise field and its standard error.

        Most entries hold few labels, where resampling rows sees too little noise; labels drawn from the probabilities
        do not, and are scaled, bin by bin over all classes, to the variance that resampling finds.
        """
        field = self._class_field
        drawn, sampled = (v.reshape(-1, self.bins).sum(0) for v in (field.drawn_variance, field.sampled_variance))
        ratio = np.sqrt(np.divide(sampled, drawn, out=np.ones_like(drawn), where=drawn > 0))
        ratio = np.tile(ratio, self.scores.classes)
        return self._calibrated_class_sums * ratio, np.sqrt(field.drawn_variance) * ratio

    @cached_property
    def _class_row_noise(self) -> tuple[np.ndarray, np.ndarray]:
        """The same from resampled rows, which two sets of predictions share."""
        field, s = self._class_field, self.scores
        noise = np.zeros((self.resamples, s.classes * self.bins))
        residual = np.array(s.probs.cpu().numpy(), dtype=np.float64)  # a copy: the probabilities are the caller's
        residual[np.arange(len(s)), s.labels.cpu().numpy()] -= 1
        for k in range(s.classes):
            cells = slice(k * self.bins, (k + 1) * self.bins)
            noise[:, cells] = self._noise(field.cell[:, k] - k * self.bins, residual[:, k], self.bins)
        return noise, noise.std(0)

    # ------------------------------------------------------------------ the answers

    def calibrated(self, metric: Callable[..., float]) -> np.ndarray:
        """(resamples,) the metric with labels drawn from the probabilities."""
        if metric is smooth_ece:
            return smooth_ece_of(fields.on_grid(self._cells, self._calibrated_cell_sums), steps=12)
        if metric in TOP_LABEL_ERRORS:
            field = self._field(metric)
            return field.value(field.project(self._calibrated_cell_sums))
        if metric is classwise_ece:
            return np.abs(self._calibrated_class_sums).sum(1) / self.scores.classes
        return np.array([self._call(metric, self.scores.probs, y) for y in self._drawn_labels()])

    @_once
    def test(self, metric: Callable[..., float]) -> UnderCalibration:
        """The metric's mean under calibration, and the p-value of the observed value."""
        drawn, value = self.calibrated(metric), self.value(metric)
        at_least = drawn >= value
        if metric is smooth_ece:  # exact, where the means above are on a coarse grid
            field = self._field(metric)
            at_least = field.norm(field.project(self._calibrated_cell_sums)) >= value
        return UnderCalibration(float(drawn.mean()), (1 + int(np.count_nonzero(at_least))) / (1 + len(drawn)))

    def interval(self, metric: Callable[..., float], level: float = 0.95) -> Interval:
        """The metric's value and its bias-corrected interval."""
        value = self.value(metric)
        if not np.isfinite(value):
            return Interval(value, value, value)
        if metric in MEANS:
            return _containing(value, *_quantiles(value + self._mean_noise(metric), level))
        if metric in CALIBRATION_ERRORS:
            inversion = self._inversion(metric)
            tail = (1 - level) / 2
            low = 0.0 if (self.test(metric).p or 0.0) > tail else inversion.true_error(tail)
            largest = 2 / self.scores.classes if metric is classwise_ece else 1.0
            return _containing(value, low, min(inversion.true_error(1 - tail), largest))
        draws = self._resampled(metric)
        return _containing(value, *_quantiles(draws - (draws.mean() - value), level))

    def difference(self, other: Resampler, metric: Callable[..., float], level: float = 0.95) -> Interval:
        """The interval of this metric less the other's, the same rows resampled for both."""
        value = self.value(metric) - other.value(metric)
        if metric in MEANS:
            draws = value + self._mean_noise(metric) - other._mean_noise(metric)
        elif metric in CALIBRATION_ERRORS:
            return _containing(value, *self._difference_of_errors(other, metric, level))
        else:
            draws = self._resampled(metric) - other._resampled(metric)
            draws -= draws.mean() - value
        return _containing(value, *_quantiles(draws, level))

    def _difference_of_errors(
        self, other: Resampler, metric: Callable[..., float], level: float
    ) -> tuple[float, float]:
        """From the intervals of the two, which hold near calibration, too, and the correlation of their errors.

        Zou and Donner's recovery of variances: below the difference by the distance of the one to its lower limit and
        of the other to its upper limit, put together as two correlated deviations are; above it likewise.
        """
        if torch.equal(self.scores.probs, other.scores.probs):
            return 0.0, 0.0
        ends = [r.interval(metric, level) for r in (self, other)]
        inversions = [r._paired_inversion(metric) for r in (self, other)]
        centers = [
            min(max(inversion.true_error(0.5), each.low), each.high)
            for inversion, each in zip(inversions, ends, strict=True)
        ]
        mine, theirs = (inversion.errors_of_estimate() for inversion in inversions)
        spread = mine.std() * theirs.std()
        together = float(((mine - mine.mean()) * (theirs - theirs.mean())).mean() / spread) if spread > 0 else 0.0
        (a, b), (below_a, above_a), (below_b, above_b) = (
            centers,
            *((center - each.low, each.high - center) for center, each in zip(centers, ends, strict=True)),
        )
        # where the lower limit is 0, the end of the scale, the estimate can only be too high: the distances add up
        down = below_a**2 + above_b**2 - 2 * (together if ends[0].low > 0 else -1.0) * below_a * above_b
        up = above_a**2 + below_b**2 - 2 * (together if ends[1].low > 0 else -1.0) * above_a * below_b
        most = self._largest_difference(other, metric, level)
        return max(a - b - max(down, 0.0) ** 0.5, -most), min(a - b + max(up, 0.0) ** 0.5, most)

    def _largest_difference(self, other: Resampler, metric: Callable[..., float], level: float) -> float:
        """By the triangle inequality two errors differ by no more than the norm of the difference of their fields,
        which is small, and has little noise, where the predictions are nearly the same."""
        if metric is mce:  # its norm is another for each: the shares of the bins are part of it
            return np.inf
        if metric is smooth_ece:
            # each is a norm at a width of its own; at a narrower one the difference is not smaller
            width = min(self.value(metric), other.value(metric)) / 2
            mine, theirs = (fields.smooth_field(r._cells, width) for r in (self, other))
            observed = mine.project(self._cell_sums) - theirs.project(other._cell_sums)
            noise = mine.project(self._cell_noise) - theirs.project(other._cell_noise)
            norm = mine.norm
        else:
            first, second = (r._paired_inversion(metric) for r in (self, other))
            observed, noise, norm = first.observed - second.observed, first.noise - second.noise, first.norm
        return float(np.quantile(norm(observed + noise), (1 + level) / 2))

    @_once
    def value(self, metric: Callable[..., float]) -> float:
        """The metric of the samples themselves."""
        if metric in MEANS or metric in CALIBRATION_ERRORS:
            return self._call(metric, self.scores)
        return self._call(metric, self.scores.probs, self.scores.labels)

    def _call(self, metric: Callable[..., float], *arguments: object) -> float:
        binned = metric in CALIBRATION_ERRORS and metric is not smooth_ece
        if not callable(metric):
            raise InputError(f"metric: expected a function of (probs, labels), got {inputs.brief(metric)}")
        found = metric(*arguments, bins=self.bins) if binned else metric(*arguments)
        if isinstance(found, str | None) or np.ndim(found) > 0:
            name = getattr(metric, "__name__", repr(metric))
            raise InputError(f"metric: expected one number, and {name} gives {inputs.brief(found)}")
        return float(found)

    def _mean_noise(self, metric: Callable[..., float]) -> np.ndarray:
        values = MEANS[metric](self.scores).astype(np.float64)
        apart = values - values.mean()
        noise = self._noise(np.zeros(len(apart), np.int64), apart, 1)[:, 0]
        return noise.clip(apart.min(), apart.max())  # groups of unequal size can miss that no mean is beyond these

    @_once
    def _inversion(self, metric: Callable[..., float]) -> Inversion:
        if metric is classwise_ece:
            return self._class_inversion(*self._class_noise)
        field = self._field(metric)
        noise = field.project(self._cell_noise)
        return Inversion(field.project(self._cell_sums), noise, noise.std(0), field.norm)

    def _paired_inversion(self, metric: Callable[..., float]) -> Inversion:
        """With the noise of resampled rows, which two sets of predictions share."""
        return self._class_inversion(*self._class_row_noise) if metric is classwise_ece else self._inversion(metric)

    def _class_inversion(self, noise: np.ndarray, error: np.ndarray) -> Inversion:
        return Inversion(self._class_field.observed, noise, error, lambda x: np.abs(x).sum(-1) / self.scores.classes)

    def _resampled(self, metric: Callable[..., float]) -> np.ndarray:
        """(resamples,) any metric on resampled rows, one call each."""
        rng, s = _rng(self.seed, "rows"), self.scores
        draws = (rng.integers(0, len(s), len(s)) for _ in range(self.resamples))
        return np.array([self._call(metric, s.probs[rows], s.labels[rows]) for rows in draws])

    def _drawn_labels(self) -> Iterator[np.ndarray]:
        rng = _rng(self.seed, "labels")
        cumulative = np.cumsum(self.scores.probs.cpu().numpy(), axis=1, dtype=np.float64)
        for _ in range(self.resamples):
            u = rng.random((len(cumulative), 1)) * cumulative[:, -1:]
            yield (u >= cumulative).sum(1)


@lru_cache(maxsize=1)
def _drawn_rows(n: int, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """((n,) the random group of each row, (resamples, groups) how often each group is drawn, less one).

    Kept from one set of predictions to the next: those that are compared have the same rows, and drawing takes longer
    than all that is done with the draws.
    """
    units = min(n, _UNITS)
    unit = _rng(seed, "units").permutation(n) * units // n
    extra = _rng(seed, "rows").multinomial(units, np.full(units, 1 / units), resamples) - 1.0
    for shared in (unit, extra):
        shared.flags.writeable = False
    return unit, extra


def _rng(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng([seed, *purpose.encode()])


def _quantiles(draws: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _containing(value: float, low: float, high: float) -> Interval:
    return Interval(value, min(low, value), max(high, value))
