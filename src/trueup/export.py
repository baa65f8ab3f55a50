"""A fitted map, or a network with its map, as one file that can be served without this package.

``.pt2`` is ``torch.export``'s, ``.onnx`` is ONNX, which needs the extra ``trueup[onnx]``.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from trueup.calibrators import CalibrationMap
from trueup.files import told_as, write_whole
from trueup.inputs import InputError, writable

TOLERANCE = 1e-4
"""By so much the probabilities of a written ONNX file may differ from ours."""


class Calibrated(nn.Module):
    """A network and its map: inputs -> calibrated probabilities.

    >>> import trueup
    >>> from trueup.calibrators.temperature import TemperatureMap
    >>> served = Calibrated(nn.Linear(4, 3), TemperatureMap(3, 2.0))
    >>> bool(served(torch.zeros(2, 4)).sum(1).allclose(torch.ones(2)))
    True
    """

    def __init__(self, model: nn.Module, calibration: CalibrationMap) -> None:
        super().__init__()
        self.model, self.calibration = model, calibration

    def forward(self, inputs: Tensor) -> Tensor:
        return self.calibration.forward(self.model(inputs).float())


def export(
    calibration: CalibrationMap,
    path: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    example: Tensor | None = None,
) -> Path:
    """Writes the map to ``path`` (.pt2 or .onnx): logits (N, K) -> probs (N, K), for any N.

    With ``model`` the file holds both, inputs -> probs; ``example`` is then a batch of at least two inputs, and the
    model is written in eval mode. Where onnxruntime is installed, an ONNX file is run on the example and its
    probabilities are compared with ours before this returns.
    """
    path = writable(path)
    if path.suffix not in (".pt2", ".onnx"):
        raise InputError(f"{path}: expected a name that ends in .pt2 (torch.export) or .onnx")
    if (model is None) != (example is None):
        raise InputError("model and example: give both, or none to write the map alone")
    if example is not None and len(example) < 2:
        raise InputError("example: one sample; at least two are needed, or the size of the batch would be taken as 1")
    whole: nn.Module = calibration if model is None else Calibrated(model, calibration)
    batch = torch.randn(2, calibration.classes) if example is None else example
    with _in_eval_mode(whole), torch.no_grad(), _quiet():
        probs = whole(batch)
        if probs.shape != (len(batch), calibration.classes):
            raise InputError(
                f"model: gives {tuple(probs.shape)}, where the map is for (N, {calibration.classes}) logits"
            )
        if path.suffix == ".pt2":
            made = torch.export.export(whole, (batch,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
            buffer = io.BytesIO()  # torch's own writer ends the process where the disk is full
            torch.export.save(made, buffer)
            write_whole(path, buffer.getvalue())
        else:
            with told_as(path), tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as beside:
                made = Path(beside) / path.name
                _write_onnx(whole, batch, made, "logits" if model is None else "inputs")
                _compare(made, batch, probs, path)
                for file in sorted(made.parent.iterdir()):  # the weights of a large one are beside it
                    file.replace(path.parent / file.name)
    return path


def _write_onnx(whole: nn.Module, batch: Tensor, path: Path, name: str) -> None:
    try:
        import onnxscript  # noqa: F401  (torch's exporter writes through it)
    except ImportError:
        raise InputError(f"{path.name}: to write ONNX, install the extra: pip install 'trueup[onnx]'") from None
    made = torch.onnx.export(
        whole,
        (batch,),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        input_names=[name],
        output_names=["probs"],
        verbose=False,
    )
    assert made is not None
    made.save(path)


def _compare(made: Path, batch: Tensor, probs: Tensor, path: Path) -> None:
    try:
        import onnxruntime
    except ImportError:
        return
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: batch.cpu().numpy()})
    off = float((torch.as_tensor(found) - probs.cpu()).abs().max())
    if not off <= TOLERANCE:
        raise RuntimeError(f"{path}: not written; onnxruntime's probabilities would differ from ours by {off:.2g}")


@contextlib.contextmanager
def _in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Every part is left in the mode in which it was found."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings: of libraries that are not needed here, of names of its own that are old."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(before)
