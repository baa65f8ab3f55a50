"""The authors' own networks, whose logits are public: their figures are computed once and kept."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trueup.data import folders
from trueup.files import write_whole
from trueup.inputs import InputError
from trueup.papers.judged import Figures, figures
from trueup.papers.mukhoti2020.grid import beside
from trueup.papers.published import Printed
from trueup.papers.stored import alone_in, write_sums
from trueup.predictions import load
from trueup.train.run import where

FILE = "authors.json"
NETWORKS = {
    "cifar10_resnet50_brier_mukhoti": ("CIFAR-10", "ResNet 50", "Brier"),
    "cifar10_resnet50_flsd53_mukhoti": ("CIFAR-10", "ResNet 50", "FLA-53"),
    "cifar10_wrn26_10_brier_mukhoti": ("CIFAR-10", "Wide ResNet 26-10", "Brier"),
    "cifar10_wrn26_10_flsd53_mukhoti": ("CIFAR-10", "Wide ResNet 26-10", "FLA-53"),
    "cifar10_densenet121_brier_mukhoti": ("CIFAR-10", "DenseNet 121", "Brier"),
    "cifar10_densenet121_flsd53_mukhoti": ("CIFAR-10", "DenseNet 121", "FLA-53"),
    "cifar100_resnet50_brier_mukhoti": ("CIFAR-100", "ResNet 50", "Brier"),
}
"""Folder under ``logits`` -> the paper's row."""
SOURCE = (
    "AIgen/df-posthoc-calibration@2e41ac939f23e5b20d2910000d887ba33c3af402, data/*.npy (MIT): "
    "logits of networks of torrvision/focal_calibration on the paper's val and test samples"
)


@dataclass(frozen=True)
class Author:
    """One of their networks."""

    name: str
    dataset: str
    model: str
    method: str
    figures: Figures
    provenance: dict[str, Any]

    @property
    def printed(self) -> dict[tuple[str, str], Printed]:
        return beside(self.dataset, self.model, self.method)

    def compared(self) -> list[tuple[Printed, str]]:
        """Each printed number with what the logits give, written with as many digits."""
        found = []
        for (quantity, state), entry in self.printed.items():
            key = "before" if state == "before" else "adaptive_ece" if quantity == "adaptive_ece" else "ece"
            digits = len(entry.value.partition(".")[2])
            found.append((entry, f"{100 * self.figures.states[key][quantity]:.{digits}f}"))
            if entry.temperature:
                own = f"{self.figures.states[key].temperature:.2f}"
                if own != entry.temperature:
                    found[-1] = (entry, f"{found[-1][1]} at T = {own}")
        return found


def compute(results: Path, data_dir: Path | None = None, *, resamples: int = 300) -> Path:
    """Computes every figure from ``data_dir``/logits (TRUEUP_DATA/logits) and writes authors.json."""
    logits = folders.find(("logits",), data_dir, lambda folder: (folder / next(iter(NETWORKS))).is_dir())
    if logits is None:
        raise folders.missing("logits", next(iter(NETWORKS)), ("logits",), data_dir, f"They come from {SOURCE}.")
    content = {}
    for name, (dataset, model, method) in NETWORKS.items():
        paths = {split: logits / name / f"{split}.npz" for split in ("val", "test")}
        for path in paths.values():
            if not path.is_file():
                raise InputError(f"{path}: missing; the authors' figures need it")
        made = figures(load(paths["val"]), load(paths["test"]), resamples=resamples)
        sums = {split: hashlib.sha256(path.read_bytes()).hexdigest() for split, path in paths.items()}
        provenance = {"source": SOURCE, "sha256": sums}
        content[name] = {
            "dataset": dataset, "model": model, "method": method, "provenance": provenance, "figures": made.to_dict(),
        }  # fmt: skip
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), **where("cpu")}
    results.mkdir(parents=True, exist_ok=True)
    whole = {"computed": about, "networks": content}
    write_whole(results / FILE, json.dumps(whole, indent=1, allow_nan=False).encode() + b"\n")
    with alone_in(results):
        write_sums(results, [results / FILE])
    return results / FILE


def stored(results: Path) -> tuple[Author, ...]:
    """The networks as authors.json has them."""
    path = results / FILE
    if not path.is_file():
        raise InputError(f"{path}: missing; trueup reproduce mukhoti2020 --authors computes it from the logits")
    try:
        networks = json.loads(path.read_text())["networks"]
        if set(networks) != set(NETWORKS):
            raise InputError(f"networks {', '.join(sorted(set(networks) ^ set(NETWORKS)))} are missing or unknown")
        return tuple(
            Author(name, *NETWORKS[name], Figures.from_dict(entry["figures"]), entry["provenance"])
            for name, entry in networks.items()
        )
    except (ValueError, KeyError, TypeError) as problem:
        raise InputError(f"{path}: damaged ({problem})") from None
