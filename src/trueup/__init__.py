"""trueup makes a classifier's confidence true.

import trueup

test = trueup.load("test.npz")                                    # logits or probabilities, and labels
trueup.audit(test)                                                # is it calibrated?
fitted = trueup.Auto().fit(val.logits, val.labels)                # mend it
probs = fitted(test.logits)
loss = trueup.Focal(gamma=3)                                      # or train a network that needs no mending
"""

from trueup.audit import Audit, audit
from trueup.calibrators import (
    CALIBRATORS,
    Auto,
    BiasTemperature,
    CalibrationMap,
    Calibrator,
    Chain,
    Dirichlet,
    FitReport,
    FocalMap,
    FocalTemperature,
    Histogram,
    Identity,
    Isotonic,
    Matrix,
    Softplus,
    Temperature,
    Vector,
    calibrator,
    load_map,
)
from trueup.compare import Comparison, compare
from trueup.curvature import HessianTrace
from trueup.export import Calibrated, export
from trueup.focal import (
    confidence_thresholds,
    focal_map,
    gamma_star,
    inverse_focal_map,
    p0_of,
    phi,
    risk_minimiser,
    temperature_bounds,
)
from trueup.inputs import InputError
from trueup.losses import (
    MMCE,
    AdaFocal,
    Brier,
    ByConfidence,
    CrossEntropy,
    DualFocal,
    EntropyPenalty,
    Focal,
    LabelSmoothing,
    LogitNorm,
    Scheduled,
)
from trueup.metrics import (
    METRICS,
    Interval,
    Meter,
    Scores,
    adaptive_ece,
    bootstrap,
    brier,
    brier_decomposition,
    classwise_ece,
    confident_share,
    debiased_ece,
    ece,
    error,
    mce,
    nll,
    outcomes,
    overconfidence,
    score,
    score_logits,
    smooth_ece,
    under_calibration,
)
from trueup.predictions import Predictions, load

__version__ = "0.1.0"

__all__ = [
    # the hinge
    "InputError",
    "Predictions",
    "load",
    # measure
    "METRICS",
    "Audit",
    "Interval",
    "Meter",
    "Scores",
    "adaptive_ece",
    "audit",
    "bootstrap",
    "brier",
    "brier_decomposition",
    "classwise_ece",
    "confident_share",
    "debiased_ece",
    "ece",
    "error",
    "mce",
    "nll",
    "outcomes",
    "overconfidence",
    "score",
    "score_logits",
    "smooth_ece",
    "under_calibration",
    # calibrate
    "CALIBRATORS",
    "Auto",
    "BiasTemperature",
    "CalibrationMap",
    "Calibrator",
    "Chain",
    "Comparison",
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
    "compare",
    "load_map",
    # serve
    "Calibrated",
    "export",
    # train
    "AdaFocal",
    "Brier",
    "ByConfidence",
    "CrossEntropy",
    "DualFocal",
    "EntropyPenalty",
    "Focal",
    "HessianTrace",
    "LabelSmoothing",
    "LogitNorm",
    "MMCE",
    "Scheduled",
    # the mathematics of focal loss
    "confidence_thresholds",
    "focal_map",
    "gamma_star",
    "inverse_focal_map",
    "p0_of",
    "phi",
    "risk_minimiser",
    "temperature_bounds",
]
