"""The curvature of a run: the ends of the Hessian's spectrum and its trace at the stored weights.

The paper does not say of which loss its Hessian is: the training loss, or cross-entropy at the same weights. Both are
measured, on the validation set.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from trueup import data as sources
from trueup import losses, models, tables
from trueup.audit import finite
from trueup.curvature import top_eigenvalues, trace
from trueup.files import write_whole
from trueup.inputs import InputError, count
from trueup.papers.kimura2024.grid import CE
from trueup.train import Recipe, Run, load_run
from trueup.train.batches import normalisers, on_device
from trueup.train.loop import chosen_device
from trueup.train.run import where

FILE = "curvature.json"
"""All samples of val. What else is measured has a file of its own: see ``file_of``."""
ROUNDING = 1e-5
"""As a share of λ max: what is nearer to 0 counts as rounding. float32 has seven digits; two are left to spare."""


@dataclass(frozen=True)
class RunCurvature:
    """lambda_max and the trace at the stored weights of a run, for one or two losses. It prints as a table."""

    run: Run
    content: dict[str, Any]
    """What its file holds."""
    file: Path
    """curvature.json, or the name of ``file_of``."""

    def __rich__(self) -> Any:
        recipe, content = self.run.recipe, self.content
        title = f"{recipe.data}, {recipe.model}, {recipe.loss}, seed {recipe.seed}: Hessian on {content['samples']} "
        shown = tables.table(
            title + f"{content['split']} samples", "loss", "λ max", "±", "trace", "±", "products", "negative λ"
        )
        for name, of in content["losses"].items():
            top, whole = of["lambda_max"], of["trace"]
            marks = ["" if part["converged"] else " (not converged)" for part in (top, whole)]
            shown.add_row(
                name, f"{top['value']:.5g}{marks[0]}", f"{top['residual']:.1g}",
                f"{whole['value']:.5g}{marks[1]}", f"{whole['stderr']:.1g}" if whole["stderr"] else "exact",
                str(top["products"] + whole["products"]), "met" if bends_down(of) else "not met",
            )  # fmt: skip
        return shown


def curvature_of_run(
    folder: Path,
    *,
    split: str = "val",
    samples: int | None = None,
    batch: int = 500,
    tolerance: float = 1e-3,
    relative: float = 0.01,
    device: str = "auto",
    data_dir: Path | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> RunCurvature:
    """Measures a run for its training loss and for cross-entropy, and writes what ``file_of`` names into its folder."""
    run = load_run(folder)
    model, batches = stored_net(run, split, samples, count(batch, "batch"), device, data_dir)
    measured = measured_losses(run.recipe)
    found: dict[str, Any] = {}
    for i, (name, loss) in enumerate(measured.items()):

        def part(share: float, done: float = i) -> None:
            if progress is not None:
                progress((done + share) / len(measured))

        begun = time.perf_counter()
        top = top_eigenvalues(model, loss, batches, tolerance=tolerance, seed=seed, progress=lambda s: part(s / 2))
        between = time.perf_counter()
        whole = trace(model, loss, batches, relative=relative, seed=seed, progress=lambda s: part((1 + s) / 2))
        lambda_max = {"value": float(top.value[0]), "residual": float(top.residual[0]), "seconds": between - begun}
        found[name] = {
            "lambda_max": lambda_max | {"products": top.products, "converged": top.converged},
            "lowest": top.lowest,
            "trace": asdict(whole) | {"seconds": time.perf_counter() - between},
        }
    used = sum(len(labels) for _, labels in batches)
    content = {
        "split": split, "samples": used, "digest": run.recipe.digest,
        "matrix": "hessian", "seed": seed, "date": datetime.now(UTC).isoformat(timespec="seconds"), "losses": found,
        **where(device),
    }  # fmt: skip
    file = Path(folder) / file_of(split, None if samples is None or used < samples else used)
    write_whole(file, json.dumps(finite(content), indent=1).encode() + b"\n")
    return RunCurvature(run, content, file)


def file_of(split: str, samples: int | None) -> str:
    """The name of a measurement: that of val stands for the run, and no other may take its place.

    >>> file_of("val", None), file_of("test", None), file_of("val", 5)
    ('curvature.json', 'curvature-test.json', 'curvature-val-5.json')
    """
    if split == "val" and samples is None:
        return FILE
    return f"curvature-{split}.json" if samples is None else f"curvature-{split}-{samples}.json"


def bends_down(of: dict[str, Any]) -> bool:
    """Whether negative curvature was met on the way to λ max. Where it was not, there may be some all the same."""
    return of["lowest"] < -ROUNDING * of["lambda_max"]["value"]


def measured_losses(recipe: Recipe) -> dict[str, nn.Module]:
    """The training loss as it was in the last epoch, and cross-entropy; each the mean over the samples.

    A penalty on the model itself (hessian-trace, ggn-trace) is no part of the loss that is measured.
    """
    spec = "+".join(part for part in recipe.loss.split("+") if "-trace:" not in part)
    found: dict[str, nn.Module] = {}
    if "adafocal" not in spec:  # its gammas are not kept with a run
        loss: Any = losses.parse(spec)
        if hasattr(loss, "set_progress"):
            loss.set_progress((recipe.epochs - 1) / recipe.epochs)
        found[spec] = loss
    return found | {CE: losses.CrossEntropy()}


def stored_net(
    run: Run, split: str, samples: int | None, batch: int, device: str, data_dir: Path | None
) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """The net of a run with its stored weights, and batches of a part of its data as it saw them."""
    if split not in ("train", "val", "test"):
        raise InputError(f"split: expected train, val or test, got {split!r}")
    weights = run.folder / "weights.safetensors"
    if not weights.is_file():
        raise InputError(f"{weights}: no such file; the run was kept without its weights, and has to be trained again")
    recipe, place = run.recipe, chosen_device(device)
    data = sources.load(recipe.data, data_dir, split=recipe.split, seed=recipe.split_seed)
    if data.checksum != run.info["data_checksum"]:
        raise InputError(f"{run.folder}: {recipe.data} has changed since (another checksum)")
    model = models.build(recipe.model, data.classes, data.input_shape, data.words)
    model.load_state_dict(safetensors.torch.load_file(weights))
    part, usual = getattr(data, split), normalisers(recipe, data, place)
    normaliser = usual[1] if split == "test" else usual[0]
    some = slice(None if samples is None else count(samples, "samples"))
    inputs = on_device(part.inputs[some], place)
    labels = part.labels[some].to(place)
    blocks = zip(inputs.split(batch), labels.split(batch), strict=True)
    return model.to(place), [(normaliser(block).contiguous(), own) for block, own in blocks]
