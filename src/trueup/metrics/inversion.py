"""Which true errors would show the observed value: the search behind the interval of a calibration error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Inversion:
    """Which true fields would show the observed value, along the line that moves every gap by its standard error."""

    observed: np.ndarray
    noise: np.ndarray
    error: np.ndarray
    norm: Callable[[np.ndarray], np.ndarray]

    def true_error(self, tail: float) -> float:
        """The norm of the field under which the observed value is exceeded with probability ``tail``."""
        return float(self.norm(self._at(self._multiple(tail))))

    def errors_of_estimate(self) -> np.ndarray:
        """(resamples,) estimate less truth, were the truth the field that makes the observed value its median."""
        center = self._at(self._multiple(0.5))
        return self.norm(center + self.noise) - self.norm(center)

    def _at(self, multiple: float) -> np.ndarray:
        return np.sign(self.observed) * np.maximum(np.abs(self.observed) - multiple * self.error, 0)

    def _multiple(self, tail: float) -> float:
        shown = self.norm(self.observed)
        slack = 1e-12 * max(shown, 1e-12)

        def exceeded(multiple: float) -> float:
            return float(np.mean(self.norm(self._at(multiple) + self.noise) >= shown - slack))

        certain = self.error > 0
        if not certain.any():
            return 0.0
        low, high = -20.0, float((np.abs(self.observed[certain]) / self.error[certain]).max()) + 1.0
        if exceeded(high) > tail:
            return high  # even no gap at all would show it
        for _ in range(25):
            middle = (low + high) / 2
            low, high = (middle, high) if exceeded(middle) > tail else (low, middle)
        return (low + high) / 2
