"""The calibrators by name, the text form of a choice, and maps from disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

from trueup.calibrators.auto import Auto
from trueup.calibrators.base import CalibrationMap, Calibrator, map_from_dict
from trueup.calibrators.binning import Histogram, Isotonic, TableMap
from trueup.calibrators.chain import Chain, ChainMap
from trueup.calibrators.focal import FocalMap, FocalTemperature, FocalTemperatureMap
from trueup.calibrators.linear import BiasTemperature, Dirichlet, LinearMap, Matrix, Vector
from trueup.calibrators.softplus import Softplus, SoftplusMap
from trueup.calibrators.temperature import Identity, IdentityMap, Temperature, TemperatureMap
from trueup.inputs import InputError

CALIBRATORS: dict[str, type[Calibrator]] = {
    settings.name: settings
    for settings in (
        Identity,
        Temperature,
        FocalMap,
        FocalTemperature,
        Softplus,
        BiasTemperature,
        Vector,
        Matrix,
        Dirichlet,
        Histogram,
        Isotonic,
        Auto,
    )
}
"""Each can be made without arguments, but for ``focal-map``, which takes the training gamma."""

MAPS: dict[str, type[CalibrationMap]] = {
    made.kind: made
    for made in (IdentityMap, TemperatureMap, FocalTemperatureMap, SoftplusMap, LinearMap, TableMap, ChainMap)
}


def calibrator(spec: str) -> Calibrator:
    """The settings that a text names: ``temperature``, ``softplus+vector``, ``focal-map:3``."""
    if not isinstance(spec, str):
        raise InputError(f"calibrator: expected a text such as softplus+vector, got {spec!r}")
    steps = [_step(part.strip()) for part in spec.split("+")]
    return steps[0] if len(steps) == 1 else Chain(*steps)


def _step(text: str) -> Calibrator:
    name, colon, argument = text.partition(":")
    known = ", ".join("focal-map:GAMMA" if name == "focal-map" else name for name in CALIBRATORS)
    if name not in CALIBRATORS:
        raise InputError(f"unknown calibrator {name!r}; known: {known}; a + chains them, as in softplus+vector")
    if name != "focal-map":
        if colon:
            raise InputError(f"calibrator {text!r}: {name} takes no argument")
        return CALIBRATORS[name]()
    if not argument:
        raise InputError("calibrator 'focal-map': it needs the training gamma, as in focal-map:3")
    try:
        return FocalMap(float(argument))
    except ValueError as error:
        raise InputError(
            f"calibrator {text!r}: focal-map needs the training gamma, as in focal-map:3 ({error})"
        ) from None


def load_map(path: str | os.PathLike[str]) -> CalibrationMap:
    """The map that ``save`` wrote."""
    path = Path(path)
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: a folder, not a file") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not a calibration map, which is a JSON file that calibrate --save wrote") from None
    try:
        return map_from_dict(content, MAPS, str(path))
    except RecursionError:
        raise InputError(f"{path}: damaged calibration map (chains within chains without an end)") from None
