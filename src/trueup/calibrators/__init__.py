"""Calibrate: frozen settings with ``fit(logits, labels)``, which returns a map from logits to probabilities."""

from trueup.calibrators.auto import Auto
from trueup.calibrators.base import CalibrationMap, Calibrator, FitReport
from trueup.calibrators.binning import Histogram, Isotonic
from trueup.calibrators.chain import Chain
from trueup.calibrators.focal import FocalMap, FocalTemperature
from trueup.calibrators.linear import BiasTemperature, Dirichlet, Matrix, Vector
from trueup.calibrators.registry import CALIBRATORS, calibrator, load_map
from trueup.calibrators.softplus import Softplus
from trueup.calibrators.temperature import Identity, Temperature

__all__ = [
    "CALIBRATORS",
    "Auto",
    "BiasTemperature",
    "CalibrationMap",
    "Calibrator",
    "Chain",
    "Dirichlet",
    "FitReport",
    "FocalMap",
    "FocalTemperature",
    "Histogram",
    "Identity",
    "Isotonic",
    "Matrix",
    "Softplus",
    "Temperature",
    "Vector",
    "calibrator",
    "load_map",
]
