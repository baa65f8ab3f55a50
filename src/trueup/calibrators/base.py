"""The contract of every calibrator: frozen settings, and the map that ``fit`` makes of them.

A map is an ``nn.Module`` whose numbers are plain floats or buffers, so it survives ``torch.export``. On disk it is
JSON.
"""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from trueup import inputs
from trueup.calibrators import threads
from trueup.inputs import Array, InputError

Progress = Callable[[float], None]
"""Called with the share of the work that is done, from 0 to 1."""

FORMAT = "trueup-map"
VERSION = 1
_SETTINGS = "_extra_state"  # PyTorch's name, in a state_dict, for what get_extra_state gives


@dataclass(frozen=True)
class Calibrator(ABC):
    """Settings. ``fit`` turns them, and a calibration set, into a map."""

    name: ClassVar[str]
    """The name in ``CALIBRATORS`` and on the command line."""

    def fit(self, logits: Array, labels: Array, *, progress: Progress | None = None) -> CalibrationMap:
        """The map fitted to ``logits`` (N, K) and ``labels`` (N,). A class without a label is no error."""
        z = inputs.logits(logits)
        y = inputs.labels(labels, z)
        with torch.no_grad(), threads.sharing(z):
            return self.fit_checked(z, y, progress or _silent)

    @abstractmethod
    def fit_checked(
        self, z: Tensor, y: Tensor, progress: Progress, near: CalibrationMap | None = None
    ) -> CalibrationMap:
        """The map fitted to logits and labels that are known to be clean.

        ``near``, a map of the same settings fitted to similar data, may be where the search begins.
        """

    @property
    @abstractmethod
    def keeps_ranking(self) -> bool:
        """Whether the maps it makes never change the predicted class."""


def _silent(_: float) -> None:
    pass


@dataclass(frozen=True)
class FitReport:
    """How a map was found, on the data it was fitted on."""

    criterion: str
    before: float
    """The criterion with the logits as they came."""
    after: float
    iterations: int
    converged: bool
    at_bound: bool = False
    """Whether a parameter ended at the limit of its range, as it does where the data cannot tell its value."""
    note: str = ""


class CalibrationMap(nn.Module):
    """logits (N, K) -> probabilities (N, K), in the kind that went in; float32 where half precision went in."""

    kind: ClassVar[str]
    """The name on disk."""

    def __init__(self, classes: int, fit_report: FitReport | None = None) -> None:
        super().__init__()
        self.classes = inputs.count(classes, "classes", least=2)
        self.fit_report = fit_report
        self.class_names: tuple[str, ...] | None = None
        """Of the data that it was fitted to, for who knows them: logits in another order would be mapped wrongly."""

    @abstractmethod
    def scores(self, logits: Tensor) -> Tensor:
        """The new logits, up to a constant in each row: the map is their softmax."""

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """The fitted numbers by name; the map is made again by ``type(self)(classes=..., **values)``."""

    def forward(self, logits: Tensor) -> Tensor:
        """Probabilities of checked logits."""
        return self.scores(logits).softmax(-1)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Log-probabilities of checked logits, which do not underflow."""
        return self.scores(logits).log_softmax(-1)

    def __call__(self, logits: Array) -> Array:
        if torch.compiler.is_compiling() or torch.compiler.is_exporting():
            return super().__call__(logits)
        return inputs.like(self._in_blocks(logits, super().__call__), logits)

    def _in_blocks(self, logits: Array, compute: Any) -> Tensor:
        """``compute`` over the checked logits, in blocks of rows unless a gradient is asked for."""
        if isinstance(logits, Tensor) and logits.requires_grad and torch.is_grad_enabled():
            inputs.logits(logits, classes=self.classes)
            return compute(logits.to(inputs.working_dtype(logits)))
        z = inputs.logits(logits, classes=self.classes)
        hooked = any(part._forward_hooks or part._forward_pre_hooks for part in self.modules())
        with torch.no_grad(), nullcontext() if hooked else threads.sharing(z):  # hooks are called in order
            return threads.fill(torch.empty_like(z), compute, z)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the map as JSON."""
        inputs.writable(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    def to_dict(self) -> dict[str, Any]:
        """The map as JSON has it."""
        report = None if self.fit_report is None else _json_report(self.fit_report)
        values = {name: _plain(value) for name, value in self.values().items()}
        names = {} if self.class_names is None else {"class_names": list(self.class_names)}
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "classes": self.classes,
            **names,
            "values": values,
            "fit_report": report,
        }

    def get_extra_state(self) -> Tensor:
        """For ``state_dict``: what is no buffer, as the bytes of its JSON, which safetensors can keep, too."""
        plain = {name: value for name, value in self.values().items() if isinstance(value, (bool, int, float))}
        report = None if self.fit_report is None else _json_report(self.fit_report)
        content = {"kind": self.kind, "classes": self.classes, "values": plain, "fit_report": report}
        return torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """For ``load_state_dict``, which has made sure that this describes a map of this kind."""
        content = _decoded(state, _SETTINGS)
        for name, value in content["values"].items():
            setattr(self, name, value)
        self.fit_report = _python_report(content["fit_report"])

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """The numbers become those of the other map, which has to be of the same kind; its tables may be longer.

        Nothing is overwritten before the other map, with all the steps of a chain, is known to be sound.
        """
        if prefix + _SETTINGS in state_dict:
            other = self._of_state(state_dict, prefix)
            for name, buffer in other.named_buffers(recurse=False):
                if buffer.shape != getattr(self, name).shape:
                    setattr(self, name, getattr(self, name).new_empty(buffer.shape))
        elif any(key.startswith(tuple(prefix + name for name in self.values())) for key in state_dict):
            raise InputError(f"state_dict: no {prefix + _SETTINGS!r}, where its other numbers are")
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _of_state(self, state: Mapping[str, Any], prefix: str) -> CalibrationMap:
        """The map of this kind that a state_dict holds under ``prefix``, made anew and so checked."""
        content = _decoded(state.get(prefix + _SETTINGS), prefix + _SETTINGS)
        theirs, mine = (content["kind"], content["classes"]), (self.kind, self.classes)
        if theirs != mine:
            told = "a map of kind {!r} with {} classes"
            raise InputError(f"state_dict: {told.format(*theirs)}, where this is {told.format(*mine)}")
        values = dict(content["values"])
        for name, value in self.values().items():
            if isinstance(value, Tensor):
                values[name] = state.get(prefix + name)
            elif isinstance(value, list):
                values[name] = [step._of_state(state, f"{prefix}{name}.{i}.") for i, step in enumerate(value)]
        return _made(type(self), content, values, "state_dict")

    def extra_repr(self) -> str:
        numbers = (f"{name}={value:.6g}" for name, value in self.values().items() if isinstance(value, float))
        return ", ".join([*numbers, f"classes={self.classes}"])


