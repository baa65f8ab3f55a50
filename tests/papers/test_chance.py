"""Errors, intervals and what chance does, held against SciPy's distributions and against draws."""

import numpy as np
import pytest
from scipy import stats

from trueup.papers.chance import NO_ERROR, Error, by_chance, clearly


def test_the_reach_is_half_of_the_interval_of_students_t():
    values = np.random.default_rng(0).normal(size=3)
    error = Error(float(values.std(ddof=1)) / 3**0.5, 2)
    low, high = stats.t.interval(0.95, 2, loc=values.mean(), scale=stats.sem(values))
    assert error.reach == pytest.approx((high - low) / 2, rel=1e-12)
    assert Error(1.0).reach == pytest.approx(stats.norm.ppf(0.975), rel=1e-12)


def test_a_difference_is_judged_as_welch_does():
    rng = np.random.default_rng(1)
    for sizes in ((3, 3), (3, 5), (2, 40)):
        first, second = (rng.normal(size=n) * (i + 1) for i, n in enumerate(sizes))
        errors = [Error(float(stats.sem(of)), len(of) - 1) for of in (first, second)]
        low, high = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
        assert errors[0].beside(errors[1]).reach == pytest.approx((high - low) / 2, rel=1e-10)


def test_endless_samples_beside_few_seeds_and_none_at_all():
    assert Error(0.0, 2).beside(Error(1.0)) == Error(1.0)
    assert NO_ERROR.beside(NO_ERROR) == NO_ERROR
    assert Error(2.0, 2).times(3) == Error(6.0, 2)
    assert Error.of_interval(None, None) == NO_ERROR
    assert Error.of_interval(-1.96, 1.96) == Error(pytest.approx(1.0))
    assert Error.of_share(0.5, 100) == Error(pytest.approx(0.05))


def test_what_is_within_the_interval_is_not_told():
    error = Error(1.0)
    assert [clearly(gap, error) for gap in (-2.0, -1.9, 0.0, 1.9, 2.0)] == [False, None, None, None, True]
    assert clearly(0.0, NO_ERROR) is None


def test_chance_alone_is_taken_for_more_in_at_most_one_of_twenty_cases():
    for intervals in (1, 2, 5, 10, 40, 110):
        most = by_chance(intervals)
        assert stats.binom.cdf(most, intervals, 0.025) >= 0.95
        assert most == 0 or stats.binom.cdf(most - 1, intervals, 0.025) < 0.95
