"""The networks: every set of public logits, and every run that is stored, of whatever paper."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trueup.audit import finite
from trueup.data import folders
from trueup.files import write_whole
from trueup.inputs import InputError
from trueup.papers.stored import load_runs
from trueup.predictions import Predictions, load
from trueup.train.run import where

PRESUMED = "not stated"
"""The training loss of public logits that come without a word about it; cross-entropy, presumably."""
LOSSES = {"brier": "brier", "flsd53": "flsd-53"}
"""As the names of public logits have them -> as ours are called."""
TRAINING_GAMMAS = {"cross-entropy": 0.0, "flsd-53": 3.0, "flsd-532": 2.0}
"""The gamma that most samples of a well-fitted network are trained with, where the loss has one."""


LEAST = 500
"""Samples in val and in test, of a network that is studied: with fewer, an ECE of 15 bins is noise."""


@dataclass(frozen=True)
class Network:
    """What is known of a network but its logits, which are read when they are needed."""

    name: str
    data: str
    model: str
    loss: str
    ours: bool
    val: Path
    test: Path
    samples: tuple[int, int] = (LEAST, LEAST)
    """In val and in test, where they are known."""

    @property
    def sums(self) -> dict[str, str]:
        """The SHA-256 of its two files."""
        return {part: hashlib.sha256(getattr(self, part).read_bytes()).hexdigest() for part in ("val", "test")}

    def predictions(self) -> tuple[Predictions, Predictions]:
        """Val and test."""
        val, test = load(self.val), load(self.test)
        if val.classes != test.classes:
            raise InputError(f"{self.test}: {test.classes} classes, where {self.val} has {val.classes}")
        return val, test

    def about(self) -> dict[str, Any]:
        return {"name": self.name, "data": self.data, "model": self.model, "loss": self.loss, "ours": self.ours}


def training_gamma(loss: str) -> float | None:
    """The focal gamma of a training loss; None where it has none.

    >>> [training_gamma(loss) for loss in ("focal:3", "flsd-53", "focal-schedule:5,3,1", "brier")]
    [3.0, 3.0, 1.0, None]
    """
    if loss in TRAINING_GAMMAS:
        return TRAINING_GAMMAS[loss]
    found = re.fullmatch(r"focal(?:-schedule)?:(?:[\d.]+,)*([\d.]+)", loss)
    return float(found[1]) if found else None


def networks(results: Path, data_dir: Path | None = None) -> tuple[list[Network], list[str]]:
    """All that are here and large enough, the public logits first, and notes about those that cannot be used."""
    if not results.is_dir():
        raise InputError(f"{results}: no such folder; results/ of a clone of the repository holds the stored runs")
    public, notes = public_logits(data_dir)
    runs = list(stored_runs(results))
    large = [network for network in runs if min(network.samples) >= LEAST]
    if len(large) < len(runs):
        notes.append(f"{len(runs) - len(large)} stored runs have fewer than {LEAST} samples in val or test: left out")
    return [*public, *large], notes


def public_logits(data_dir: Path | None = None) -> tuple[list[Network], list[str]]:
    """The folders NAME/val.npz, NAME/test.npz of ``data_dir``/logits (TRUEUP_DATA/logits); none where it is not set."""
    root = folders.find(("logits",), data_dir, lambda folder: folder.name == "logits")
    if root is None:
        return [], ["the public logits are not here (TRUEUP_DATA is not set, or has no logits/): as they were stored"]
    found, notes = [], []
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        missing = [part for part in ("val.npz", "test.npz") if not (folder / part).is_file()]
        if missing:
            notes.append(f"{folder.name}: skipped, it has no {' and no '.join(missing)}; a map is fitted on the one "
                         "and judged on the other")  # fmt: skip
            continue
        data, *middle = folder.name.removesuffix("_cv").split("_")[:-1] or [folder.name]
        loss = LOSSES.get(middle[-1], PRESUMED) if middle else PRESUMED
        model = "-".join(middle[:-1] if loss != PRESUMED else middle)
        found.append(
            Network(folder.name, data, model or PRESUMED, loss, False, folder / "val.npz", folder / "test.npz")
        )
    return found, notes


def stored_runs(results: Path) -> Iterator[Network]:
    """The runs of every paper, each recipe once: seeds are near copies, which would weigh several times as much as the
    others. Test images are those that are normalised as val's, where the run has both."""
    seen: set[str] = set()
    for folder in sorted(path for path in results.iterdir() if (path / "runs").is_dir()):
        for name, run in load_runs(folder).items():
            recipe = replace(run.recipe, seed=0).digest
            if recipe not in seen:
                seen.add(recipe)
                val, usual, test = (run.folder / f"{part}.safetensors" for part in ("val", "usual-test", "test"))
                test = usual if usual.is_file() else test
                sizes = len(run.val), len(run.test)
                yield Network(name, run.recipe.data, run.recipe.model, run.recipe.loss, True, val, test, sizes)


# ---------------------------------------------------------------------- what is known of them already


@dataclass(frozen=True)
class Shelf:
    """A folder of JSON files: what was computed once is not computed again.

    Each holds the version of what was computed, the SHA-256 of what it was computed from, and one of its own content.
    """

    folder: Path
    version: int
    """Another one is computed anew."""

    def stored(self, name: str) -> dict[str, Any] | None:
        path = self.folder / f"{name}.json"
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text())
            if found.pop("own_sha256") != _own_sum(found):
                raise ValueError("changed since it was written")
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise InputError(f"{path}: damaged ({problem}); remove it, and it is computed anew") from None
        return found

    def fresh(self, name: str, sums: Mapping[str, str], resamples: int = 0) -> dict[str, Any] | None:
        """What is stored, if it is of these very files and has at least as many resamples as are asked for."""
        found = self.stored(name)
        if found is None or (found["version"], found["sha256"]) != (self.version, dict(sums)):
            return None
        return found if found.get("resamples", 0) >= resamples else None

    def put(self, name: str, content: Mapping[str, Any], sums: Mapping[str, str]) -> None:
        whole = {"version": self.version, "sha256": dict(sums), **content, "computed": _today()}
        whole = rounded(finite(whole))
        self.folder.mkdir(parents=True, exist_ok=True)
        text = _readable(whole | {"own_sha256": _own_sum(whole)})
        write_whole(self.folder / f"{name}.json", text.encode() + b"\n")

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.json")) if self.folder.is_dir() else []


def _today() -> dict[str, Any]:
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), **where("cpu")}


def _own_sum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _readable(content: Mapping[str, Any]) -> str:
    """JSON with a line for each of its parts, long lists within it."""
    lines = [f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def rounded(content: Any, digits: int = 7) -> Any:
    """The same with fewer digits: what is stored is read by people, too."""
    if isinstance(content, dict):
        return {key: rounded(value, digits) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [rounded(value, digits) for value in content]
    return float(f"{content:.{digits}g}") if isinstance(content, float) else content
