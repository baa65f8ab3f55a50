"""The metrics of a stream of batches, in memory that does not grow with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from trueup.inputs import Array, InputError, count
from trueup.metrics import bins as binning
from trueup.metrics.scores import ConfidentShare, checked_threshold, score

FINE = 1 << 18
_NEAREST_TO_1 = 1e-9


class Meter:
    """``update(probs, labels)`` for each batch, ``compute()`` at the end; ``merge`` adds another meter.

    The numbers are those of the functions of the same names, from sums in float64 and whole numbers, so they stay exact
    beyond 2^24 samples. Where ``torch.distributed`` runs, ``compute()`` adds up all processes.

    For ``adaptive_ece`` the bins are cut from a histogram of 2^18 cells, half of them spent on confidences close to 1,
    and a cell that is cut is shared out as if its confidences were equal. The value is exact where they are, and else
    off by at most half of the share of all samples that lie in such cells: seldom more than 1e-4 where confidences are
    spread, as a network's are, but anything where most of them are a few values less than 1e-5 apart.

    >>> import trueup
    >>> meter = trueup.Meter(classes=2)
    >>> meter.update([[0.7, 0.3], [0.6, 0.4]], [0, 1])
    >>> meter.update([[0.1, 0.9]], [1])
    >>> round(meter.compute()["error"], 4)
    0.3333
    """

    def __init__(self, classes: int, bins: int = 15, threshold: float = 0.99) -> None:
        self.classes = count(classes, "classes", least=2)
        self.bins = count(bins, "bins")
        self.threshold = checked_threshold(threshold)
        self.reset()

    def reset(self) -> None:
        """Forgets all batches."""
        self._sums = {
            "scalars": np.zeros(6),  # samples, wrong, NLL, Brier, confident, confident and right
            "width_bins": np.zeros((2, self.bins)),  # samples, confidence - outcome
            "class_bins": np.zeros((2, self.classes, self.bins)),  # p_k, label is k
            "fine": np.zeros((2, FINE)),  # samples, confidence - outcome
        }

    @property
    def n(self) -> int:
        """How many samples were seen."""
        return int(self._sums["scalars"][0])

    def update(self, probs: Array, labels: Array) -> None:
        """Adds a batch of probabilities (N, K) and labels (N,)."""
        s = score(probs, labels)
        if s.classes != self.classes:
            raise InputError(f"probs: {s.classes} classes; this meter was made for {self.classes}")
        confident = s.confidence >= np.asarray(self.threshold, s.confidence.dtype)
        self._sums["scalars"] += [
            len(s),
            np.count_nonzero(~s.correct),
            -s.log_true.sum(),
            s.brier.sum(),
            np.count_nonzero(confident),
            np.count_nonzero(confident & s.correct),
        ]
        self._add_bins("width_bins", binning.equal_width(s.confidence, self.bins), s.residual)
        self._sums["class_bins"] += binning.class_bins(s, self.bins)[1:]
        self._add_bins("fine", _fine_cell(s.confidence), s.residual)

    def _add_bins(self, name: str, index: np.ndarray, residual: np.ndarray) -> None:
        sums = self._sums[name]
        if len(index) * 4 < sums.shape[1]:  # a small batch touches few cells
            np.add.at(sums[0], index, 1)
            np.add.at(sums[1], index, residual)
        else:
            sums[0] += np.bincount(index, minlength=sums.shape[1])
            sums[1] += np.bincount(index, residual, sums.shape[1])

    def merge(self, other: Meter) -> Meter:
        """Adds what another meter has seen, and returns this one."""
        if not isinstance(other, Meter):
            raise InputError(f"merge: expected another meter, got {other!r}")
        if (self.classes, self.bins, self.threshold) != (other.classes, other.bins, other.threshold):
            raise InputError("merge: the meters differ in classes, bins or threshold")
        for name, sums in other._sums.items():
            self._sums[name] = self._sums[name] + sums
        return self

    def compute(self) -> dict[str, Any]:
        """The metrics of all samples seen, in all processes."""
        sums = self._over_all_processes()
        n, wrong, nll, brier, confident, right = sums["scalars"].tolist()
        if n == 0:
            raise InputError("compute: no batch was seen yet")
        number, residual = sums["width_bins"]
        gaps = np.abs(residual)
        predicted, observed = sums["class_bins"]
        return {
            "nll": nll / n,
            "brier": brier / n,
            "error": wrong / n,
            "ece": float(gaps.sum() / n),
            "adaptive_ece": _adaptive_ece(sums["fine"], self.bins),
            "mce": float((gaps[number > 0] / number[number > 0]).max()),
            "classwise_ece": float(np.abs(predicted - observed).sum() / (n * self.classes)),
            "confident_share": ConfidentShare(confident / n, right / confident if confident else float("nan")),
        }

    def _over_all_processes(self) -> dict[str, np.ndarray]:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return self._sums
        flat = torch.from_numpy(np.concatenate([sums.ravel() for sums in self._sums.values()]))
        if distributed.get_backend() == "nccl":
            flat = flat.cuda()
        distributed.all_reduce(flat)
        parts = np.split(flat.cpu().numpy(), np.cumsum([sums.size for sums in self._sums.values()])[:-1])
        return {name: part.reshape(sums.shape) for (name, sums), part in zip(self._sums.items(), parts, strict=True)}


def _fine_cell(confidence: np.ndarray) -> np.ndarray:
    """The cell of each confidence, rising with it: half the cells even on [0, 1], half on a logarithmic scale to 1."""
    c = confidence.astype(np.float64)
    close = np.log1p(-np.minimum(c, 1 - _NEAREST_TO_1)) / np.log(_NEAREST_TO_1)
    return np.minimum(((c + close) * (FINE / 2)).astype(np.int64), FINE - 1)


def _adaptive_ece(fine: np.ndarray, bins: int) -> float:
    """Over bins of equal mass cut from the cells, each cell spread evenly over its ranks."""
    number, residual = fine
    used = number > 0
    rank = np.concatenate([[0.0], np.cumsum(number[used])])
    total = np.concatenate([[0.0], np.cumsum(residual[used])])
    at = np.interp(np.arange(bins + 1) * rank[-1] / bins, rank, total)
    return float(np.abs(np.diff(at)).sum() / rank[-1])
