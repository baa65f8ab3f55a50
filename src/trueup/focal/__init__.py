"""The mathematics of focal loss.

Focal loss is FL(p, y) = -(1 - p_y)^g log p_y; g = 0 is cross-entropy. Its gradient is phi(p_y) times that of
cross-entropy, with

    phi(v) = (1 - v)^g (1 + g r(v)),    r(v) = -v log v / (1 - v), from 0 at v = 0 to 1 at v = 1.

A network that minimises it does not report the posterior; the focal map Psi gives the posterior back
(charoenphakdee2021): Psi_i(v) = h(v_i) / sum_k h(v_k) with h(v) = v / phi(v). Valid for g >= -1.

Near v = 1 everything hangs on q = 1 - v, which is never taken as 1 - exp(log v): it is the mass of the other classes.
"""

from trueup.focal.map import focal_map, inverse_focal_map, log_h, log_h_of, risk_minimiser
from trueup.focal.odds import (
    Odds,
    bend_at,
    entropy_lower_bound,
    logit_gradient,
    logit_hessian,
    loss_and_slope_at,
    loss_at,
    odds,
    slope_at,
)
from trueup.focal.parts import checked_gamma, complements, log_growth, loss_of_r, phi, slope_of_r
from trueup.focal.thresholds import confidence_thresholds, gamma_star, p0_of, temperature_bounds

__all__ = [
    # the loss and its gradient
    "phi",
    "logit_gradient",
    "logit_hessian",
    "entropy_lower_bound",
    # the map
    "focal_map",
    "inverse_focal_map",
    "risk_minimiser",
    # what gamma means
    "confidence_thresholds",
    "gamma_star",
    "p0_of",
    "temperature_bounds",
    # as functions of the odds
    "Odds",
    "bend_at",
    "loss_and_slope_at",
    "loss_at",
    "odds",
    "slope_at",
    # parts
    "checked_gamma",
    "complements",
    "log_growth",
    "log_h",
    "log_h_of",
    "loss_of_r",
    "slope_of_r",
]