def fold_of(n: int, folds: int, seed: int = 0) -> Tensor:
    """(n,) the fold of each sample: equal parts, in an order that only the seed decides."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    fold = torch.empty(n, dtype=torch.int64)
    fold[order] = torch.arange(n) * folds // n
    return fold


def nll_of(z: Tensor, y: Tensor, through: CalibrationMap | None = None) -> float:
    """Mean NLL of checked logits, as they are or through a map."""

    def total(rows: slice, block: Tensor) -> float:
        log_probs = block.log_softmax(1) if through is None else through.log_probs(block)
        return -float(log_probs.gather(1, y[rows, None]).sum(dtype=torch.float64))

    return sum(threads.each_block(total, z)) / len(z)


def map_from_dict(content: dict[str, Any], kinds: dict[str, type[CalibrationMap]], where: str) -> CalibrationMap:
    """The map that ``to_dict`` described; ``where`` names the file in messages."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{where}: not a calibration map (no format {FORMAT!r})")
    if content.get("version") != VERSION:
        raise InputError(f"{where}: format version {content.get('version')!r}; this release reads version {VERSION}")
    kind, values = content.get("kind"), content.get("values")
    if not isinstance(kind, str) or kind not in kinds:
        raise InputError(f"{where}: unknown kind of map {kind!r}; known: {', '.join(sorted(kinds))}")
    if not isinstance(values, dict):
        raise InputError(f"{where}: damaged calibration map (values: expected numbers by name, got {values!r})")
    if isinstance(values.get("maps"), list):
        values = values | {"maps": [map_from_dict(step, kinds, where) for step in values["maps"]]}
    made, names = _made(kinds[kind], content, values, where), content.get("class_names")
    if names is not None:
        if not isinstance(names, list) or len(names) != made.classes or not all(isinstance(n, str) for n in names):
            raise InputError(f"{where}: damaged calibration map (class_names: expected {made.classes} texts)")
        made.class_names = tuple(names)
    return made


def _made(kind: type[CalibrationMap], content: Mapping[str, Any], values: dict[str, Any], where: str) -> CalibrationMap:
    """The map of these values, which its constructor checks."""
    try:
        report = _python_report(content.get("fit_report"))
        return kind(**values | {"classes": content.get("classes"), "fit_report": report})
    except (InputError, TypeError) as error:  # a value that is missing, or one that no such map has, is a TypeError
        raise InputError(f"{where}: damaged calibration map ({error})") from None


def bounded(value: Any, name: str, low: float, high: float = math.inf) -> float:
    """A finite number from ``low`` to ``high``; what rounding put beside an end is set on it."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)
    if not (number and low - 1e-9 * abs(low) <= value <= high * (1 + 1e-9)):
        limits = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
        raise InputError(f"{name}: expected a finite number {limits}, got {value!r}")
    return min(max(float(value), low), high)


def table(value: Any, name: str) -> Tensor:
    """Finite float64 numbers, as a tensor of their own."""
    x = inputs.as_tensor(value, name).to(torch.float64, copy=True)
    if not bool(torch.isfinite(x).all()):
        raise InputError(f"{name}: holds {float(x[~torch.isfinite(x)][0])}; every entry has to be a finite number")
    return x


def _decoded(state: Any, name: str) -> dict[str, Any]:
    """What ``get_extra_state`` wrote, by its names."""
    try:
        content = json.loads(bytes(state.tolist()))
    except (AttributeError, TypeError, ValueError, RecursionError):
        content = None
    names = ("kind", "classes", "values", "fit_report")
    if not isinstance(content, dict) or set(content) != set(names) or not isinstance(content["values"], dict):
        raise InputError(f"state_dict: {name!r} is damaged; expected {', '.join(names)} as bytes of JSON")
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, CalibrationMap):
        return value.to_dict()
    return value.tolist() if isinstance(value, Tensor) else value


def _json_report(report: FitReport) -> dict[str, Any]:
    """JSON has no infinity: a criterion that is infinite is written as null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(report).items()}


def _python_report(content: Any) -> FitReport | None:
    if content is None:
        return None
    if not isinstance(content, dict):
        raise InputError(f"fit_report: expected its fields by name, got {content!r}")
    for field in fields(FitReport):
        value = content.get(field.name, field.default)
        if type(value) not in _JSON_TYPES[str(field.type)]:
            raise InputError(f"fit_report: {field.name} is {value!r}, where a {field.type} is expected")
    found: dict[str, Any] = {k: math.inf if v is None else v for k, v in content.items()}
    return FitReport(**found)


_JSON_TYPES = {"str": (str,), "int": (int,), "bool": (bool,), "float": (float, int, type(None))}
