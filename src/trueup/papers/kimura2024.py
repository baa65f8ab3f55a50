"""Kimura & Naganuma, "Geometric Insights into Focal Loss: Reducing Curvature for Enhanced Model Calibration" (2024).

Focal loss is said to calibrate because it lowers the curvature of the loss surface; so should a penalty on the trace of
the Hessian. The paper does not say of which loss its Hessian is: the training loss, or cross-entropy at the same
weights. Both are measured here, on the validation set.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from trueup import data as sources
from trueup import losses, models, tables
from trueup.audit import finite
from trueup.curvature import top_eigenvalues, trace
from trueup.focal import bend_at, entropy_lower_bound, loss_at, slope_at
from trueup.inputs import InputError, count
from trueup.papers.reproduction import FAILS, HOLDS, UNTESTED, Finding, Reproduction, Sheet
from trueup.papers.stored import command_of, load_runs, origin, run_name
from trueup.train import Recipe, Run, load_run, named
from trueup.train.batches import normalisers, on_device
from trueup.train.loop import chosen_device
from trueup.train.run import where, write_whole

TITLE = "does focal loss calibrate by lowering curvature?"
FILE = "curvature.json"
CE = "cross-entropy"
GAMMAS = (0, 1, 2, 3, 4, 5, 7, 10)
FEWER_GAMMAS = (0, 1, 3, 5, 10)
NETS = {"mlp": GAMMAS, "resnet18": GAMMAS, "vgg16-bn": FEWER_GAMMAS, "vit-tiny": FEWER_GAMMAS}
TAUS = (0.0, 0.001, 0.01, 0.03, 0.1)
LEARNING_RATES = (0.01, 0.03, 0.1)


def _focal(gamma: float) -> str:
    return f"focal:{gamma:g}" if gamma else CE


def recipes() -> dict[str, Recipe]:
    """Figures 2 and 3: gamma on CIFAR-10 with four nets; Figure 4: tau and the learning rate, a 2-layer MLP."""
    made = [
        named("mukhoti2020-short", model=net, loss=_focal(gamma), reduction="mean", clip=None)
        for net, gammas in NETS.items()
        for gamma in gammas
    ]
    made += [
        named("mukhoti2020-short", model="mlp", loss=f"{CE}+hessian-trace:{tau:g}" if tau else CE, lr=lr,
              augmentation="none", reduction="mean", clip=None, epochs=30, milestones=(15, 25))
        for tau in TAUS for lr in LEARNING_RATES
    ]  # fmt: skip
    return {run_name(recipe): recipe for recipe in made}


# ---------------------------------------------------------------------- the curvature of a run


@dataclass(frozen=True)
class RunCurvature:
    """lambda_max and the trace at the stored weights of a run, for one or two losses. It prints as a table."""

    run: Run
    content: dict[str, Any]
    """What curvature.json holds."""

    def __rich__(self) -> Any:
        recipe, content = self.run.recipe, self.content
        title = f"{recipe.data}, {recipe.model}, {recipe.loss}, seed {recipe.seed}: Hessian on {content['samples']} "
        shown = tables.table(
            title + f"{content['split']} samples", "loss", "λ max", "±", "lowest λ", "trace", "±", "products"
        )
        for name, of in content["losses"].items():
            top, whole = of["lambda_max"], of["trace"]
            marks = ["" if part["converged"] else " (not converged)" for part in (top, whole)]
            shown.add_row(
                name, f"{top['value']:.5g}{marks[0]}", f"{top['residual']:.1g}", f"{of['lowest']:.3g}",
                f"{whole['value']:.5g}{marks[1]}", f"{whole['stderr']:.1g}", str(top["products"] + whole["products"]),
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
    """Measures a run and writes curvature.json into its folder: for its training loss, and for cross-entropy.

    A penalty on the model itself (hessian-trace) is not part of the loss that is measured.
    """
    run = load_run(folder)
    model, batches = stored_net(run, split, samples, count(batch, "batch"), device, data_dir)
    measured = measured_losses(run.recipe)
    found: dict[str, Any] = {}
    for i, (name, loss) in enumerate(measured.items()):

        def part(share: float, done: float = i) -> None:
            if progress is not None:
                progress((done + share) / len(measured))

        top = top_eigenvalues(model, loss, batches, tolerance=tolerance, seed=seed, progress=lambda s: part(0.3 * s))
        whole = trace(model, loss, batches, relative=relative, seed=seed, progress=lambda s: part(0.3 + 0.7 * s))
        shown = {"value": float(top.value[0]), "residual": float(top.residual[0])}
        found[name] = {
            "lambda_max": shown | {"products": top.products, "converged": top.converged},
            "lowest": top.lowest,
            "trace": {
                "value": whole.value, "stderr": whole.stderr, "products": whole.products, "converged": whole.converged
            },
        }  # fmt: skip
    content = {
        "split": split, "samples": sum(len(labels) for _, labels in batches), "digest": run.recipe.digest,
        "matrix": "hessian", "seed": seed, "losses": found, **where(device),
    }  # fmt: skip
    write_whole(Path(folder) / FILE, json.dumps(finite(content), indent=1).encode() + b"\n")
    return RunCurvature(run, content)


def measured_losses(recipe: Recipe) -> dict[str, nn.Module]:
    """The training loss as it was in the last epoch, and cross-entropy; each the mean over the samples."""
    found: dict[str, nn.Module] = {}
    if "adafocal" not in recipe.loss:  # its gammas are not kept with a run
        loss: Any = losses.parse(recipe.loss)
        if hasattr(loss, "set_progress"):
            loss.set_progress((recipe.epochs - 1) / recipe.epochs)
        found[recipe.loss] = loss
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
    model = models.build(recipe.model, data.classes, data.input_shape)
    model.load_state_dict(safetensors.torch.load_file(weights))
    part, usual = getattr(data, split), normalisers(recipe, data, place)
    normaliser = usual[1] if split == "test" else usual[0]
    some = slice(None if samples is None else count(samples, "samples"))
    inputs = on_device(part.inputs[some], place)
    labels = part.labels[some].to(place)
    blocks = zip(inputs.split(batch), labels.split(batch), strict=True)
    return model.to(place), [(normaliser(block).contiguous(), own) for block, own in blocks]


# ---------------------------------------------------------------------- the paper


def reproduce(results: Path, *, resamples: int = 300, progress: Callable[[float], None] | None = None) -> Reproduction:
    """The stored runs with their curvature, and a verdict on each claim."""
    runs = load_runs(results / "kimura2024") if (results / "kimura2024").is_dir() else {}
    wanted = recipes()
    points = [_point(name, run) for name, run in runs.items() if name in wanted and (run.folder / FILE).is_file()]
    missing = tuple(name for name in wanted if name not in {point["name"] for point in points})
    findings = (*analysis(), *by_gamma(points), *by_tau(points))
    commands = tuple((f"`{n}`, {origin(run)}", command_of(run.recipe)) for n, run in runs.items() if n in wanted)
    if progress:
        progress(1.0)
    return Reproduction("kimura2024", TITLE, (figure_1(), _sheet(points)), findings, missing, tuple(points), commands)


def _point(name: str, run: Run) -> dict[str, Any]:
    found = json.loads((run.folder / FILE).read_text())["losses"]
    last = run.history[-1]["test"]
    return {
        "name": name, "recipe": run.recipe.to_dict(), "error": last["error"], "ece": last["ece"],
        "own": found.get(run.recipe.loss), "cross-entropy": found[CE],
    }  # fmt: skip


def _sheet(points: list[dict[str, Any]]) -> Sheet:
    rows = []
    for point in points:
        own, plain = point["own"] or point[CE], point[CE]
        rows.append((
            point["recipe"]["model"], point["recipe"]["loss"], f"{point['recipe']['lr']:g}",
            f"{100 * point['error']:.2f}", f"{100 * point['ece']:.2f}",
            *(f"{of['lambda_max']['value']:.4g}" for of in (own, plain)),
            *(f"{of['trace']['value']:.4g} ± {of['trace']['stderr']:.1g}" for of in (own, plain)),
        ))  # fmt: skip
    columns = ("net", "loss", "lr", "error", "ECE", "λ max, own loss", "of cross-entropy", "trace, own loss", "of CE")
    note = "Error and ECE on test in %; curvature on val." if rows else "No run of the grid is stored."
    return Sheet("Curvature and calibration (Figures 2 to 4)", columns, tuple(rows), note)


def figure_1() -> Sheet:
    """Loss and slope in p for several gamma, with the limits that the caption has wrong."""
    p = torch.tensor([0.1, 0.5, 0.9, 0.99], dtype=torch.float64)
    u = torch.log1p(-p) - p.log()
    rows = []
    for gamma in (0.0, 0.5, 1.0, 2.0, 5.0):
        loss = loss_at(u, gamma)
        slope = -slope_at(u, gamma) / (p * (1 - p))  # du/dp = -1 / (p (1 - p))
        rows.append((f"{gamma:g}", *(f"{a:.4f}, {b:.4f}" for a, b in zip(loss.tolist(), slope.tolist(), strict=True))))
    note = (
        "The caption says that focal loss is cross-entropy at gamma = 1; that is so at gamma = 0. It says that the "
        "gradient does not converge for gamma below 1; it goes to 0 as p goes to 1 for every gamma above 0, as "
        "(1 + gamma)(1 - p)^gamma. The second derivative does not."
    )
    columns = ("gamma", *(f"p = {value:g}: loss, dloss/dp" for value in p.tolist()))
    return Sheet("Loss and gradient (Figure 1)", columns, tuple(rows), note)


def analysis() -> list[Finding]:
    """What can be judged without a network."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(20_000, 10, generator=generator, dtype=torch.float64)
    targets = torch.randn(20_000, 10, generator=generator, dtype=torch.float64).softmax(1)
    log_p = logits.log_softmax(1)
    slacks = [
        float((-(targets * (1 - log_p.exp()) ** g * log_p).sum(1) - entropy_lower_bound(logits, targets, g)).min())
        for g in (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
    ]
    lemma = Finding(
        "Focal loss is at least cross-entropy less gamma times the entropy, for gamma of at least 0.", "Lemma 1",
        HOLDS if min(slacks) >= -1e-12 else FAILS, "20 000 random predictions and targets, 10 classes, gamma 0.1 to 10",
        f"least slack {min(slacks):.1e}; Bernoulli's inequality, which the proof uses, needs gamma of at least 1",
    )  # fmt: skip
    return [lemma, _sharpness(), _entropy_constraint(), Finding(
        "Low curvature means a small PAC-Bayes bound, hence better calibration.", "PAC-Bayes remark", UNTESTED, "",
        "the bound is on the risk, with constants that are not given; it says nothing of calibration",
    )]  # fmt: skip


def _sharpness() -> Finding:
    """Theorem 2 for one sample and two classes: curvature in the margin, focal loss against cross-entropy."""
    u = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    p, plain = torch.sigmoid(-u), bend_at(u, 0.0)
    told = []
    for gamma in (0.5, 1.0, 3.0, 5.0):
        own = bend_at(u, gamma)
        above, below = p[own > plain], p[own < 0]
        told.append(
            f"gamma {gamma:g}: larger for p in ({above.min():.3f}, {above.max():.3f}), negative below {below.max():.3f}"
        )
    return Finding(
        "The largest eigenvalue of the Hessian falls as gamma grows.", "Theorem 2",
        FAILS, "the curvature of one sample's loss in its margin, two classes",
        "; ".join(told) + ". It is smaller where the fit is good, and larger where samples are unsure",
    )  # fmt: skip


def _entropy_constraint() -> Finding:
    """Theorem 1: the minimisers of cross-entropy less gamma times the entropy, and of focal loss, are not the same."""
    from trueup.focal import risk_minimiser

    posterior = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    gaps = []
    for gamma in (0.5, 1.0, 3.0):
        free = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        solver = torch.optim.LBFGS([free], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

        def close(gamma: float = gamma, free: Tensor = free, solver: Any = solver) -> Tensor:
            solver.zero_grad()
            value = entropy_lower_bound(free.unsqueeze(0), posterior.unsqueeze(0), gamma).sum()
            value.backward()
            return value

        solver.step(close)  # pyright: ignore[reportArgumentType]
        gaps.append(float((free.detach().softmax(0) - risk_minimiser(posterior, gamma)).abs().max()))
    return Finding(
        "Minimising focal loss is minimising cross-entropy under an entropy constraint.", "Theorem 1, corollaries",
        HOLDS if max(gaps) < 1e-3 else FAILS,
        "the minimisers of focal loss and of CE - gamma H for the posterior (.6, .3, .1), gamma 0.5, 1, 3",
        "they differ by up to " + ", ".join(f"{gap:.3f}" for gap in gaps) + ": the constraint bounds focal loss from "
        "below, and shares its trend, not its minimiser",
    )  # fmt: skip


def by_gamma(points: list[dict[str, Any]]) -> list[Finding]:
    """Figures 2 and 3, for the Hessian of the training loss and of cross-entropy."""
    made = []
    nets: dict[str, dict[float, dict[str, Any]]] = {}
    for point in points:
        loss = point["recipe"]["loss"]
        if (
            point["recipe"]["lr"] == 0.1
            and (loss == CE or loss.startswith("focal:"))
            and point["recipe"]["epochs"] > 30
        ):
            gamma = 0.0 if loss == CE else float(loss.partition(":")[2])
            nets.setdefault(point["recipe"]["model"], {})[gamma] = point
    for title, key in (("of the training loss", "own"), ("of cross-entropy at the same weights", CE)):
        told, right = [], True
        for net, of in nets.items():
            values = [(of[gamma][key] or of[gamma][CE])["lambda_max"]["value"] for gamma in sorted(of)]
            falls = all(a > b for a, b in pairwise(values))
            right &= falls
            told.append(f"{net}: " + ", ".join(f"{value:.3g}" for value in values))
        enough = any(len(of) > 2 for of in nets.values())
        made.append(Finding(
            f"λ max of the Hessian {title} on val falls monotonically with gamma.", "Figure 2",
            (HOLDS if right else FAILS) if enough else UNTESTED, ", ".join(nets), "; ".join(told) or "no run is stored",
        ))  # fmt: skip
    return made


def by_tau(points: list[dict[str, Any]]) -> list[Finding]:
    """Figure 4: more tau, less trace and less ECE, at each learning rate."""
    rates: dict[float, dict[float, dict[str, Any]]] = {}
    for point in points:
        loss, lr = point["recipe"]["loss"], point["recipe"]["lr"]
        if point["recipe"]["model"] == "mlp" and point["recipe"]["epochs"] == 30:
            tau = float(loss.partition("hessian-trace:")[2] or 0)
            rates.setdefault(lr, {})[tau] = point
    ready = {lr: of for lr, of in sorted(rates.items()) if len(of) > 1}
    made = []
    for what, value in (("trace", lambda p: p[CE]["trace"]["value"]), ("ECE", lambda p: p["ece"])):
        first_last = {lr: (value(of[min(of)]), value(of[max(of)])) for lr, of in ready.items()}
        verdict = HOLDS if all(a > b for a, b in first_last.values()) else FAILS
        evidence = "; ".join(f"lr {lr:g}: {a:.4g} to {b:.4g}" for lr, (a, b) in first_last.items())
        made.append(Finding(
            f"A larger tau gives a smaller {what}.", "Figure 4", verdict if ready else UNTESTED,
            "the least tau against the largest" if ready else "", evidence or "no run is stored",
        ))  # fmt: skip
    return made


def draw(results: Path, folder: Path) -> list[Path]:
    """Figures 1, and 2 to 4 where runs are stored."""
    import numpy as np

    from trueup.papers.figures import Panel, save_panels

    u = torch.linspace(6, -6, 400, dtype=torch.float64)
    p = torch.sigmoid(-u)
    lines = {g: (loss_at(u, g), -slope_at(u, g) / (p * (1 - p))) for g in (0.0, 0.5, 1.0, 2.0, 5.0)}
    panels = [
        Panel(title, "p", title, {f"γ = {g:g}": (p.numpy(), both[i].numpy()) for g, both in lines.items()})
        for i, title in enumerate(("loss", "gradient"))
    ]
    drawn = [save_panels(panels, folder / "kimura2024_figure1.svg")]
    points = [row for row in reproduce(results).rows if row["own"]]
    if points:
        by_net: dict[str, list[tuple[float, float]]] = {}
        for point in points:
            by_net.setdefault(point["recipe"]["model"], []).append((point[CE]["trace"]["value"], point["ece"]))
        found = {net: tuple(np.array(sorted(pairs)).T) for net, pairs in by_net.items()}
        panel = Panel("ECE against trace", "Tr(H) of cross-entropy on val", "ECE on test", found)  # pyright: ignore[reportArgumentType]
        drawn.append(save_panels([panel], folder / "kimura2024_figure3.svg"))
    return drawn
