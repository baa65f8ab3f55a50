"""The contract of every calibrator: frozen settings, and the map that ``fit`` makes of them.

A map is an ``nn.Module`` whose numbers are plain floats or buffers, so it survives ``torch.export``. On disk it is
JSON.
"""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trueup import inputs
from trueup.calibrators import solve
from trueup.inputs import Array, InputError

Progress = Callable[[float], None]
"""Called with the share of the work that is done, from 0 to 1."""

FORMAT = "trueup-map"
VERSION = 1


@dataclass(frozen=True)
class Calibrator(ABC):
    """Settings. ``fit`` turns them, and a calibration set, into a map."""

    name: ClassVar[str]
    """The name in ``CALIBRATORS`` and on the command line."""

    def fit(self, logits: Array, labels: Array, *, progress: Progress | None = None) -> CalibrationMap:
        """The map fitted to ``logits`` (N, K) and ``labels`` (N,). A class without a label is no error."""
        z = inputs.logits(logits)
        y = inputs.labels(labels, z)
        with torch.no_grad(), solve.few_threads(z):
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
        self.classes = classes
        self.fit_report = fit_report

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
        out = torch.empty_like(z)
        with torch.no_grad():
            for rows, block in inputs.row_blocks(z):
                out[rows] = compute(block)
        return out

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the map as JSON."""
        inputs.writable(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    def to_dict(self) -> dict[str, Any]:
        """The map as JSON has it."""
        report = None if self.fit_report is None else _json_report(self.fit_report)
        values = {name: _plain(value) for name, value in self.values().items()}
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "classes": self.classes,
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
        """For ``load_state_dict``; the numbers become those of the other map, which has to be of the same kind."""
        content = json.loads(bytes(state.tolist()))
        theirs, mine = (content["kind"], content["classes"]), (self.kind, self.classes)
        if theirs != mine:
            told = "a map of kind {!r} with {} classes"
            raise InputError(f"state_dict: {told.format(*theirs)}, where this is {told.format(*mine)}")
        for name, value in content["values"].items():
            setattr(self, name, value)
        report = content["fit_report"]
        self.fit_report = FitReport(**_python_report(report)) if report else None

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
    total = 0.0
    for rows, block in inputs.row_blocks(z):
        log_probs = block.log_softmax(1) if through is None else through.log_probs(block)
        total -= float(log_probs.gather(1, y[rows, None]).sum(dtype=torch.float64))
    return total / len(z)


def map_from_dict(content: dict[str, Any], kinds: dict[str, type[CalibrationMap]], where: str) -> CalibrationMap:
    """The map that ``to_dict`` described; ``where`` names the file in messages."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{where}: not a calibration map (no format {FORMAT!r})")
    if content.get("version") != VERSION:
        raise InputError(f"{where}: format version {content.get('version')!r}; this release reads version {VERSION}")
    if content.get("kind") not in kinds:
        raise InputError(f"{where}: unknown kind of map {content.get('kind')!r}; known: {', '.join(sorted(kinds))}")
    try:
        values = dict(content["values"])
        if "maps" in values:
            values["maps"] = [map_from_dict(step, kinds, where) for step in values["maps"]]
        made = kinds[content["kind"]](classes=int(content["classes"]), **values)
        report = content.get("fit_report")
        made.fit_report = FitReport(**_python_report(report)) if report else None
    except (TypeError, KeyError, ValueError, RuntimeError) as error:
        raise InputError(f"{where}: damaged calibration map ({error})") from None
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, CalibrationMap):
        return value.to_dict()
    return value.tolist() if isinstance(value, Tensor) else value


def _json_report(report: FitReport) -> dict[str, Any]:
    """JSON has no infinity: a criterion that is infinite is written as null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(report).items()}


def _python_report(report: dict[str, Any]) -> dict[str, Any]:
    return {k: math.inf if v is None else v for k, v in report.items()}
