"""What a run's predictions say, computed once and kept with it as figures.json, so that no page waits for it again.

Of large data sets most runs are kept without their predictions: then this is all that is left of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trueup.audit import finite
from trueup.calibrators import calibrator
from trueup.inputs import InputError
from trueup.metrics import Interval, Resampler, Scores, ece, error, nll, overconfidence, score, score_logits
from trueup.papers.judged import Figures, figures
from trueup.papers.shares import Shared, shared
from trueup.predictions import Predictions
from trueup.train import Run
from trueup.train.loop import BESIDE

FILE = "figures.json"
VERSION = 2
COMPARED = {"error": error, "nll": nll, "ece": ece, "overconfidence": overconfidence}
CALIBRATORS = ("temperature", "focal-temperature", "auto")
"""The first is what the others are compared with."""


@dataclass(frozen=True)
class Beside:
    """Other predictions of the same run for the same samples: of the last epoch, or with the usual normalisation."""

    figures: Figures
    less: dict[str, Interval]
    """The run's own figure less this one, rows resampled together; ece_after: after the grid's T of each."""


@dataclass(frozen=True)
class Calibrated:
    """A calibrator fitted on val and judged on test."""

    metrics: dict[str, float]
    less: dict[str, Interval] = field(default_factory=dict)
    """Its NLL and ECE less those of the first calibrator."""
    note: str = ""
    """What ``auto`` chose."""


@dataclass(frozen=True)
class Summary:
    """All of it."""

    classes: int
    resamples: int
    figures: Figures
    last: Beside | None = None
    """The last epoch, where the best on val is kept."""
    usual: Beside | None = None
    """Test images normalised as all others, where the run's own are not."""
    calibrated: dict[str, Calibrated] = field(default_factory=dict)
    """By calibrator; on test images that are normalised as those of val."""
    shared: Shared | None = None
    """With the output that is of no class, where there is one and it was scored."""

    def to_dict(self) -> dict[str, Any]:
        def plain(beside: Beside | None) -> dict[str, Any] | None:
            return beside and {"figures": beside.figures.to_dict(), "less": _plain(beside.less)}

        calibrated = {
            name: {"metrics": found.metrics, "less": _plain(found.less), "note": found.note}
            for name, found in self.calibrated.items()
        }
        whole: dict[str, Any] = {"classes": self.classes, "resamples": self.resamples}
        whole |= {"figures": self.figures.to_dict(), "last": plain(self.last), "usual": plain(self.usual)}
        shared = {} if self.shared is None else {"shared": self.shared.to_dict()}
        return finite(whole | {"calibrated": calibrated} | shared)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Summary:
        """What ``to_dict`` gave."""

        def beside(of: Mapping[str, Any] | None) -> Beside | None:
            return None if of is None else Beside(Figures.from_dict(of["figures"]), _intervals(of["less"]))

        try:
            calibrated = {
                name: Calibrated(of["metrics"], _intervals(of["less"]), of["note"])
                for name, of in content["calibrated"].items()
            }
            made = (content["classes"], content["resamples"], Figures.from_dict(content["figures"]))
            shared = Shared.from_dict(content["shared"]) if "shared" in content else None
            return cls(*made, beside(content["last"]), beside(content["usual"]), calibrated, shared)
        except (KeyError, TypeError, AttributeError) as problem:
            raise InputError(f"not the summary of a run ({problem})") from None


def summarise(run: Run, *, resamples: int = 300) -> Summary:
    """From the predictions of a run."""
    beside = {name: (run.folder / f"{name}.safetensors").is_file() for name in BESIDE}
    made = partial(figures, resamples=resamples)
    own = made(run.val, run.test)
    last, usual, test = None, None, run.test
    if beside["last-val"] and beside["last-test"]:
        other = run.beside("last-test")
        of_other = made(run.beside("last-val"), other)
        last = Beside(of_other, _less(run.test, own, other, of_other, resamples))
    if beside["usual-test"]:
        test = run.beside("usual-test")
        of_usual = made(run.val, test)
        usual = Beside(of_usual, _less(run.test, own, test, of_usual, resamples))
    of_all = None
    if beside["outputs-val"] and beside["outputs-test"]:
        of_all = shared(run.beside("outputs-val"), run.beside("outputs-test"), resamples=resamples)
    return Summary(run.test.classes, resamples, own, last, usual, _calibrated(run.val, test, resamples), of_all)


def summary_of(run: Run, *, resamples: int = 300) -> Summary:
    """As it is kept with the run; computed where it is not, or where more resamples are asked for than it has."""
    stored = stored_summary(run)
    if stored is not None and (stored.resamples >= resamples or not has_predictions(run)):
        return stored
    return summarise(run, resamples=resamples)


def stored_summary(run: Run) -> Summary | None:
    """What figures.json holds; None where there is none, or one of an earlier kind that can be computed anew."""
    path = run.folder / FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
        if content["version"] != VERSION and has_predictions(run):
            return None
        return Summary.from_dict(content)
    except (ValueError, KeyError, TypeError) as problem:
        raise InputError(f"{path}: damaged ({problem})") from None


def has_predictions(run: Run) -> bool:
    """Whether the run was kept with its predictions."""
    return (run.folder / "test.safetensors").is_file()


def _less(own: Predictions, of_own: Figures, other: Predictions, of_other: Figures, resamples: int) -> dict[str, Any]:
    def resamplers(temperatures: tuple[float, float]) -> list[Resampler]:
        pairs = zip((own, other), temperatures, strict=True)
        return [Resampler(score_logits(each.logits / t, each.labels), resamples, 0) for each, t in pairs]

    first, second = resamplers((1.0, 1.0))
    found = {name: first.difference(second, metric) for name, metric in COMPARED.items()}
    first, second = resamplers((of_own.after.temperature, of_other.after.temperature))
    return found | {"ece_after": first.difference(second, ece)}


def _calibrated(val: Predictions, test: Predictions, resamples: int) -> dict[str, Calibrated]:
    scores: dict[str, Scores] = {}
    notes = {}
    for name in CALIBRATORS:
        made = calibrator(name).fit(val.logits, val.labels)
        scores[name] = score(made(test.logits), test.labels)
        notes[name] = made.fit_report.note if made.fit_report else ""
    resamplers = {name: Resampler(of, resamples, 0) for name, of in scores.items()}
    found, first = {}, CALIBRATORS[0]
    for name, of in scores.items():
        metrics = {key: COMPARED[key](of) for key in ("nll", "ece", "error")}
        less = {key: resamplers[name].difference(resamplers[first], COMPARED[key]) for key in ("nll", "ece")}
        found[name] = Calibrated(metrics, less if name != first else {}, notes[name].partition(":")[0])
    return found


def _plain(intervals: dict[str, Interval]) -> dict[str, Any]:
    return {name: interval._asdict() for name, interval in intervals.items()}


def _intervals(content: Mapping[str, Any]) -> dict[str, Interval]:
    return {name: Interval(**of) for name, of in content.items()}
