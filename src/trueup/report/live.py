"""What the knobs need: samples that travel with the page, the fitted optimum, and the landscape around it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueup.calibrators import FocalTemperature
from trueup.calibrators.threads import in_order, sharing
from trueup.focal.parts import Complements, complements, log_growth
from trueup.metrics.binned import ece
from trueup.metrics.scores import TopLabel
from trueup.predictions import Predictions

SAMPLES = 5000
NUMBERS = 500_000
"""At most so many logits are stored: 2.7 MB of text."""
BINS = 15
TEMPERATURES, GAMMAS = 36, 24
"""The cells of the landscape."""
AT_ONCE = 200_000
"""Probabilities that are computed together."""
Progress = Callable[[float], None] | None


def stored_rows(predictions: Predictions, most: int = NUMBERS) -> np.ndarray:
    """The rows that travel with the page, in order: all, or a seeded choice."""
    room = max(1, min(SAMPLES, most // predictions.classes))
    if len(predictions) <= room:
        return np.arange(len(predictions))
    return np.sort(np.random.default_rng(0).choice(len(predictions), room, replace=False))


def live(
    test: Predictions,
    fitted: dict[str, Any] | None,
    *,
    bins: int = BINS,
    most: int = NUMBERS,
    progress: Progress = None,
) -> dict[str, Any]:
    """The stored samples, the optimum (of ``fit``; without one, that of the samples themselves) and the landscape."""
    rows = torch.from_numpy(stored_rows(test, most))
    logits, labels = test.logits[rows].cpu().float(), test.labels[rows].cpu()
    if fitted is None:
        fitted = fit(Predictions(logits=logits, labels=labels), "the samples shown")
    spans = ranges(fitted["temperature"], fitted["gamma"])
    return {
        "samples": len(rows),
        "of": len(test),
        "bins": bins,
        "logits": packed(logits.numpy(), "<f4"),
        "labels": packed(labels.numpy(), "<i4"),
        "fitted": fitted,
        "ranges": spans,
        "landscape": landscape(logits.double(), labels, spans, bins, progress),
    }


def fit(predictions: Predictions, where: str) -> dict[str, Any]:
    """The focal temperature map of the lowest NLL on the predictions."""
    made: Any = FocalTemperature().fit(predictions.logits, predictions.labels)
    at_bound = bool(made.fit_report and made.fit_report.at_bound)
    return {"temperature": made.temperature, "gamma": made.gamma, "at_bound": at_bound, "where": where}


def ranges(temperature: float, gamma: float) -> dict[str, list[float]]:
    """How far the knobs turn: around 1 and the optimum, as far as both are within reason."""
    low, high = min(0.25, max(0.05, temperature / 2)), max(4.0, min(20.0, 2 * temperature))
    return {"temperature": [low, high], "gamma": [-1.0, max(6.0, min(20.0, 1.25 * gamma))]}


def landscape(
    z: Tensor, y: Tensor, spans: dict[str, list[float]], bins: int = BINS, progress: Progress = None
) -> dict[str, Any]:
    """NLL and ECE of the focal temperature map in the middle of each cell; as ``diagrams.landscape``, but both at once.

    What depends on the temperature alone is computed once, and few samples see many gammas at a time.
    """
    (t_low, t_high), (g_low, g_high) = spans["temperature"], spans["gamma"]
    edges_t, edges_g = np.geomspace(t_low, t_high, TEMPERATURES + 1), np.linspace(g_low, g_high, GAMMAS + 1)
    temperatures, gammas = np.sqrt(edges_t[:-1] * edges_t[1:]), (edges_g[:-1] + edges_g[1:]) / 2
    values = np.empty((2, GAMMAS, TEMPERATURES))
    correct = (z.argmax(1) == y).numpy()
    blocks = torch.from_numpy(gammas)[:, None, None].split(max(1, AT_ONCE // z.numel()))

    def at(temperature: float) -> tuple[np.ndarray, list[float]]:
        parts = complements(z / temperature)
        r = -parts.others * parts.log_v / (1 - parts.others)
        nlls, confidences = zip(*(_mapped(parts, r, y, block) for block in blocks), strict=True)
        eces = [ece(TopLabel(each, correct), bins=bins) for each in torch.cat(confidences).numpy()]
        return torch.cat(nlls).numpy(), eces

    with torch.no_grad(), sharing(z):
        for j, column in enumerate(in_order(at, temperatures.tolist())):
            values[:, :, j] = column
            if progress:
                progress((j + 1) / TEMPERATURES)
    found: dict[str, Any] = {"temperatures": rounded(edges_t), "gammas": rounded(edges_g)}
    for metric, of_metric in zip(("nll", "ece"), values, strict=True):
        row, column = np.unravel_index(int(of_metric.argmin()), of_metric.shape)
        best = {
            "temperature": float(temperatures[column]),
            "gamma": float(gammas[row]),
            "value": float(of_metric.min()),
        }
        found[metric] = {"values": rounded(of_metric), "heights": heights(of_metric), "best": best}
    return found


def _mapped(parts: Complements, r: Tensor, y: Tensor, gammas: Tensor) -> tuple[Tensor, Tensor]:
    """(G,) the NLL and (G, N) the confidences after the focal map with each of the gammas (G, 1, 1)."""
    top = parts.top.expand(len(gammas), -1, -1)
    growth = torch.log1p(gammas * r).scatter_(2, top, log_growth(parts.log_q_top, gammas))
    scores = parts.log_v - gammas * parts.log_q - growth
    total = scores.logsumexp(2, keepdim=True)
    confidence = (scores.gather(2, top) - total)[..., 0].exp().clamp_(max=1)
    return (total - scores.gather(2, y[:, None].expand_as(top)))[..., 0].mean(1), confidence


def heights(values: np.ndarray, steps: int = 8) -> list[float]:
    """Where one colour ends and the next begins: close together near the lowest point, where it matters."""
    least = float(values.min())
    rise = float(np.quantile(values, 0.85)) - least
    if rise < 1e-9:  # a plain
        return [least + 1e-9 * (i + 1) for i in range(steps)]
    return [least + rise * float(share) for share in np.geomspace(0.006, 1, steps)]


def packed(values: np.ndarray, kind: str) -> str:
    """The numbers as base64 of little-endian bytes, row by row."""
    return base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode()


def rounded(values: np.ndarray, digits: int = 5) -> Any:
    """Nested lists with so many significant digits: a chart needs no more."""
    flat = [float(f"{x:.{digits}g}") for x in np.ravel(values).tolist()]
    return np.reshape(flat, np.shape(values)).tolist()
