"""Predictions that a page must be right about, or say what it cannot show; and how a page's own data are read."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import torch

import trueup
from tests.conftest import LOGITS, SETS
from trueup.predictions import Predictions

NAMES = (
    "</script><script>alert(1)</script>",
    "\"quoted' & \\back",
    "🐈 cat",
    "<b>bold</b>",
    "line\u2028break \u202eback",
)


def network(name: str, classes: int, rows: int | None = None) -> dict[str, Predictions]:
    """val and test of a real network, or where it is not here, of a made-up one with as many classes."""
    if name in SETS:
        loaded = {part: trueup.load(LOGITS / name / f"{part}.npz") for part in ("val", "test")}
    else:
        rng = np.random.default_rng(0)
        loaded = {part: _made_up(rng, classes) for part in ("val", "test")}
    return {
        part: Predictions(logits=p.logits[:rows], labels=p.labels[:rows], meta=p.meta) for part, p in loaded.items()
    }


def _made_up(rng: np.random.Generator, classes: int) -> Predictions:
    logits = rng.normal(0, 4, (6000, classes))
    odds = np.exp(logits / 2)
    labels = (odds.cumsum(1) < rng.random((6000, 1)) * odds.sum(1, keepdims=True)).sum(1)
    return Predictions(logits=logits.astype(np.float32), labels=labels)


def _some(rows: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator)
    return logits, torch.distributions.Categorical(logits=logits / 1.5).sample()


def strange() -> dict[str, Predictions]:
    """By what is strange about them."""
    torch.manual_seed(0)
    few, two, five, many = _some(20, 3), _some(300, 2), _some(200, 5), _some(100, 1000)
    constant = torch.zeros(60, 3)
    constant[:, 1] = 2.0
    pictures = trueup.report.thumbnails(np.zeros((200, 4, 4), np.uint8))
    return {
        "names": Predictions(logits=five[0], labels=five[1], class_names=NAMES, meta={"file": "<i>&.npz"}),
        "thumbnails": Predictions(logits=five[0], labels=five[1], meta={"thumbnails": pictures}),
        "1000 classes": Predictions(logits=many[0], labels=many[1]),
        "2 classes": Predictions(logits=two[0], labels=two[1]),
        "20 samples": Predictions(logits=few[0], labels=few[1]),
        "one sample": Predictions(logits=few[0][:1], labels=few[1][:1]),
        "always right": Predictions(logits=five[0], labels=five[0].argmax(1)),
        "always wrong": Predictions(logits=five[0], labels=five[0].argmin(1)),
        "certain": Predictions(probs=torch.eye(4).repeat(10, 1), labels=torch.arange(4).repeat(10)),
        "constant confidence": Predictions(logits=constant, labels=torch.arange(60) % 3),
        "one class only": Predictions(logits=five[0], labels=torch.full((200,), 2)),
    }


STRANGE = (
    "names", "thumbnails", "1000 classes", "2 classes", "20 samples", "one sample", "always right", "always wrong",
    "certain", "constant confidence", "one class only",
)  # fmt: skip


def embedded(html: str) -> dict:
    """The data within a page."""
    return json.loads(re.search(r'<script type="application/json" id="content">(.*?)</script>', html, re.DOTALL)[1])


def stored(live: dict, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits and labels that travel with a page: float32 as they are there, in float64."""
    logits = np.frombuffer(base64.b64decode(live["logits"]), "<f4").reshape(-1, classes)
    labels = np.frombuffer(base64.b64decode(live["labels"]), "<i4")
    return torch.tensor(logits.astype(np.float64)), torch.tensor(labels.astype(np.int64))


def at(logits: torch.Tensor, labels: torch.Tensor, temperature: float, gamma: float) -> dict[str, float]:
    """What the page shows at a position of its knobs, by trueup in Python."""
    log_probs = trueup.focal_map(logits / temperature, gamma)
    probs = log_probs.exp()
    return {
        "ece": trueup.ece(probs, labels),
        "nll": -float(log_probs.gather(1, labels[:, None]).mean()),
        "confidence": float(probs.amax(1).mean()),
    }
