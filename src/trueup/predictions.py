"""The hinge: what a classifier said of a data set, with the labels.

Training writes Predictions; metrics, calibrators, tables and reports read them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueup import files, inputs
from trueup.inputs import Array, InputError


class Predictions:
    """Logits or probabilities (N, K), labels (N,), the names of the classes, and where all this came from.

    The one of the two that was not given is computed when asked for: probs = softmax(logits), and
    logits = log(max(probs, tiny)). Labels may be class names. Nothing can be changed afterwards.

    >>> from trueup import Predictions
    >>> p = Predictions(probs=[[0.7, 0.3], [0.4, 0.6]], labels=["cat", "dog"], class_names=["cat", "dog"])
    >>> p.labels
    tensor([0, 1])
    """

    given: str
    """"logits" or "probs"."""
    labels: Tensor
    class_names: tuple[str, ...] | None
    meta: dict[str, Any]

    def __init__(
        self,
        *,
        logits: Array | None = None,
        probs: Array | None = None,
        labels: Array,
        class_names: Sequence[str] | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        if (logits is None) == (probs is None):
            raise InputError("Predictions: give either logits or probs")
        name = "logits" if probs is None else "probs"
        values = inputs.logits(logits) if probs is None else inputs.probabilities(probs)
        names = None if class_names is None else _checked_names(class_names, values.shape[1])
        numbers = inputs.labels(_numbered(labels, names), values)
        vars(self).update(
            {"given": name, name: values, "labels": numbers, "class_names": names, "meta": dict(meta or {})}
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Predictions cannot be changed; make new ones ({name})")

    @cached_property
    def logits(self) -> Tensor:
        """(N, K)"""
        p = vars(self)["probs"]
        return p.clamp(min=torch.finfo(p.dtype).tiny).log_()

    @cached_property
    def probs(self) -> Tensor:
        """(N, K)"""
        z = vars(self)["logits"]
        p = torch.empty_like(z)
        for rows, block in inputs.row_blocks(z):
            torch.softmax(block, 1, out=p[rows])
        return p

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return vars(self)[self.given].shape[1]

    def __repr__(self) -> str:
        return f"Predictions({len(self)} samples, {self.classes} classes, {self.given})"

    @classmethod
    def from_binary(
        cls,
        scores: Array,
        labels: Array,
        *,
        kind: str | None = None,
        class_names: Sequence[str] | None = None,
        meta: dict[str, Any] | None = None,
    ) -> Predictions:
        """From one score a sample: the logit, or with ``kind="probability"`` the probability, of class 1.

        Without a ``kind``, scores that are all within [0, 1] are refused: they could be either.
        """
        s = inputs.as_tensor(scores, "scores")
        if s.ndim == 2 and s.shape[1] == 1:
            s = s[:, 0]
        if s.ndim != 1 or len(s) == 0:
            raise InputError(f"scores: expected one number a sample, got shape {tuple(s.shape)}")
        s = s if s.dtype.is_floating_point else s.double()
        bad = torch.nonzero(~torch.isfinite(s))
        if len(bad):
            raise InputError(f"scores: row {int(bad[0])} is {float(s[bad[0]])}; it must be finite")
        outside = torch.nonzero((s < 0) | (s > 1))
        if kind not in (None, "logit", "probability"):
            raise InputError(f'kind: expected "logit" or "probability", got {kind!r}')
        if kind is None and not len(outside):
            either = 'say kind="probability" or kind="logit"'
            raise InputError(f"scores: all within [0, 1], so they could be probabilities or logits; {either}")
        if kind == "probability":
            if len(outside):
                row = int(outside[0])
                raise InputError(f'scores: row {row} is {float(s[row]):g}, no probability; logits need kind="logit"')
            both = {"probs": torch.stack([1 - s, s], 1)}
        else:
            both = {"logits": torch.stack([-s, s], 1) / 2}  # no score makes them look like probabilities
        return cls(**both, labels=labels, class_names=class_names, meta=meta)

    def calibrated(self, probs: Array, **meta: Any) -> Predictions:
        """The same samples with other probabilities; ``meta`` adds to where they came from."""
        return Predictions(probs=probs, labels=self.labels, class_names=self.class_names, meta={**self.meta, **meta})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes .npz, .safetensors, .parquet, .csv or .tsv, as the name ends; whole or not at all."""
        values = vars(self)[self.given].cpu()
        content = files.Content(self.given, values.numpy(), self.labels.cpu().numpy(), self.class_names, self.meta)
        files.write(path, content)


def load(path: str | os.PathLike[str], *, binary: bool = False, ignore: Iterable[str] = ()) -> Predictions:
    """Predictions from a file; ``binary``: it holds one score a sample; ``ignore``: columns to leave out."""
    content = files.read(path, binary=binary, ignore=tuple(ignore))
    rest = {"class_names": content.class_names, "meta": _opened(content.meta, path)}
    try:
        if binary:
            kind = {"logits": "logit", "probs": "probability"}.get(content.given)
            return Predictions.from_binary(content.values, content.labels, kind=kind, **rest)
        return Predictions(**{content.given: content.values}, labels=content.labels, **rest)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _opened(meta: dict[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    """``file`` is the one that was opened; the files its content was made from are kept, the first one first."""
    if "file" not in meta:
        return {"file": str(path), **meta}
    earlier = meta.get("made_from", [])
    made_from = [*(earlier if isinstance(earlier, list) else [earlier]), meta["file"]]
    return {**meta, "file": str(path), "made_from": made_from}


def _checked_names(names: Sequence[str], classes: int) -> tuple[str, ...]:
    found = tuple(str(name) for name in names)
    if len(found) != classes:
        raise InputError(f"class_names: {len(found)} names for {classes} classes")
    if len(set(found)) != len(found):
        raise InputError("class_names: two classes have the same name")
    return found


def _numbered(labels: Array, names: tuple[str, ...] | None) -> Array:
    """Labels as numbers: names are looked up; a column of text that holds whole numbers is read as such."""
    if isinstance(labels, Tensor):
        return labels
    array = np.asarray(labels)
    if array.dtype.kind not in "USOT":
        return labels
    text = [str(label) for label in array.ravel()]
    number = {name: k for k, name in enumerate(names or ())}
    text = [label if label in number else _without_fraction(label) for label in text]
    if names is not None and set(text) <= set(names):
        return np.array([number[label] for label in text]).reshape(array.shape)
    # Where classes are named by other numbers than their own, a number that is no name is not a position either.
    numbered = names is None or not all(name.isdecimal() for name in names) or names == _counted(len(names))
    unknown = [i for i, label in enumerate(text) if not (numbered and inputs.is_number(label))]
    if not unknown:
        return np.array([float(label) for label in text]).reshape(array.shape)
    row = next(i for i in unknown if names is None or text[i] not in names)
    known = "no class names are given" if names is None else f"the classes are {', '.join(names[:20]):.400}"
    raise InputError(f"labels: row {row} is {inputs.brief(text[row])}, and {known}")


def _without_fraction(label: str) -> str:
    """A whole number as a name has it: 3 for 3.0, what tables make of it where a label is missing; else the same."""
    return label.removesuffix(".0") if label.endswith(".0") and label[:-2].isdecimal() else label


def _counted(classes: int) -> tuple[str, ...]:
    return tuple(str(k) for k in range(classes))
