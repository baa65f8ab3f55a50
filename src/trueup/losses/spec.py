"""Losses by name: ``parse("focal:3")``, ``parse("cross-entropy+mmce:2")``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from trueup.inputs import InputError
from trueup.losses.base import Loss, Sum
from trueup.losses.focal import AdaFocal, ByConfidence, DualFocal, Focal, Scheduled
from trueup.losses.proper import Brier, CrossEntropy
from trueup.losses.regularised import MMCE, EntropyPenalty, LabelSmoothing, LogitNorm

THIRDS = (2 / 7, 5 / 7, 1.0)
"""Where mukhoti2020's schedules change: after 100 and 250 of 350 epochs."""


def _scheduled(*gammas: float, **kwargs: Any) -> Focal:
    bounds = THIRDS if len(gammas) == 3 else tuple((i + 1) / len(gammas) for i in range(len(gammas)))
    return Focal(Scheduled(*zip(bounds, gammas, strict=True)), **kwargs)


def _hessian_trace(tau: float, **kwargs: Any) -> nn.Module:
    from trueup.curvature.regulariser import HessianTrace  # which needs the losses

    return HessianTrace(tau, **kwargs)


LOSSES: dict[str, tuple[str, Callable[..., Loss]]] = {
    "cross-entropy": ("", CrossEntropy),
    "brier": ("", Brier),
    "focal": ("3", Focal),
    "flsd-53": ("", lambda **kw: Focal(ByConfidence((0.2, 5), (1.0, 3)), **kw)),
    "flsd-532": ("", lambda **kw: Focal(ByConfidence((0.2, 5), (0.5, 3), (1.0, 2)), **kw)),
    "focal-schedule": ("5,3,2", _scheduled),
    "focal-detached": ("3", lambda gamma, **kw: Focal(gamma, detach_weight=True, **kw)),
    "label-smoothing": ("0.05", LabelSmoothing),
    "dual-focal": ("5", DualFocal),
    "adafocal": ("", AdaFocal),
}
"""name -> (an example of its arguments, what makes it)."""

PENALTIES: dict[str, tuple[str, Callable[..., nn.Module]]] = {
    "mmce": ("2", MMCE),
    "mmce-mukhoti2020": ("2", lambda weight: MMCE(weight, form="mukhoti2020")),
    "entropy": ("0.1", EntropyPenalty),
    "l1": ("0.01", lambda alpha: LogitNorm(1, alpha)),
    "l2": ("0.01", lambda alpha: LogitNorm(2, alpha)),
    "hessian-trace": ("0.01", _hessian_trace),
    "ggn-trace": ("0.01", lambda tau: _hessian_trace(tau, kind="ggn")),
}


def examples() -> list[str]:
    """A good spec of each kind."""
    losses = [name + (f":{args}" if args else "") for name, (args, _) in LOSSES.items()]
    return losses + [f"cross-entropy+{name}:{args}" for name, (args, _) in PENALTIES.items()]


def parse(spec: str, **kwargs: Any) -> Loss | Sum:
    """The loss that ``spec`` names: ``loss[:numbers][+penalty:number ...]``; ``kwargs`` go to the loss (``reduction``).

    >>> import trueup
    >>> trueup.losses.parse("focal:3")
    Focal(gamma=3)
    """
    if not isinstance(spec, str) or not spec.strip():
        raise _bad(spec, "is empty" if isinstance(spec, str) else "is not a string")
    first, *rest = spec.strip().split("+")
    loss: Loss | Sum = _made(spec, first, LOSSES, kwargs)
    for part in rest:
        loss = loss + _made(spec, part, PENALTIES, {})
    return loss


def _made(spec: str, part: str, table: dict[str, tuple[str, Callable[..., Any]]], kwargs: dict[str, Any]) -> Any:
    name, colon, text = part.strip().partition(":")
    if name not in table:
        kind = "penalty" if table is PENALTIES else "loss"
        raise _bad(spec, f"names no {kind}{f' {name!r}' if name != spec else ''}")
    example, make = table[name]
    wanted = bool(example)
    if bool(colon) != wanted or (wanted and not text):
        raise _bad(spec, f"{name} takes {'a number, as in ' + name + ':' + example if wanted else 'no argument'}")
    try:
        numbers = [float(number) for number in text.split(",")] if wanted else []
    except ValueError:
        raise _bad(spec, f"{text!r} is not a number") from None
    if len(numbers) > 1 and name != "focal-schedule":
        raise _bad(spec, f"{name} takes one number")
    return make(*numbers, **kwargs)


def _bad(spec: object, why: str) -> InputError:
    return InputError(f"loss: {spec!r} {why}; good ones are {', '.join(examples())}")
