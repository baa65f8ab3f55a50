"""How near a network's probabilities come to what people said of the same images: the votes of CIFAR-10H."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueup.calibrators import FocalTemperature, Temperature
from trueup.data import cifar10h, folders
from trueup.focal import focal_map
from trueup.papers.komisarenko2024.networks import Network, training_gamma

MEASURES = {"kl": "KL", "tv": "total variation", "nll": "NLL"}


def votes_file(data_dir: Path | None = None) -> Path | None:
    """The votes of CIFAR-10H, where they are."""
    names = ("cifar10h", "cifar10h/data")
    folder = folders.find(names, data_dir, lambda place: any((place / name).is_file() for name in cifar10h.FILES))
    return None if folder is None else next(folder / n for n in cifar10h.FILES if (folder / n).is_file())


def compared(network: Network, path: Path) -> dict[str, Any]:
    """KL, total variation and NLL against the votes, of each map, with the difference to the softmax."""
    val, test = network.predictions()
    votes = torch.from_numpy(cifar10h.votes(path, test.labels.numpy(), test.classes))
    z, gamma = test.logits.double(), training_gamma(network.loss)
    reports = {"softmax": z.log_softmax(1)}
    if gamma:
        reports["focal map"] = focal_map(z, gamma)
    for name, settings in (("temperature", Temperature()), ("focal-temperature", FocalTemperature())):
        reports[name] = settings.fit(val.logits, val.labels).log_probs(z)
    own = {name: distances(log_p, votes) for name, log_p in reports.items()}
    maps = {
        name: {
            measure: {
                "value": float(values[measure].mean()),
                "less_softmax": _mean(values[measure] - own["softmax"][measure]),
            }
            for measure in MEASURES
        }
        for name, values in own.items()
    }
    unanimous = float((votes.amax(1) == 1).double().mean())
    nearer = float((own["focal map"]["tv"] < own["softmax"]["tv"]).mean()) if gamma else None
    return network.about() | {"gamma": gamma, "n": len(votes), "unanimous": unanimous, "nearer": nearer, "maps": maps}


def distances(log_p: Tensor, votes: Tensor) -> dict[str, np.ndarray]:
    """(N,) each: KL(votes, p), total variation, and the NLL of a label drawn from the votes."""
    nll = -(votes * log_p).sum(1)
    entropy = torch.special.entr(votes).sum(1)
    tv = (log_p.exp() - votes).abs().sum(1) / 2
    return {"kl": (nll - entropy).numpy(), "tv": tv.numpy(), "nll": nll.numpy()}


def _mean(values: np.ndarray) -> list[float]:
    """The mean over the images, and its normal 95 % interval."""
    half = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5
    return [float(values.mean()), float(values.mean()) - half, float(values.mean()) + half]
