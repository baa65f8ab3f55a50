"""What chance alone does to figures: how far off they may be, and how many of many intervals miss the truth by it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, sqrt

from scipy.special import bdtr, stdtrit


@dataclass(frozen=True)
class Error:
    """A standard error, and its degrees of freedom: two of three seeds, as good as endless ones of test samples."""

    value: float
    freedom: float = inf

    @property
    def reach(self) -> float:
        """Half of the 95 % interval, by Student's factor."""
        return float(stdtrit(self.freedom, 0.975)) * self.value

    @classmethod
    def of_interval(cls, low: float | None, high: float | None) -> Error:
        """Of many samples, from the 95 % interval; none where there is no interval."""
        return cls((high - low) / 3.92 if low is not None and high is not None else 0.0)

    @classmethod
    def of_share(cls, share: float, samples: int) -> Error:
        return cls(sqrt(share * (1 - share) / samples))

    def times(self, factor: float) -> Error:
        return replace(self, value=factor * self.value)

    def beside(self, other: Error) -> Error:
        """That of the difference of two independent figures; its degrees of freedom are Welch's.

        >>> Error(3.0).beside(Error(4.0))
        Error(value=5.0, freedom=inf)
        >>> Error(1.0, 2).beside(Error(1.0, 2)).freedom
        4.0
        """
        squares = self.value**2, other.value**2
        lost = squares[0] ** 2 / self.freedom + squares[1] ** 2 / other.freedom
        return Error(sqrt(sum(squares)), sum(squares) ** 2 / lost if lost else inf)


NO_ERROR = Error(0.0)


def clearly(difference: float, error: Error) -> bool | None:
    """Whether it is above 0, and its 95 % interval too; False: below likewise; None: 0 is within the interval.

    >>> clearly(0.5, Error(0.2)), clearly(-0.5, Error(0.2)), clearly(0.3, Error(0.2)), clearly(0.5, Error(0.2, 2))
    (True, False, None, None)
    """
    return None if abs(difference) <= error.reach else difference > 0


def by_chance(intervals: int) -> int:
    """How many of so many 95 % intervals lie on one side of the truth where chance alone is at work: that many at the
    most in 95 of 100 cases.

    >>> by_chance(1), by_chance(10), by_chance(100)
    (0, 1, 5)
    """
    return next(most for most in range(intervals + 1) if bdtr(most, intervals, 0.025) >= 0.95)
